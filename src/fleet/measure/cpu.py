"""Processors and load: counts of threads and cores, what is offered of them, and load averages."""

from __future__ import annotations

from typing import Any

from fleet.measure.facts import CpuCounts, HybridCpus
from fleet.model.capacity import cpu_schedulable


def cpu_fields(counts: CpuCounts, reservation_threads: int) -> dict[str, Any]:
    """Counts and the remainder that is offered. Core figures are for display; absent where cores are unknown."""
    offered = cpu_schedulable(counts.threads, reservation_threads)
    fields: dict[str, Any] = {
        "cpu_threads": counts.threads,
        "cpu_max": counts.threads,
        "cpu_schedulable": offered.value,
        "cpu_schedulable_clamped": offered.clamped,
    }
    if counts.cores:
        threads_per_core = -(-counts.threads // counts.cores)
        reserved = -(-reservation_threads // threads_per_core)
        fields |= {
            "cpu_cores": counts.cores,
            "cpu_cores_reserved": reserved,
            "cpu_cores_schedulable": max(1, counts.cores - reserved),
        }
    return fields


def hybrid_fields(hybrid: HybridCpus | None) -> dict[str, Any]:
    """Cores by kind on a hybrid processor, nothing on any other. For display only."""
    if hybrid is None:
        return {}
    return {
        "cpu_cores_performance": hybrid.performance_cores,
        "cpu_cores_efficiency": hybrid.efficiency_cores,
    }


def load_fields(load: tuple[float, float, float]) -> dict[str, Any]:
    """Load averages with the three decimal places that are stored."""
    return dict(zip(("cpu_load_1", "cpu_load_5", "cpu_load_15"), (round(value, 3) for value in load), strict=True))
