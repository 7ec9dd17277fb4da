"""The hard end of deleted namespaces: a while after the deletion their claims go, and what those held returns.

A claim that outlived its namespace would hold capacity that nothing can ever release. The namespace's row stays: its
name is never another's. One claim a transaction, each under the leader's number; a list that cannot be read raises, and
is never taken for an empty one.
"""

from __future__ import annotations

from sqlalchemy import Connection

from fleet.ledger import claims, leases
from fleet.ledger.database import Database, Sql

BATCH = 500
BY = "reconciler"

LEFT = Sql("""
    SELECT k.uuid FROM namespace_claims k JOIN namespaces n ON n.name = k.namespace
    WHERE n.deleted_at <= {now} - :delay_us ORDER BY k.uuid LIMIT :batch
""")


def clean(db: Database, lease: leases.Lease, delay_seconds: int) -> int:
    """Delete the claims of namespaces deleted so long ago; return how many went. What is left comes with the next call.

    Raises:
        leases.LeaseLost: another leads now.
        DatabaseUnavailable: nothing is known about what is left.
    """
    with db.read() as conn:
        found = [str(row.uuid) for row in LEFT.run(conn, delay_us=delay_seconds * 1_000_000, batch=BATCH)]
    return sum(_delete(db, lease, uuid) for uuid in found)


def _delete(db: Database, lease: leases.Lease, uuid: str) -> bool:
    def work(conn: Connection) -> bool:
        leases.check(conn, lease)
        return claims.delete(conn, uuid, by=BY) is not None

    return db.unit(work)
