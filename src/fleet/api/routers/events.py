"""Pages of audit events, shared by every noun that has some."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Query
from starlette.responses import Response

from fleet.api.answers import iso, number, page
from fleet.ledger import events
from fleet.ledger.database import Database
from fleet.ledger.events import EventView

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
