"""Stored decisions: reading them, and deciding again on what they saw."""

from __future__ import annotations

from typing import Any

from fleet.ledger import decisions
from fleet.ledger.database import Database
from fleet.ledger.decisions import DecisionRow
from fleet.model.decision import Decision, Outcome
from fleet.model.errors import FleetError, NotFound
from fleet.model.request import parse_stored_request
from fleet.placement.neighbour_record import read_neighbours
from fleet.placement.pipeline import decide
from fleet.placement.record import STORED_NODES_MAX, decode, decode_decision
from fleet.placement.snapshot import Snapshot
from fleet.services import guarded, remedies
from fleet.services.context import Context

NO_DECISION = "no such decision"


def get(ctx: Context, decision_id: str, namespace: str | None) -> DecisionRow:
    """Return a stored decision; `namespace` None is an operator, who may read all.

    Raises:
        NotFound: no such decision, another namespace's, or one past its retention.
    """
    row = decisions.get(ctx.database, decision_id)
    if row is None or namespace not in {None, row.namespace}:
        raise NotFound(NO_DECISION)
    return row


def record(ctx: Context, row: DecisionRow) -> dict[str, Any]:
    """Return what the decision recorded: counts by stage and reason, the first ranked and dropped, by name.

    A refusal is decided again on what it saw: the figures of the first dropped nodes, and what would have helped. Past
    the retention of the snapshot it saw, nodes are told by their place in it instead, and neither is known.
    """
    stored = decode_decision(row.record)
    try:
        seen = saved_snapshot(ctx.database, row)
    except NotFound:
        return stored.as_dict(None)
    form = stored.as_dict(seen.frame.roster.names)
    if row.outcome != Outcome.REFUSED:
        return form
    return {**form, **(_refused_for(row, seen) if stored.outcome == Outcome.REFUSED else _refused_by_guard(row, seen))}


def _refused_for(row: DecisionRow, seen: Snapshot) -> dict[str, Any]:
    """Return the figures of the first dropped nodes, each at its first failing stage, and the remedies."""
    try:
        request = parse_stored_request(row.request)
        decision = decide(request, seen, row.seed)
        found = remedies.of_refusal(request, seen, decision)
    except FleetError:
        # A later version may not read everything that an earlier one could ask for.
        return {}
    figures: dict[str, Any] = {}
    for stage in decision.stages:
        for at in stage.dropped_indices[: STORED_NODES_MAX - len(figures)]:
            figures[stage.names[at]] = {"stage": stage.name, **stage.reason_of(int(at))}
    return {"figures": figures, "remedies": remedies.forms(found)}


def _refused_by_guard(row: DecisionRow, seen: Snapshot) -> dict[str, Any]:
    """Return the remedies of a refusal whose decision ranked nodes: from what the guards said on the walk."""
    try:
        request = parse_stored_request(row.request)
        answer = guarded.last_word(row.code, request, row.walk)
        found = remedies.of_guard(request, seen, decide(request, seen, row.seed), answer)
    except FleetError:
        # As above.
        return {}
    return {"remedies": remedies.forms(found)}


def saved_snapshot(db: Database, row: DecisionRow) -> Snapshot:
    """Return the snapshot that the decision saw.

    Raises:
        NotFound: its base is past its retention.
    """
    bodies = decisions.base(db, row.base_id) if row.base_id else ()
    if not bodies:
        msg = f"the snapshot of decision {row.id} is not kept any more"
        raise NotFound(msg)
    snapshot = decode(bodies[0], *bodies[1:], row.changes)
    if not row.neighbours:
        return snapshot
    seen = read_neighbours(row.neighbours, snapshot.frame.roster)
    return Snapshot(snapshot.frame.with_instances(seen))


def replay(db: Database, row: DecisionRow) -> Decision:
    """Decide again on the saved inputs: the same answer, bit for bit."""
    return decide(parse_stored_request(row.request), saved_snapshot(db, row), row.seed)


def saved_inputs(db: Database, row: DecisionRow) -> dict[str, Any]:
    """Return what `fleet decide` needs to give the same answer: the snapshot's document, the request and the seed.

    Raises:
        NotFound: its base is past its retention.
    """
    return {"snapshot": saved_snapshot(db, row).to_json(), "request": row.request, "seed": row.seed}
