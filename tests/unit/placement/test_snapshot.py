"""The snapshot: brought up to date row by row, always frozen for whoever reads it."""

from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from fleet.model.cluster_config import ClusterConfig
from fleet.model.gpu_inventory import NO_GPUS, GpuDevice, GpuInventory
from fleet.model.node import CapacityRow, NodeRecord
from fleet.model.resources import Amounts, Limits
from fleet.placement.columns import UNKNOWN, UNLIMITED
from fleet.placement.snapshot import Snapshot
from tests.documents import a_node

NOW = 1_796_000_000_000_000


def a_record(name: str, node_id: int, **changes: Any) -> NodeRecord:
    parts = {
        "metrics": a_node()["metrics"],
        "sample_at_us": NOW - 5_000_000,
        "capacity": CapacityRow(Limits(42, 192512, 980, None), Amounts(2, 4096, 20, 1), Decimal("0.6"), 7, 8),
    }
    return NodeRecord(name, node_id, **{**parts, **changes})


def a_row(node_id: int, **changes: Any) -> tuple[Any, ...]:
    """A database row that says what `a_record` says, with changes."""
    columns = {
        "limit_cpus": 42,
        "limit_memory_mb": 192512,
        "limit_disk_gb": 980,
        "limit_instances": None,
        "used_cpus": 2,
        "used_memory_mb": 4096,
        "used_disk_gb": 20,
        "used_instances": 1,
        "expected_demand": Decimal("0.600"),
        "pending_memory_mb": 7,
        "pending_disk_gb": 8,
        "cpu_load_1": Decimal("0.500"),
        "cpu_schedulable": 14,
        "state": "active",
        "scheduling": "enabled",
        "sample_at_us": NOW - 5_000_000,
        "counted": True,
        "sleepy_memory_mb": 0,
    }
    return (node_id, *{**columns, **changes}.values())


def two_nodes() -> Snapshot:
    return Snapshot.from_records([a_record("n1", 11), a_record("n2", 12)], ClusterConfig(), NOW)


def column(snapshot: Snapshot, name: str) -> list[int]:
    return [int(value) for value in snapshot.frame.counter(name)]


def test_nodes_are_found_by_name_and_by_id() -> None:
    snapshot = two_nodes()

    assert [snapshot.index_of("n2"), snapshot.index_of("n9")] == [1, -1]
    assert [snapshot.index_of_id(12), snapshot.index_of_id(99)] == [1, -1]
    assert [(snapshot.node_id(at), snapshot.name(at)) for at in range(2)] == [(11, "n1"), (12, "n2")]


def test_a_record_and_its_ledger_row_say_the_same() -> None:
    snapshot = two_nodes()
    before = snapshot.version

    assert snapshot.update_counters([a_row(11), a_row(12)]) == []
    assert before == snapshot.version
    assert snapshot.rows_changed_since(before).tolist() == []


def test_only_rows_that_differ_are_new() -> None:
    snapshot = two_nodes()
    before = snapshot.version

    snapshot.update_counters([a_row(11), a_row(12, used_cpus=5, cpu_load_1=0.25, scheduling="cordoned")])

    assert snapshot.version > before
    assert snapshot.rows_changed_since(before).tolist() == [1]
    assert column(snapshot, "used_cpus") == [2, 5]
    assert column(snapshot, "cpu_load_1") == [500, 250]


def test_unknown_nodes_are_handed_back() -> None:
    snapshot = two_nodes()

    assert snapshot.update_counters([a_row(99), a_row(11, used_cpus=9)]) == [99]
    assert column(snapshot, "used_cpus") == [9, 2]


def test_a_node_read_before_its_first_sample_is_handed_back_when_its_row_is_born() -> None:
    snapshot = Snapshot.from_records([a_record("n1", 11, capacity=None, metrics={})], ClusterConfig(), NOW)

    assert snapshot.update_counters([a_row(11)]) == [11]

    snapshot.update_records([a_record("n1", 11)])

    assert snapshot.update_counters([a_row(11)]) == []


def test_null_is_unlimited_for_a_limit_and_unknown_for_a_figure() -> None:
    snapshot = two_nodes()

    snapshot.update_counters([a_row(11, limit_cpus=None, cpu_load_1=None, cpu_schedulable=None, sample_at_us=None)])

    found = [column(snapshot, name)[0] for name in ("limit_cpus", "cpu_load_1", "cpu_schedulable", "sample_at_us")]
    assert found == [UNLIMITED, UNKNOWN, UNKNOWN, UNKNOWN]


