"""Reconciliation by difference: counters against charges, found in one statement each, fixed row by row.

A pass never overwrites a counter with a sum it read earlier. *Find* compares counters and sums in one consistent
statement. *Fix* opens a short transaction for each differing row: check the leader's number, lock the row, read the
truth again in a new statement (every writer of those charges holds this lock, so it is exact), set, record an event.
Source: decisions, section "Admission", "Reconciliation".
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, RowMapping

from fleet.ledger import claims, demand, events, gpu_truth, leases, node_rows, rehome, totals, truth
from fleet.ledger.database import Database, Sql
from fleet.model.cluster_config import ClusterConfig
from fleet.model.resources import CLUSTER_DIMENSIONS, Amounts

SET_NODE = Sql("""
    UPDATE scheduler_node_capacity SET used_cpus = :used_cpus, used_memory_mb = :used_memory_mb,
        used_disk_gb = :used_disk_gb, used_instances = :used_instances, pending_memory_mb = :pending_memory_mb,
        pending_disk_gb = :pending_disk_gb, sleepy_memory_mb = :sleepy_memory_mb, generation = generation + 1,
        updated_at = {now}
    WHERE node_id = :node_id
""")
SET_CLUSTER = Sql(
    "UPDATE cluster_capacity SET "
    + ", ".join(f"{name} = :{name}" for name in truth.CLUSTER_COLUMNS)
    + ", updated_at = {now} WHERE id = 1"
)
LOCK_CLUSTER = Sql("SELECT * FROM cluster_capacity WHERE id = 1 {for_update}")
_COUNTING = """
    SELECT c.node_id, c.counted, c.state, {now} - c.sample_at AS age_us, m.is_hypervisor
    FROM scheduler_node_capacity c LEFT JOIN node_metrics m ON m.node_id = c.node_id
"""
COUNTING = Sql(_COUNTING + " ORDER BY c.node_id")
ONE_COUNTING = Sql(_COUNTING + " WHERE c.node_id = :node_id")
SET_COUNTED = Sql("""
    UPDATE scheduler_node_capacity SET counted = :counted, generation = generation + 1, updated_at = {now}
    WHERE node_id = :node_id
""")
CORRECTED: Final = "capacity counter corrected"
EXPIRED = Sql("""
    SELECT uuid FROM namespace_claims WHERE folded = 0 AND expires_at <= {now} ORDER BY uuid
""")


@dataclass(frozen=True, slots=True)
class Correction:
    """One figure that a pass set right; `name` is whose timeline has its event: a node's own name."""

    row: str
    figure: str
    old: int
    new: int
    name: str = ""

    @property
    def difference(self) -> int:
        """What the pass added to the stored figure."""
        return self.new - self.old


@dataclass(frozen=True, slots=True)
class PassReport:
    """What one pass did. `seconds` is a local, monotonic interval.

    `nodes_added` and `nodes_removed` began, and ceased, to count in the cluster's totals.
    """

    nodes: int
    corrections: tuple[Correction, ...]
    claims_expired: int
    charges_rehomed: int
    demand_refreshed: int
    seconds: float
    nodes_added: int = 0
    nodes_removed: int = 0


_DRIFT: Final = {f"used_{name}": f"delta_used_{name}" for name in CLUSTER_DIMENSIONS}


def drift(report: PassReport) -> dict[str, dict[str, int]]:
    """Return for each node that had drifted what the pass added to its used counters."""
    found: dict[str, dict[str, int]] = {}
    for one in report.corrections:
        if one.row.startswith("node ") and one.figure in _DRIFT:
            node = found.setdefault(one.name, dict.fromkeys(_DRIFT.values(), 0))
            node[_DRIFT[one.figure]] += one.difference
    return found


def reconcile(
    db: Database,
    lease: leases.Lease,
    config: ClusterConfig,
    *,
    elapsed: Callable[[], float] = time.monotonic,
    between: Callable[[], None] = lambda: None,
) -> PassReport:
    """Run one pass under `lease`. `between` is called between finding and fixing (for the tests of that gap).

    Raises:
        leases.LeaseLost: another leads now; what was fixed so far is right, the rest is left to the other.
    """
    start = elapsed()
    expired = _expire_claims(db, lease)
    rehomed = rehome.rehome(db, lease)
    added, removed = _recount(db, lease)
    corrections: list[Correction] = []
    with db.read() as conn:
        nodes = truth.nodes(conn)
        claimed = truth.claims(conn)
        held_wrong = sorted({item.node_id for item in gpu_truth.differences(conn)})
    between()
    for node_id, figures in nodes.items():
        if truth.differs(figures):
            corrections += _fix(db, lease, f"node {node_id}", _node_fixer(node_id))
    for uuid, figures in claimed.items():
        if truth.differs(figures):
            corrections += _fix(db, lease, f"claim {uuid}", _claim_fixer(uuid))
    for node_id in held_wrong:
        corrections += _fix(db, lease, f"node {node_id}", _gpu_fixer(node_id))
    with db.read() as conn:
        cluster = truth.cluster(conn)
    if truth.differs(cluster):
        corrections += _fix(db, lease, "cluster", _fix_cluster)
    refreshed = demand.refresh(db, lease, config)
    return PassReport(len(nodes), tuple(corrections), expired, rehomed, refreshed, elapsed() - start, added, removed)


