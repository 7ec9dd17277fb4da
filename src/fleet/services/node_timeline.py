"""What decisions did with one node, for the node's timeline: told from the stored decisions, never a row a node.

Each decision that judged the node tells the stage that dropped it, with its figures, or its place in the order; what
the guard said to it in the walk that followed; and whether it was chosen (docs/adr/0017). An event's position is its
decision's time and id, and its part. A page looks at a bounded number of decisions, whatever it finds, and says where
the next one begins.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from fleet.ledger import cluster
from fleet.ledger import decisions as stored_decisions
from fleet.ledger.database import Database
from fleet.ledger.decisions import DecisionRow
from fleet.ledger.events import EVERYTHING, Filter, Window
from fleet.model.decision import Decision
from fleet.model.errors import FleetError
from fleet.model.request import parse_stored_request
from fleet.placement.audit import AuditEvent, events_at, recorded_at
from fleet.placement.neighbour_record import read_neighbours
from fleet.placement.pipeline import decide
from fleet.placement.record import DecodedBase, decode_base, decode_decision
from fleet.placement.snapshot import Snapshot
from fleet.services import waiver
from fleet.services.context import Context
from fleet.services.timeline import NOT_KEPT, decides_otherwise, is_same
from fleet.services.walk_events import walk_events

ADMITTED: Final = "schedule candidate admitted"
DECISIONS_MAX: Final = 100
BASES_MAX: Final = 10
"""Of these a page looks at so many: a base of 10,000 nodes takes a tenth of a second to read."""
_ROWS_AT_ONCE: Final = 25

Position = tuple[int, str, int]
"""A decision's time and id, and the part of it."""


@dataclass(frozen=True, slots=True)
class NodeEvent:
    """One event of one decision. `at_us` is the decision's time, the database's, microseconds UTC."""

    decision_id: str
    part: int
    at_us: int
    event: AuditEvent

    @property
    def position(self) -> str:
        """Where a page ends that this event is the last of."""
        return f"{self.at_us}.{self.decision_id}.{self.part}"


@dataclass(frozen=True, slots=True)
class NodePage:
    """Some of what decisions did with a node, and where the next page begins; None: there is no more."""

    events: tuple[NodeEvent, ...]
    next_position: str | None


def of_node(
    ctx: Context,
    node: str,
    *,
    limit: int,
    newest_first: bool,
    after: Position | None = None,
    wanted: Filter = EVERYTHING,
) -> NodePage:
    """Return up to `limit` events of decisions that judged the node and are meant, behind the position `after`.

    It looks at `DECISIONS_MAX` decisions, on `BASES_MAX` bases, at most; what is left is the next page's.
    """
    window = wanted.within(cluster.now_us(ctx.database)) if wanted.has_window else Window()
    seen = _Seen(ctx.database)
    found: list[NodeEvent] = []
    looked_at = 0
    end: str | None = None
    for row in _rows(ctx.database, window, newest_first=newest_first, after=after):
        own = after is not None and row.id == after[1]
        if not own and (looked_at == DECISIONS_MAX or seen.would_read_more_than(BASES_MAX, row)):
            return NodePage(tuple(found), end)
        told = _told(seen, row, node)
        for event in reversed(told) if newest_first else told:
            if own and _is_past(event.part, after, newest_first=newest_first):
                continue
            if not wanted.admits(event.event.level, event.event.message):
                continue
            if len(found) == limit:
                return NodePage(tuple(found), found[-1].position)
            found.append(event)
        if own:
            # Every page reads it again: it uses up nothing, so that each page gets on.
            seen.read = 0
        else:
            looked_at += 1
        # Where the next page goes on when this one ends here: behind all of this decision.
        end = f"{row.created_at}.{row.id}.{1 if newest_first else len(told) + 1}"
    return NodePage(tuple(found), None)


