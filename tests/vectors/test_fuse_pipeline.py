"""Numbered vectors of the Fuse document: its gates, its refusals, and what has room."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from fleet.model.errors import InvalidRequest
from tests.unit.placement.asking import decision_on, reason_on, request_of
from tests.unit.placement.hosts import a_host

pytestmark = pytest.mark.vectors

SMALL: Final[Mapping[str, Any]] = {"cpus": 1, "memory_mb": 256, "disk_gb": 10}
DISKS = {"disk": "nvme", "tier": "build"}
SLICES = [{"uuid": f"MIG-{n}", "profile": "1g.10gb", "kind": "a100"} for n in range(2)]


def test_fuse_v1_a_fleet_without_hosts_says_so() -> None:
    decision = decision_on(**SMALL)

    assert (decision.code, decision.transient) == ("no_nodes", False)
    assert decision.summary == "placement requires registered nodes: no node is registered"


def test_fuse_v2_decided_that_hosts_which_take_nothing_are_not_called_full() -> None:
    """The document says "no capacity"; whoever reads that would buy a host."""
    decision = decision_on(a_host("h1", scheduling="cordoned"), a_host("h2", scheduling="draining"), **SMALL)

    assert (decision.code, decision.stage) == ("no_schedulable_nodes", "scheduling_state")
    assert decision.counts == {"scheduling_state": {"cordoned": 1, "draining": 1}}


def test_fuse_v3_more_than_the_host_has_is_no_capacity() -> None:
    decision = decision_on(a_host("h1", limit_cpus=2, limit_memory_mb=1024, limit_disk_gb=50), **{**SMALL, "cpus": 4})

    assert (decision.code, decision.stage) == ("out_of_capacity", "sufficient_idle_cpu")


def test_fuse_v4_another_region_is_no_capacity_and_names_its_gate() -> None:
    decision = decision_on(a_host("h1", region="eu-west"), region="us-east", **SMALL)

    assert (decision.code, decision.stage, decision.transient) == ("out_of_capacity", "region", False)


def test_fuse_v7_a_host_whose_slots_are_taken_is_full_however_large_it_is() -> None:
    large = {"limit_cpus": 64, "limit_memory_mb": 65536, "limit_disk_gb": 1000}

    decision = decision_on(a_host("h1", limit_instances=2, used_instances=2, **large), **SMALL)

    assert (decision.code, decision.stage) == ("out_of_capacity", "instance_slots")


LAST = {"limit_instances": 5, "used_cpus": 7, "used_memory_mb": 3840, "used_disk_gb": 90, "used_instances": 4}


def test_fuse_v9_what_fits_exactly_fits() -> None:
    assert decision_on(a_host("h1", **LAST), **SMALL).ranked == ("h1",)


@pytest.mark.parametrize(
    ("allocated", "stage"),
    [
        ({"used_cpus": 8}, "sufficient_idle_cpu"),
        ({"used_memory_mb": 4096}, "sufficient_idle_memory"),
        ({"used_disk_gb": 100}, "sufficient_free_disk"),
        ({"used_instances": 5}, "instance_slots"),
    ],
)
def test_fuse_v10_each_dimension_alone_does_not_fit(allocated: dict[str, int], stage: str) -> None:
    decision = decision_on(a_host("h1", limit_instances=5, **allocated), cpus=1, memory_mb=1, disk_gb=1)

    assert (decision.code, decision.stage) == ("out_of_capacity", stage)


def test_fuse_v13_a_firecracker_host_with_a_stale_count_of_gpus_serves_none() -> None:
    stale = a_host("h1", backend="firecracker", gpu_count=2)

    decision = decision_on(stale, gpus=1, **SMALL)

    assert decision.code == "no_gpu_nodes"
    assert reason_on(decision, "h1") == ("backend", "backend_without_gpus")


def test_fuse_v14_a_host_with_gpus_takes_who_asks_for_none() -> None:
    assert decision_on(a_host("h1", backend="qemu", gpu_count=2, gpu_kind="a100"), **SMALL).ranked == ("h1",)


def test_fuse_v27_a_pin_has_one_candidate_whatever_the_strategy_would_choose() -> None:
    hosts = [a_host("h1", used_cpus=4, used_memory_mb=2048), a_host("h2")]

    decision = decision_on(*hosts, placement={"node": "h1"}, strategy="spread", **SMALL)

    assert decision.ranked == ("h1",)
    assert reason_on(decision, "h2") == ("node_pin", "not_the_pinned_node")


def test_fuse_v28_a_pinned_host_that_is_cordoned_is_named_with_its_gate() -> None:
    decision = decision_on(a_host("h1", scheduling="cordoned"), a_host("h2"), placement={"node": "h1"}, **SMALL)

    assert (decision.code, decision.stage) == ("pin_ineligible", "scheduling_state")
    assert "node h1 is not eligible: cordoned" in decision.summary


def test_fuse_v29_a_selector_that_matches_nobody_is_told_with_how_many_were_considered() -> None:
    hosts = [a_host("h1", labels={"disk": "nvme"}), a_host("h2", scheduling="cordoned")]

    decision = decision_on(*hosts, placement={"labels": dict(reversed(DISKS.items()))}, **SMALL)

    assert decision.code == "labels_unmatched"
    assert "disk=nvme,tier=build matched none of 1 schedulable nodes" in decision.summary


def test_fuse_v30_labels_choose_the_fuller_host() -> None:
    hosts = [a_host("h1"), a_host("h2", used_cpus=4, used_memory_mb=2048, labels=DISKS)]

    assert decision_on(*hosts, placement={"labels": {"disk": "nvme"}}, **SMALL).ranked == ("h2",)


@pytest.mark.parametrize(
    ("host", "asked", "fits"),
    [("", "amd64", True), ("", "arm64", False), ("arm64", "amd64", False), ("arm64", "", True)],
)
def test_fuse_v31_a_host_without_an_architecture_is_amd64(host: str, asked: str, fits: bool) -> None:
    decision = decision_on(a_host("h1", arch=host), arch=asked, **SMALL)

    assert (decision.ranked == ("h1",)) is fits
    assert fits or decision.stage == "arch"


@pytest.mark.parametrize(
    ("asked", "field"),
    [
        ({"gpus": 1, "gpu_profile": "half"}, "gpu_profile"),
        ({"gpus": 0, "gpu_profile": "1g.10gb"}, "gpu_profile"),
        ({"gpus": 1, "gpu_kind": "v100", "gpu_profile": "1g.10gb"}, "gpu_profile"),
        ({"placement": {"labels": {"bad key": "x"}}}, "placement.labels"),
    ],
)
def test_fuse_v33_a_create_that_breaks_a_rule_is_refused_before_any_decision(asked: dict[str, Any], field: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        request_of(**asked)

    assert [problem["field"].startswith(field) for problem in refused.value.extra["errors"]] == [True]


def test_fuse_v33_a_profile_in_capitals_is_placed_and_kept_in_lower_case() -> None:
    request: Mapping[str, Any] = {"gpus": 2, "gpu_kind": "A100", "gpu_profile": "1G.10GB"}

    assert decision_on(a_host("h1", backend="qemu", mig_instances=SLICES), **request, **SMALL).ranked == ("h1",)
    assert request_of(**request).gpu_profile == "1g.10gb"


def test_fuse_v33_gpus_without_any_host_are_told_as_such() -> None:
    decision = decision_on(gpus=1, **SMALL)

    assert decision.code == "no_gpu_nodes"
    assert "gpu workloads require a registered gpu node" in decision.summary
