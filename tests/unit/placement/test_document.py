"""The snapshot document: what it may hold, what it computes, and how it refuses."""

import json
from typing import Any

import pytest

from fleet.model.errors import InvalidRequest
from fleet.placement.columns import UNKNOWN, UNLIMITED
from fleet.placement.snapshot import Snapshot
from tests.documents import a_document, a_node
from tests.unit.placement.asking import decision_on, reason_on, snapshot_of

BARE = ("capacity",)


def counters(snapshot: Snapshot, *names: str) -> list[int]:
    return [int(snapshot.frame.counter(name)[0]) for name in names]


def test_the_example_of_the_contract_is_read() -> None:
    node = {
        "name": "n1",
        "state": "active",
        "scheduling": "enabled",
        "sample_age_seconds": 12,
        "labels": {"rack": "a"},
        "region": "",
        "arch": "amd64",
        "backend": "libvirt",
        "sleepy_pool": False,
        "metrics": a_node()["metrics"],
        "capacity": a_node()["capacity"],
        "max_instances": None,
        "gpu_count": 1,
        "gpu_count_used": 0,
        "mig_profiles": {},
        "mig_profiles_used": {},
        "gpus": [{"uuid": "GPU-1", "model": "NVIDIA A100", "mig_capable": True, "mig_mode": False, "bound_to": None}],
        "mig_instances": [{"uuid": "MIG-1", "profile": "1g.10gb", "kind": "", "parent_gpu_uuid": "GPU-1"}],
        "gpu_kind": "",
    }
    instance = {
        "uuid": "i1",
        "namespace": "ns",
        "node": "n1",
        "incoming_node": None,
        "tags": {"role": "db"},
        "cpus": 2,
        "memory_mb": 4096,
        "disk_gb": 20,
        "sleepy": False,
        "terminating": False,
        "draft": False,
        "charge_age_seconds": 3600,
    }

    snapshot = snapshot_of(node, config={"CPU_OVERCOMMIT_RATIO": 3.0}, instances=[instance])

    assert snapshot.index_of("n1") == 0
    assert snapshot.to_json()["nodes"][0]["gpus"][0]["uuid"] == "GPU-1"


def test_writing_and_reading_again_changes_nothing() -> None:
    nodes = [
        a_node(name="n1", sample_age_seconds=12.5, labels={"rack": "a"}, disk_reservation_gb=20.5, counted=False),
        a_node(name="n2", capacity=None, sample_age_seconds=None, state="created"),
        a_node(name="n3", without=["cpu_load_1", "used_cpus"], limit_cpus=None, max_instances=4),
    ]
    instances = [{"uuid": "i1", "node": "n1", "incoming_node": "n2", "incoming_cpus": 3, "cpus": 2, "draft": True}]

    first = snapshot_of(*nodes, instances=instances, config={"CPU_OVERCOMMIT_RATIO": "unlimited"}).to_json()
    again = Snapshot.from_json(json.loads(json.dumps(first))).to_json()

    assert first == again
    assert first["taken_at"] == "2026-11-29T12:00:00Z"


def test_absent_capacity_is_computed_from_the_sample_and_the_instances() -> None:
    node = a_node(without=BARE, cpu_foreign_vcpus=2, memory_foreign_mb=1024, disk_foreign_gb=30, max_instances=9)
    instances = [
        {"uuid": "i1", "node": "n1", "cpus": 2, "memory_mb": 4096, "disk_gb": 20},
        {"uuid": "i2", "node": "n2", "incoming_node": "n1", "cpus": 1, "memory_mb": 512, "disk_gb": 5},
        {"uuid": "i3", "node": "n2", "cpus": 8, "memory_mb": 512, "disk_gb": 5},
    ]

    snapshot = snapshot_of(node, instances=instances)

    # floor(14 * 3) - 2, floor(65536 * 3) - 4096 - 1024, 1000 - 20 - 30
    assert counters(snapshot, "limit_cpus", "limit_memory_mb", "limit_disk_gb", "limit_instances") == [
        40,
        191488,
        950,
        9,
    ]
    assert counters(snapshot, "used_cpus", "used_memory_mb", "used_disk_gb", "used_instances") == [3, 4608, 25, 2]
    assert counters(snapshot, "pending_memory_mb", "pending_disk_gb") == [512, 5]


def test_fresh_charges_bring_expected_demand_to_a_computed_row() -> None:
    instances = [{"uuid": "i1", "node": "n1", "cpus": 4, "charge_age_seconds": 300}]

    snapshot = snapshot_of(a_node(without=BARE), instances=instances)

    assert counters(snapshot, "expected_demand") == [1200]


def test_null_capacity_is_no_ledger_row() -> None:
    decision = decision_on(a_node(capacity=None))
    admitted = decision_on(a_node(capacity=None), config={"ADMIT_UNSIZED_NODES": True})

    assert reason_on(decision, "n1") == ("sufficient_idle_cpu", "unknown_limit_cpus")
    assert decision.stages[-1].dropped["n1"]["capacity_row_present"] is False
    assert admitted.ranked == ("n1",)


