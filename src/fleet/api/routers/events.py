"""Pages of audit events, shared by every noun that has some; an instance's are its rows with what is rendered."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, Final, Literal

from fastapi import Depends, Query
from starlette.responses import Response

from fleet.api.answers import answer, decision_part, iso, number, place
from fleet.ledger import events
from fleet.ledger.database import Database
from fleet.ledger.events import EVERYTHING, EventView, Filter
from fleet.services import node_timeline, timeline
from fleet.services.context import Context
from fleet.services.node_timeline import NodeEvent
from fleet.services.timeline import TimelineEvent, Told

SECONDS_MAX: Final = 100 * 366 * 86_400
MESSAGE_CHARACTERS_MAX: Final = 255
NewestFirstQuery = Annotated[bool, Query(description="newest first, or false: oldest first")]
SchedulingQuery = Annotated[
    bool, Query(description="instead, what decisions did with the node: the stage that dropped it, or its place")
]
Level = Literal["info", "warning", "error"]


async def event_filter(
    *,
    level: Annotated[Level | None, Query(description="only of this level")] = None,
    message: Annotated[
        str | None,
        Query(min_length=1, max_length=MESSAGE_CHARACTERS_MAX, description="only this message; `…*`: beginning so"),
    ] = None,
    since_seconds: Annotated[
        int | None, Query(ge=0, le=SECONDS_MAX, description="only what is at most so old, by the database's clock")
    ] = None,
    until_seconds: Annotated[
        int | None, Query(ge=0, le=SECONDS_MAX, description="only what is at least so old")
    ] = None,
) -> Filter:
    """Which events a caller wants to see."""
    return Filter(level=level or "", message=message or "", since_seconds=since_seconds, until_seconds=until_seconds)


FilterDep = Annotated[Filter, Depends(event_filter)]


def events_page(
    db: Database,
    object_type: str,
    object_id: str,
    limit: int,
    cursor: str | None,
    *,
    newest_first: bool,
    wanted: Filter = EVERYTHING,
) -> Response:
    """One page of an object's events.

    A page that had to look through many may be short, or empty, and name the next one.
    """
    asked = replace(wanted, object_type=object_type, object_id=object_id)
    found = events.search(db, asked, limit=limit, newest_first=newest_first, cursor=number(cursor))
    return _page([show(event) for event in found.events], found.next_cursor)


def _page(items: list[dict[str, Any]], following: int | str | None) -> Response:
    return answer({"items": items, "next_cursor": None if following is None else str(following)})


def trail_page(db: Database, wanted: Filter, limit: int, cursor: str | None, *, newest_first: bool) -> Response:
    """One page of the whole trail: each event with the object it belongs to, and who did it, where somebody did."""
    found = events.search(db, wanted, limit=limit, newest_first=newest_first, cursor=number(cursor))
    return _page([_show_with_object(event) for event in found.events], found.next_cursor)


def _show_with_object(event: EventView) -> dict[str, Any]:
    of = {"object_type": event.object_type, "object_id": event.object_id}
    return {**show(event), **of, "by": event.payload.get("by")}


def show(event: EventView) -> dict[str, Any]:
    """An event as it is answered."""
    return {
        "id": event.event_id,
        "at": iso(event.at_us),
        "level": event.level,
        "message": event.message,
        "payload": event.payload,
    }


def timeline_page(
    ctx: Context,
    instance_uuid: str,
    limit: int,
    cursor: str | None,
    *,
    newest_first: bool,
    wanted: Filter = EVERYTHING,
) -> Response:
    """One page of an instance's timeline, with the schedule events of its placings."""
    found = timeline.of_instance(
        ctx, instance_uuid, limit=limit, newest_first=newest_first, after=place(cursor), wanted=wanted
    )
    return _page([_show_part(event) for event in found.events], found.next_position)


def _show_part(found: TimelineEvent) -> dict[str, Any]:
    return {
        "id": found.row,
        "part": found.part,
        "at": iso(found.at_us),
        "level": found.event.level,
        "message": found.event.message,
        "payload": found.event.payload,
    }


def scheduling_page(
    ctx: Context, node: str, limit: int, cursor: str | None, *, newest_first: bool, wanted: Filter = EVERYTHING
) -> Response:
    """One page of what decisions did with a node."""
    found = node_timeline.of_node(
        ctx, node, limit=limit, newest_first=newest_first, after=decision_part(cursor), wanted=wanted
    )
    return _page([_show_scheduled(event) for event in found.events], found.next_position)


def _show_scheduled(found: NodeEvent) -> dict[str, Any]:
    return {
        "decision_id": found.decision_id,
        "part": found.part,
        "at": iso(found.at_us),
        "level": found.event.level,
        "message": found.event.message,
        "payload": found.event.payload,
    }


def told_page(told: Told) -> Response:
    """All events of one decision, oldest first: they are few, so there is one page."""
    items = [
        {
            "part": part,
            "at": iso(told.row.created_at),
            "level": event.level,
            "message": event.message,
            "payload": event.payload,
        }
        for part, event in enumerate(told.events, start=1)
    ]
    return answer({"items": items, "next_cursor": None})
