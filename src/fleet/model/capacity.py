"""THE capacity formulas. Publish, admission, reconcile, ranking and display all call these; nobody repeats them.

Source of every formula: the product's decisions, section "Capacity arithmetic", unless a docstring names another.
Amounts are integers; ratios are exact (`Decimal` with at most three places) and are applied through integers, because
`floor(100 * 1.15)` in floats is 114. Functions marked *columns* accept whole numpy columns as well as single integers:
they use only `+ - * //` and comparisons, so that one formula serves the node and the fleet.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING, Any, TypeVar

from fleet.model.resources import Limits

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Column = NDArray[np.int64]

T = TypeVar("T", int, "Column")
M = TypeVar("M", int, Decimal)

THOUSAND = 1000
"""Ratios and loads keep three places: the integer they are scaled by."""

BAND_PER_MILLE = 250
"""Width of a load band: 0.25, in thousandths."""

WEIGHT_FLOOR = 0.1
"""Least load headroom and least free fraction that a node is weighed with: no node is without a chance."""


@dataclass(frozen=True, slots=True)
class Clamped:
    """A figure and whether a safety bound replaced what the configuration asked for."""

    value: int
    clamped: bool


def to_milli(value: Decimal | float | str) -> int:
    """Return `value` in thousandths, rounded half away from zero at the third place."""
    return int((Decimal(str(value)) * THOUSAND).to_integral_value(ROUND_HALF_UP))


def floored_product(amount: int, ratio: Decimal) -> int:
    """Return `floor(amount * ratio)`, exactly."""
    return amount * to_milli(ratio) // THOUSAND


def at_least_zero(amount: T) -> T:
    """Return `max(0, amount)`. Columns."""
    positive: T = amount * (amount > 0)
    return positive


def offered_threads(threads: T, reservation_threads: int) -> T:
    """Return `max(1, threads - reservation)`. Columns."""
    return at_least_zero(threads - reservation_threads - 1) + 1


def kept_memory_mb(wanted_mb: int, total_mb: T) -> T:
    """Return `min(wanted, total / 2)`: a reservation leaves at least half of the machine. Columns."""
    return wanted_mb - at_least_zero(wanted_mb - total_mb // 2)


def cpu_schedulable(threads: int, reservation_threads: int) -> Clamped:
    """Return `max(1, threads - reservation)`: hardware threads offered to instances."""
    return Clamped(offered_threads(threads, reservation_threads), clamped=threads - reservation_threads < 1)


def memory_reserved_mb(reservation_gb: Decimal, total_mb: int) -> Clamped:
    """Return `min(floor(GB * 1024), total / 2)` MiB: memory kept for the host."""
    wanted = floored_product(1024, reservation_gb)
    return Clamped(kept_memory_mb(wanted, total_mb), clamped=wanted > total_mb // 2)


def limit_cpus(schedulable: int, ratio: Decimal | None, foreign_vcpus: int) -> int | None:
    """Return `max(0, floor(cpu_schedulable * CPU_OVERCOMMIT_RATIO) - cpu_foreign_vcpus)`; None when unlimited."""
    return None if ratio is None else max(0, floored_product(schedulable, ratio) - foreign_vcpus)


def limit_memory_mb(memory_max: int, ratio: Decimal, reserved_mb: int, foreign_mb: int) -> int:
    """Return `max(0, floor(memory_max * RAM_OVERCOMMIT_RATIO) - memory_reserved_mb - memory_foreign_mb)`."""
    return max(0, floored_product(memory_max, ratio) - reserved_mb - foreign_mb)


def limit_disk_gb(total_gb: int, reservation_gb: Decimal, foreign_gb: int, ratio: Decimal) -> int:
    """Return `max(0, floor((total - reservation - foreign) * DISK_OVERCOMMIT_RATIO))`.

    The reservation may be a fraction of a GiB; the product is floored once, at the end.
    """
    offered_milli = (total_gb - foreign_gb) * THOUSAND - to_milli(reservation_gb)
    return max(0, offered_milli * to_milli(ratio) // (THOUSAND * THOUSAND))


def foreign_disk_gb(total_gb: int, available_gb: int, own_gb: int) -> int:
    """Return what others occupy on the disk: `(total - available) - what our instances' disks occupy`, at least 0."""
    return max(0, total_gb - available_gb - own_gb)


def ledger_headroom(limit: T, used: T) -> T:
    """Return `limit - used`; negative when over the limit. Columns."""
    return limit - used


def missed_by_sample(moment: M | None, sampled: M) -> bool:
    """Return whether a sample whose measuring began at `sampled` can have missed what happened at `moment`.

    None: it has not happened yet. Equal times count as newer: the sample may have been measured just before.
    """
    return moment is None or moment >= sampled


def pending_amount(held: int, grown: int, *, missed: bool, growth_missed: bool) -> int:
    """Return what is pending of a charge: all of it, or what it grew by since the sample, or nothing."""
    if missed:
        return held
    return grown if growth_missed else 0


def measured_headroom(available: T, reservation: T, pending: T, ratio_milli: int) -> T:
    """Return `available - reservation - ceil(pending / ratio)`. Columns.

    *Pending* are the charges that the sample cannot include yet; thin provisioning divides them by the ratio.
    """
    return available - reservation + (-pending * THOUSAND) // ratio_milli


def wake_risk_mb(sleepy_mb: int, available_mb: int | None, reserved_mb: int | None) -> int | None:
    """Return by how much the memory of sleeping instances exceeds what is free for them: were all to wake at once.

    Free is what is measured as available, less the reservation; unknown where one of them is.
    """
    if available_mb is None or reserved_mb is None:
        return None
    return max(0, sleepy_mb - (available_mb - reserved_mb)) if sleepy_mb else 0


def charged(measured: int, committed: int) -> int:
    """Return what a node is charged in a dimension: the larger of the measurement and the ledger.

    `placement/frame.py` has it for columns, in one pass; a test holds both together.
    """
    return max(measured, committed)


def demand_at_admission(cpus: int, per_vcpu: Decimal) -> Decimal:
    """Return `vcpus * SCHEDULER_DEMAND_PER_VCPU`: load that a fresh placement is expected to bring."""
    return (cpus * per_vcpu).quantize(Decimal("0.001"), ROUND_HALF_UP)


def expected_demand(cpus: int, per_vcpu: Decimal, age_seconds: Decimal, decay_seconds: int) -> Decimal:
    """Return what is left of a placement's expected load after `age_seconds`, decaying linearly to zero.

    A negative age (a stamp from the future) counts as 0; a window of 0 or less turns expected demand off.
    """
    if decay_seconds <= 0:
        return Decimal(0)
    age = min(max(Decimal(0), age_seconds), Decimal(decay_seconds))
    whole = cpus * per_vcpu * (1 - age / decay_seconds)
    return whole.quantize(Decimal("0.001"), ROUND_HALF_UP)


def over_demand_target(load_milli: T, demand_milli: T, target_milli: int, schedulable: T) -> Any:
    """Return whether `cpu_load_1 + expected_demand > SCHEDULER_TARGET_LOAD * cpu_schedulable`. Columns.

    The asking request is not part of the comparison. The caller exempts unknown loads and unknown `cpu_schedulable`,
    and a target of zero or less, which turns the clause off.
    """
    return load_milli + demand_milli > target_milli * schedulable


def load_band(load_milli: T, schedulable: T) -> T:
    """Return the band of `cpu_load_1 / cpu_schedulable`: its whole quarters. Columns; `schedulable` must be above 0."""
    return load_milli // (BAND_PER_MILLE * schedulable)


def memory_band(charged_mb: T, limit_mb: T) -> T:
    """Return the band of `committed memory / memory limit`: its whole quarters. Columns; the limit must be above 0."""
    return charged_mb * THOUSAND // (BAND_PER_MILLE * limit_mb)


def load_headroom_milli(target_milli: int, schedulable: T, load_milli: T) -> T:
    """Return `SCHEDULER_TARGET_LOAD * cpu_schedulable - cpu_load_1` in thousandths; it may be negative. Columns."""
    return schedulable * target_milli - load_milli


MEMORY_BANDS = 20
"""`balanced` compares projected memory use in bands of 5 %: this many in the whole."""

RAM_MB_PER_CPU = 10_000
"""What one free vCPU is worth in MiB of free memory, for `spread` and `binpack`."""


def exact_ratio(ratio: Decimal) -> tuple[int, int]:
    """Return a ratio as a fraction in lowest terms: what columns of whole numbers can be multiplied by."""
    return ratio.as_integer_ratio()


def projected_use(used: T, added: T, total: T, sleepy: T, factor: tuple[int, int]) -> tuple[T, T]:
    """Return `(used - sl * (1 - 1/f) + added / f) / total` as numerator and denominator; `sl = min(sleepy, used)`.

    With a factor of 1 this is `(used + added) / total`. Never more is discounted than is really used. The ledger's term
    takes the charge as used and the limit as total. Columns. Source: "Ranking"; Atlas's `balanced` for the discount.
    """
    over, under = factor
    if over == under:
        return used + added, total
    positive = at_least_zero(used)
    discounted = positive - at_least_zero(positive - sleepy)
    return used * over - discounted * (over - under) + added * under, total * over


def measured_use(
    taken: T, added: T, offered: T, sleepy: T, ratio: tuple[int, int], factor: tuple[int, int]
) -> tuple[T, T]:
    """Return `1 - (measured headroom - request / ratio) / (physical - reservation)` as numerator and denominator.

    `offered` is `physical - reservation`, `taken` is `offered - measured headroom`. Charges are promises, of which the
    machine holds one part in `ratio`; so the request and the sleepy charges are divided by it. Columns.
    """
    over, under = ratio
    return projected_use(taken * over, added * under, offered * over, sleepy * under, factor)


def subscribed_use(sleepy: T, added: T, total: T) -> tuple[T, T]:
    """Return `(sleepy + request) / total` as numerator and denominator: how full of sleepy promises a node would be.

    Columns. Source: Atlas's packing of sleepy instances, by fraction and not by MiB.
    """
    return sleepy + added, total


def headroom_score(free_cpus: T, free_ram_mb: T) -> T:
    """Return `free_cpus * 10000 + free_ram_mb`, before the placement. Columns. Source: Fuse, whose formula rules."""
    return free_cpus * RAM_MB_PER_CPU + free_ram_mb


@dataclass(frozen=True, slots=True)
class Measured:
    """The figures of a sample that limits are computed from. None is unknown, never zero.

    `*_foreign_*` may be None as well: an absent foreign figure counts as 0 (nothing foreign was seen).
    """

    cpu_schedulable: int | None
    memory_max: int | None
    memory_reserved_mb: int | None
    disk_total_gb: int | None
    disk_reservation_gb: Decimal | None
    cpu_foreign_vcpus: int | None = None
    memory_foreign_mb: int | None = None
    disk_foreign_gb: int | None = None


@dataclass(frozen=True, slots=True)
class Ratios:
    """Overcommit ratios, each above zero. `cpu` None: CPU only ranks and never refuses."""

    cpu: Decimal | None
    ram: Decimal
    disk: Decimal


@dataclass(frozen=True, slots=True)
class NodeLimits:
    """A node's limits, and the figures that were missing: a dimension with a missing figure has no known limit."""

    limits: Limits
    unknown: tuple[str, ...]

    @property
    def unknown_dimensions(self) -> tuple[str, ...]:
        """The dimensions whose limit could not be computed."""
        found = {"cpu": "cpus", "mem": "memory_mb", "dis": "disk_gb"}
        return tuple(found[name[:3]] for name in self.unknown)