def test_an_unsized_node_is_charged_by_measurement_alone() -> None:
    node = a_node(capacity=None, cpu_total_instance_vcpus=40)
    config = {"ADMIT_UNSIZED_NODES": True}

    assert decision_on(node, config=config, cpus=2).ranked == ("n1",)
    assert decision_on(node, config=config, cpus=3).stage == "sufficient_idle_cpu"


def test_stated_pending_beats_the_computed_one() -> None:
    instances = [{"uuid": "i1", "node": "n1", "memory_mb": 700, "disk_gb": 7, "draft": True}]

    stated = snapshot_of(a_node(pending_memory_mb=5), instances=instances)
    computed = snapshot_of(a_node(without=["pending_memory_mb", "pending_disk_gb"]), instances=instances)

    assert counters(stated, "pending_memory_mb", "pending_disk_gb") == [5, 0]
    assert counters(computed, "pending_memory_mb", "pending_disk_gb") == [700, 7]


@pytest.mark.parametrize(
    ("charge", "pending"),
    [
        ({}, 0),
        ({"charge_age_seconds": 13}, 0),
        ({"charge_age_seconds": 12}, 1000),
        ({"charge_age_seconds": 11.5}, 1000),
        ({"draft": True, "charge_age_seconds": 600}, 1000),
        ({"grown_memory_mb": 300}, 300),
        ({"grown_memory_mb": 300, "draft": True}, 1000),
        ({"node": "n2", "incoming_node": "n1"}, 1000),
        ({"node": "n2", "incoming_node": "n1", "incoming_memory_mb": 1500}, 1500),
        ({"node": "n2", "incoming_node": "n1", "incoming_memory_mb": 0}, 0),
        ({"incoming_node": "n2"}, 0),
        ({"node": None}, 0),
    ],
)
def test_pending_is_what_the_sample_cannot_include(charge: dict[str, Any], pending: int) -> None:
    instance = {"uuid": "i1", "node": "n1", "memory_mb": 1000, **charge}

    snapshot = snapshot_of(a_node(without=["pending_memory_mb"]), instances=[instance])

    assert [pending] == counters(snapshot, "pending_memory_mb")


def test_absent_parts_of_a_row_are_unknown_and_null_limits_are_unlimited() -> None:
    snapshot = snapshot_of(a_node(limit_cpus=None, without=["limit_memory_mb", "used_disk_gb", "expected_demand"]))

    assert counters(snapshot, "limit_cpus", "limit_memory_mb", "used_disk_gb", "expected_demand") == [
        UNLIMITED,
        UNKNOWN,
        UNKNOWN,
        0,
    ]


def test_an_older_sample_is_judged_by_the_fallbacks_and_flagged() -> None:
    older = a_node(without=["cpu_schedulable", "memory_reserved_mb", "disk_reservation_gb", *BARE])
    config = {"NODE_CPU_RESERVATION_THREADS": 4, "NODE_RAM_RESERVATION_GB": 1.5, "NODE_DISK_RESERVATION_GB": 100}

    snapshot = snapshot_of(older, config=config)
    stages = {stage.name: stage.as_dict() for stage in decision_on(older, config=config).stages}

    # (16 - 4) * 3, 65536 * 3 - 1536, 1000 - 100
    assert counters(snapshot, "limit_cpus", "limit_memory_mb", "limit_disk_gb") == [36, 195072, 900]
    assert stages["sufficient_idle_cpu"]["flagged"] == {"cpu_schedulable_from_fallback": ["n1"]}
    assert stages["sufficient_idle_memory"]["flagged"] == {"memory_reserved_mb_from_fallback": ["n1"]}
    assert stages["sufficient_free_disk"]["flagged"] == {"disk_reservation_gb_from_fallback": ["n1"]}


def test_the_fallback_leaves_a_small_machine_one_thread() -> None:
    small = snapshot_of(a_node(cpu_threads=2, without=["cpu_schedulable", *BARE]))

    assert counters(small, "limit_cpus") == [3]


def test_threads_are_asked_before_the_maximum_of_libvirt() -> None:
    by_maximum = snapshot_of(a_node(cpu_max=8, without=["cpu_schedulable", "cpu_threads", *BARE]))

    assert counters(by_maximum, "limit_cpus") == [18]


def test_the_reservation_fallback_leaves_half_of_a_small_machine() -> None:
    small = snapshot_of(a_node(memory_max=1024, without=["memory_reserved_mb", *BARE]))

    assert counters(small, "limit_memory_mb") == [2560]


def test_figures_of_a_large_machine_are_exact() -> None:
    terabytes = 6 * 1024 * 1024
    large = a_node(
        cpu_threads=512,
        cpu_schedulable=510,
        memory_max=terabytes,
        memory_available=terabytes - 8192,
        disk_total_gb=200 * 1024,
        disk_free_gb=200 * 1024,
        without=BARE,
    )

    snapshot = snapshot_of(large)

    assert [3 * terabytes - 4096] == counters(snapshot, "limit_memory_mb")
    assert decision_on(large, memory_mb=int(2.5 * 1024 * 1024)).ranked == ("n1",)


