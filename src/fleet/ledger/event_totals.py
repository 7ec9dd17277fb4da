"""How many events of each message retention deleted: counters that are counted from events never go down.

Promise: a deletion and its numbers are one transaction. `forgotten_events` plus the rows that are left is every event
that was ever recorded, so each process, whenever it began, counts the same.
"""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import Connection

from fleet.ledger.database import Sql, SqlOfLists
from fleet.ledger.ground_truth import DESPITE_GUARD
from fleet.ledger.payer import OVER_CLAIM

# An event that stands on the timelines of two objects is counted once, where its instance is.
COUNTED_AS: Final = f"""CASE WHEN object_type <> 'instance' AND message IN ('{OVER_CLAIM}', '{DESPITE_GUARD}')
    THEN '' ELSE message END"""

_OLDEST = Sql("SELECT id FROM events WHERE at < {now} - :age_us ORDER BY at LIMIT :batch")
_NUMBERS = SqlOfLists(
    f"SELECT {COUNTED_AS} AS counted, COUNT(*) AS events FROM events WHERE id IN ({{ids}}) GROUP BY counted"
)
_DELETE = SqlOfLists("DELETE FROM events WHERE id IN ({ids})")
_REMEMBER = Sql(
    """
    INSERT INTO forgotten_events (message, events) VALUES (:message, :events)
    {conflict} events = forgotten_events.events + :events
    """,
    mysql_conflict="ON DUPLICATE KEY UPDATE",
    sqlite_conflict="ON CONFLICT (message) DO UPDATE SET",
)


def forget(conn: Connection, binds: dict[str, Any]) -> int:
    """Delete at most `batch` events, the oldest of those older than `age_us`; return how many went.

    The caller's lease keeps others from doing the same at this moment.
    """
    ids = [row.id for row in _OLDEST.run(conn, binds)]
    if not ids:
        return 0
    for row in _NUMBERS.run(conn, {"ids": ids}).all():
        if row.counted:
            _REMEMBER.run(conn, message=row.counted, events=row.events)
    return _DELETE.run(conn, {"ids": ids}).rowcount
