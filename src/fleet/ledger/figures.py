"""Figures of the fleet for monitoring, read in a few statements when somebody asks. Read-only.

What happened is counted from the audit events, those too that retention deleted: it keeps their numbers
(`event_totals.py`). So every process that is asked answers the same, and no restart makes a counter begin anew.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import Connection

from fleet.ledger.database import Database, Sql, decimal_of
from fleet.ledger.event_totals import COUNTED_AS
from fleet.model import capacity
from fleet.model.figures import whole_or_none
from fleet.model.resources import CLUSTER_DIMENSIONS, DIMENSIONS

SETTLED_SECONDS: Final = 30
ID_MAX: Final = 2**63 - 1

_NODES = Sql("""
    SELECT n.name, n.state, n.scheduling, c.node_id AS sized, c.limit_cpus, c.limit_memory_mb, c.limit_disk_gb,
        c.limit_instances, c.used_cpus, c.used_memory_mb, c.used_disk_gb, c.used_instances, c.expected_demand,
        c.cpu_load_1, c.cpu_schedulable, c.counted, {now} - c.sample_at AS sample_age_us, c.sleepy_memory_mb,
        m.memory_available, JSON_EXTRACT(m.metrics, '$.memory_reserved_mb') AS memory_reserved_mb
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
_SETTLED = Sql("""
    SELECT (SELECT MIN(id) FROM events) AS oldest, (SELECT MAX(id) FROM events) AS newest,
        (SELECT id FROM events WHERE at < {now} - :settled ORDER BY id DESC LIMIT 1) AS settled
""")
_EVENTS = Sql(f"""
    SELECT {COUNTED_AS} AS counted, COUNT(*) AS events FROM events WHERE id > :after AND id <= :up_to GROUP BY counted
""")
# One statement, so that a row that retention is deleting at this moment is counted on exactly one of the two sides.
_EVER = Sql(f"""
    SELECT counted, SUM(events) AS events FROM (
        SELECT {COUNTED_AS} AS counted, COUNT(*) AS events FROM events WHERE id <= :up_to GROUP BY counted
        UNION ALL SELECT message AS counted, events FROM forgotten_events
    ) AS ever GROUP BY counted
""")
_CLAIMS = Sql("""
    SELECT namespace, limit_cpus, limit_memory_mb, limit_disk_gb, used_cpus, used_memory_mb, used_disk_gb,
        expires_at - {now} AS left_us
    FROM namespace_claims WHERE coverage_state = 'active'
    ORDER BY CASE WHEN used_cpus > limit_cpus OR used_memory_mb > limit_memory_mb OR used_disk_gb > limit_disk_gb
        THEN 0 ELSE 1 END, namespace LIMIT :most
""")
_CLAIMS_ACTIVE = Sql("SELECT COUNT(*) FROM namespace_claims WHERE coverage_state = 'active'")
CLAIMS_SHOWN_MAX: Final = 1000


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
    cpu_schedulable: int | None
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
class ClaimFigures:
    """A namespace's active claim. `seconds_left` is negative when it ended and no pass has folded it yet."""

    namespace: str
    limits: Mapping[str, int]
    used: Mapping[str, int]
    seconds_left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The fleet as one connection saw it. `claims`: at most `CLAIMS_SHOWN_MAX` active ones, the exceeded ones first."""

    nodes: Sequence[NodeFigures]
    cluster: Mapping[str, int]
    unlimited: Mapping[str, bool]
    operations: Sequence[OperationFigures]
    instances: Mapping[str, int]
    claims: Sequence[ClaimFigures]
    claims_active: int


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
        claims = [_claim(row) for row in _CLAIMS.run(conn, most=CLAIMS_SHOWN_MAX).mappings()]
        claims_active = int(_CLAIMS_ACTIVE.run(conn).scalar_one())
    return Figures(
        nodes=nodes,
        cluster={name: int(value) for name, value in cluster.items() if name.startswith(_CLUSTER_PREFIXES)},
        unlimited={name: bool(cluster.get(f"unlimited_{name}", 0)) for name in CLUSTER_DIMENSIONS},
        operations=operations,
        instances=instances,
        claims=claims,
        claims_active=claims_active,
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
        cpu_schedulable=row["cpu_schedulable"],
        counted=bool(row["counted"]),
        sample_age_seconds=row["sample_age_us"] / 1_000_000 if sized else None,
        sleepy_memory_mb=row["sleepy_memory_mb"],
        wake_risk_mb=_wake_risk(row) if sized else None,
    )


def _wake_risk(row: Any) -> int | None:
    reserved = row["memory_reserved_mb"]
    reserved_mb = None if reserved in {None, "null"} else whole_or_none(float(reserved))
    return capacity.wake_risk_mb(int(row["sleepy_memory_mb"]), row["memory_available"], reserved_mb)


def _claim(row: Any) -> ClaimFigures:
    return ClaimFigures(
        namespace=row["namespace"],
        limits={name: int(row[f"limit_{name}"]) for name in CLUSTER_DIMENSIONS},
        used={name: int(row[f"used_{name}"]) for name in CLUSTER_DIMENSIONS},
        seconds_left=row["left_us"] / 1_000_000,
    )


def _operations(row: Any) -> OperationFigures:
    return OperationFigures(
        kind=row.kind,
        state=row.state,
        count=int(row.operations),
        oldest_seconds=row.oldest_us / 1_000_000,
        overdue_seconds=row.overdue_us / 1_000_000,
    )


class EventCounts:
    """How often each event was ever recorded. The server counts; after the first time, only what is new since.

    Where retention may have deleted what is new since, everything is counted again.
    """

    def __init__(self) -> None:
        self._settled: Counter[str] = Counter()
        self._after = -1

    def read(self, conn: Connection) -> Mapping[str, int]:
        """Return the counts by message, up to now."""
        row = _SETTLED.run(conn, settled=SETTLED_SECONDS * 1_000_000).one()
        settled = row.settled or 0
        if row.oldest is None or not row.oldest <= self._after <= row.newest:
            self._settled, self._after = _ever(conn, settled), settled
        elif settled > self._after:
            self._settled += _counts(conn, self._after, settled)
            self._after = settled
        return self._settled + _counts(conn, self._after, ID_MAX)


def _ever(conn: Connection, up_to: int) -> Counter[str]:
    return Counter({row.counted: int(row.events) for row in _EVER.run(conn, up_to=up_to)})


def _counts(conn: Connection, after: int, up_to: int) -> Counter[str]:
    return Counter({row.counted: int(row.events) for row in _EVENTS.run(conn, after=after, up_to=up_to)})