def with_node(**changes: Any) -> dict[str, Any]:
    return a_document({**a_node(), **changes})


def with_metric(name: str, value: Any) -> dict[str, Any]:
    return with_node(metrics={name: value})


def with_instance(**changes: Any) -> dict[str, Any]:
    return a_document(a_node(), instances=[{"uuid": "i1", "node": "n1", **changes}])


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ([], "document"),
        ("nodes", "document"),
        (None, "document"),
        ({}, "nodes"),
        ({"nodes": {}}, "nodes"),
        ({"nodes": [], "node": []}, "node"),
        ({"nodes": [1]}, "nodes[0]"),
        ({"nodes": [{}]}, "nodes[0].name"),
        ({"nodes": [], "config": []}, "config"),
        ({"nodes": [], "config": {"CPU_OVERCOMIT": 3}}, "config.CPU_OVERCOMIT"),
        ({"nodes": [], "config": {"RAM_OVERCOMMIT_RATIO": 0}}, "config.RAM_OVERCOMMIT_RATIO"),
        ({"nodes": [], "taken_at": "yesterday"}, "taken_at"),
        ({"nodes": [], "taken_at": 5}, "taken_at"),
        ({"nodes": [], "instances": {}}, "instances"),
        (a_document(a_node(), a_node()), "nodes[1].name"),
        (with_node(name=7), "nodes[0].name"),
        (with_node(state="busy"), "nodes[0].state"),
        (with_node(scheduling="off"), "nodes[0].scheduling"),
        (with_node(sample_age_seconds="12"), "nodes[0].sample_age_seconds"),
        (with_node(sample_age_seconds=float("nan")), "nodes[0].sample_age_seconds"),
        (with_node(labels={"rack": 1}), "nodes[0].labels.rack"),
        (with_node(sleepy_pool="no"), "nodes[0].sleepy_pool"),
        (with_node(colour="red"), "nodes[0].colour"),
        (with_node(sample_age_seconds=10**400), "nodes[0].sample_age_seconds"),
        (with_metric("memory_max", 10**400), "nodes[0].metrics.memory_max"),
        (with_node(metrics=[]), "nodes[0].metrics"),
        (with_metric("memory_max", "64G"), "nodes[0].metrics.memory_max"),
        (with_metric("memory_max", -1), "nodes[0].metrics.memory_max"),
        (with_metric("memory_max", 2**60), "nodes[0].metrics.memory_max"),
        (with_metric("cpu_load_1", True), "nodes[0].metrics.cpu_load_1"),
        (with_metric("cpu_load_1", float("inf")), "nodes[0].metrics.cpu_load_1"),
        (with_metric("is_hypervisor", "yes"), "nodes[0].metrics.is_hypervisor"),
        (with_node(capacity=[]), "nodes[0].capacity"),
        (with_node(capacity={"limit_cpu": 1}), "nodes[0].capacity.limit_cpu"),
        (with_node(capacity={"limit_cpus": 1.5}), "nodes[0].capacity.limit_cpus"),
        (with_node(capacity={"used_cpus": -1}), "nodes[0].capacity.used_cpus"),
        (with_node(max_instances=-1), "nodes[0].max_instances"),
        (with_node(gpus={}), "nodes[0].gpus"),
        (with_node(gpus=[1]), "nodes[0].gpus[0]"),
        (with_node(gpu_count="1"), "nodes[0].gpu_count"),
        (with_node(gpus=[{"uuid": "G"}], mig_instances=[{"uuid": "G"}]), "nodes[0].mig_instances[0].uuid"),
        (with_instance(uuid=""), "instances[0].uuid"),
        (with_instance(cpus=-1), "instances[0].cpus"),
        (with_instance(memory_mb=1.5), "instances[0].memory_mb"),
        (with_instance(tags=[1]), "instances[0].tags"),
        (with_instance(draft=1), "instances[0].draft"),
        (with_instance(disk=5), "instances[0].disk"),
        (a_document(a_node(), instances=[{"uuid": "i1"}, {"uuid": "i1"}]), "instances[1].uuid"),
    ],
)
def test_a_malformed_document_is_refused_with_its_path(document: Any, path: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        Snapshot.from_json(document)

    assert [item["field"] for item in refused.value.extra["errors"]].count(path) == 1


def test_all_problems_of_a_document_are_told_together() -> None:
    document = a_document(a_node(state="busy"), {**a_node(name="n2"), "capacity": {"used_cpus": "1"}})

    with pytest.raises(InvalidRequest) as refused:
        Snapshot.from_json(document)

    assert [item["field"] for item in refused.value.extra["errors"]] == [
        "nodes[0].state",
        "nodes[1].capacity.used_cpus",
    ]


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert counters(snapshot_of(a_node(used_cpus=12.0)), "used_cpus") == [12]


def test_figures_that_no_decision_reads_are_accepted() -> None:
    node = a_node()
    node["metrics"] |= {"cpu_load_5": 1.0, "cpu_cores": 8, "swap_used": 7}

    assert len(snapshot_of(node)) == 1
