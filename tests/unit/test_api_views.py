"""The admin's resources view: the document's fields, from placement's own arithmetic; unknown is null, never zero."""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from fleet.ledger.nodes import LedgerRow, NodeView
from fleet.model.cluster_config import ClusterConfig
from fleet.model.node import NodeState, Scheduling
from fleet.model.resources import Amounts, Limits
from fleet.services.views import node_resources

METRICS: dict[str, Any] = {
    "is_hypervisor": True,
    "cpu_schedulable": 14,
    "cpu_max_per_instance": 16,
    "cpu_load_1": 0.5,
    "cpu_total_instance_vcpus": 6,
    "memory_max": 65536,
    "memory_available": 60000,
    "memory_reserved_mb": 4096,
    "memory_total_instance_actual": 8192,
    "disk_total_gb": 1000,
    "disk_free_gb": 900,
    "disk_reservation_gb": 20.5,
}
ROW = LedgerRow(
    limits=Limits(42, 192512, 979, None),
    used=Amounts(4, 4096, 50, 2),
    pending_memory_mb=1000,
    pending_disk_gb=10,
    expected_demand=Decimal("1.200"),
    counted=True,
)
NODE = NodeView(
    node_id=1,
    name="n1",
    labels={},
    region="",
    arch="",
    backend="simulated",
    sleepy_pool=False,
    max_instances=None,
    gpu_kind="",
    state=NodeState.ACTIVE,
    scheduling=Scheduling.ENABLED,
    registered_at_us=0,
    sample_at_us=0,
    sample_age_seconds=Decimal(1),
    metrics=METRICS,
    failed={},
    row=ROW,
)
CONFIG = ClusterConfig()


def test_a_node_is_charged_the_larger_of_measured_and_committed_against_the_row_limit() -> None:
    shown = node_resources(NODE, CONFIG)

    assert (shown["cpu_measured"], shown["cpu_committed"], shown["cpu_limit"]) == (6, 4, 42)
    assert shown["cpu_available"] == 42 - 6
    assert shown["cpu_committed_row_present"] is True


def test_a_limit_that_the_live_product_left_behind_shows_as_a_disagreement() -> None:
    shown = node_resources(NODE, replace(CONFIG, cpu_overcommit_ratio=Decimal(2)))

    assert (shown["cpu_hard_max"], shown["cpu_limit"]) == (28, 42)


def test_a_node_that_is_not_sized_is_told_apart_from_an_idle_one() -> None:
    shown = node_resources(replace(NODE, row=None), CONFIG)

    assert (shown["cpu_committed"], shown["cpu_committed_row_present"], shown["cpu_limit"]) == (0, False, None)
    assert shown["cpu_hard_max"] == 42


def test_memory_and_disk_are_the_smaller_of_ledger_and_measurement() -> None:
    shown = node_resources(NODE, CONFIG)

    # The measurement binds: available - reserved - ceil(pending / ratio); the ledger alone would have more.
    assert shown["ram_available"] == 60000 - 4096 - 334
    assert shown["ram_max_per_instance"] == 60000 - 4096
    assert shown["ram_max"] == 3 * 65536
    # A reservation of 20.5 GiB keeps 21 whole ones.
    assert shown["disk_available"] == 900 - 21 - 10


def test_what_is_unknown_is_null() -> None:
    shown = node_resources(replace(NODE, metrics={"is_hypervisor": True}), CONFIG)

    unknown = ("cpu_schedulable", "cpu_hard_max", "cpu_measured", "memory_max", "ram_available", "disk_available")
    assert [shown[name] for name in unknown] == [None] * len(unknown)


@pytest.mark.parametrize(
    ("figure", "room"),
    [("cpu_total_instance_vcpus", "cpu_available"), ("memory_total_instance_actual", "ram_available")],
)
def test_what_instances_use_is_not_zero_where_nobody_measured_it(figure: str, room: str) -> None:
    metrics = {name: value for name, value in METRICS.items() if name != figure}

    assert node_resources(NODE, CONFIG)[room] is not None
    assert node_resources(replace(NODE, metrics=metrics), CONFIG)[room] is None


def test_unlimited_cpus_have_no_number_left() -> None:
    row = replace(ROW, limits=replace(ROW.limits, cpus=None))
    shown = node_resources(replace(NODE, row=row), replace(CONFIG, cpu_overcommit_ratio=None))

    assert (shown["cpu_hard_max"], shown["cpu_limit"], shown["cpu_available"]) == (None, None, None)
