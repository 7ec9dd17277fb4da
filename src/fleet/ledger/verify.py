"""`verify-ledger`: recompute everything from charges and list every difference. Read-only, from one moment."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from fleet.ledger import gpu_truth, truth
from fleet.ledger.database import Database, Sql
from fleet.model.resources import DIMENSIONS

# A snapshot of all tables at one moment: without it a transaction between two reads would look like a difference.
MARIADB_SNAPSHOT = "START TRANSACTION WITH CONSISTENT SNAPSHOT, READ ONLY"

UNBACKED = Sql("""
    SELECT ch.instance_uuid, ch.node_id, ch.role, i.state
    FROM charges ch LEFT JOIN instances i ON i.uuid = ch.instance_uuid
    WHERE i.uuid IS NULL OR i.state = 'deleted' ORDER BY ch.id
""")
UNCHARGED = Sql("""
    SELECT i.uuid, i.node_id, i.state FROM instances i
    LEFT JOIN charges ch ON ch.instance_uuid = i.uuid AND ch.role = 'primary'
    WHERE ch.id IS NULL AND i.node_id IS NOT NULL AND i.state NOT IN ('deleted', 'error') ORDER BY i.uuid
""")
ELSEWHERE = Sql("""
    SELECT i.uuid, i.node_id, ch.node_id AS charged_node_id FROM instances i
    JOIN charges ch ON ch.instance_uuid = i.uuid AND ch.role = 'primary'
    WHERE i.state <> 'deleted' AND (i.node_id IS NULL OR i.node_id <> ch.node_id) ORDER BY i.uuid
""")
# What a move holds stands in both of its charges, or in none.
HALF_A_MOVE = Sql("""
    SELECT ch.instance_uuid, ch.node_id, ch.role FROM charges ch
    LEFT JOIN charges other ON other.instance_uuid = ch.instance_uuid AND other.role <> ch.role
    WHERE other.id IS NULL
        AND (ch.role = 'incoming' OR ch.ahead_cpus <> 0 OR ch.ahead_memory_mb <> 0 OR ch.ahead_disk_gb <> 0)
    ORDER BY ch.id
""")
NOWHERE = Sql("""
    SELECT ch.instance_uuid, ch.node_id, ch.role FROM charges ch LEFT JOIN nodes n ON n.id = ch.node_id
    WHERE n.id IS NULL OR n.state = 'deleted' ORDER BY ch.id
""")
OVER = Sql("""
    SELECT c.node_id, n.name, c.used_cpus, c.limit_cpus, c.used_memory_mb, c.limit_memory_mb, c.used_disk_gb,
        c.limit_disk_gb, c.used_instances, c.limit_instances
    FROM scheduler_node_capacity c LEFT JOIN nodes n ON n.id = c.node_id
    WHERE c.used_cpus > c.limit_cpus OR c.used_memory_mb > c.limit_memory_mb OR c.used_disk_gb > c.limit_disk_gb
       OR c.used_instances > c.limit_instances
    ORDER BY c.node_id
""")


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that is not as the charges say. `stored` and `recomputed` are whole amounts, or words."""

    row: str
    figure: str
    stored: int | str
    recomputed: int | str


@dataclass(frozen=True, slots=True)
class OverLimit:
    """A node that holds more than its limit: by a ground-truth write, or because its limit fell below its use."""

    node: str
    dimension: str
    used: int
    limit: int


@dataclass(frozen=True, slots=True)
class Verification:
    """The whole finding. An over-limit node is not a difference: the ledger is right about it."""

    differences: tuple[Difference, ...]
    over_limit: tuple[OverLimit, ...]


def verify(db: Database) -> Verification:
    """Recompute every counter and compare. Takes no lock."""
    with db.read() as conn:
        conn.exec_driver_sql("BEGIN" if db.is_sqlite else "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        if not db.is_sqlite:
            conn.exec_driver_sql(MARIADB_SNAPSHOT)
        try:
            return Verification(tuple(_differences(conn)), tuple(_over_limit(conn)))
        finally:
            # A session that was lost took its transaction along; asking it for anything would hide why.
            if not conn.invalidated:
                conn.exec_driver_sql("ROLLBACK")


def _differences(conn: Connection) -> list[Difference]:
    found = [item for node_id, figures in truth.nodes(conn).items() for item in _compare(f"node {node_id}", figures)]
    found += [item for uuid, figures in truth.claims(conn).items() for item in _compare(f"claim {uuid}", figures)]
    found += _compare("cluster", truth.cluster(conn))
    found += [
        Difference(f"node {item.node_id}", item.figure, item.stored, item.true) for item in gpu_truth.differences(conn)
    ]
    found += [
        Difference(
            f"charge {row.instance_uuid}", "instance", f"{row.role} on node {row.node_id}", str(row.state or "absent")
        )
        for row in UNBACKED.run(conn)
    ]
    found += [
        Difference(f"instance {row.uuid}", "charge", "absent", f"node {row.node_id}") for row in UNCHARGED.run(conn)
    ]
    found += [
        Difference(f"instance {row.uuid}", "node_id", str(row.node_id), f"charged to {row.charged_node_id}")
        for row in ELSEWHERE.run(conn)
    ]
    for statement, figure, recomputed in (
        (HALF_A_MOVE, "move", "its other charge is absent"),
        (NOWHERE, "node", "removed"),
    ):
        found += [
            Difference(f"charge {row.instance_uuid}", figure, f"{row.role} on node {row.node_id}", recomputed)
            for row in statement.run(conn)
        ]
    return found


def _compare(row: str, figures: truth.Figures) -> list[Difference]:
    return [Difference(row, name, stored, true) for name, (stored, true) in figures.items() if stored != true]


def _over_limit(conn: Connection) -> list[OverLimit]:
    found = []
    for row in OVER.run(conn).mappings():
        for name in DIMENSIONS:
            used, limit = row[f"used_{name}"], row[f"limit_{name}"]
            if limit is not None and used > limit:
                found.append(OverLimit(str(row["name"]), name, int(used), int(limit)))
    found += [OverLimit(one.node, f"gpus {one.profile}".strip(), one.used, one.total) for one in gpu_truth.over(conn)]
    return found
