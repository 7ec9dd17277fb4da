"""Retention: what is past its time goes, in small transactions, oldest first, so that no admission waits for it.

What is to go is read first, without locks, and deleted by its keys: a deletion that looks for its rows by itself locks
every row of the table on its way, and waits for those that admissions are writing.

One sweep deletes `BATCHES_MAX` batches of a kind at most; what is left of a backlog is the next one's, soon.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import Connection

from fleet.ledger import event_totals, leases, namespaces
from fleet.ledger.database import Batch, Database, Sql, SqlOfLists
from fleet.ledger.idempotency import KEPT_SECONDS
from fleet.model.cluster_config import ClusterConfig

BATCH = 500
BATCHES_MAX = 200
DAY_SECONDS = 86_400


Deletion = Callable[[Connection, dict[str, Any]], int]
"""Deletes at most `batch` rows of one kind, the oldest of those older than `age_us`, and returns how many went."""


def _deletion(table: str, stamp: str) -> Deletion:
    oldest = Sql(f"SELECT id FROM {table} WHERE {stamp} < {{now}} - :age_us ORDER BY {stamp} LIMIT :batch")
    by_key = SqlOfLists(f"DELETE FROM {table} WHERE id IN ({{ids}})")

    def delete(conn: Connection, binds: dict[str, Any]) -> int:
        ids = [row.id for row in oldest.run(conn, binds)]
        return by_key.run(conn, {"ids": ids}).rowcount if ids else 0

    return delete


DECISIONS = _deletion("decisions", "created_at")
BASES = _deletion("decision_bases", "created_at")
OLDEST_KEYS = Sql("""
    SELECT namespace, idempotency_key FROM idempotency_keys WHERE created_at < {now} - :age_us
    ORDER BY created_at LIMIT :batch
""")
# Two columns do not fit one list. The age is asked again: a key that is used anew has a row of its own by then.
DELETE_KEY = Sql("""
    DELETE FROM idempotency_keys
    WHERE namespace = :namespace AND idempotency_key = :key AND created_at < {now} - :age_us
""")


def sweep(db: Database, lease: leases.Lease, config: ClusterConfig) -> dict[str, int]:
    """Delete what is past its retention. Return how many rows of each kind went.

    A base outlives its last decision by a day: a decision that can be read can be replayed.

    Raises:
        leases.LeaseLost: another leads now.
    """
    decisions_seconds = config.decisions_retention_days * DAY_SECONDS
    return {
        "decisions": _sweep(db, lease, DECISIONS, decisions_seconds),
        "decision_bases": _sweep(db, lease, BASES, decisions_seconds + DAY_SECONDS),
        "events": _sweep(db, lease, event_totals.forget, config.events_retention_days * DAY_SECONDS),
        "idempotency_keys": _sweep(db, lease, _delete_keys, KEPT_SECONDS),
        "expired_keys": _sweep(db, lease, namespaces.forget_expired_keys, namespaces.EXPIRED_KEPT_SECONDS),
    }


def is_behind(gone: Mapping[str, int]) -> bool:
    """Return whether a sweep ended with more to delete, as far as it knows."""
    return any(count >= BATCH * BATCHES_MAX for count in gone.values())


def _sweep(db: Database, lease: leases.Lease, delete: Deletion, seconds: int) -> int:
    binds = {"age_us": seconds * 1_000_000, "batch": BATCH}

    def work(conn: Connection) -> int:
        leases.check(conn, lease)
        return delete(conn, binds)

    total = 0
    for _ in range(BATCHES_MAX):
        gone = db.unit(work)
        total += gone
        if gone < BATCH:
            break
    return total


def _delete_keys(conn: Connection, binds: dict[str, Any]) -> int:
    batch = Batch(conn)
    for row in OLDEST_KEYS.run(conn, binds):
        DELETE_KEY.into(batch, binds, namespace=row.namespace, key=row.idempotency_key)
    return sum(answer.matched for answer in batch.send())
