"""The ledger in memory: rows of nodes, charges, GPUs, and the guard with the same formulas as the real one.

Promise: `admit` is the only growth. It judges the row as it stands, not as anybody remembers it; a row that another
transaction holds is busy; what a transaction changed is seen by others from its commit on. The formulas are those of
`fleet.model.capacity` and `fleet.model.gpu_inventory`; the order of the guards is node, GPU.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any, Final

from fleet.model import capacity
from fleet.model.admission import Admitted, Busy, Refused, Stage
from fleet.model.cluster_config import ClusterConfig
from fleet.model.figures import measured_of
from fleet.model.gpu_inventory import GpuAsk, GpuInventory, choose
from fleet.model.resources import DIMENSIONS, Amounts, DimensionFigure, Limits
from fleet.simulation.protocol import CLUSTER_HOLD_US, HOLD_US, PUBLISH_HOLD_US, RELEASE_HOLD_US

AdmitOutcome = Admitted | Refused | Busy
MILLION: Final = 1_000_000


@dataclass(slots=True)
class Charge:
    """What one instance holds on one node, as the ledger knows it."""

    index: int
    node: int
    amounts: Amounts
    sleepy: bool
    placed_at_us: int
    units: tuple[str, ...] = ()
    settled_at_us: int | None = None


@dataclass(slots=True)
class Row:
    """One node's row. Loads are in thousandths. `seen` and `seen_gpus` are what is committed, as readers see it."""

    limits: Limits
    gpus: GpuInventory
    metrics: Mapping[str, Any]
    used: Amounts = field(default_factory=Amounts)
    demand_milli: int = 0
    pending_memory_mb: int = 0
    pending_disk_gb: int = 0
    load_milli: int = 0
    schedulable: int = 0
    sample_at_us: int = 0
    sleepy_memory_mb: int = 0
    locked_until_us: int = 0
    charges: dict[int, Charge] = field(default_factory=dict)
    seen: tuple[Any, ...] = ()
    seen_gpus: GpuInventory = field(default_factory=GpuInventory)