def _is_past(part: int, after: Position | None, *, newest_first: bool) -> bool:
    """Return whether a part of the position's own decision was told by the page before."""
    assert after is not None, "only a position has parts on both sides of it"
    return part >= after[2] if newest_first else part <= after[2]


def _rows(db: Database, window: Window, *, newest_first: bool, after: Position | None) -> Iterator[DecisionRow]:
    """Yield decisions in order. That of the position is read again: it may have parts on the page's other side."""
    cursor = None if after is None else after[:2]
    known = ""
    while True:
        rows = stored_decisions.in_order(
            db,
            limit=_ROWS_AT_ONCE,
            newest_first=newest_first,
            at_least_us=window.since_us,
            at_most_us=window.until_us,
            cursor=cursor,
        )
        yield from (row for row in rows if row.id != known)
        if len(rows) < _ROWS_AT_ONCE:
            return
        known = rows[-1].id
        cursor = rows[-1].created_at, known


class _Seen:
    """What decisions saw. Neighbouring decisions share a base, so the last ones that were read are kept."""

    def __init__(self, db: Database) -> None:
        self._db = db
        self._base_id: str | None = None
        self._bodies: tuple[bytes, ...] = ()
        self._whole: DecodedBase | None = None
        self.read = 0

    def would_read_more_than(self, bases: int, row: DecisionRow) -> bool:
        """Return whether another base would have to be read for a decision, and so many were."""
        return self.read >= bases and row.base_id != self._base_id

    def by(self, row: DecisionRow) -> Snapshot | None:
        """Return what a decision saw; None: its base is past its retention."""
        if row.base_id != self._base_id:
            bodies = stored_decisions.base(self._db, row.base_id) if row.base_id else ()
            if self._bodies[:1] != bodies[:1] or self._whole is None:
                self._whole = decode_base(bodies[0]) if bodies else None
                self.read += 1
            self._base_id, self._bodies = row.base_id, bodies
        if self._whole is None:
            return None
        snapshot = self._whole.with_changes(*self._bodies[1:], row.changes)
        if not row.neighbours:
            return snapshot
        return Snapshot(snapshot.frame.with_instances(read_neighbours(row.neighbours, snapshot.frame.roster)))


def _told(seen: _Seen, row: DecisionRow, node: str) -> list[NodeEvent]:
    """Return the events of one decision that are about the node, in the order in which things happened."""
    about = {
        "decision": row.id,
        "instance": row.instance_uuid,
        "namespace": row.namespace,
        "reason": row.reason,
        "outcome": row.outcome,
        **({"code": row.code} if row.code else {}),
    }
    found = [*_judged(seen, row, node), *_walked(row, node)]
    return [
        NodeEvent(row.id, part, row.created_at, AuditEvent(event.message, {**about, **event.payload}, event.level))
        for part, event in enumerate(found, start=1)
    ]


def _judged(seen: _Seen, row: DecisionRow, node: str) -> tuple[AuditEvent, ...]:
    stored = decode_decision(row.record)
    snapshot = seen.by(row)
    if snapshot is None:
        # Whether the node was there to be judged stood in the snapshot.
        return (AuditEvent(NOT_KEPT),)
    at = snapshot.frame.roster.index.get(node)
    if at is None:
        return ()
    try:
        decision: Decision = decide(parse_stored_request(row.request), snapshot, row.seed)
    except (FleetError, ValueError, KeyError) as problem:
        return recorded_at(stored, at, node, str(problem))
    if not is_same(decision, stored):
        return recorded_at(stored, at, node, decides_otherwise(row))
    return events_at(decision, node)


def _walked(row: DecisionRow, node: str) -> list[AuditEvent]:
    """Return what the walk that followed did with the node, and whether it holds the charge now."""
    told = [event for event in walk_events(row.walk) if event.payload.get("node") == node]
    if row.outcome == "placed" and row.node == node:
        payload: dict[str, Any] = {"node": node, "enforce_demand": not waiver.is_waived(row.walk)}
        told.append(AuditEvent(ADMITTED, payload))
    return told