Fixer = Callable[[Connection], truth.Figures]


def _fix(db: Database, lease: leases.Lease, row: str, fixer: Fixer) -> list[Correction]:
    def fix(conn: Connection) -> list[Correction]:
        leases.check(conn, lease)
        figures = fixer(conn)
        wrong = {name: pair for name, pair in figures.items() if pair[0] != pair[1]}
        if not wrong:
            return []
        kind, key = _timeline(conn, row)
        found = [Correction(row, name, stored, true, key) for name, (stored, true) in wrong.items()]
        for item in found:
            payload = {
                "row": row,
                "figure": item.figure,
                "old": item.old,
                "new": item.new,
                "difference": item.difference,
            }
            events.record(conn, kind, key, CORRECTED, payload, level="warning")
        return found

    return db.unit(fix)


def _timeline(conn: Connection, row: str) -> tuple[str, str]:
    """Return whose timeline a row's events belong to; a node's is kept under its name."""
    kind, _, key = row.partition(" ")
    if kind == "node":
        return kind, node_rows.name_of(conn, int(key)) or key
    return kind, key or "cluster"


def _node_fixer(node_id: int) -> Fixer:
    def fix(conn: Connection) -> truth.Figures:
        row = node_rows.LOCK.run(conn, node_id=node_id).mappings().first()
        if row is None:
            return {}
        figures = truth.nodes(conn, node_id)[node_id]
        SET_NODE.run(conn, {name: true for name, (_, true) in figures.items()}, node_id=node_id)
        if not row["counted"]:
            # Totals hold the use of an uncounted row, so they move with it.
            moved = {name[5:]: true - stored for name, (stored, true) in figures.items() if name.startswith("used_")}
            moved.pop("instances", None)
            totals.apply(conn, totals.Change(moved))
        return figures

    return fix


def _gpu_fixer(node_id: int) -> Fixer:
    def fix(conn: Connection) -> truth.Figures:
        if node_rows.LOCK.run(conn, node_id=node_id).first() is None:
            return {}
        return gpu_truth.repair(conn, node_id)

    return fix


def _claim_fixer(uuid: str) -> Fixer:
    def fix(conn: Connection) -> truth.Figures:
        if claims.lock(conn, uuid) is None:
            return {}
        figures = truth.claims(conn, uuid)[uuid]
        claims.correct(conn, uuid, Amounts(*(figures[name][1] for name in truth.CLAIM_COLUMNS)))
        return figures

    return fix


def _fix_cluster(conn: Connection) -> truth.Figures:
    LOCK_CLUSTER.run(conn).first()
    figures = truth.cluster(conn)
    SET_CLUSTER.run(conn, {name: true for name, (_, true) in figures.items()})
    return figures


def _recount(db: Database, lease: leases.Lease) -> tuple[int, int]:
    """Evaluate `counted` again, node by node: a sample ages past the bound without anybody publishing.

    Returns:
        How many began, and how many ceased, to count.
    """
    added = removed = 0
    with db.read() as conn:
        rows = COUNTING.run(conn).mappings().all()
    for row in rows:
        if bool(row["counted"]) != _counts(row):
            changed = db.unit(_recounter(lease, int(row["node_id"])))
            added += changed is True
            removed += changed is False
    return added, removed


def _counts(row: RowMapping) -> bool:
    hypervisor = None if row["is_hypervisor"] is None else bool(row["is_hypervisor"])
    return totals.counts(row["state"], hypervisor, row["age_us"] / 1_000_000)


def _recounter(lease: leases.Lease, node_id: int) -> Callable[[Connection], bool | None]:
    def recount(conn: Connection) -> bool | None:
        leases.check(conn, lease)
        before = node_rows.LOCK.run(conn, node_id=node_id).mappings().first()
        now = ONE_COUNTING.run(conn, node_id=node_id).mappings().first()
        if before is None or now is None or bool(before["counted"]) == _counts(now):
            return None
        SET_COUNTED.run(conn, node_id=node_id, counted=_counts(now))
        after = node_rows.LOCK.run(conn, node_id=node_id).mappings().one()
        payload = {"counted": _counts(now), "sample_age_seconds": round(now["age_us"] / 1_000_000)}
        events.record(conn, *_timeline(conn, f"node {node_id}"), "node capacity counted changed", payload)
        totals.apply(conn, totals.difference(before, after))
        return _counts(now)

    return recount


def _expire_claims(db: Database, lease: leases.Lease) -> int:
    """Fold claims past their end: what they used moves to the unclaimed side, their limits leave `claimed_*`."""
    with db.read() as conn:
        expired = [str(row.uuid) for row in EXPIRED.run(conn)]
    return sum(db.unit(_folder(lease, uuid)) for uuid in expired)


def _folder(lease: leases.Lease, uuid: str) -> Callable[[Connection], bool]:
    def fold(conn: Connection) -> bool:
        leases.check(conn, lease)
        return claims.fold_expired(conn, uuid)

    return fold


def needs_pass(db: Database) -> bool:
    """Return whether the counting nodes or their limits differ from what `total_*` holds: a pass is due at once."""
    with db.read() as conn:
        return truth.differs(truth.totals(conn)) or any(
            bool(row["counted"]) != _counts(row) for row in COUNTING.run(conn).mappings()
        )
