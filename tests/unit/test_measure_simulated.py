"""Simulated nodes: read from a file with every fault named, measured by the real collectors."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from fleet.hypervisor import DomainSpec, simulated_hypervisor
from fleet.measure import SimulatedFleet, SimulatedNode, nodes_from, read_nodes
from fleet.model.config_value import ConfigError

SMALL: dict[str, Any] = {"name": "s1", "cpu_threads": 16, "memory_mb": 65536, "disk_gb": 1000}


def a_fleet(tmp_path: Path, *nodes: dict[str, Any]) -> SimulatedFleet:
    clock = iter(range(100, 10_000))
    return SimulatedFleet(
        nodes_from(nodes),
        lambda node: simulated_hypervisor(tmp_path, node.name, max_vcpus=node.vcpus_max, faults=node.faults),
        monotonic=lambda: float(next(clock)),
    )


def test_an_empty_node_offers_all_it_has(tmp_path: Path) -> None:
    sample = a_fleet(tmp_path, SMALL).sample("s1")

    assert sample.failed == {}
    assert {
        name: sample.metrics[name]
        for name in ("cpu_schedulable", "cpu_max_per_instance", "memory_available", "disk_free_gb", "disk_foreign_gb")
    } == {
        "cpu_schedulable": 14,
        "cpu_max_per_instance": 16,
        "memory_available": 65536,
        "disk_free_gb": 1000,
        "disk_foreign_gb": 0,
    }


def test_load_rises_and_memory_and_disk_fall_with_what_the_domains_take(tmp_path: Path) -> None:
    fleet = a_fleet(
        tmp_path, SMALL | {"base_load": 0.5, "load_per_vcpu": 0.25, "base_memory_mb": 1536, "base_disk_gb": 10}
    )
    driver = simulated_hypervisor(tmp_path, "s1")
    driver.create(DomainSpec(uuid="i1", name="a", cpus=4, memory_mb=4096, disk_gb=40))
    driver.create(DomainSpec(uuid="i2", name="b", cpus=2, memory_mb=2048, disk_gb=50))
    driver.stop("i2")

    metrics = fleet.sample("s1").metrics

    assert metrics["cpu_load_1"] == 1.5
    assert metrics["memory_available"] == 65536 - 1536 - 4096
    assert metrics["disk_free_gb"] == 1000 - 10 - 40 - 50
    assert metrics["disk_foreign_gb"] == 10
    assert metrics["cpu_total_instance_vcpus"] == 4
    assert metrics["memory_total_instance_actual"] == 4096
    assert (metrics["instances_total"], metrics["instances_active"]) == (2, 1)


def test_disk_busy_appears_with_the_second_sample(tmp_path: Path) -> None:
    fleet = a_fleet(tmp_path, SMALL | {"disk_busy_ms_per_second": 200})

    assert "disk_busy_ms_per_second" not in fleet.sample("s1").metrics
    assert fleet.sample("s1").metrics["disk_busy_ms_per_second"] == pytest.approx(200, rel=0.7)


def test_a_hypervisor_that_fails_leaves_every_figure_that_rests_on_it_unknown(tmp_path: Path) -> None:
    faults = {"script": [{"call": "domains", "nth": 1, "fault": "unreachable"}]}
    fleet = a_fleet(tmp_path, SMALL | {"faults": faults})

    first = fleet.sample("s1")
    assert {"domains", "load", "memory", "disk"} <= set(first.failed)
    assert "memory_available" not in first.metrics
    assert first.metrics["cpu_threads"] == 16

    assert fleet.sample("s1").failed == {}


def test_reservations_come_from_the_node(tmp_path: Path) -> None:
    node = SMALL | {"ram_reservation_gb": 6.5, "cpu_reservation_threads": 0, "disk_reservation_gb": 0}
    metrics = a_fleet(tmp_path, node).sample("s1").metrics

    assert (metrics["memory_reserved_mb"], metrics["cpu_schedulable"], metrics["disk_reservation_gb"]) == (6656, 16, 0)


def test_a_node_knows_how_it_is_registered() -> None:
    plain, special = nodes_from(
        [
            SMALL,
            SMALL | {"name": "s2", "labels": {"rack": "a"}, "region": "eu", "max_instances": 0, "sleepy_pool": True},
        ]
    )

    assert plain.registration() == {"name": "s1", "backend": "simulated", "arch": "amd64"}
    assert special.registration() == {
        "name": "s2",
        "backend": "simulated",
        "arch": "amd64",
        "labels": {"rack": "a"},
        "region": "eu",
        "sleepy_pool": True,
        "max_instances": 0,
    }


@pytest.mark.parametrize("suffix", [".json", ".yaml"])
@pytest.mark.parametrize("wrapped", [True, False])
def test_json_and_yaml_hold_a_list_or_a_mapping_with_one(tmp_path: Path, suffix: str, wrapped: bool) -> None:
    file = tmp_path / f"nodes{suffix}"
    file.write_text(json.dumps({"nodes": [SMALL]} if wrapped else [SMALL]))

    assert read_nodes(file) == [SimulatedNode(**SMALL)]
    assert read_nodes(file)[0].load_per_vcpu == Decimal("0.2")


def test_every_fault_of_a_file_is_reported_together(tmp_path: Path) -> None:
    file = tmp_path / "nodes.json"
    bad = {"name": "", "cpu_threads": 0, "memory_mb": 1.5, "disk_gb": 10**13, "cpu_thread": 2, "sleepy_pool": "no"}
    file.write_text(json.dumps([SMALL, bad, SMALL, 7, {"name": "x"}]))

    with pytest.raises(ConfigError) as caught:
        read_nodes(file)

    assert [problem.key for problem in caught.value.problems] == [
        "nodes[1].name",
        "nodes[1].cpu_threads",
        "nodes[1].memory_mb",
        "nodes[1].disk_gb",
        "nodes[1].cpu_thread",
        "nodes[1].sleepy_pool",
        "nodes[2].name",
        "nodes[3]",
        "nodes[4].cpu_threads",
        "nodes[4].memory_mb",
        "nodes[4].disk_gb",
    ]
    assert "did you mean cpu_threads?" in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize("text", ["{", '{"hosts": []}', '"x"', "NaN"])
def test_a_file_that_holds_no_nodes_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "nodes.json"
    file.write_text(text)

    with pytest.raises(ConfigError):
        read_nodes(file)


@pytest.mark.parametrize("value", [True, "4", None, [], float("nan"), float("inf"), -1])
def test_an_amount_that_is_no_amount_is_refused(value: object) -> None:
    with pytest.raises(ConfigError):
        nodes_from([SMALL | {"cpu_threads": value}])
    with pytest.raises(ConfigError):
        nodes_from([SMALL | {"base_load": value}])
