"""The truth that counters are held against: sums over charges, claims and node rows. Reads only.

Each function returns figures as `{column: (stored, true)}`, both read by one statement, hence from one moment: since an
admission writes counter and charge in one transaction, they are equal at every moment, up to real drift.
"""

from __future__ import annotations

from collections.abc import Mapping

from sqlalchemy import Connection, RowMapping

from fleet.ledger import pending
from fleet.ledger.claims import BY_CLUSTER
from fleet.ledger.cluster import MISSING
from fleet.ledger.database import Sql
from fleet.model.errors import BrokenPromise
from fleet.model.resources import CLUSTER_DIMENSIONS

Figures = Mapping[str, tuple[int, int]]

NODE_COLUMNS = (
    "used_cpus",
    "used_memory_mb",
    "used_disk_gb",
    "used_instances",
    "pending_memory_mb",
    "pending_disk_gb",
    "sleepy_memory_mb",
)
CLAIM_COLUMNS = tuple(f"used_{name}" for name in CLUSTER_DIMENSIONS)
CLUSTER_COLUMNS = (
    *(
        f"{part}_{name}"
        for part in ("total", "unlimited", "claimed", "unclaimed_used", "overage")
        for name in CLUSTER_DIMENSIONS
    ),
    "counted_nodes",
)

_NODES = f"""
    SELECT c.node_id, {", ".join(f"c.{name}" for name in NODE_COLUMNS)},
        COALESCE(SUM(ch.cpus), 0) AS true_used_cpus,
        COALESCE(SUM(ch.memory_mb), 0) AS true_used_memory_mb,
        COALESCE(SUM(ch.disk_gb), 0) AS true_used_disk_gb,
        COALESCE(SUM(ch.instances), 0) AS true_used_instances,
        COALESCE(SUM({pending.amount_of("memory_mb")}), 0) AS true_pending_memory_mb,
        COALESCE(SUM({pending.amount_of("disk_gb")}), 0) AS true_pending_disk_gb,
        COALESCE(SUM(CASE WHEN ch.sleepy = 1 THEN ch.memory_mb ELSE 0 END), 0) AS true_sleepy_memory_mb
    FROM scheduler_node_capacity c LEFT JOIN charges ch ON ch.node_id = c.node_id
"""
NODES = Sql(_NODES + " GROUP BY c.node_id ORDER BY c.node_id")
NODE = Sql(_NODES + " WHERE c.node_id = :node_id GROUP BY c.node_id")

_CLAIMS = f"""
    SELECT k.uuid, {", ".join(f"k.{name}" for name in CLAIM_COLUMNS)},
        {", ".join(f"COALESCE(SUM(ch.{name} + ch.ahead_{name}), 0) AS true_used_{name}" for name in CLUSTER_DIMENSIONS)}
    FROM namespace_claims k LEFT JOIN charges ch ON ch.payer = k.uuid AND k.folded = 0
"""
CLAIMS = Sql(_CLAIMS + " GROUP BY k.uuid ORDER BY k.uuid")
CLAIM = Sql(_CLAIMS + " WHERE k.uuid = :uuid GROUP BY k.uuid")


def _sums(template: str, source: str) -> str:
    """Return scalar sub-selects, one a dimension, named `true_<part>_<dimension>`."""
    part, expression = template.split("=", 1)
    return ", ".join(
        f"(SELECT COALESCE(SUM({expression.replace('#', name)}), 0) FROM {source}) AS true_{part}_{name}"
        for name in CLUSTER_DIMENSIONS
    )


TOTAL_COLUMNS = tuple(name for name in CLUSTER_COLUMNS if name.startswith(("total_", "unlimited_", "counted_")))
_TOTALS = (
    _sums("total=CASE WHEN counted = 1 THEN COALESCE(limit_#, 0) ELSE used_# END", "scheduler_node_capacity"),
    _sums("unlimited=CASE WHEN counted = 1 AND limit_# IS NULL THEN 1 ELSE 0 END", "scheduler_node_capacity"),
    "(SELECT COUNT(*) FROM scheduler_node_capacity WHERE counted = 1) AS true_counted_nodes",
)
_USE = (
    _sums("claimed=limit_#", "namespace_claims WHERE folded = 0"),
    _sums("unclaimed_used=# + ahead_#", f"charges WHERE role = 'primary' AND {BY_CLUSTER}"),
    _sums(
        "overage=CASE WHEN used_# > limit_# THEN used_# - limit_# ELSE 0 END",
        "namespace_claims WHERE folded = 0",
    ),
)


def _cluster_row(columns: tuple[str, ...], truths: tuple[str, ...]) -> Sql:
    stored = ", ".join(f"k.{name}" for name in columns)
    return Sql(f"SELECT {stored}, {', '.join(truths)} FROM cluster_capacity k WHERE k.id = 1")


CLUSTER = _cluster_row(CLUSTER_COLUMNS, (*_TOTALS, *_USE))
TOTALS = _cluster_row(TOTAL_COLUMNS, _TOTALS)


def _figures(row: RowMapping, columns: tuple[str, ...]) -> Figures:
    return {name: (int(row[name]), int(row[f"true_{name}"])) for name in columns}


def nodes(conn: Connection, node_id: int | None = None) -> dict[int, Figures]:
    """Return the figures of every node row, or of one, by node id."""
    result = NODES.run(conn) if node_id is None else NODE.run(conn, node_id=node_id)
    return {int(row["node_id"]): _figures(row, NODE_COLUMNS) for row in result.mappings()}


def claims(conn: Connection, uuid: str | None = None) -> dict[str, Figures]:
    """Return the figures of every claim, or of one, by uuid; a folded one uses nothing."""
    result = CLAIMS.run(conn) if uuid is None else CLAIM.run(conn, uuid=uuid)
    return {str(row["uuid"]): _figures(row, CLAIM_COLUMNS) for row in result.mappings()}


def cluster(conn: Connection) -> Figures:
    """Return the figures of the cluster's row.

    Raises:
        BrokenPromise: there is none.
    """
    return _cluster_figures(conn, CLUSTER, CLUSTER_COLUMNS)


def totals(conn: Connection) -> Figures:
    """Return only what the nodes contribute to the cluster's row: no charge is summed for it."""
    return _cluster_figures(conn, TOTALS, TOTAL_COLUMNS)


def _cluster_figures(conn: Connection, statement: Sql, columns: tuple[str, ...]) -> Figures:
    row = statement.run(conn).mappings().first()
    if row is None:
        raise BrokenPromise(MISSING)
    return _figures(row, columns)


def differs(figures: Figures) -> bool:
    """Return whether any stored figure differs from the truth."""
    return any(stored != true for stored, true in figures.values())
