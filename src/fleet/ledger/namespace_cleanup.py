"""The hard end of deleted namespaces: a while after the deletion their claims go, and what those held returns.

A claim that outlived its namespace would hold capacity that nothing can ever release. The namespace's row stays: its
name is never another's. One claim a transaction, each under the leader's number; a list that cannot be read raises, and
is never taken for an empty one. A claim that cannot be deleted is told, and keeps none of the others.
"""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from fleet.ledger import claims, leases
from fleet.ledger.database import Database, Sql
from fleet.model.errors import DatabaseUnavailable

BATCH = 500
LOCKED_MAX = 3
"""So many claims may be found locked by others, each waited for, before the rest is left to the next call."""
BY = "reconciler"

LEFT = Sql("""
    SELECT k.uuid, k.namespace FROM namespace_claims k JOIN namespaces n ON n.name = k.namespace
    WHERE n.deleted_at <= {now} - :delay_us ORDER BY k.uuid LIMIT :batch
""")


@dataclass(frozen=True, slots=True)
class Stuck:
    """A claim that stands, with its capacity, and why."""

    uuid: str
    namespace: str
    error: Exception


@dataclass(frozen=True, slots=True)
class Cleaned:
    """How many claims went, and which could not."""

    gone: int = 0
    stuck: tuple[Stuck, ...] = ()


def clean(db: Database, lease: leases.Lease, delay_seconds: int) -> Cleaned:
    """Delete the claims of namespaces deleted so long ago. What is left comes with the next call.

    Raises:
        leases.LeaseLost: another leads now.
        DatabaseUnavailable: nothing is known about what is left.
    """
    with db.read() as conn:
        rows = LEFT.run(conn, delay_us=delay_seconds * 1_000_000, batch=BATCH)
        found = [(str(row.uuid), str(row.namespace)) for row in rows]
    gone, locked, stuck = 0, 0, list[Stuck]()
    for uuid, namespace in found:
        try:
            gone += _delete(db, lease, uuid)
        except leases.LeaseLost:
            raise
        except DatabaseUnavailable as error:
            locked += 1
            if not claims.is_contended(error) or locked > LOCKED_MAX:
                raise
            stuck.append(Stuck(uuid, namespace, error))
        except Exception as error:  # noqa: BLE001  # whatever is wrong with this one: it is told, and the others go
            stuck.append(Stuck(uuid, namespace, error))
    return Cleaned(gone, tuple(stuck))


def _delete(db: Database, lease: leases.Lease, uuid: str) -> bool:
    def work(conn: Connection) -> bool:
        leases.check(conn, lease)
        return claims.delete(conn, uuid, by=BY) is not None

    return db.unit(work)
