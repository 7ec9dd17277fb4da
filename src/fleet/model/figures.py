"""Reading a sample's figures: from JSON to exact values, with the documented fallbacks. Unknown stays unknown.

The sample's names are the public ones of a snapshot's `metrics`. A figure that is absent, of a wrong type, negative or
not finite is unknown. Rows of an older publisher lack the three reservations: then the configuration's own values
stand in. A snapshot applies the same fallbacks to whole columns (`placement/frame.py`); a law holds both together.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from decimal import ROUND_HALF_UP, Decimal
from typing import Any

from fleet.model import capacity
from fleet.model.cluster_config import ClusterConfig

FIGURE_MAX = 2**40
"""Largest figure: far above any machine; under the largest ratio, sums over thousands of nodes stay inside 64 bits."""


def whole_or_none(value: Any) -> int | None:
    """Return a whole, non-negative figure, truncated; None where there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not _is_figure(value):
        return None
    return int(value)


def real_or_none(value: Any) -> Decimal | None:
    """Return a non-negative real figure with three places, rounded as `capacity.to_milli` does; None: there is none."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal) or not _is_figure(value):
        return None
    return Decimal(str(value)).quantize(Decimal("0.001"), ROUND_HALF_UP)


def _is_figure(value: float | Decimal) -> bool:
    """Return whether a number is finite and within bounds. A whole one may be too large to be asked whether it is."""
    return (isinstance(value, int) or math.isfinite(value)) and 0 <= value <= FIGURE_MAX


def schedulable_of(metrics: Mapping[str, Any], config: ClusterConfig) -> tuple[int | None, bool]:
    """Return `cpu_schedulable` and whether it came from the fallback (threads, or `cpu_max`, minus the reservation)."""
    published = whole_or_none(metrics.get("cpu_schedulable"))
    if published is not None:
        return published, False
    threads = whole_or_none(metrics.get("cpu_threads")) or whole_or_none(metrics.get("cpu_max"))
    if not threads:
        return None, False
    return capacity.cpu_schedulable(threads, config.node_cpu_reservation_threads).value, True


def measured_of(metrics: Mapping[str, Any], config: ClusterConfig) -> capacity.Measured:
    """Return the figures that limits are computed from."""
    memory_max = whole_or_none(metrics.get("memory_max")) or None
    reserved = whole_or_none(metrics.get("memory_reserved_mb"))
    if reserved is None and memory_max is not None:
        reserved = capacity.memory_reserved_mb(config.node_ram_reservation_gb, memory_max).value
    disk_reservation = real_or_none(metrics.get("disk_reservation_gb"))
    return capacity.Measured(
        cpu_schedulable=schedulable_of(metrics, config)[0],
        memory_max=memory_max,
        memory_reserved_mb=reserved,
        disk_total_gb=whole_or_none(metrics.get("disk_total_gb")),
        disk_reservation_gb=config.node_disk_reservation_gb if disk_reservation is None else disk_reservation,
        cpu_foreign_vcpus=whole_or_none(metrics.get("cpu_foreign_vcpus")),
        memory_foreign_mb=whole_or_none(metrics.get("memory_foreign_mb")),
        disk_foreign_gb=whole_or_none(metrics.get("disk_foreign_gb")),
    )
