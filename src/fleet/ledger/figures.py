"""Figures of the fleet for monitoring, read in a few statements when somebody asks. Read-only.

What happened is counted from the audit events, so every process that is asked counts the same rows. Events that
retention deleted stay counted where they were counted before: a process that starts later counts what is left, which
monitoring takes for a counter that began anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import Connection

from fleet.ledger.database import Database, Sql, decimal_of
from fleet.model import capacity
from fleet.model.figures import whole_or_none
from fleet.model.resources import CLUSTER_DIMENSIONS, DIMENSIONS

SETTLED_SECONDS: Final = 30
ID_MAX: Final = 2**63 - 1

_NODES = Sql("""
    SELECT n.name, n.state, n.scheduling, c.node_id AS sized, c.limit_cpus, c.limit_memory_mb, c.limit_disk_gb,
        c.limit_instances, c.used_cpus, c.used_memory_mb, c.used_disk_gb, c.used_instances, c.expected_demand,
        c.cpu_load_1, c.counted, {now} - c.sample_at AS sample_age_us, c.sleepy_memory_mb, m.memory_available,
        JSON_EXTRACT(m.metrics, '$.memory_reserved_mb') AS memory_reserved_mb
    FROM nodes n LEFT JOIN scheduler_node_capacity c ON c.node_id = n.id
    LEFT JOIN node_metrics m ON m.node_id = n.id WHERE n.state <> 'deleted' ORDER BY n.name
""")
_CLUSTER = Sql("SELECT * FROM cluster_capacity WHERE id = 1")
_OPERATIONS = Sql("""
    SELECT kind, state, COUNT(*) AS operations, MAX({now} - created_at) AS oldest_us,
        MAX({now} - next_attempt_at) AS overdue_us
    FROM operations WHERE state IN ('pending', 'running', 'failed') GROUP BY kind, state
""")
_INSTANCES = Sql("SELECT state, COUNT(*) AS instances FROM instances WHERE state <> 'deleted' GROUP BY state")
# Ids are given out before the commit, so the youngest rows are counted anew each time.
_SETTLED = Sql("SELECT id FROM events WHERE at < {now} - :settled ORDER BY id DESC LIMIT 1")
# An event that stands on the timelines of two objects is counted once, where its instance is.
_EVENTS = Sql("""
    SELECT CASE WHEN object_type <> 'instance' AND message IN (
            'placement admitted over namespace capacity claim', 'placement recorded despite exceeding capacity guard')
        THEN '' ELSE message END AS counted, COUNT(*) AS events
    FROM events WHERE id > :after AND id <= :up_to GROUP BY counted
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFigures:
    """One node. `limits` None: the ledger has not sized it; a limit that is None is unlimited."""

    name: str
    state: str
    scheduling: str
    limits: Mapping[str, int | None] | None
    used: Mapping[str, int]
    expected_demand: Decimal | None
    cpu_load_1: Decimal | None
    counted: bool
    sample_age_seconds: float | None
    sleepy_memory_mb: int | None
    wake_risk_mb: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationFigures:
    """Operations of one kind in one state. `overdue_seconds` is negative when the first of them is due later."""

    kind: str
    state: str
    count: int
    oldest_seconds: float
    overdue_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The fleet as one connection saw it."""

    nodes: Sequence[NodeFigures]
    cluster: Mapping[str, int]
    unlimited: Mapping[str, bool]
    operations: Sequence[OperationFigures]
    instances: Mapping[str, int]


def read(db: Database) -> Figures:
    """Read all figures.

    Raises:
        DatabaseUnavailable: nothing is known; no figure may be shown.
    """
    with db.read() as conn:
        nodes = [_node(row) for row in _NODES.run(conn).mappings()]
        row = _CLUSTER.run(conn).mappings().first()
        cluster: dict[str, Any] = {} if row is None else dict(row)
        operations = [_operations(row) for row in _OPERATIONS.run(conn)]
        instances = {str(row.state): int(row.instances) for row in _INSTANCES.run(conn)}
    return Figures(
        nodes=nodes,
        cluster={name: int(value) for name, value in cluster.items() if name.startswith(_CLUSTER_PREFIXES)},
        unlimited={name: bool(cluster.get(f"unlimited_{name}", 0)) for name in CLUSTER_DIMENSIONS},
        operations=operations,
        instances=instances,
    )


_CLUSTER_PREFIXES = ("total_", "claimed_", "unclaimed_used_", "overage_", "counted_nodes")


def _node(row: Any) -> NodeFigures:
    sized = row["sized"] is not None
    return NodeFigures(
        name=row["name"],
        state=row["state"],
        scheduling=row["scheduling"],
        limits={name: row[f"limit_{name}"] for name in DIMENSIONS} if sized else None,
        used={name: int(row[f"used_{name}"]) for name in DIMENSIONS} if sized else {},
        expected_demand=decimal_of(row["expected_demand"]),
        cpu_load_1=decimal_of(row["cpu_load_1"]),
        counted=bool(row["counted"]),
        sample_age_seconds=row["sample_age_us"] / 1_000_000 if sized else None,
        sleepy_memory_mb=row["sleepy_memory_mb"],
        wake_risk_mb=_wake_risk(row) if sized else None,
    )


def _wake_risk(row: Any) -> int | None:
    reserved = row["memory_reserved_mb"]
    reserved_mb = None if reserved in {None, "null"} else whole_or_none(float(reserved))
    return capacity.wake_risk_mb(int(row["sleepy_memory_mb"]), row["memory_available"], reserved_mb)


def _operations(row: Any) -> OperationFigures:
    return OperationFigures(
        kind=row.kind,
        state=row.state,
        count=int(row.operations),
        oldest_seconds=row.oldest_us / 1_000_000,
        overdue_seconds=row.overdue_us / 1_000_000,
    )


class EventCounts:
    """How often each event was recorded. The server counts; after the first time, only what is new since the last."""

    def __init__(self) -> None:
        self._settled: Counter[str] = Counter()
        self._after = 0

    def read(self, conn: Connection) -> Mapping[str, int]:
        """Return the counts by message, up to now."""
        row = _SETTLED.run(conn, settled=SETTLED_SECONDS * 1_000_000).first()
        if row is not None and row.id > self._after:
            self._settled += _counts(conn, self._after, row.id)
            self._after = row.id
        return self._settled + _counts(conn, self._after, ID_MAX)


def _counts(conn: Connection, after: int, up_to: int) -> Counter[str]:
    return Counter({row.counted: int(row.events) for row in _EVENTS.run(conn, after=after, up_to=up_to)})
