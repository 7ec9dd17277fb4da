"""Disks in GiB: each file system once, available blocks only, each with its own reserve.

The rule for the two paths. `disk_*` describes the file system that holds the instances' disks. When images and blobs
lie on the same one, its room is offered once and no `blobs_*` figure exists; when they lie on another, `blobs_*`
describes that one, and the same reservation is kept on each. Free means available to an ordinary user: blocks that a
file system keeps for root are never offered, so they count with what others occupy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from fleet.measure.facts import GIB_BYTES, MIB_PER_GIB, FilesystemFacts
from fleet.model.capacity import foreign_disk_gb


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyReading:
    """The disks' busy counters and when they were read, on the monotonic clock."""

    monotonic: float
    busy_ms: Mapping[str, int]


def disk_fields(instances: FilesystemFacts, reservation_gb: Decimal) -> dict[str, Any]:
    """Size, room and reserve of the instances' file system."""
    return {
        "disk_total_gb": instances.total_bytes // GIB_BYTES,
        "disk_free_gb": instances.available_bytes // GIB_BYTES,
        "disk_reservation_gb": json_number(reservation_gb),
    }


def blobs_fields(instances: FilesystemFacts, blobs: FilesystemFacts, reservation_gb: Decimal) -> dict[str, Any]:
    """Size, room and reserve of the blobs' file system, only where it is another one."""
    if blobs.device == instances.device:
        return {"blobs_share_instances_disk": True}
    return {
        "blobs_share_instances_disk": False,
        "blobs_total_gb": blobs.total_bytes // GIB_BYTES,
        "blobs_free_gb": blobs.available_bytes // GIB_BYTES,
        "blobs_reservation_gb": json_number(reservation_gb),
    }


def disk_foreign_fields(instances: FilesystemFacts, own_occupied_mb: int | None) -> dict[str, Any]:
    """What others occupy. Raises when an own disk's size is unknown: then the difference is unknown as well."""
    if own_occupied_mb is None:
        raise LookupError("the hypervisor does not know what every instance's disk occupies")
    total_gb = instances.total_bytes // GIB_BYTES
    available_gb = instances.available_bytes // GIB_BYTES
    return {"disk_foreign_gb": foreign_disk_gb(total_gb, available_gb, own_occupied_mb // MIB_PER_GIB)}


def busy_fields(now: BusyReading, before: BusyReading | None) -> dict[str, Any]:
    """Milliseconds busy per second over all disks. Absent without an earlier reading it can be compared with."""
    if before is None or now.monotonic <= before.monotonic or now.busy_ms.keys() != before.busy_ms.keys():
        return {}
    grown = [now.busy_ms[name] - before.busy_ms[name] for name in now.busy_ms]
    if not grown or min(grown) < 0:  # no disk was seen, or a counter started again
        return {}
    return {"disk_busy_ms_per_second": round(sum(grown) / (now.monotonic - before.monotonic), 3)}


def json_number(value: Decimal) -> int | float:
    """A decimal of at most three places as JSON holds it; `Decimal(str(…))` reads it back exactly."""
    return int(value) if value == value.to_integral_value() else float(value)
