"""What a node contributes to `cluster_capacity.total_*`: its limits when it counts, else what is used on it.

One rule, used by publish, state changes, reconcile and verify. The stored flag `counted` is what decides; publish and
the reconciler evaluate it. A null limit contributes nothing to the sum and one to `unlimited_*`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, RowMapping

from fleet.ledger.database import Sql
from fleet.model.node import COUNTED_SAMPLE_AGE_SECONDS, NodeState
from fleet.model.resources import CLUSTER_DIMENSIONS

COUNTING_STATES = frozenset({NodeState.ACTIVE, NodeState.MISSING})

APPLY = Sql("""
    UPDATE cluster_capacity SET
        total_cpus = total_cpus + :total_cpus, total_memory_mb = total_memory_mb + :total_memory_mb,
        total_disk_gb = total_disk_gb + :total_disk_gb,
        unlimited_cpus = unlimited_cpus + :unlimited_cpus,
        unlimited_memory_mb = unlimited_memory_mb + :unlimited_memory_mb,
        unlimited_disk_gb = unlimited_disk_gb + :unlimited_disk_gb,
        counted_nodes = counted_nodes + :counted_nodes, updated_at = {now}
    WHERE id = 1
""")


@dataclass(frozen=True, slots=True)
class Change:
    """A difference to the cluster's row."""

    total: Mapping[str, int] = field(default_factory=dict)
    unlimited: Mapping[str, int] = field(default_factory=dict)
    counted_nodes: int = 0

    def __add__(self, other: Change) -> Change:
        """Return both differences together."""
        return Change(
            _sum(self.total, other.total),
            _sum(self.unlimited, other.unlimited),
            self.counted_nodes + other.counted_nodes,
        )

    @property
    def is_nothing(self) -> bool:
        """Whether applying it would change no figure."""
        return not (any(self.total.values()) or any(self.unlimited.values()) or self.counted_nodes)


def _sum(left: Mapping[str, int], right: Mapping[str, int]) -> dict[str, int]:
    return {name: left.get(name, 0) + right.get(name, 0) for name in CLUSTER_DIMENSIONS}


def counts(state: str, is_hypervisor: Any, sample_age_seconds: float) -> bool:
    """Return whether a node counts: a hypervisor, not in error or deleted, its sample younger than 900 s."""
    return state in COUNTING_STATES and is_hypervisor is True and sample_age_seconds < COUNTED_SAMPLE_AGE_SECONDS


def contribution(row: RowMapping | None) -> Change:
    """Return what the row of `scheduler_node_capacity` contributes; an absent row contributes nothing."""
    if row is None:
        return Change()
    if not row["counted"]:
        return Change({name: row[f"used_{name}"] for name in CLUSTER_DIMENSIONS})
    return Change(
        {name: row[f"limit_{name}"] or 0 for name in CLUSTER_DIMENSIONS},
        {name: int(row[f"limit_{name}"] is None) for name in CLUSTER_DIMENSIONS},
        1,
    )


def difference(before: RowMapping | None, after: RowMapping | None) -> Change:
    """Return what the cluster's row must change by when a node's row goes from `before` to `after`."""
    was, now = contribution(before), contribution(after)
    minus = Change(
        {name: -value for name, value in was.total.items()},
        {name: -value for name, value in was.unlimited.items()},
        -was.counted_nodes,
    )
    return now + minus


def apply(conn: Connection, change: Change) -> None:
    """Add the difference to the cluster's row; the row is not touched when there is none."""
    if change.is_nothing:
        return
    binds: dict[str, int] = {"counted_nodes": change.counted_nodes}
    binds |= {f"total_{name}": change.total.get(name, 0) for name in CLUSTER_DIMENSIONS}
    binds |= {f"unlimited_{name}": change.unlimited.get(name, 0) for name in CLUSTER_DIMENSIONS}
    APPLY.run(conn, binds)
