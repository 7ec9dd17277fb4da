"""The host that the vectors of the Fuse document start from."""

from __future__ import annotations

from typing import Any

from tests.documents import a_node


def a_host(name: str, **changes: Any) -> dict[str, Any]:
    """8 CPUs, 4096 MiB, 100 GB, 10 slots, region us-east, firecracker, no architecture, nothing measured in the way."""
    return a_node(
        **{
            "name": name,
            "region": "us-east",
            "backend": "firecracker",
            "limit_cpus": 8,
            "limit_memory_mb": 4096,
            "limit_disk_gb": 100,
            "limit_instances": 10,
            "used_cpus": 0,
            "used_memory_mb": 0,
            "used_disk_gb": 0,
            "used_instances": 0,
            "cpu_total_instance_vcpus": 0,
            "memory_total_instance_actual": 0,
            **changes,
        }
    )
