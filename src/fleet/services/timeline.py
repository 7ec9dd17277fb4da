"""The timeline of an instance: the stored events, and before each placing the schedule events of its decision.

Schedule events are rendered when somebody reads them: a stored decision replays bit for bit, so they cost the creates
nothing (docs/adr/0009). An event's position is its row and its part: part 0 is the row itself; 1, 2, … are rendered in
front of it. Positions never change while new rows come, so pages in both orders miss nothing and repeat nothing.
Where a decision cannot be made again, its record speaks, and says so; reading a timeline is never an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from fleet.ledger import cluster, events
from fleet.ledger import decisions as stored_decisions
from fleet.ledger.decisions import DecisionRow
from fleet.ledger.events import EVERYTHING, EventView, Filter, Window
from fleet.model.decision import Decision
from fleet.model.errors import FleetError
from fleet.model.request import parse_stored_request
from fleet.placement.audit import AuditEvent, is_forced, node_after, recorded_events, requested, schedule_events
from fleet.placement.record import STORED_NODES_MAX, StoredDecision, decode_decision
from fleet.services import decisions, placed_event, waiver
from fleet.services.context import Context
from fleet.services.walk_events import ENDINGS, ending, walk_events

NOT_KEPT: Final = "schedule events are not kept any more"
AS_OF: Final = "decision"
_TOLD: Final = frozenset({*placed_event.MESSAGES, waiver.MESSAGE, *ENDINGS})
_ROWS_AT_ONCE: Final = 200
ROWS_MAX: Final = 1000
DECISIONS_MAX: Final = 60
"""Of these a page looks at so many: a decision is made again to be told, some tens of milliseconds in a large fleet."""

_PARTS_MAX: Final = 1_000_000
"""More than any row has: the place of the row itself, behind its parts."""


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """One event with its place in the timeline. `at_us` is the database's time, microseconds UTC."""

    row: int
    part: int
    at_us: int
    event: AuditEvent

    @property
    def position(self) -> str:
        """Where a page ends that this event is the last of."""
        return f"{self.row}.{self.part}"


@dataclass(frozen=True, slots=True)
class Told:
    """A stored decision as its events, and what they came from: `decision` None: it could not be made again."""

    row: DecisionRow
    events: tuple[AuditEvent, ...]
    decision: Decision | None


@dataclass(frozen=True, slots=True)
class TimelinePage:
    """Some of a timeline, and the position behind which the next page begins; None: there is no more."""

    events: tuple[TimelineEvent, ...]
    next_position: str | None


def of_instance(
    ctx: Context,
    instance_uuid: str,
    *,
    limit: int,
    newest_first: bool,
    after: tuple[int, int] | None = None,
    wanted: Filter = EVERYTHING,
) -> TimelinePage:
    """Return a page of up to `limit` events of an instance that are meant, from the position `after` on.

    It looks through `ROWS_MAX` rows, and renders `DECISIONS_MAX` decisions, at most; what is left is the next page's.
    """
    window = wanted.within(cluster.now_us(ctx.database)) if wanted.has_window else Window()
    found: list[TimelineEvent] = []
    told: dict[str, Told | None] = {}
    end, rows, free = "", 0, 0
    for row in _rows(ctx, instance_uuid, limit, newest_first=newest_first, after=after):
        if rows == ROWS_MAX or len(told) - free >= DECISIONS_MAX:
            return TimelinePage(tuple(found), end)
        parts = _parts(ctx, instance_uuid, row, told)
        for part in reversed(parts) if newest_first else parts:
            end = part.position
            if not (_beyond(part, after, newest_first=newest_first) and _is_meant(part, wanted, window)):
                continue
            if len(found) == limit:
                return TimelinePage(tuple(found), found[-1].position)
            found.append(part)
        if after is not None and row.event_id == after[0]:
            # The position's own row is read again by every page: it uses up nothing, so that each page gets on.
            free = len(told)
        else:
            rows += 1
    return TimelinePage(tuple(found), None)


def _is_meant(part: TimelineEvent, wanted: Filter, window: Window) -> bool:
    return wanted.admits(part.event.level, part.event.message) and window.holds(part.at_us)


def _rows(
    ctx: Context, instance_uuid: str, limit: int, *, newest_first: bool, after: tuple[int, int] | None
) -> Iterator[EventView]:
    """Yield rows in order. The row of the position is read again: it may have parts on the page's other side."""
    cursor = None if after is None else after[0] + (1 if newest_first else -1)
    count = min(limit + 1, _ROWS_AT_ONCE)
    while True:
        rows = events.listing(
            ctx.database, "instance", instance_uuid, limit=count, newest_first=newest_first, cursor=cursor
        )
        yield from rows
        if len(rows) < count:
            return
        cursor = rows[-1].event_id


