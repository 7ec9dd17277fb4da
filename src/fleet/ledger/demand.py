"""Expected demand: recomputed from the ages of charges, applied by difference, in id order, in chunks.

The difference is against what was read: an admission that adds its demand between the read and the write keeps it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from decimal import Decimal

from sqlalchemy import Connection

from fleet.ledger import leases
from fleet.ledger.database import Database, Sql, decimal_of
from fleet.model import capacity
from fleet.model.cluster_config import ClusterConfig

CHUNK = 100

# One statement, so that counters and charges are of one moment.
READ = Sql("""
    SELECT c.node_id, c.expected_demand, ch.cpus, {now} - ch.placed_at AS age_us,
        ch.grown_cpus, {now} - ch.grown_at AS grown_age_us
    FROM scheduler_node_capacity c
    LEFT JOIN charges ch ON ch.node_id = c.node_id
        AND (ch.placed_at > {now} - :window_us OR ch.grown_at > {now} - :window_us)
    ORDER BY c.node_id
""")


def refresh(db: Database, lease: leases.Lease, config: ClusterConfig) -> int:
    """Bring every node's `expected_demand` to what its charges' ages justify. Return how many nodes changed."""
    with db.read() as conn:
        rows = READ.run(conn, window_us=max(0, config.scheduler_demand_decay_seconds) * 1_000_000).all()
    stored: dict[int, Decimal] = {}
    wanted: dict[int, Decimal] = defaultdict(Decimal)
    for row in rows:
        node_id = int(row.node_id)
        stored[node_id] = decimal_of(row.expected_demand) or Decimal(0)
        if row.cpus is not None:
            grown = int(row.grown_cpus)
            wanted[node_id] += _left(int(row.cpus) - grown, int(row.age_us), config)
            wanted[node_id] += _left(grown, int(row.grown_age_us or 0), config)
    changes = [(node_id, wanted[node_id] - old) for node_id, old in stored.items() if wanted[node_id] != old]
    for start in range(0, len(changes), CHUNK):
        chunk = changes[start : start + CHUNK]
        db.unit(lambda conn, chunk=chunk: _apply(conn, lease, chunk))  # type: ignore[misc]
    return len(changes)


def _left(cpus: int, age_us: int, config: ClusterConfig) -> Decimal:
    """Return what is left of the load that vCPUs were expected to bring `age_us` ago."""
    per_vcpu, window = config.scheduler_demand_per_vcpu, config.scheduler_demand_decay_seconds
    return capacity.expected_demand(cpus, per_vcpu, Decimal(age_us) / 1_000_000, window)


def _apply(conn: Connection, lease: leases.Lease, changes: Sequence[tuple[int, Decimal]]) -> None:
    leases.check(conn, lease)
    cases = " ".join(f"WHEN {node_id} THEN {change}" for node_id, change in changes)
    ids = ", ".join(str(node_id) for node_id, _ in changes)
    # Numbers computed here, no text from outside: a CASE applies the chunk in one statement, in primary-key order.
    Sql(
        "UPDATE scheduler_node_capacity SET expected_demand = "
        f"{{greatest}}(0, ROUND(expected_demand + CASE node_id {cases} ELSE 0 END, 3)), "
        f"generation = generation + 1, updated_at = {{now}} WHERE node_id IN ({ids})"
    ).run(conn)