def node_limits(sample: Measured, ratios: Ratios, max_instances: int | None) -> NodeLimits:
    """Return the limits of a node's ledger row from its sample. An unknown dimension offers nothing: its limit is 0."""
    unknown: list[str] = []
    cpus: int | None = 0
    if ratios.cpu is None:
        cpus = None
    elif sample.cpu_schedulable is None:
        unknown.append("cpu_schedulable")
    else:
        cpus = limit_cpus(sample.cpu_schedulable, ratios.cpu, sample.cpu_foreign_vcpus or 0)
    memory = 0
    if sample.memory_max is None or sample.memory_reserved_mb is None:
        unknown.append("memory_max" if sample.memory_max is None else "memory_reserved_mb")
    else:
        foreign = sample.memory_foreign_mb or 0
        memory = limit_memory_mb(sample.memory_max, ratios.ram, sample.memory_reserved_mb, foreign)
    disk = 0
    if sample.disk_total_gb is None or sample.disk_reservation_gb is None:
        unknown.append("disk_total_gb" if sample.disk_total_gb is None else "disk_reservation_gb")
    else:
        foreign = sample.disk_foreign_gb or 0
        disk = limit_disk_gb(sample.disk_total_gb, sample.disk_reservation_gb, foreign, ratios.disk)
    return NodeLimits(Limits(cpus, memory, disk, max_instances), tuple(unknown))
