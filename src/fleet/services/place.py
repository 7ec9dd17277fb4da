"""Placing: decide on a snapshot, then walk the ranked nodes until one admits. The contention protocol lives here.

A decision binds nothing; the guard does. So a walk goes on after a refusal, skips rows that are locked, and answers
"out of capacity" only when that is proven: every candidate refused on capacity, no lock skipped, in time, on a fresh
snapshot. A rule that others broke meanwhile is contention too: the next attempt sees them. Numbers and rules:
decisions, section 3, "Contention" and "Demand".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from sqlalchemy import Connection

from fleet.ledger import admission, decisions
from fleet.ledger.ask import Ask
from fleet.ledger.database import Batch, Database
from fleet.model import capacity
from fleet.model.admission import AdmissionOutcome, Admitted, AlreadyPlaced, Busy, Refused, RuleBroken, Stage
from fleet.model.cluster_config import ClusterConfig
from fleet.model.decision import Decision
from fleet.model.request import PlacementRequest
from fleet.model.resources import Amounts
from fleet.placement.pipeline import decide
from fleet.placement.record import encode_decision
from fleet.placement.rules.enforced import Enforced
from fleet.services import guarded, waiver
from fleet.services.context import Context
from fleet.services.remedies import Remedies, of_guard, of_refusal
from fleet.services.snapshots import View

ATTEMPTS_MAX = 3
DEADLINE_SECONDS = 0.4
BACKOFF_SECONDS = 0.02
LOCK_PROBES_MAX = 16
CAPACITY_REFUSALS_MAX = 32
WALK_STORED_MAX = 50


class Admit(Protocol):
    """One try of one node: a create, growth where the instance is, or the begin of a move."""

    def __call__(
        self,
        db: Database,
        ask: Ask,
        *,
        key: admission.Writes,
        new_rows: admission.NewRows,
        rows: admission.Writes,
    ) -> AdmissionOutcome:
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


@dataclass(slots=True)
class _Walk:
    """What happened so far, over all attempts."""

    started: float
    tries: list[dict[str, Any]] = field(default_factory=list)
    capacity_refusals: dict[int, Refused] = field(default_factory=dict)
    demand_only: dict[int, str] = field(default_factory=dict)
    skipped: list[int] = field(default_factory=list)
    busy: dict[int, str] = field(default_factory=dict)
    broken: dict[int, RuleBroken] = field(default_factory=dict)
    ineligible: int = 0
    probes: int = 0
    refused_now: int = 0
    ended_by: Refused | None = None


def place(ctx: Context, placing: Placing) -> Placed | Refusal:
    """Decide and admit.

    Raises:
        InvalidRequest: the request breaks a rule that needs the fleet's configuration (an unknown strategy).
        DatabaseUnavailable: the ledger could not be reached: nothing is known, nothing was placed.
    """
    return _Attempts(ctx, placing).run()


class _Attempts:
    """At most `ATTEMPTS_MAX` walks, each on a fresh snapshot, within `DEADLINE_SECONDS`."""

    def __init__(self, ctx: Context, placing: Placing) -> None:
        self._ctx = ctx
        self._placing = placing
        self._config: ClusterConfig = ctx.configuration()
        self._amounts = placing.charged or placing.request.amounts(self._config.instance_overhead_mb)
        self._demand = capacity.demand_at_admission(placing.request.cpus, self._config.scheduler_demand_per_vcpu)
        self._walk = _Walk(ctx.elapsed())
        self._deadline = float("inf")

    def run(self) -> Placed | Refusal:
        """Walk until placed, proven full, or out of time."""
        view, decision = self._decide(None)
        self._ctx.fault("place_after_decide")
        if not self._ctx.database.is_sqlite:
            # The walk is what is bounded: a first snapshot may take longer, and proves nothing about locks. SQLite has
            # no busy rows: the file's write lock is waited for, outside the 0.4 s.
            self._deadline = self._ctx.elapsed() + DEADLINE_SECONDS
        for attempt in range(ATTEMPTS_MAX):
            if decision.outcome == "refused":
                return self._refuse_by_decision(view, decision)
            last = attempt == ATTEMPTS_MAX - 1
            placed = self._one_walk(view, decision, last=last)
            if placed is not None:
                return placed
            if self._walk.ended_by is not None:
                return self._refuse_by_guard(view, decision)
            if self._proven(attempt) or last or self._out_of_time():
                break
            self._ctx.sleep(self._ctx.uniform(0, BACKOFF_SECONDS * 2**attempt))
            view, decision = self._decide(self._ctx.elapsed())
        waived = self._last_waived_try(view, decision)
        return waived if waived is not None else self._give_up(view, decision)

    def _give_up(self, view: View, decision: Decision) -> Refusal:
        """Say why nobody admitted.

        One more look tells a fleet that is full by now, or rules that nobody satisfies, from nodes that are only
        locked; and a decision that refuses says what would help.
        """
        if not self._placing.only_here:
            view, decision = self._decide(self._ctx.elapsed())
            if decision.outcome == "refused":
                return self._refuse_by_decision(view, decision)
        return self._refuse_by_guard(view, decision)

    def _decide(self, fresh_since: float | None) -> tuple[View, Decision]:
        """Decide on a cheap view; a refusal is believed only on a snapshot that was read after the request came."""
        view, decision = self._decide_on(fresh_since)
        if decision.outcome == "refused" and fresh_since is None:
            view, decision = self._decide_on(self._walk.started)
        return view, decision

    def _decide_on(self, fresh_since: float | None) -> tuple[View, Decision]:
        request, fleet = self._placing.request, self._snapshot(fresh_since)
        view = self._ctx.neighbours.around(fleet, request, fresh_since=fresh_since)
        return view, decide(request, view.snapshot, self._ctx.seed())

    def _snapshot(self, fresh_since: float | None) -> View:
        return self._ctx.snapshots.view(fresh_since=fresh_since, gpus=self._placing.request.gpus > 0)

    def _one_walk(self, view: View, decision: Decision, *, last: bool) -> Placed | None:
        walk = self._walk
        walk.probes = walk.refused_now = 0
        walk.capacity_refusals, walk.busy, walk.broken, walk.demand_only, walk.ineligible = {}, {}, {}, {}, 0
        ranked, over = decision.ranked_indices, decision.over_demand
        if self._placing.source is not None:
            elsewhere = ranked != view.snapshot.index_of_id(self._placing.source)
            ranked, over = ranked[elsewhere], over[elsewhere]
        walk.skipped = [int(index) for index in ranked[over][:1]]
        if walk.skipped:
            first = view.snapshot.name(walk.skipped[0])
            note = {"outcome": "skipped", "reason": "over_demand_target", "nodes": int(over.sum()), "first": first}
            walk.tries.append(note)
        placed = self._try_all(view, decision, ranked[~over], waived=False, last=last)
        if placed is not None or walk.ended_by is not None or (last and self._out_of_time()):
            return placed
        second = np.concatenate([ranked[over], np.array(list(walk.demand_only), dtype=ranked.dtype)])
        if len(second) and not self._limits_reached(last=last):
            walk.demand_only = {}
            walk.skipped = []
            placed = self._try_all(view, decision, second, waived=True, last=last)
            if placed is not None or walk.ended_by is not None:
                return placed
        return self._final_wait(view, decision) if last and walk.busy else None

    def _try_all(
        self, view: View, decision: Decision, order: NDArray[np.intp], *, waived: bool, last: bool
    ) -> Placed | None:
        """Try nodes in order; after the first busy one (or one with a rule broken) the rest comes in random order."""
        at, shuffled = 0, False
        while at < len(order) and not self._limits_reached(last=last):
            index = int(order[at])
            at += 1
            outcome = self._try(view, decision, index, waived=waived)
            if isinstance(outcome, Admitted | AlreadyPlaced):
                return self._placed(view, outcome, waived=waived)
            if isinstance(outcome, Busy | RuleBroken):
                self._note_contention(view, index, outcome)
                if not shuffled:
                    order = np.concatenate([order[:at], self._shuffled(order[at:])])
                    shuffled = True
            else:
                self._note_refusal(view, index, outcome)
                if self._walk.ended_by is not None:
                    return None
        return None

    def _shuffled(self, rest: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return the rest in random order; only as many as can be tried are drawn."""
        drawn = list(rest)
        for place_ in range(min(len(drawn), LOCK_PROBES_MAX + CAPACITY_REFUSALS_MAX)):
            other = min(len(drawn) - 1, int(self._ctx.uniform(place_, len(drawn))))
            drawn[place_], drawn[other] = drawn[other], drawn[place_]
        return np.array(drawn, dtype=rest.dtype)

    def _note_contention(self, view: View, index: int, outcome: Busy | RuleBroken) -> None:
        self._walk.probes += 1
        if isinstance(outcome, RuleBroken):
            self._walk.broken[index] = outcome
        else:
            self._walk.busy[index] = view.snapshot.name(index)

    def _note_refusal(self, view: View, index: int, refused: Refused) -> None:
        walk = self._walk
        if refused.failing_stage in {Stage.CLAIM, Stage.CLUSTER}:
            # The same for every node: no further try can help.
            walk.ended_by = refused
        elif refused.ineligible and self._placing.only_here:
            walk.ended_by = refused
        elif refused.ineligible:
            walk.ineligible += 1
        elif refused.demand_only:
            # No refusal on capacity: walk 2 tries it again, so it must not end walk 1.
            walk.demand_only[index] = view.snapshot.name(index)
        else:
            walk.capacity_refusals[index] = refused
            walk.refused_now += 1

    def _limits_reached(self, *, last: bool) -> bool:
        if self._walk.probes >= LOCK_PROBES_MAX or self._out_of_time():
            return True
        return not last and self._walk.refused_now >= CAPACITY_REFUSALS_MAX

    def _final_wait(self, view: View, decision: Decision) -> Placed | None:
        """Wait for one busy node, picked at random, at the end of the last attempt."""
        busy = sorted(self._walk.busy)
        index = busy[int(self._ctx.uniform(0, len(busy))) % len(busy)]
        outcome = self._try(view, decision, index, waived=False, wait=True)
        if isinstance(outcome, Admitted | AlreadyPlaced):
            return self._placed(view, outcome, waived=False)
        if not isinstance(outcome, Busy):
            self._walk.busy.pop(index)
            self._note(view, index, outcome)
        return None

    def _note(self, view: View, index: int, outcome: Refused | Busy | RuleBroken) -> None:
        if isinstance(outcome, Refused):
            self._note_refusal(view, index, outcome)
        else:
            self._note_contention(view, index, outcome)

    def _last_waived_try(self, view: View, decision: Decision) -> Placed | None:
        """Demand alone never fails a create: when time is up and a node was left out for it alone, try once waived."""
        for index in [*self._walk.demand_only, *self._walk.skipped][:1]:
            outcome = self._try(view, decision, index, waived=True, wait=True)
            if isinstance(outcome, Admitted | AlreadyPlaced):
                return self._placed(view, outcome, waived=True)
            self._note(view, index, outcome)
        return None

    def _try(self, view: View, decision: Decision, index: int, *, waived: bool, wait: bool = False) -> AdmissionOutcome:
        placing, key, rows = self._placing, self._placing.key, self._placing.rows
        node_id, name = view.snapshot.node_id(index), view.snapshot.name(index)
        row = self._row(
            view, decision, outcome="placed", code="", node_id=node_id, summary=decision.summary, waived=waived
        )
        ask = Ask(
            instance_uuid=placing.instance_uuid,
            namespace=placing.namespace,
            node_id=node_id,
            amounts=self._amounts,
            demand=self._demand,
            target_load=Decimal(0) if waived else self._config.scheduler_target_load,
            sample_age_max_seconds=self._config.node_metrics_max_age_seconds,
            claim_hard=self._config.claim_enforcement == "hard",
            admit_unsized=self._config.admit_unsized_nodes,
            wait=wait,
            source=placing.source,
            gpus=placing.request.gpu_ask,
            sleepy=placing.request.is_sleepy,
            enforced=Enforced.of(placing.request, decision.overridden),
        )
        outcome = placing.admit(
            self._ctx.database,
            ask,
            key=admission.nothing if key is None else (lambda conn: key(conn, name, row.id)),
            new_rows=lambda batch: placing.new_rows(batch, node_id, name, row),
            rows=admission.nothing if rows is None else (lambda conn: rows(conn, node_id, name, row)),
        )
        self._remember(name, outcome, waived=waived)
        return outcome

    def _remember(self, name: str, outcome: AdmissionOutcome, *, waived: bool) -> None:
        note: dict[str, Any] = {"node": name, "outcome": type(outcome).__name__.lower()}
        if waived:
            note["demand_waived"] = True
        if isinstance(outcome, Refused):
            note |= guarded.note_of(outcome)
        if isinstance(outcome, RuleBroken):
            note["rule"] = outcome.rule
        self._walk.tries.append(note)

    def _placed(self, view: View, outcome: Admitted | AlreadyPlaced, *, waived: bool) -> Placed:
        index = view.snapshot.index_of_id(outcome.node_id)
        name = view.snapshot.name(index) if index >= 0 else ""
        admitted = outcome if isinstance(outcome, Admitted) else None
        return Placed(outcome.node_id, name, self._decision_id, waived, admitted)

    def _out_of_time(self) -> bool:
        return self._ctx.elapsed() >= self._deadline

    def _proven(self, attempt: int) -> bool:
        """Whether the walk on a fresh snapshot proved the fleet full: everyone refused, nobody busy, nobody skipped."""
        walk = self._walk
        contended = walk.busy or walk.broken
        unproven = contended or walk.demand_only or walk.ineligible or walk.refused_now >= CAPACITY_REFUSALS_MAX
        return attempt > 0 and not unproven and not self._out_of_time()

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
        answer = self._guard_said(view)
        self._store_refusal(view, decision, answer.code, answer.detail)
        walk, request = tuple(self._walk.tries), self._placing.request
        return Refusal(
            answer.code,
            answer.detail,
            self._decision_id,
            stage="capacity_guard",
            transient=True,
            counts=decision.counts,
            extra=answer.extra,
            remedies=lambda: of_guard(request, view.snapshot, decision, guarded.last_word(answer.code, request, walk)),
        )

    def _guard_said(self, view: View) -> guarded.Answer:
        walk = self._walk
        if walk.ended_by is not None:
            return guarded.by_one(walk.ended_by, view.snapshot.name(view.snapshot.index_of_id(walk.ended_by.node_id)))
        unproven = bool(walk.busy or walk.broken or walk.ineligible or walk.demand_only) or self._out_of_time()
        if walk.capacity_refusals and not unproven:
            return guarded.by_all(tuple(walk.capacity_refusals.values()))
        return guarded.nobody_in_time(
            tuple(walk.capacity_refusals.values()),
            busy=len(walk.busy),
            broken=len(walk.broken),
            ineligible=walk.ineligible,
            seconds=DEADLINE_SECONDS,
        )

    @property
    def _decision_id(self) -> str:
        if not self._id:
            self._id = self._ctx.new_uuid()
        return self._id

    _id: str = ""

    def _store_refusal(self, view: View, decision: Decision, code: str, summary: str) -> None:
        row = self._row(view, decision, outcome="refused", code=code, node_id=None, summary=summary)
        self._ctx.database.unit(lambda conn: decisions.insert(conn, row))

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
        walk = self._walk.tries[-WALK_STORED_MAX:]
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
