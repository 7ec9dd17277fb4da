"""Why nobody is left: the order of causes, whether waiting can help, and the words that each answer must hold."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.model.decision import Decision
from tests.documents import a_node
from tests.unit.placement.asking import Form, decision_on

A100 = "NVIDIA A100-SXM4-40GB"
RULE: Form = {"resource": "virtual_machine", "operator": "has", "tags": {"role": "ghost"}}
TOO_LARGE = 200_000


def card(bound_to: str | None = None) -> dict[str, Any]:
    return {"uuid": f"GPU-{bound_to}", "model": A100, "bound_to": bound_to}


def cause_of(decision: Decision) -> tuple[str | None, str | None, bool]:
    return decision.code, decision.stage, decision.transient


def told(decision: Decision, *words: str) -> None:
    """Everything that a person is told holds these words."""
    text = f"{decision.summary}; {decision.remedy}"
    assert [word for word in words if word not in text] == [], text


# --- the order: what stands further left wins over everything to its right ------------------------------------------

EVERYTHING: Form = {
    "placement": {"node": "n1", "labels": {"tier": "build"}},
    "region": "mars",
    "gpus": 1,
    "memory_mb": TOO_LARGE,
    "placement_rules": [RULE],
}


def without(*names: str) -> dict[str, Any]:
    return {name: value for name, value in EVERYTHING.items() if name not in names}


def test_an_unknown_name_comes_first_even_in_an_empty_fleet() -> None:
    assert cause_of(decision_on(**EVERYTHING)) == ("node_not_found", None, False)
    told(decision_on(**EVERYTHING), "no node is called n1", "no node is registered")

    other = decision_on(a_node(name="n2", scheduling="cordoned"), **EVERYTHING)

    assert other.code == "node_not_found"
    told(other, "no node is called n1", "1 node is registered")


def test_an_unknown_destination_is_a_name_too() -> None:
    placed = ({"uuid": "i1", "node": "n1", "cpus": 1, "memory_mb": 1024, "disk_gb": 0},)
    decision = decision_on(
        a_node(state="error"), reason="evacuate", instance="i1", destinations=["n1", "n9"], instances=placed
    )

    assert decision.code == "node_not_found"
    told(decision, "n9")


def test_no_nodes_comes_before_everything_that_needs_some() -> None:
    unpinned = {**without("gpus"), "placement": {"labels": {"tier": "build"}}}

    assert cause_of(decision_on(**unpinned)) == ("no_nodes", None, False)
    told(decision_on(**unpinned), "placement requires registered nodes")


def test_no_nodes_for_gpus_says_that_gpus_need_one() -> None:
    decision = decision_on(**{**EVERYTHING, "placement": {"labels": {"tier": "build"}}})

    assert decision.code == "no_gpu_nodes"
    told(decision, "gpu workloads require a registered gpu node")


def test_a_pin_comes_before_an_unschedulable_fleet() -> None:
    decision = decision_on(a_node(scheduling="cordoned"), **EVERYTHING)

    assert cause_of(decision) == ("pin_ineligible", "scheduling_state", False)
    told(decision, "node n1 is not eligible", "cordoned", "scheduling_state")


@pytest.mark.parametrize(
    ("node", "request_body", "stage", "gate"),
    [
        ({"state": "error"}, {}, "node_state", "not_active"),
        ({"sample_age_seconds": 500}, {}, "node_state", "stale_sample"),
        ({"scheduling": "draining"}, {}, "scheduling_state", "draining"),
        ({"is_hypervisor": False}, {}, "is_hypervisor", "not_a_hypervisor"),
        ({"region": "eu"}, {"region": "us"}, "region", "other_region"),
        ({"arch": "arm64"}, {"arch": "amd64"}, "arch", "other_arch"),
        ({"backend": "firecracker"}, {"gpus": 1}, "backend", "backend_without_gpus"),
        ({"labels": {"disk": "hdd"}}, {"labels": {"disk": "nvme"}}, "labels", "labels_missing"),
        ({"cpu_max_per_instance": 2}, {"cpus": 4}, "cpu_max_per_instance", "over_cpu_max_per_instance"),
    ],
)
def test_a_pinned_node_that_fails_a_gate_is_named_with_it(
    node: dict[str, Any], request_body: dict[str, Any], stage: str, gate: str
) -> None:
    """Also where another node would do: a pin is not a wish."""
    body = dict(request_body)
    pin = {"node": "n1", "labels": body.pop("labels", {})}

    decision = decision_on(a_node(**node), a_node(name="n2", gpu_count=1), placement=pin, **body)

    assert cause_of(decision) == ("pin_ineligible", stage, False)
    told(decision, "node n1 is not eligible", gate, stage)


def test_a_pinned_node_outside_the_sleepy_pool_is_named_with_its_gate() -> None:
    decision = decision_on(
        a_node(), config={"DEDICATED_SLEEPY_NODES": True}, placement={"node": "n1"}, sleep_after_idle_seconds=60
    )

    assert cause_of(decision) == ("pin_ineligible", "sleepy_pool", False)


def test_a_pinned_node_that_breaks_a_tag_constraint_or_a_rule_gets_the_code_of_affinity() -> None:
    pin = {"node": "n1"}

    constraint = decision_on(a_node(), placement=pin, affinity={"require_with_tag": ["ghost"]})
    rule = decision_on(a_node(), placement=pin, placement_rules=[RULE])

    assert cause_of(constraint) == ("affinity_unsatisfiable", "affinity_constraints", False)
    assert cause_of(rule) == ("affinity_unsatisfied", "placement_rules", False)
    told(rule, "node n1 fails placement_rules")


def test_a_pinned_node_without_room_is_out_of_capacity_and_names_itself_and_what_lacks() -> None:
    nodes = [a_node(name="n1"), a_node(name="n2", memory_available=10**6, limit_memory_mb=10**6)]

    decision = decision_on(*nodes, placement={"node": "n1"}, memory_mb=100_000)

    assert cause_of(decision) == ("out_of_capacity", "sufficient_idle_memory", True)
    told(decision, "node n1 has no room", "MiB of memory")


def test_a_pinned_node_that_is_too_small_even_when_empty_says_so() -> None:
    nodes = [a_node(name="n1"), a_node(name="n2", limit_memory_mb=10**6)]

    decision = decision_on(*nodes, placement={"node": "n1"}, memory_mb=TOO_LARGE)

    assert cause_of(decision) == ("out_of_capacity", "sufficient_idle_memory", False)
    told(decision, "node n1 has no room", "exceed the largest limit, 192512 (n1), among the nodes left by then")


def test_nothing_schedulable_comes_before_labels_gpus_and_room() -> None:
    body = {**without("placement"), "placement": {"labels": {"tier": "build"}}}
    nodes = [
        a_node(name="n1", scheduling="cordoned"),
        a_node(name="n2", state="missing"),
        a_node(name="n3", is_hypervisor=False),
    ]

    decision = decision_on(*nodes, **body)

    assert cause_of(decision) == ("no_schedulable_nodes", "is_hypervisor", False)
    told(decision, "0 of 3 nodes fit", "1 node_state", "1 scheduling_state", "1 is_hypervisor")


def test_labels_come_before_gpus_region_and_room() -> None:
    body = {**without("placement"), "placement": {"labels": {"tier": "build", "disk": "nvme"}}}
    nodes = [a_node(name="n1", labels={"disk": "nvme"}), a_node(name="n2"), a_node(name="n3", scheduling="cordoned")]

    decision = decision_on(*nodes, **body)

    assert cause_of(decision) == ("labels_unmatched", "labels", False)
    told(decision, "disk=nvme,tier=build matched none of 2 schedulable nodes")


def test_a_label_of_a_node_that_takes_nothing_matches_nobody() -> None:
    shut = a_node(name="n1", labels={"tier": "build"}, scheduling="cordoned")

    decision = decision_on(shut, a_node(name="n2"), placement={"labels": {"tier": "build"}})

    assert decision.code == "labels_unmatched"
    told(decision, "none of 1 schedulable nodes")


def test_gpus_that_nobody_serves_come_before_region_and_room() -> None:
    body = {**without("placement"), "gpus": 2, "gpu_kind": "a100"}
    nodes = [a_node(name="n1"), a_node(name="n2", backend="firecracker", gpus=[card()])]

    decision = decision_on(*nodes, a_node(name="n3", gpus=[card()], state="error"), **body)

    assert cause_of(decision) == ("no_gpu_nodes", "gpu", False)
    told(decision, "gpu workloads require a registered gpu node", "none of 2 schedulable nodes serves GPUs", "2 x a100")


def test_a_labelled_node_that_matches_but_has_no_room_is_named_with_what_lacks() -> None:
    nodes = [a_node(name="n1", labels={"tier": "build"}), a_node(name="n2", memory_available=10**6)]

    decision = decision_on(*nodes, placement={"labels": {"tier": "build"}}, memory_mb=100_000)

    assert cause_of(decision) == ("out_of_capacity", "sufficient_idle_memory", True)
    told(decision, "n1", "MiB of memory", "1 labels", "1 sufficient_idle_memory")


@pytest.mark.parametrize(
    ("node", "reason"),
    [
        ({"memory_available": None}, "unknown_memory_available"),
        ({"disk_foreign_gb": None, "limit_disk_gb": 0}, "unknown_disk_foreign_gb"),
    ],
)
def test_a_pinned_node_of_which_a_figure_is_unknown_is_not_called_full(node: dict[str, Any], reason: str) -> None:
    decision = decision_on(a_node(**node), placement={"node": "n1"})

    assert cause_of(decision)[0] == "out_of_capacity"
    told(decision, f"node n1 promises nothing: {reason}")
    assert "it lacks" not in decision.summary


def test_a_pinned_node_lacks_no_more_than_is_known() -> None:
    node = a_node(used_cpus=42, memory_available=None)

    told(decision_on(node, placement={"node": "n1"}), "node n1 has no room: it lacks 1 vCPU;")


def test_a_limit_that_waits_for_a_measurement_is_not_the_largest_there_is() -> None:
    decision = decision_on(a_node(disk_foreign_gb=None, limit_disk_gb=0))

    assert cause_of(decision) == ("out_of_capacity", "sufficient_free_disk", True)
    assert "largest limit" not in decision.summary


# --- the stage that emptied the set ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("node", "body", "config", "stage"),
    [
        ({}, {"sleep_after_idle_seconds": 60}, {"DEDICATED_SLEEPY_NODES": True}, "sleepy_pool"),
        ({"region": "eu"}, {"region": "us"}, {}, "region"),
        ({"arch": "arm64"}, {"arch": "amd64"}, {}, "arch"),
        ({"cpu_max_per_instance": 2}, {"cpus": 4}, {}, "cpu_max_per_instance"),
    ],
)
def test_a_gate_that_empties_the_set_is_named_and_waiting_does_not_help(
    node: dict[str, Any], body: dict[str, Any], config: dict[str, Any], stage: str
) -> None:
    decision = decision_on(a_node(**node), config=config, **body)

    assert cause_of(decision) == ("out_of_capacity", stage, False)
    told(decision, f"0 of 1 nodes fit: 1 {stage}")


def test_a_backend_that_empties_the_set_is_named_and_waiting_does_not_help() -> None:
    """The node that could serve GPUs is in another region, so that the backend has the last word."""
    able = a_node(name="n1", region="eu", gpus=[card()])
    unable = a_node(name="n2", region="us", backend="firecracker")

    assert cause_of(decision_on(able, unable, gpus=1, region="us")) == ("out_of_capacity", "backend", False)


@pytest.mark.parametrize(
    ("full", "stage"),
    [
        ({"used_cpus": 42}, "sufficient_idle_cpu"),
        ({"used_memory_mb": 192_512}, "sufficient_idle_memory"),
        ({"used_disk_gb": 980}, "sufficient_free_disk"),
        ({"limit_instances": 1}, "instance_slots"),
        ({"queue_waiting": 21}, "queue_state"),
        ({"disk_busy_ms_per_second": 1200.5}, "sufficient_idle_disk"),
    ],
)
def test_a_stage_of_capacity_is_transient_while_the_request_would_fit_an_empty_node(
    full: dict[str, Any], stage: str
) -> None:
    decision = decision_on(a_node(**full))

    assert cause_of(decision) == ("out_of_capacity", stage, True)
    told(decision, f"0 of 1 nodes fit: 1 {stage}")


def test_gpus_that_are_all_held_are_transient() -> None:
    decision = decision_on(a_node(gpus=[card("i9"), card("i8")]), gpus=2, gpu_kind="a100")

    assert cause_of(decision) == ("out_of_capacity", "gpu", True)
    told(decision, "1 gpu")


def test_more_gpus_than_any_node_owns_are_not_and_the_largest_is_named() -> None:
    nodes = [a_node(name="n1", gpus=[card()]), a_node(name="n2", gpus=[card("i9"), card()])]

    decision = decision_on(*nodes, gpus=3, gpu_kind="a100")
    other_kind = decision_on(*nodes, gpus=1, gpu_kind="h100")

    assert cause_of(decision) == ("out_of_capacity", "gpu", False)
    told(decision, "3 x a100", "the most on one node is 2 (n2)")
    assert cause_of(other_kind) == ("out_of_capacity", "gpu", False)
    told(other_kind, "no node has any of that kind")


def test_a_request_beyond_every_limit_is_not_transient_and_the_largest_is_named() -> None:
    nodes = [a_node(name="n1"), a_node(name="n2", limit_memory_mb=100_000)]

    decision = decision_on(*nodes, memory_mb=192_513)

    assert cause_of(decision) == ("out_of_capacity", "sufficient_idle_memory", False)
    told(decision, "192513 MiB of memory exceed the largest limit, 192512 (n1)")


def test_a_node_that_another_stage_dropped_makes_nothing_transient() -> None:
    """Its limit is large enough, but the selector keeps it out for ever."""
    nodes = [a_node(name="n1", labels={"tier": "build"}), a_node(name="n2", limit_memory_mb=10**6)]

    decision = decision_on(*nodes, memory_mb=TOO_LARGE, placement={"labels": {"tier": "build"}})

    assert cause_of(decision) == ("out_of_capacity", "sufficient_idle_memory", False)


def test_tag_constraints_and_rules_have_codes_of_their_own() -> None:
    constraint = decision_on(a_node(), affinity={"require_with_tag": ["ghost"]})
    rule = decision_on(a_node(), placement_rules=[RULE])

    assert cause_of(constraint) == ("affinity_unsatisfiable", "affinity_constraints", False)
    assert cause_of(rule) == ("affinity_unsatisfied", "placement_rules", False)


def test_preferred_rules_never_are_the_cause() -> None:
    preferred = {"AFFINITY_MATCHING": "preferred"}

    assert decision_on(a_node(), config=preferred, placement_rules=[RULE]).ranked == ("n1",)
    full = decision_on(a_node(used_cpus=42), config=preferred, placement_rules=[RULE])
    assert cause_of(full) == ("out_of_capacity", "sufficient_idle_cpu", True)


def test_room_is_asked_before_rules_so_a_full_fleet_is_full() -> None:
    decision = decision_on(a_node(used_cpus=42), placement_rules=[RULE], affinity={"require_with_tag": ["ghost"]})

    assert cause_of(decision) == ("out_of_capacity", "sufficient_idle_cpu", True)


def test_of_many_unknown_names_the_first_few_are_told() -> None:
    decision = decision_on(a_node(), destinations=[f"nowhere{at}" for at in range(50)])

    assert decision.summary == "no node is called nowhere0, nowhere1, nowhere2, …; 1 node is registered"