def test_a_node_may_leave_the_totals() -> None:
    snapshot = two_nodes()

    snapshot.update_counters([a_row(12, counted=False)])

    assert column(snapshot, "counted") == [1, 0]


def test_a_state_from_a_newer_version_is_no_candidate() -> None:
    snapshot = two_nodes()

    snapshot.update_counters([a_row(11, state="upgrading", scheduling="parked")])

    assert [column(snapshot, name)[0] for name in ("state", "scheduling")] == [UNKNOWN, UNKNOWN]


def test_frames_never_change() -> None:
    snapshot = two_nodes()
    frame = snapshot.frame
    before = frame.ledger.copy(), frame.sample.matrix.copy(), frame.roster.names

    snapshot.update_counters([a_row(11, used_cpus=9)])
    snapshot.update_records([a_record("n2", 12, metrics={})])
    snapshot.update_records([a_record("n3", 13)])
    snapshot.remove(11)
    snapshot.now_us = NOW + 1

    assert np.array_equal(before[0], frame.ledger)
    assert np.array_equal(before[1], frame.sample.matrix)
    assert (before[2], NOW, {}) == (frame.roster.names, frame.now_us, dict(frame.instances))
    with pytest.raises(ValueError, match="read-only"):
        frame.ledger[0, 0] = 1
    assert list(snapshot.frame.roster.names) == ["n2", "n3"]


def test_a_new_node_and_a_changed_declaration_change_the_layout() -> None:
    snapshot = two_nodes()
    before = snapshot.layout_version

    snapshot.update_records([a_record("n3", 13)])
    added = snapshot.layout_version
    snapshot.update_records([a_record("n3", 13, labels={"rack": "b"})])
    declared = snapshot.layout_version
    snapshot.configure(ClusterConfig(ram_overcommit_ratio=Decimal(1)))

    assert before < added < declared < snapshot.layout_version
    assert snapshot.frame.roster.traits[2].labels == {"rack": "b"}


def test_a_new_sample_changes_the_row_but_not_the_layout() -> None:
    snapshot = two_nodes()
    before, layout = snapshot.version, snapshot.layout_version

    snapshot.update_records([a_record("n2", 12, metrics={**a_node()["metrics"], "memory_available": 1})])

    assert snapshot.samples_changed_since(before).tolist() == [1]
    assert layout == snapshot.layout_version


def test_the_same_records_again_change_nothing() -> None:
    snapshot = two_nodes()
    before = snapshot.version

    snapshot.update_records([a_record("n1", 11), a_record("n2", 12)])
    snapshot.update_records([])
    snapshot.configure(ClusterConfig())

    assert before == snapshot.version


def test_removing_keeps_the_others_as_they_were() -> None:
    snapshot = two_nodes()
    snapshot.update_counters([a_row(12, used_cpus=5)])
    before = snapshot.version

    snapshot.remove(11)
    snapshot.remove(11)

    assert column(snapshot, "used_cpus") == [5]
    assert snapshot.index_of_id(12) == 0
    assert snapshot.layout_version > before


def test_two_records_of_one_name_are_a_bug() -> None:
    with pytest.raises(ValueError, match="2 node records hold only 1 different names"):
        Snapshot.from_records([a_record("n1", 11), a_record("n1", 12)], ClusterConfig(), NOW)


def test_figures_as_older_daemons_publish_them() -> None:
    metrics = {
        **a_node()["metrics"],
        "disk_busy_ms_per_second": "16.6",
        "memory_available": "lots",
        "queue_waiting": 2.5,
        "memory_reserved_mb": -4096,
        "disk_reservation_gb": -0.5,
    }

    frame = Snapshot.from_records([a_record("n1", 11, metrics=metrics)], ClusterConfig(), NOW).frame

    names = (
        "disk_busy_ms_per_second",
        "memory_available",
        "queue_waiting",
        "memory_reserved_mb",
        "disk_reservation_gb",
    )
    assert [int(frame.sample.column(name)[0]) for name in names] == [16600, UNKNOWN, 3, UNKNOWN, UNKNOWN]


def test_cards_that_no_node_has_any_more_are_no_kinds() -> None:
    cards = {11: GpuInventory(devices=(GpuDevice("GPU-1", "NVIDIA A100"),)), 12: GpuInventory(count=1, kind="A10")}
    snapshot = two_nodes()
    snapshot.update_gpus(cards)
    snapshot.update_gpus({11: NO_GPUS})

    assert snapshot.frame.gpus.kinds() == {"A10"}
