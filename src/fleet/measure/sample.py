"""One sample: every collector runs, each on its own; what fails is named and publishes nothing.

`measured_monotonic` is when measuring began, so that whoever publishes can state the age of the oldest figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from fleet.measure.cpu import cpu_fields, hybrid_fields, load_fields
from fleet.measure.disk import BusyReading, blobs_fields, busy_fields, disk_fields, disk_foreign_fields
from fleet.measure.domains import domain_fields, max_vcpus_fields
from fleet.measure.facts import DomainSource, GpuReading, Machine, Paths, Reservations
from fleet.measure.gpus import shortened
from fleet.measure.memory import memory_fields
from fleet.model.domain import sum_domains

T = TypeVar("T")
REASON_CHARACTERS_MAX: Final = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """What was measured, by public name, and which collectors failed and why.

    `gpus` None: nobody told, or nobody was asked; what was known of GPUs before stays as it is.
    """

    metrics: Mapping[str, Any]
    failed: Mapping[str, str]
    measured_monotonic: float
    busy: BusyReading | None = None
    gpus: GpuReading | None = None

    def age_seconds(self, monotonic: float) -> float:
        """Seconds since measuring began, on the same clock."""
        return max(0.0, monotonic - self.measured_monotonic)


@dataclass(slots=True)
class _Collected:
    """The sample while it is being put together."""

    metrics: dict[str, Any] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def ask(self, collector: str, question: Callable[[], T]) -> T | None:
        """The answer, or None with the reason kept."""
        try:
            return question()
        except Exception as fault:  # noqa: BLE001  # a defect in one collector must not silence the others
            self.failed[collector] = f"{type(fault).__name__}: {fault}"[:REASON_CHARACTERS_MAX]
            return None

    def publish(self, collector: str, fields: Callable[[], Mapping[str, Any]]) -> None:
        """Add the collector's fields, all or none of them."""
        self.metrics.update(self.ask(collector, fields) or {})


def measure(
    machine: Machine,
    source: DomainSource,
    *,
    paths: Paths,
    reservations: Reservations,
    is_hypervisor: bool = True,
    previous: Sample | None = None,
    gpus: Callable[[], GpuReading | None] | None = None,
) -> Sample:
    """Measure once. `previous` is the same node's last sample, for figures that are differences. `gpus` tells the
    inventory of GPUs, None where there is nobody to tell it.

    The collectors, by the name that a failure carries: cpu, hybrid, load, memory, disk, blobs, disk_busy, domains,
    max_vcpus, disk_foreign, gpus, gpu_units (cards and slices that were left out; the others are published).
    """
    began = machine.monotonic()
    taken = _Collected(metrics={"is_hypervisor": is_hypervisor})
    taken.publish("cpu", lambda: cpu_fields(machine.cpu_counts(), reservations.cpu_threads))
    taken.publish("hybrid", lambda: hybrid_fields(machine.hybrid_cpus()))
    taken.publish("load", lambda: load_fields(machine.load()))
    taken.publish("memory", lambda: memory_fields(machine.memory(), reservations))
    busy = _measure_disks(taken, machine, paths, reservations, previous)
    if is_hypervisor:
        _measure_domains(taken, machine, source, paths)
    told = _measure_gpus(taken, gpus) if is_hypervisor and gpus is not None else None
    return Sample(metrics=taken.metrics, failed=taken.failed, measured_monotonic=began, busy=busy, gpus=told)


def _measure_disks(
    taken: _Collected, machine: Machine, paths: Paths, reservations: Reservations, previous: Sample | None
) -> BusyReading | None:
    instances = taken.ask("disk", lambda: machine.filesystem(paths.instances))
    if instances is not None:
        taken.publish("disk", lambda: disk_fields(instances, reservations.disk_gb))
        taken.publish("blobs", lambda: blobs_fields(instances, machine.filesystem(paths.blobs), reservations.disk_gb))
    busy = taken.ask(
        "disk_busy", lambda: BusyReading(monotonic=machine.monotonic(), busy_ms=dict(machine.disk_busy_ms()))
    )
    if busy is not None:
        taken.publish("disk_busy", lambda: busy_fields(busy, previous.busy if previous else None))
    return busy


def _measure_gpus(taken: _Collected, gpus: Callable[[], GpuReading | None]) -> GpuReading | None:
    told = taken.ask("gpus", gpus)
    if told is not None and told.left_out:
        taken.failed["gpu_units"] = shortened(told.left_out)
    if told is not None and told.contradictions is not None:
        taken.metrics["gpu_contradictions"] = len(told.contradictions)
    return told


def _measure_domains(taken: _Collected, machine: Machine, source: DomainSource, paths: Paths) -> None:
    taken.publish("max_vcpus", lambda: max_vcpus_fields(source.max_vcpus()))
    sums = taken.ask("domains", lambda: sum_domains(source.domains()))
    if sums is None:
        taken.failed["disk_foreign"] = "unknown while the domains are unknown"
        return
    taken.publish("domains", lambda: domain_fields(sums))
    taken.publish(
        "disk_foreign",
        lambda: disk_foreign_fields(machine.filesystem(paths.instances), sums.own_disk_occupied_mb),
    )
