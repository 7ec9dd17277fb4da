"""Numbered vectors of capacity arithmetic: measured headroom, pending charges, the age of a sample, slots."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.documents import a_node
from tests.unit.placement.asking import decision_on, reason_on, snapshot_of

pytestmark = pytest.mark.vectors

# The vectors' disks are MiB; only their numbers matter here. No limit binds, nothing is reserved, ratio 1.
RATIOS = {"RAM_OVERCOMMIT_RATIO": 1, "DISK_OVERCOMMIT_RATIO": 1}


def a_host(memory: int, disk: int = 20480, **changes: Any) -> dict[str, Any]:
    return a_node(
        **{
            "memory_available": memory,
            "disk_free_gb": disk,
            "memory_reserved_mb": 0,
            "disk_reservation_gb": 0,
            "limit_memory_mb": None,
            "limit_disk_gb": None,
            "without": ["pending_memory_mb", "pending_disk_gb"],
            **changes,
        }
    )


def free_on(node: dict[str, Any], instances: Sequence[dict[str, Any]] = ()) -> tuple[int, int]:
    """Measured headroom, never negative."""
    frame = snapshot_of(node, config=RATIOS, instances=instances).frame
    return max(0, int(frame.measured_memory[0])), max(0, int(frame.measured_disk[0]))


def fits(node: dict[str, Any], memory: int, disk: int = 0, **request: Any) -> bool:
    return not decision_on(node, config=RATIOS, memory_mb=memory, disk_gb=disk, **request).refused


def test_atlas_v01_what_is_available_and_not_reserved_fits() -> None:
    assert fits(a_host(4096), 1024, 10240)
    assert not fits(a_host(4096), 8192, 10240)


def test_atlas_v02_a_resize_needs_its_growth_alone() -> None:
    placed = ({"uuid": "i1", "node": "n1", "cpus": 1, "memory_mb": 2048, "disk_gb": 0},)
    resize: dict[str, Any] = {"reason": "resize", "instance": "i1", "instances": placed}

    assert fits(a_host(4096), 6144, 10240, **resize)
    assert not fits(a_host(4096), 6145, 10240, **resize)
    assert not fits(a_host(4096), 6144, 10240)


@pytest.mark.parametrize(
    ("incoming", "free", "fits_1024"), [({"incoming_memory_mb": 4096}, 0, False), ({}, 3072, True)]
)
def test_atlas_v03_an_incoming_move_holds_its_target(incoming: dict[str, int], free: int, fits_1024: bool) -> None:
    moving = {"uuid": "i1", "node": "n2", "incoming_node": "n1", "memory_mb": 1024, "disk_gb": 1024, **incoming}

    assert free_on(a_host(4096), [moving])[0] == free
    assert fits(a_host(4096), 1024, instances=[moving]) is fits_1024


def test_atlas_v04_drafts_and_newer_charges_are_pending_older_ones_are_in_the_sample() -> None:
    instances = [
        {"uuid": "A", "node": "n1", "memory_mb": 2000, "disk_gb": 20000, "draft": True, "charge_age_seconds": 600},
        {"uuid": "B", "node": "n1", "memory_mb": 1000, "disk_gb": 10000, "charge_age_seconds": 5},
        {"uuid": "C", "node": "n1", "memory_mb": 500, "disk_gb": 5000, "charge_age_seconds": 60},
    ]

    assert free_on(a_host(10000, 100000), instances) == (7000, 70000)


def test_atlas_v05_a_charge_is_pending_once() -> None:
    both = {"uuid": "i1", "node": "n1", "memory_mb": 3000, "draft": True, "charge_age_seconds": 0}

    assert free_on(a_host(4000), [both])[0] == 1000


def test_atlas_v06_free_is_never_negative_and_nothing_fits() -> None:
    draft = {"uuid": "i1", "node": "n1", "memory_mb": 1500, "draft": True}

    assert free_on(a_host(1000), [draft])[0] == 0
    assert not fits(a_host(1000), 1, instances=[draft])


def test_atlas_v07_a_stale_host_is_not_in_the_pool() -> None:
    assert not decision_on(a_host(4096, sample_age_seconds=119)).refused
    assert decision_on(a_host(4096, sample_age_seconds=120)).refused

    stale = decision_on(a_host(4096, sample_age_seconds=121))

    assert stale.code == "no_schedulable_nodes"
    assert reason_on(stale, "n1") == ("node_state", "stale_sample")


def test_atlas_v08_cpu_only_ranks_where_its_ratio_is_unlimited() -> None:
    host = a_host(4096, without=["capacity"], cpu_total_instance_vcpus=14, cpu_max_per_instance=4096)
    unlimited = {**RATIOS, "CPU_OVERCOMMIT_RATIO": "unlimited"}

    assert decision_on(host, config=unlimited, cpus=1000).ranked == ("n1",)


# --- capacity vectors of the control plane with slots ---------------------------------------------------------------


def a_box(cpus: int, memory: int, disk: int, slots: int | None = 10, **used: int) -> dict[str, Any]:
    limits = {"limit_cpus": cpus, "limit_memory_mb": memory, "limit_disk_gb": disk, "limit_instances": slots}
    taken = {"used_cpus": 0, "used_memory_mb": 0, "used_disk_gb": 0, "used_instances": 0, **used}
    idle = {"cpu_total_instance_vcpus": 0, "memory_total_instance_actual": 0}
    return a_node(**limits, **taken, **idle)


def stage_of(node: dict[str, Any], cpus: int, memory: int, disk: int) -> str | None:
    return decision_on(node, cpus=cpus, memory_mb=memory, disk_gb=disk).stage


def test_fuse_v3_more_vcpus_than_the_host_has() -> None:
    assert stage_of(a_box(2, 1024, 50), 4, 256, 10) == "sufficient_idle_cpu"


def test_fuse_v7_all_slots_taken() -> None:
    assert stage_of(a_box(64, 65536, 1000, slots=2, used_instances=2), 1, 256, 10) == "instance_slots"


def test_fuse_v8_headroom_is_limit_less_used() -> None:
    frame = snapshot_of(a_box(8, 4096, 100, used_cpus=2, used_memory_mb=1024)).frame

    # After the vector's own request of 2 vCPUs and 512 MiB.
    assert (int(frame.room_cpus[0]) - 2, int(frame.room_memory[0]) - 512) == (4, 2560)


def test_fuse_v9_an_exact_fit_fits() -> None:
    box = a_box(8, 4096, 100, slots=5, used_cpus=7, used_memory_mb=3840, used_disk_gb=90, used_instances=4)

    assert stage_of(box, 1, 256, 10) is None


@pytest.mark.parametrize(
    ("used", "stage"),
    [
        ({"used_cpus": 8}, "sufficient_idle_cpu"),
        ({"used_memory_mb": 4096}, "sufficient_idle_memory"),
        ({"used_disk_gb": 100}, "sufficient_free_disk"),
        ({"used_instances": 5}, "instance_slots"),
    ],
)
def test_fuse_v10_each_dimension_alone_refuses(used: dict[str, int], stage: str) -> None:
    assert stage_of(a_box(8, 4096, 100, slots=5, **used), 1, 1, 1) == stage
