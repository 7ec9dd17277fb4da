"""The quiet node and the small request that tests, and the examples of stages, start from: plain documents."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any, Final

_NODE: Final[Mapping[str, Any]] = {
    "name": "n1",
    "state": "active",
    "scheduling": "enabled",
    "backend": "libvirt",
    "sample_age_seconds": 12,
    "metrics": {
        "is_hypervisor": True,
        "cpu_threads": 16,
        "cpu_schedulable": 14,
        "cpu_max_per_instance": 4096,
        "cpu_load_1": 0.5,
        "cpu_total_instance_vcpus": 2,
        "memory_max": 65536,
        "memory_available": 60000,
        "memory_reserved_mb": 4096,
        "memory_total_instance_actual": 4096,
        "disk_total_gb": 1000,
        "disk_free_gb": 1000,
        "disk_reservation_gb": 20,
        "disk_busy_ms_per_second": 0.0,
        "queue_waiting": 0,
    },
    "capacity": {
        "limit_cpus": 42,
        "limit_memory_mb": 192512,
        "limit_disk_gb": 980,
        "limit_instances": None,
        "used_cpus": 2,
        "used_memory_mb": 4096,
        "used_disk_gb": 20,
        "used_instances": 1,
        "expected_demand": 0.0,
        "pending_memory_mb": 0,
        "pending_disk_gb": 0,
    },
}
_OPTIONAL_METRICS: Final = frozenset({"cpu_max", "cpu_foreign_vcpus", "memory_foreign_mb", "disk_foreign_gb"})


def a_request(**changes: Any) -> dict[str, Any]:
    """Return the body of a small request, with changes."""
    return {"cpus": 1, "memory_mb": 1024, "disk_gb": 10, **changes}


def a_node(**changes: Any) -> dict[str, Any]:
    """Return a quiet node of a snapshot document, with changes by plain name wherever the figure belongs.

    A metric of None is left out. `without` lists further figures to leave out; `capacity=None` leaves no ledger row.
    """
    node: dict[str, Any] = copy.deepcopy(dict(_NODE))
    metrics, capacity = node["metrics"], node["capacity"]
    without: Sequence[str] = changes.pop("without", ())
    for name, value in changes.items():
        if name in metrics or name in _OPTIONAL_METRICS:
            metrics[name] = value
        elif name in capacity:
            capacity[name] = value
        else:
            node[name] = value
    for name in without:
        for part in (metrics, capacity, node):
            part.pop(name, None)
    node["metrics"] = {name: value for name, value in metrics.items() if value is not None}
    return node


def a_document(
    *nodes: Mapping[str, Any], config: Mapping[str, Any] | None = None, instances: Sequence[Mapping[str, Any]] = ()
) -> dict[str, Any]:
    """Return a snapshot document of nodes."""
    return {
        "taken_at": "2026-11-29T12:00:00Z",
        "config": dict(config or {}),
        "nodes": [dict(node) for node in nodes],
        "instances": [dict(instance) for instance in instances],
    }
