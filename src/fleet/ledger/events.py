"""The audit trail: rows, one timeline an object. Every correction, clamp, waiver, fallback and forced write is one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection

from fleet.ledger.database import Batch, Database, Sql

LIST_MAX = 1000

INSERT = Sql("""
    INSERT INTO events (object_type, object_id, at, level, message, payload)
    VALUES (:object_type, :object_id, {now}, :level, :message, :payload)
""")
NEWEST = Sql("""
    SELECT id, at, level, message, payload FROM events
    WHERE object_type = :object_type AND object_id = :object_id AND id < :cursor ORDER BY id DESC LIMIT :limit
""")
OLDEST = Sql("""
    SELECT id, at, level, message, payload FROM events
    WHERE object_type = :object_type AND object_id = :object_id AND id > :cursor ORDER BY id LIMIT :limit
""")


@dataclass(frozen=True, slots=True)
class EventView:
    """One event of a timeline. `at_us` is the database's time, microseconds UTC."""

    event_id: int
    at_us: int
    level: str
    message: str
    payload: Mapping[str, Any]


def record(
    target: Connection | Batch,
    object_type: str,
    object_id: str,
    message: str,
    payload: Mapping[str, Any],
    level: str = "info",
    *,
    by: str = "",
) -> None:
    """Write an event in the caller's transaction. `object_type` is instance, node, namespace, claim or cluster.

    `by`: who did it, where somebody did; it stands in the payload.
    """
    INSERT.into(
        target,
        object_type=object_type,
        object_id=object_id,
        level=level,
        message=message,
        payload=json.dumps({**payload, "by": by} if by else payload, separators=(",", ":")),
    )


def listing(
    db: Database,
    object_type: str,
    object_id: str,
    *,
    limit: int = 100,
    newest_first: bool = True,
    cursor: int | None = None,
) -> list[EventView]:
    """Return up to `limit` (at most `LIST_MAX`) events of an object, from `cursor` on."""
    statement, start = (NEWEST, 2**62) if newest_first else (OLDEST, 0)
    with db.read() as conn:
        rows = statement.run(
            conn,
            object_type=object_type,
            object_id=object_id,
            cursor=start if cursor is None else cursor,
            limit=min(limit, LIST_MAX),
        )
        return [EventView(row.id, row.at, row.level, row.message, json.loads(row.payload)) for row in rows]