class Ledger:
    """All rows, by the node's index; a node's ledger id is its index + 1."""

    def __init__(self, inventories: Sequence[GpuInventory], config: ClusterConfig) -> None:
        """Start with unsized rows; the first `publish` of each node gives it its limits."""
        self._config = config
        self._ratios = config.ratios
        self._target_milli = capacity.to_milli(config.scheduler_target_load)
        self.rows = [Row(Limits(0, 0, 0), gpus, {}) for gpus in inventories]
        self.log: list[int] = []
        """The node of every commit, in order: readers keep a place in it."""
        self.published: list[int] = []
        """The node of every sample, in order."""
        self._cluster_free_us = 0

    def admit(self, charge: Charge, gpus: GpuAsk, now_us: int, *, waived: bool) -> AdmitOutcome:
        """Try to charge a node at a moment; `charge.units` are the cards it gets. The row is held until `commit_at`."""
        row = self.rows[charge.node]
        if row.locked_until_us > now_us:
            return Busy(charge.node)
        refused = self.judge(row, charge, waived=waived)
        if refused is not None:
            return refused
        if gpus.count:
            units = choose(row.gpus, gpus)
            if units is None:
                return Refused(charge.node, Stage.GPU)
            charge.units = units
            row.gpus = _bound(row.gpus, units, str(charge.index))
        self._grow(row, charge)
        return Admitted(charge.node)

    def judge(self, row: Row, charge: Charge, *, waived: bool) -> Refused | None:
        """Return the refusal of the node's guard; None: there is room."""
        used, asked, limits = row.used.as_dict(), charge.amounts.as_dict(), row.limits.as_dict()
        figures = [
            DimensionFigure.of(name, limit=limits[name], used=used[name], requested=asked[name]) for name in DIMENSIONS
        ]
        over = capacity.over_demand_target(row.load_milli, row.demand_milli, self._target_milli, row.schedulable)
        if not waived and self._target_milli > 0 and over:
            load, target = row.load_milli + row.demand_milli, self._target_milli * row.schedulable
            figures.append(
                DimensionFigure(
                    "demand", target / 1000, load / 1000, 0.0, exceeded=True, shortfall=(load - target) / 1000
                )
            )
        if not any(figure.exceeded for figure in figures):
            return None
        return Refused(charge.node, Stage.NODE, tuple(figures))

    def _grow(self, row: Row, charge: Charge) -> None:
        row.used += charge.amounts
        demand = capacity.demand_at_admission(charge.amounts.cpus, self._config.scheduler_demand_per_vcpu)
        row.demand_milli += capacity.to_milli(demand)
        row.pending_memory_mb += charge.amounts.memory_mb
        row.pending_disk_gb += charge.amounts.disk_gb
        row.sleepy_memory_mb += charge.amounts.memory_mb if charge.sleepy else 0
        row.charges[charge.index] = charge
        self._cluster_free_us = max(charge.placed_at_us + HOLD_US - CLUSTER_HOLD_US, self._cluster_free_us)
        self._cluster_free_us += CLUSTER_HOLD_US
        row.locked_until_us = self._cluster_free_us

    def commit(self, node: int) -> None:
        """Let readers see a node's row as it stands."""
        row = self.rows[node]
        limits, used = row.limits, row.used
        row.seen = (
            node + 1,
            limits.cpus,
            limits.memory_mb,
            limits.disk_gb,
            limits.instances,
            used.cpus,
            used.memory_mb,
            used.disk_gb,
            used.instances,
            Decimal(row.demand_milli) / 1000,
            row.pending_memory_mb,
            row.pending_disk_gb,
            Decimal(row.load_milli) / 1000,
            row.schedulable,
            "active",
            "enabled",
            row.sample_at_us,
            1,
            row.sleepy_memory_mb,
        )
        row.seen_gpus = row.gpus
        self.log.append(node)

    def settle(self, charge: Charge, now_us: int) -> None:
        """Note that the node proved the domain: samples that begin later include it."""
        charge.settled_at_us = now_us

    def release(self, charge: Charge, now_us: int) -> None:
        """Take back exactly what the charge holds. The row must not be locked."""
        row = self.rows[charge.node]
        del row.charges[charge.index]
        row.used -= charge.amounts
        if capacity.missed_by_sample(charge.settled_at_us, row.sample_at_us):
            row.pending_memory_mb -= charge.amounts.memory_mb
            row.pending_disk_gb -= charge.amounts.disk_gb
        row.sleepy_memory_mb -= charge.amounts.memory_mb if charge.sleepy else 0
        row.gpus = _bound(row.gpus, charge.units, None)
        row.locked_until_us = now_us + RELEASE_HOLD_US
        self.commit(charge.node)

    def publish(self, node: int, metrics: Mapping[str, Any], now_us: int, max_instances: int | None) -> None:
        """Take in a sample: limits, load, and what is pending beside it. The row must not be locked."""
        row = self.rows[node]
        measured = measured_of(metrics, self._config)
        row.limits = capacity.node_limits(measured, self._ratios, max_instances).limits
        row.metrics, row.sample_at_us = metrics, now_us
        row.load_milli = capacity.to_milli(metrics["cpu_load_1"])
        row.schedulable = measured.cpu_schedulable or 0
        waiting = [
            charge.amounts for charge in row.charges.values() if capacity.missed_by_sample(charge.settled_at_us, now_us)
        ]
        row.pending_memory_mb = sum(amounts.memory_mb for amounts in waiting)
        row.pending_disk_gb = sum(amounts.disk_gb for amounts in waiting)
        row.locked_until_us = max(row.locked_until_us, now_us + PUBLISH_HOLD_US)
        self.commit(node)
        self.published.append(node)

    def refresh_demand(self, now_us: int) -> None:
        """Bring every node's expected demand to what its charges' ages justify, as a pass of the reconciler does."""
        for node, row in enumerate(self.rows):
            wanted = sum(map(capacity.to_milli, self._demands(row, now_us)))
            if wanted != row.demand_milli and row.locked_until_us <= now_us:
                row.demand_milli = wanted
                self.commit(node)

    def _demands(self, row: Row, now_us: int) -> Iterator[Decimal]:
        per_vcpu = self._config.scheduler_demand_per_vcpu
        window = self._config.scheduler_demand_decay_seconds
        for charge in row.charges.values():
            age_us = now_us - charge.placed_at_us
            if age_us < window * MILLION:
                age = Decimal(age_us) / MILLION
                yield capacity.expected_demand(charge.amounts.cpus, per_vcpu, age, window)


def _bound(inventory: GpuInventory, units: Sequence[str], holder: str | None) -> GpuInventory:
    if not units:
        return inventory
    chosen = frozenset(units)
    devices = tuple(replace(one, bound_to=holder) if one.uuid in chosen else one for one in inventory.devices)
    return replace(inventory, devices=devices)
