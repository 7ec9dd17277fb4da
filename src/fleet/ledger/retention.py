"""Retention: what is past its time goes, in small transactions, oldest first, so that no admission waits for it."""

from __future__ import annotations

from sqlalchemy import Connection

from fleet.ledger import leases
from fleet.ledger.database import Database, Sql
from fleet.ledger.idempotency import KEPT_SECONDS
from fleet.model.cluster_config import ClusterConfig

BATCH = 500
BATCHES_MAX = 200
DAY_SECONDS = 86_400


def _deletion(table: str, key: str, stamp: str) -> Sql:
    """Return a deletion of the oldest rows of a table. The inner select is what MariaDB allows a limit in."""
    return Sql(f"""
        DELETE FROM {table} WHERE {key} IN (SELECT k FROM (
            SELECT {key} AS k FROM {table} WHERE {stamp} < {{now}} - :age_us ORDER BY {stamp} LIMIT :batch) oldest)
    """)


DECISIONS = _deletion("decisions", "id", "created_at")
BASES = _deletion("decision_bases", "id", "created_at")
EVENTS = _deletion("events", "id", "at")
# The key's two columns do not fit one IN list; these rows are few and short.
KEYS = Sql("DELETE FROM idempotency_keys WHERE created_at < {now} - :age_us")


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
        "events": _sweep(db, lease, EVENTS, config.events_retention_days * DAY_SECONDS),
        "idempotency_keys": _one(db, lease, KEYS, KEPT_SECONDS),
    }


def _sweep(db: Database, lease: leases.Lease, statement: Sql, seconds: int) -> int:
    total = 0
    for _ in range(BATCHES_MAX):
        gone = _one(db, lease, statement, seconds)
        total += gone
        if gone < BATCH:
            break
    return total


def _one(db: Database, lease: leases.Lease, statement: Sql, seconds: int) -> int:
    binds = {"age_us": seconds * 1_000_000, "batch": BATCH}

    def work(conn: Connection) -> int:
        leases.check(conn, lease)
        return statement.run(conn, binds).rowcount

    return db.unit(work)
