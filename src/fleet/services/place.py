"""Placing: decide on a snapshot, then walk the ranked nodes until one admits.

A decision binds nothing; the guard does. So a walk (`placement/walk.py`) goes on after a refusal, skips rows that are
locked, and answers "out of capacity" only when that is proven: every candidate refused on capacity, no lock skipped, in
time, on a fresh snapshot. A rule that others broke meanwhile is contention too: the next attempt sees them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

from sqlalchemy import Connection

from fleet.ledger import admission, decisions, events
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Batch, Database
from fleet.model import capacity
from fleet.model.admission import AdmissionOutcome, Admitted, AlreadyPlaced, Refused, RuleBroken
from fleet.model.cluster_config import ClusterConfig
from fleet.model.decision import Decision
from fleet.model.errors import DatabaseUnavailable
from fleet.model.request import PlacementRequest
from fleet.model.resources import Amounts
from fleet.placement.audit import NO_COUNTERS
from fleet.placement.pipeline import decide
from fleet.placement.record import encode_decision
from fleet.placement.rules.enforced import Enforced
from fleet.placement.walk import DEADLINE_SECONDS, Look, Try, Walk
from fleet.services import guarded, waiver
from fleet.services.context import Context
from fleet.services.remedies import Remedies, of_guard, of_refusal
from fleet.services.snapshots import View

WALK_STORED_MAX = 50
WRITE_FAILED = "instance placement write failed"
ON_COUNTERS = ("sufficient_idle_cpu", "sufficient_idle_memory", "sufficient_free_disk", "instance_slots", "gpu")


class Admit(Protocol):
    """One try of one node: a create, growth where the instance is, or the begin of a move."""

    def __call__(self, db: Database, ask: NodeAsk, rows: admission.Rows) -> AdmissionOutcome:
        """Admit, with all rows that must stand or fall with the charge."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Placing:
    """One thing to place. What stands or falls with the charge is written given the chosen node and the decision:
    `new_rows` rows of its own, `rows` changes to rows that exist; `key` writes the idempotency key, given the node's
    name and the decision's id.

    `source` is the node that holds the charge now, when the instance is placed again elsewhere: it is never chosen.
    `charged` is what its charge is to hold where that is not the request's: an instance that is placed again keeps the
    overhead it was made with. `admit` is the ledger's verb for one try. `only_here`: one node was decided on without a
    stage, so what makes it ineligible is the answer, and no reason to try again.
    """

    request: PlacementRequest
    instance_uuid: str
    namespace: str
    new_rows: Callable[[Batch, int, str, decisions.DecisionRow], None]
    rows: Callable[[Connection, int, str, decisions.DecisionRow], None] | None = None
    key: Callable[[Connection, str, str], None] | None = None
    source: int | None = None
    charged: Amounts | None = None
    admit: Admit = admission.admit
    only_here: bool = False

    def rows_on(self, node_id: int, node: str, row: decisions.DecisionRow) -> admission.Rows:
        """Return what is written when the node is the chosen one."""
        key, rows = self.key, self.rows
        return admission.Rows(
            key=admission.nothing if key is None else (lambda conn: key(conn, node, row.id)),
            new=lambda batch: self.new_rows(batch, node_id, node, row),
            changed=admission.nothing if rows is None else (lambda conn: rows(conn, node_id, node, row)),
        )


