"""Re-homing: charges that the cluster pays, of a namespace whose claim is active, go to that claim.

They come about where a claim was made while an admission or a move of its namespace was under way; those of a move may
name a former claim that is folded or gone. The pass moves them in batches: charges first, then the claim, then the
cluster, which is the lock order; what the claim pays more, the cluster pays less.
"""

from __future__ import annotations

from sqlalchemy import Connection

from fleet.ledger import claims, events, leases, release
from fleet.ledger.claims import BY_CLUSTER
from fleet.ledger.database import Database, Sql, SqlOfLists
from fleet.model.resources import CLUSTER_DIMENSIONS, Amounts

BATCH = 100
BATCHES_MAX = 1000

FIND = Sql(f"""
    SELECT DISTINCT k.uuid, k.namespace FROM namespace_claims k JOIN charges ch ON ch.namespace = k.namespace
    WHERE k.active_namespace IS NOT NULL AND k.folded = 0 AND k.expires_at > {{now}}
        AND ch.role = 'primary' AND {BY_CLUSTER}
    ORDER BY k.uuid
""")
FIND_CHARGES = Sql(f"""
    SELECT id FROM charges WHERE namespace = :namespace AND role = 'primary' AND {BY_CLUSTER} ORDER BY id LIMIT :batch
""")
# By their ids, so that no other row is locked; who pays is judged again under the locks.
LOCK_CHARGES = SqlOfLists(
    "SELECT id, "
    + ", ".join(f"{name} + ahead_{name} AS {name}" for name in CLUSTER_DIMENSIONS)
    + f" FROM charges WHERE id IN ({{ids}}) AND {BY_CLUSTER} ORDER BY id {{for_update}}"
)
SET_PAYER = SqlOfLists("UPDATE charges SET payer = :uuid WHERE id IN ({ids})")


def rehome(db: Database, lease: leases.Lease) -> int:
    """Give every such charge to its namespace's claim. Return how many moved.

    Raises:
        leases.LeaseLost: another leads now.
    """
    with db.read() as conn:
        found = [(str(row.uuid), str(row.namespace)) for row in FIND.run(conn)]
    return sum(_all_of(db, lease, uuid, namespace) for uuid, namespace in found)


def _all_of(db: Database, lease: leases.Lease, uuid: str, namespace: str) -> int:
    total = 0
    for _ in range(BATCHES_MAX):
        moved = db.unit(lambda conn: _batch(conn, lease, uuid, namespace))
        total += moved
        if moved < BATCH:
            break
    return total


def _batch(conn: Connection, lease: leases.Lease, uuid: str, namespace: str) -> int:
    leases.check(conn, lease)
    found = [row.id for row in FIND_CHARGES.run(conn, namespace=namespace, batch=BATCH)]
    rows = LOCK_CHARGES.run(conn, {"ids": found}).all() if found else []
    if not rows:
        return 0
    amounts = Amounts(*(sum(getattr(row, name) for row in rows) for name in CLUSTER_DIMENSIONS))
    if not isinstance(claims.charge(conn, uuid, amounts, hard=False), claims.Charged):
        # It ended meanwhile: the cluster goes on paying.
        return 0
    SET_PAYER.run(conn, {"ids": [row.id for row in rows]}, uuid=uuid)
    payload = {"claim": uuid, "charges": len(rows), "cpus": amounts.cpus, "memory_mb": amounts.memory_mb}
    events.record(conn, "namespace", namespace, "charges given to the namespace claim", payload)
    # A counter that holds less stays at zero: the pass that this is part of corrects it, with an event.
    release.give_back(conn, None, amounts)
    return len(rows)
