"""The demo shows a dropped node with the figures that it was dropped by, and with no others."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fleet.cli.demo import show_figures

MEMORY = {
    "committed_memory_mb": 387072,
    "requested_memory_mb": 4096,
    "limit_memory_mb": 391168,
    "available_mb": 32000,
    "pending_memory_mb": 90000,
    "memory_reserved_mb": 2048,
    "memory_reserved_mb_from_fallback": False,
}
DISK = {
    "committed_disk_gb": 480,
    "requested_disk_gb": 20,
    "limit_disk_gb": 480,
    "disk_free_gb": None,
    "pending_disk_gb": 7,
    "minimum_free_disk_gb": 20.5,
}


@pytest.mark.parametrize(
    ("reason", "figures", "told"),
    [
        (
            "over_limit_memory_mb",
            MEMORY,
            "committed_memory_mb 387072, requested_memory_mb 4096, limit_memory_mb 391168",
        ),
        (
            "below_memory_reservation",
            MEMORY,
            "requested_memory_mb 4096, available_mb 32000, pending_memory_mb 90000, memory_reserved_mb 2048",
        ),
        ("over_limit_disk_gb", DISK, "committed_disk_gb 480, requested_disk_gb 20, limit_disk_gb 480"),
        (
            "below_disk_reservation",
            DISK,
            "requested_disk_gb 20, disk_free_gb unknown, pending_disk_gb 7, minimum_free_disk_gb 20.5",
        ),
        ("cordoned", {}, ""),
    ],
)
def test_a_dropped_node_is_shown_with_what_it_was_judged_by(reason: str, figures: dict[str, int], told: str) -> None:
    written = io.StringIO()
    decision = {"stages": [{"name": "gate", "dropped": {"n1": {"reason": reason, **figures}}}]}

    show_figures(decision, Console(file=written, width=200))

    assert written.getvalue().strip() == f"gate: {reason}: n1 {told}".strip()
