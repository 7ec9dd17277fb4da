"""Domains: what the product's and foreign domains hold, by the rule of `fleet.model.domain`."""

from __future__ import annotations

from typing import Any

from fleet.model.domain import DomainSums


def domain_fields(sums: DomainSums) -> dict[str, Any]:
    """Sums of vCPUs and memory, and counts by state. No domain at all is a measured zero."""
    return {
        "cpu_total_instance_vcpus": sums.vcpus,
        "cpu_foreign_vcpus": sums.foreign_vcpus,
        "memory_total_instance_actual": sums.memory_mb,
        "memory_foreign_mb": sums.foreign_memory_mb,
        "instances_total": sums.total,
        "instances_active": sums.active,
    } | {f"domains_{state}": count for state, count in sums.by_state.items()}


def max_vcpus_fields(max_vcpus: int | None) -> dict[str, Any]:
    """The most vCPUs of one instance. Raises when the hypervisor does not say: unknown is not room."""
    if max_vcpus is None:
        raise LookupError("the hypervisor does not say how many vCPUs one domain may have")
    return {"cpu_max_per_instance": max_vcpus}
