"""The reconciler's passes as they are remembered: events of the cluster, so that a new leader goes on from there."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row

from fleet.ledger import events
from fleet.ledger.database import Database, Sql

OBJECT_TYPE: Final = "cluster"
OBJECT_ID: Final = "reconciler"
ENDED: Final = "reconcile pass ended"
FAILED: Final = "reconcile pass failed"

STALE_SECONDS: Final = 900
"""A last good pass that is older says that nobody keeps the ledger true: three passes were missed at the default."""
CORRECTED_KEPT_MAX: Final = 20

_LAST = Sql("""
    SELECT at, {now} - at AS age_us, payload FROM events
    WHERE object_type = :object_type AND object_id = :object_id AND message = :message ORDER BY id DESC LIMIT 1
""")


@dataclass(frozen=True, slots=True)
class LastPass:
    """The last pass that ended well: when, by the database's clock, and how old that is now.

    `corrections` is how many figures it set right, `corrected` the first of them; passes of an older version kept none.
    """

    at_us: int
    age_seconds: float
    duration_seconds: float | None
    corrections: int | None = None
    corrected: tuple[Mapping[str, Any], ...] = ()


@dataclass(frozen=True, slots=True)
class FailedPass:
    """The last pass that failed, and why."""

    at_us: int
    age_seconds: float
    code: str
    error: str


def record_ended(conn: Connection, payload: Mapping[str, Any]) -> None:
    """Remember a pass that ended well."""
    events.record(conn, OBJECT_TYPE, OBJECT_ID, ENDED, payload)


def record_failed(conn: Connection, payload: Mapping[str, Any]) -> None:
    """Remember a pass that did not."""
    events.record(conn, OBJECT_TYPE, OBJECT_ID, FAILED, payload, level="error")


def last(db: Database) -> LastPass | None:
    """The last pass that ended well; None when there was none."""
    row = _last(db, ENDED)
    if row is None:
        return None
    payload = json.loads(row.payload)
    milliseconds = payload.get("duration_ms")
    duration = None if milliseconds is None else milliseconds / 1000
    corrected = tuple(payload.get("corrected", ()))
    return LastPass(int(row.at), row.age_us / 1_000_000, duration, payload.get("corrections"), corrected)


def last_failed(db: Database) -> FailedPass | None:
    """The last pass that failed; None when none is remembered."""
    row = _last(db, FAILED)
    if row is None:
        return None
    payload = json.loads(row.payload)
    return FailedPass(int(row.at), row.age_us / 1_000_000, str(payload.get("code", "")), str(payload.get("error", "")))


def _last(db: Database, message: str) -> Row[Any] | None:
    with db.read() as conn:
        return _LAST.run(conn, object_type=OBJECT_TYPE, object_id=OBJECT_ID, message=message).first()
