"""Re-homing: charges that the cluster pays, of a namespace whose claim is active, go to that claim.

They come about where a claim was made while an admission of its namespace was under way. The pass moves them in
batches: charges first, then the claim, then the cluster, which is the lock order; what the claim pays more, the cluster
pays less.
"""

from __future__ import annotations

from sqlalchemy import Connection

from fleet.ledger import claims, events, leases
from fleet.ledger.database import Database, Sql
from fleet.ledger.release import CREDIT_CLUSTER
from fleet.model.resources import Amounts

BATCH = 100

FIND = Sql("""
    SELECT DISTINCT k.uuid, k.namespace FROM namespace_claims k JOIN charges ch ON ch.namespace = k.namespace
    WHERE k.active_namespace IS NOT NULL AND k.folded = 0 AND k.expires_at > {now}
        AND ch.role = 'primary' AND ch.payer IS NULL
    ORDER BY k.uuid
""")
LOCK_CHARGES = Sql("""
    SELECT id, cpus + ahead_cpus AS cpus, memory_mb + ahead_memory_mb AS memory_mb, disk_gb + ahead_disk_gb AS disk_gb
    FROM charges
    WHERE namespace = :namespace AND role = 'primary' AND payer IS NULL ORDER BY id LIMIT :batch {for_update}
""")
SET_PAYER = Sql("UPDATE charges SET payer = :uuid WHERE id = :charge_id")


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
    while True:
        moved = db.unit(lambda conn: _batch(conn, lease, uuid, namespace))
        total += moved
        if moved < BATCH:
            return total


def _batch(conn: Connection, lease: leases.Lease, uuid: str, namespace: str) -> int:
    leases.check(conn, lease)
    rows = LOCK_CHARGES.run(conn, namespace=namespace, batch=BATCH).all()
    amounts = Amounts(
        sum(row.cpus for row in rows), sum(row.memory_mb for row in rows), sum(row.disk_gb for row in rows)
    )
    for row in rows:
        SET_PAYER.run(conn, uuid=uuid, charge_id=row.id)
    if not rows:
        return 0
    if not isinstance(claims.charge(conn, uuid, amounts, hard=False), claims.Charged):
        # It ended meanwhile: the cluster goes on paying.
        for row in rows:
            SET_PAYER.run(conn, uuid=None, charge_id=row.id)
        return 0
    CREDIT_CLUSTER.run(conn, cpus=amounts.cpus, memory_mb=amounts.memory_mb, disk_gb=amounts.disk_gb)
    payload = {"claim": uuid, "charges": len(rows), "cpus": amounts.cpus, "memory_mb": amounts.memory_mb}
    events.record(conn, "namespace", namespace, "charges given to the namespace claim", payload)
    return len(rows)
