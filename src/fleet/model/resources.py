"""Amounts of node resources: what a charge holds, what a limit bounds, what a request asks for.

All amounts are whole numbers. Units: `cpus` are vCPUs, `memory_mb` MiB, `disk_gb` GiB, `instances` slots.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

DIMENSIONS = ("cpus", "memory_mb", "disk_gb", "instances")
"""The dimensions of a node's ledger row, in the order every refusal lists them."""

CLUSTER_DIMENSIONS = ("cpus", "memory_mb", "disk_gb")
"""The dimensions of claims and of the cluster row; slots are a property of one node only."""


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much of each dimension. Never negative in a request or a charge; differences may be."""

    cpus: int = 0
    memory_mb: int = 0
    disk_gb: int = 0
    instances: int = 0

    def __add__(self, other: Amounts) -> Amounts:
        """Return the sum, dimension by dimension."""
        return Amounts(
            self.cpus + other.cpus,
            self.memory_mb + other.memory_mb,
            self.disk_gb + other.disk_gb,
            self.instances + other.instances,
        )

    def __sub__(self, other: Amounts) -> Amounts:
        """Return the difference, dimension by dimension; it may be negative."""
        return self + -other

    def __neg__(self) -> Amounts:
        """Return the amounts with every sign turned."""
        return Amounts(-self.cpus, -self.memory_mb, -self.disk_gb, -self.instances)

    def floored(self) -> Amounts:
        """Return the amounts with negative ones replaced by zero."""
        return Amounts(max(0, self.cpus), max(0, self.memory_mb), max(0, self.disk_gb), max(0, self.instances))

    def as_dict(self) -> dict[str, int]:
        """Return `{dimension: amount}` in the order of `DIMENSIONS`."""
        return {name: getattr(self, name) for name in DIMENSIONS}


@dataclass(frozen=True, slots=True)
class Limits:
    """Upper bounds of a node's ledger row. None means unlimited in that dimension."""

    cpus: int | None
    memory_mb: int | None
    disk_gb: int | None
    instances: int | None = None

    def as_dict(self) -> dict[str, int | None]:
        """Return `{dimension: limit}` in the order of `DIMENSIONS`."""
        return {name: getattr(self, name) for name in DIMENSIONS}


@dataclass(frozen=True, slots=True)
class DimensionFigure:
    """Why one dimension refused (or did not): the figures of one guard, re-read after the refusal.

    `used` is what stood before the request. For `demand`, figures are loads, not amounts, and the request is not
    part of the comparison (decisions: the demand clause asks whether the node is already over its target). Its `used`
    is the sum of two terms, and only those tell what is wrong: where the measured `cpu_load_1` dominates, the node is
    busy; where `expected_demand` does, the estimate is too high. None: the dimension has no such terms.
    """

    dimension: str
    limit: float | None
    used: float
    requested: float
    exceeded: bool
    shortfall: float
    cpu_load_1: float | None = None
    expected_demand: float | None = None

    @classmethod
    def of(
        cls, dimension: str, *, limit: int | None, used: int, requested: int, judged: bool = True
    ) -> DimensionFigure:
        """Judge one allocation dimension: exceeded when `used + requested > limit`.

        Not `judged`: the guard does not compare it, for nothing is asked for there, or nothing grows.
        """
        over = 0 if limit is None or not judged else max(0, used + requested - limit)
        return cls(dimension, limit, used, requested, exceeded=over > 0, shortfall=over)

    @classmethod
    def read(cls, form: Mapping[str, Any]) -> DimensionFigure:
        """Return the figures of `as_dict`."""
        return cls(**form)

    def as_dict(self) -> dict[str, object]:
        """Return the figures as JSON values."""
        form: dict[str, object] = {
            "dimension": self.dimension,
            "limit": self.limit,
            "used": self.used,
            "requested": self.requested,
            "exceeded": self.exceeded,
            "shortfall": self.shortfall,
        }
        terms = {"cpu_load_1": self.cpu_load_1, "expected_demand": self.expected_demand}
        return form | {name: value for name, value in terms.items() if value is not None}