@dataclass(frozen=True, slots=True)
class Placed:
    """The instance holds its charge on `node`."""

    node_id: int
    node: str
    decision_id: str
    waived: bool = False
    admitted: Admitted | None = None


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why nothing was placed: a `code` for programs, one sentence, and how many nodes by stage and reason.

    `remedies` finds what would have helped; None: it is not looked for.
    """

    code: str
    detail: str
    decision_id: str | None = None
    stage: str = ""
    transient: bool = False
    counts: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    extra: Mapping[str, Any] = field(default_factory=dict)
    remedies: Callable[[], Remedies] | None = field(default=None, compare=False, repr=False)


def place(ctx: Context, placing: Placing) -> Placed | Refusal:
    """Decide and admit.

    Raises:
        InvalidRequest: the request breaks a rule that needs the fleet's configuration (an unknown strategy).
        DatabaseUnavailable: the ledger could not be reached: nothing is known, nothing was placed.
    """
    return _Attempts(ctx, placing).run()


class _Attempts:
    """One walk and the snapshots that its attempts are decided on."""

    def __init__(self, ctx: Context, placing: Placing) -> None:
        self._ctx = ctx
        self._placing = placing
        self._config: ClusterConfig = ctx.configuration()
        self._amounts = placing.charged or placing.request.amounts(self._config.instance_overhead_mb)
        self._demand = capacity.demand_at_admission(placing.request.cpus, self._config.scheduler_demand_per_vcpu)
        self._walk = Walk(late=self._late, draw=self._draw, only_here=placing.only_here)
        self._tries: list[dict[str, Any]] = []
        self._started = ctx.elapsed()
        self._deadline = float("inf")

    def run(self) -> Placed | Refusal:
        """Walk until placed, proven full, or out of time."""
        view, decision = self._decide(None)
        self._ctx.fault("place_after_decide")
        if decision.outcome == "refused":
            return self._refuse_by_decision(view, decision)
        if not self._ctx.database.is_sqlite:
            # The walk is what is bounded: a first snapshot may take longer, and proves nothing about locks. SQLite has
            # no busy rows: the file's write lock is waited for, outside the 0.4 s.
            self._deadline = self._ctx.elapsed() + DEADLINE_SECONDS
        self._rank(view, decision)
        for step in self._walk.steps():
            if isinstance(step, Look):
                self._ctx.sleep(self._ctx.uniform(0, step.pause_seconds))
                view, decision = self._decide(self._ctx.elapsed())
                if decision.outcome == "refused":
                    return self._refuse_by_decision(view, decision)
                self._rank(view, decision)
                continue
            outcome = self._try(view, decision, step)
            if isinstance(outcome, Admitted | AlreadyPlaced):
                return self._placed(view, outcome, waived=step.waived)
            self._walk.tried(step.index, outcome)
        return self._give_up(view, decision)

    def _give_up(self, view: View, decision: Decision) -> Refusal:
        """Say why nobody admitted.

        One more look tells a fleet that is full by now, or rules that nobody satisfies, from nodes that are only
        locked; and a decision that refuses says what would help. Of an only node it shows what stands in the way there,
        which no attempt looked at again.
        """
        if self._walk.ended_by is None or self._placing.only_here:
            view, decision = self._decide(self._ctx.elapsed())
            if decision.outcome == "refused":
                return self._refuse_by_decision(view, decision)
        return self._refuse_by_guard(view, decision)

    def _decide(self, fresh_since: float | None) -> tuple[View, Decision]:
        """Decide on a cheap view; a refusal is believed only on a snapshot that was read after the request came."""
        view, decision = self._decide_on(fresh_since)
        if decision.outcome == "refused" and fresh_since is None:
            view, decision = self._decide_on(self._started)
        return view, decision

    def _decide_on(self, fresh_since: float | None) -> tuple[View, Decision]:
        request, began = self._placing.request, self._ctx.elapsed()
        try:
            view = self._ctx.neighbours.around(self._snapshot(fresh_since), request, fresh_since=fresh_since)
        except DatabaseUnavailable as error:
            effect = f"nothing was decided: {error.told}"
            self._tell(NO_COUNTERS, {"degraded_stages": ON_COUNTERS, "effect": effect, "candidates": None})
            raise
        decision = decide(request, view.snapshot, self._ctx.seed())
        self._ctx.decided(self._ctx.elapsed() - began, decision.outcome)
        return view, decision

    def _snapshot(self, fresh_since: float | None) -> View:
        return self._ctx.snapshots.view(fresh_since=fresh_since, gpus=self._placing.request.gpus > 0)

    def _rank(self, view: View, decision: Decision) -> None:
        """Begin an attempt on what was decided; whoever holds the charge now is never tried."""
        ranked, over = decision.ranked_indices, decision.over_demand
        if self._placing.source is not None:
            elsewhere = ranked != view.snapshot.index_of_id(self._placing.source)
            ranked, over = ranked[elsewhere], over[elsewhere]
        left_out = ranked[over]
        if len(left_out):
            first = view.snapshot.name(int(left_out[0]))
            note = {"outcome": "skipped", "reason": "over_demand_target", "nodes": len(left_out), "first": first}
            self._tries.append(note)
        self._walk.rank(ranked[~over], left_out)

    def _late(self) -> bool:
        return self._ctx.elapsed() >= self._deadline

    def _draw(self, count: int, *_event: object) -> Sequence[float]:
        return [self._ctx.uniform(0, 1) for _ in range(count)]

    def _try(self, view: View, decision: Decision, step: Try) -> AdmissionOutcome:
        placing = self._placing
        node_id, name = view.snapshot.node_id(step.index), view.snapshot.name(step.index)
        row = self._row(
            view, decision, outcome="placed", code="", node_id=node_id, summary=decision.summary, waived=step.waived
        )
        ask = NodeAsk(
            instance_uuid=placing.instance_uuid,
            namespace=placing.namespace,
            node_id=node_id,
            amounts=self._amounts,
            demand=self._demand,
            target_load=Decimal(0) if step.waived else self._config.scheduler_target_load,
            sample_age_max_seconds=self._config.node_metrics_max_age_seconds,
            claim_hard=self._config.claim_enforcement == "hard",
            admit_unsized=self._config.admit_unsized_nodes,
            wait=step.wait,
            source=placing.source,
            gpus=placing.request.gpu_ask,
            sleepy=placing.request.is_sleepy,
            enforced=Enforced.of(placing.request, decision.overridden),
        )
        try:
            outcome = placing.admit(self._ctx.database, ask, placing.rows_on(node_id, name, row))
        except DatabaseUnavailable as error:
            self._tell(WRITE_FAILED, {"node": name, "error": error.told})
            raise
        self._remember(name, outcome, waived=step.waived)
        return outcome

    def _tell(self, message: str, payload: Mapping[str, Any]) -> None:
        """Write to the log what no event can be kept of: its database does not answer."""
        events.tell("instance", self._placing.instance_uuid, message, payload, "error")

    def _remember(self, name: str, outcome: AdmissionOutcome, *, waived: bool) -> None:
        note: dict[str, Any] = {"node": name, "outcome": type(outcome).__name__.lower()}
        if waived:
            note["demand_waived"] = True
        if isinstance(outcome, Refused):
            note |= guarded.note_of(outcome)
        if isinstance(outcome, RuleBroken):
            note["rule"] = outcome.rule
        self._tries.append(note)

    def _placed(self, view: View, outcome: Admitted | AlreadyPlaced, *, waived: bool) -> Placed:
        index = view.snapshot.index_of_id(outcome.node_id)
        name = view.snapshot.name(index) if index >= 0 else ""
        admitted = outcome if isinstance(outcome, Admitted) else None
        return Placed(outcome.node_id, name, self._decision_id, waived, admitted)

    def _refuse_by_decision(self, view: View, decision: Decision) -> Refusal:
        code = decision.code or "out_of_capacity"
        self._store_refusal(view, decision, code, decision.summary)
        return Refusal(
            code,
            decision.summary,
            self._decision_id,
            stage=decision.stage or "",
            transient=decision.transient,
            counts=decision.counts,
            remedies=lambda: of_refusal(self._placing.request, view.snapshot, decision),
        )

    def _refuse_by_guard(self, view: View, decision: Decision) -> Refusal:
        fleet, request = view.snapshot, self._placing.request
        answer = guarded.said(self._walk, lambda node_id: fleet.name(fleet.index_of_id(node_id)))
        self._store_refusal(view, decision, answer.code, answer.detail)
        walk = tuple(self._tries)
        return Refusal(
            answer.code,
            answer.detail,
            self._decision_id,
            stage="capacity_guard",
            transient=True,
            counts=decision.counts,
            extra=answer.extra,
            remedies=lambda: of_guard(request, fleet, decision, guarded.last_word(answer.code, request, walk)),
        )

    @property
    def _decision_id(self) -> str:
        if not self._id:
            self._id = self._ctx.new_uuid()
        return self._id

    _id: str = ""

    def _store_refusal(self, view: View, decision: Decision, code: str, summary: str) -> None:
        decisions.keep(
            self._ctx.database,
            self._row(view, decision, outcome="refused", code=code, node_id=None, summary=summary),
        )

    def _row(
        self,
        view: View,
        decision: Decision,
        *,
        outcome: str,
        code: str,
        node_id: int | None,
        summary: str,
        waived: bool = False,
    ) -> decisions.DecisionRow:
        walk = self._tries[-WALK_STORED_MAX:]
        if waived:
            walk = [*walk, dict(waiver.MARK)]
        return decisions.DecisionRow(
            id=self._decision_id,
            instance_uuid=self._placing.instance_uuid,
            namespace=self._placing.namespace,
            reason=str(self._placing.request.reason),
            outcome=outcome,
            code=code,
            node_id=node_id,
            seed=decision.seed,
            base_id=view.base_id,
            changes=view.changes,
            neighbours=view.neighbours,
            record=encode_decision(decision),
            request=self._request_document(),
            walk=walk,
            summary=summary,
            version=self._ctx.version,
        )

    def _request_document(self) -> Mapping[str, Any]:
        if self._document is None:
            self._document = self._placing.request.model_dump(mode="json", exclude_defaults=True)
        return self._document

    _document: Mapping[str, Any] | None = None
