"""Pages of audit events, shared by every noun that has some; an instance's are its rows with what is rendered."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from fleet.api.answers import answer, iso, number, page, place
from fleet.ledger import events
from fleet.ledger.database import Database
from fleet.ledger.events import EventView
from fleet.services import timeline
from fleet.services.context import Context
from fleet.services.timeline import TimelineEvent, Told

NewestFirstQuery = Annotated[bool, Query(description="newest first, or false: oldest first")]


def events_page(
    db: Database, object_type: str, object_id: str, limit: int, cursor: str | None, *, newest_first: bool
) -> Response:
    """One page of an object's events."""
    # The ledger's own bound is this page's: only a page that is not full can be known to be the last one.
    found = events.listing(db, object_type, object_id, limit=limit, newest_first=newest_first, cursor=number(cursor))
    more = len(found) == limit
    return page([*found, found[-1]] if more else found, limit, show, lambda event: event.event_id)


def show(event: EventView) -> dict[str, Any]:
    """An event as it is answered."""
    return {
        "id": event.event_id,
        "at": iso(event.at_us),
        "level": event.level,
        "message": event.message,
        "payload": event.payload,
    }


def timeline_page(ctx: Context, instance_uuid: str, limit: int, cursor: str | None, *, newest_first: bool) -> Response:
    """One page of an instance's timeline, with the schedule events of its placings."""
    after = place(cursor)
    found = timeline.of_instance(ctx, instance_uuid, limit=limit, newest_first=newest_first, after=after)
    return page(found, limit, _show_part, lambda event: event.position)


def _show_part(found: TimelineEvent) -> dict[str, Any]:
    return {
        "id": found.row,
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