def _beyond(part: TimelineEvent, after: tuple[int, int] | None, *, newest_first: bool) -> bool:
    """Return whether a part lies behind a position; only the position's own row has parts on both sides of it."""
    if after is None or part.row != after[0]:
        return True
    own, last = part.part or _PARTS_MAX, after[1] or _PARTS_MAX
    return own < last if newest_first else own > last


def _parts(ctx: Context, instance_uuid: str, row: EventView, told: dict[str, Told | None]) -> list[TimelineEvent]:
    """Return what is rendered in front of a row, and the row, in the order in which things happened."""
    itself = AuditEvent(row.message, row.payload, row.level)
    decision_id = row.payload.get("decision")
    if row.message not in _TOLD or not isinstance(decision_id, str):
        return [TimelineEvent(row.event_id, 0, row.at_us, itself)]
    if decision_id not in told:
        found = stored_decisions.get(ctx.database, decision_id)
        told[decision_id] = None if found is None else of_decision(ctx, found, left_out=_left_out(row))
    known = told[decision_id]
    if known is None or known.row.instance_uuid != instance_uuid:
        rendered: Sequence[AuditEvent] = (AuditEvent(NOT_KEPT, {"decision": decision_id}),)
        at_us = row.at_us
    else:
        rendered = _before(known, row.message)
        at_us = min(known.row.created_at, row.at_us)
        if row.message in placed_event.MESSAGES:
            itself = AuditEvent(row.message, {**row.payload, **_node_after(known, row)}, row.level)
    parts = [TimelineEvent(row.event_id, part, at_us, event) for part, event in enumerate(rendered, start=1)]
    return [*parts, TimelineEvent(row.event_id, 0, row.at_us, itself)]


def _left_out(row: EventView) -> list[str]:
    previous = row.payload.get("previous_node")
    return [previous] if isinstance(previous, str) else []


def _before(told: Told, message: str) -> Sequence[AuditEvent]:
    """Return the events that the row `message` stands behind: back to the row of the waiver, where there is one."""
    place = _waiver_row(told)
    if message == waiver.MESSAGE:
        return told.events[:place]
    start = 0 if place is None else place + 1
    rest = told.events[start:]
    return rest[:-1] if message in ENDINGS and rest and rest[-1].message == message else rest


def _waiver_row(told: Told) -> int | None:
    """Return where the waiver stands that is a row of its own: the last one, of the try that placed."""
    if not waiver.is_waived(told.row.walk):
        return None
    return max(place for place, event in enumerate(told.events) if event.message == waiver.MESSAGE)


def _node_after(told: Told, row: EventView) -> dict[str, Any]:
    node = row.payload.get("node")
    if told.decision is None or not isinstance(node, str):
        return {}
    figures = node_after(told.decision, node)
    return {**figures, "node_used_as_of": AS_OF} if figures else {}


def of_decision(ctx: Context, row: DecisionRow, left_out: Sequence[str] = ()) -> Told:
    """Return a stored decision as its events: stages, order, the tries that followed, and, when refused, the end."""
    stored = decode_decision(row.record)
    decision, why = _again(ctx, row, stored)
    staged = recorded_events(stored, _asked(row), why) if decision is None else schedule_events(decision, left_out)
    tried = walk_events(row.walk)
    if row.outcome != "refused":
        return Told(row, (*staged, *tried), decision)
    by_decision = stored.outcome == "refused"
    # Tries before a decision that itself refuses are those of earlier attempts, on other decisions.
    ordered = (*tried, *staged) if by_decision else (*staged, *tried)
    stage = stored.stage if by_decision else "capacity_guard"
    transient = stored.transient if by_decision else True
    return Told(row, (*ordered, ending(row.code, row.summary, stage, row.walk, transient=transient)), decision)


def _again(ctx: Context, row: DecisionRow, stored: StoredDecision) -> tuple[Decision | None, str]:
    """Return the decision made again, or None and why it cannot be: gone, unreadable by this version, or another."""
    try:
        decision = decisions.replay(ctx.database, row)
    except (FleetError, ValueError, KeyError) as problem:
        return None, str(problem)
    if is_same(decision, stored):
        return decision, ""
    return None, decides_otherwise(row)


def decides_otherwise(row: DecisionRow) -> str:
    """Return why only the record of a decision is told."""
    return f"this version decides otherwise on what version {row.version} saw; this is what was recorded"


def is_same(decision: Decision, stored: StoredDecision) -> bool:
    """Return whether a decision that was made again answers what was recorded."""
    head = (str(decision.outcome), decision.code, decision.stage, decision.counts)
    return head == (stored.outcome, stored.code, stored.stage, stored.counts) and np.array_equal(
        decision.ranked_indices[:STORED_NODES_MAX], stored.ranked
    )


def _asked(row: DecisionRow) -> dict[str, Any]:
    """Return what is known of the inputs without the snapshot."""
    try:
        request = parse_stored_request(row.request)
    except FleetError:
        return {"request": dict(row.request)}
    return {**requested(request), "forced_candidates": is_forced(request), "metrics_age_seconds": None}
