"""Memory in MiB: what there is, what can be given out now, what is held back.

Free huge pages count as available, because instances are backed by them; the kernel's own available figure leaves the
pools out, and without them an empty node that keeps its memory in a pool would look full. Pages of a pool that are
promised to a running process are not free.
"""

from __future__ import annotations

from typing import Any

from fleet.measure.facts import MIB_BYTES, MemoryFacts, Reservations
from fleet.model.capacity import memory_reserved_mb


def memory_fields(memory: MemoryFacts, reservations: Reservations) -> dict[str, Any]:
    """Total, available and reserved memory; the reservation never takes more than half of the machine."""
    total_mb = memory.total_bytes // MIB_BYTES
    pooled = sum(pool.size_bytes * max(0, pool.free - pool.reserved) for pool in memory.huge_pages)
    reserved = memory_reserved_mb(reservations.ram_gb, total_mb)
    return {
        "memory_max": total_mb,
        "memory_available": (memory.available_bytes + pooled) // MIB_BYTES,
        "memory_reserved_mb": reserved.value,
        "memory_reserved_mb_clamped": reserved.clamped,
    }
