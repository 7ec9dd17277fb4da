"""Each schedule event, once, with exactly its message and its payload keys; no payload grows with the fleet."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from fleet.model.decision import Decision
from fleet.placement import audit
from fleet.placement.audit import AuditEvent, schedule_events
from fleet.placement.record import decode_decision, encode_decision
from tests.documents import a_node
from tests.unit.placement.asking import decision_on

INPUTS = {
    "requested_affinity",
    "requested_cpus",
    "requested_memory_mb",
    "requested_disk_gb",
    "disk_spec",
    "namespace",
    "forced_candidates",
    "metrics_age_seconds",
}
CPU = {
    "reason",
    "current_cpus",
    "measured_cpus",
    "committed_cpus",
    "capacity_row_present",
    "requested_cpus",
    "limit_cpus",
    "hard_max_cpus",
    "cpu_schedulable",
    "cpu_schedulable_from_fallback",
}
MEMORY = {
    *("available_mb", "requested_memory_mb", "memory_reserved_mb"),
    *("instance_memory_mb", "memory_max_mb", "overcommit_ratio"),
    *("committed_memory_mb", "limit_memory_mb"),
}
NOBODY_WANTS = {"uuid": "i1", "node": "n1", "tags": {"noisy": ""}, "cpus": 1, "memory_mb": 64, "disk_gb": 1}
FRIEND = {"uuid": "i2", "node": "n2", "tags": {"web": ""}, "cpus": 1, "memory_mb": 64, "disk_gb": 1}


def told(decision: Decision) -> dict[str, Mapping[str, Any]]:
    """The payload of each event; every message occurs once, and every payload is JSON."""
    events = schedule_events(decision)
    found = {event.message: json.loads(json.dumps(event.payload)) for event in events}
    assert len(found) == len(events)
    return found


def dropped(decision: Decision, stage: str, node: str) -> Mapping[str, Any]:
    reason: Mapping[str, Any] = told(decision)[f"schedule at stage {stage}"]["dropped"][node]
    return reason


def test_a_placement_tells_its_whole_story_in_order() -> None:
    messages = [event.message for event in schedule_events(decision_on(a_node(name="n1"), a_node(name="n2")))]

    assert messages == [
        "started scheduling",
        "schedule inputs",
        "schedule initial candidates",
        "schedule at stage node_state",
        "schedule at stage scheduling_state",
        "schedule at stage is_hypervisor",
        "schedule at stage cpu_max_per_instance",
        "schedule at stage sufficient_idle_cpu",
        "schedule at stage sufficient_idle_memory",
        "schedule at stage sufficient_free_disk",
        "schedule at stage instance_slots",
        "schedule have highest affinity",
        "schedule at stage queue_state",
        "schedule at stage sufficient_idle_disk",
        "schedule have lowest cpu load",
        "schedule final candidates",
    ]


def test_inputs_say_what_was_asked_and_how_old_the_metrics_are() -> None:
    decision = decision_on(
        a_node(name="n1", sample_age_seconds=30),
        a_node(name="n2", sample_age_seconds=500),
        namespace="tenant",
        affinity={"prefer_with_tag": ["web"]},
    )

    inputs = told(decision)["schedule inputs"]

    assert set(inputs) == INPUTS
    assert inputs["requested_affinity"] == {"prefer_with_tag": ["web"]}
    assert (inputs["requested_cpus"], inputs["requested_memory_mb"], inputs["requested_disk_gb"]) == (1, 1024, 10)
    assert (inputs["disk_spec"], inputs["namespace"]) == ([{"size": 10}], "tenant")
    assert (inputs["forced_candidates"], inputs["metrics_age_seconds"]) == (False, 30)


def test_what_else_is_asked_for_stands_in_the_inputs() -> None:
    inputs = told(decision_on(a_node(arch="arm64"), arch="aarch64", region=""))["schedule inputs"]

    assert set(inputs) == {*INPUTS, "requested_arch"}


def test_initial_candidates_are_everybody_and_forced_ones_those_that_are_named() -> None:
    nodes = (a_node(name="n1"), a_node(name="n2"))
    pinned = told(decision_on(*nodes, placement={"node": "n2"}))

    assert told(decision_on(*nodes))["schedule initial candidates"] == {"candidates": ["n1", "n2"]}
    assert pinned["schedule forced candidates"] == {"candidates": ["n2"]}
    assert pinned["schedule inputs"]["forced_candidates"] is True
    assert "schedule initial candidates" not in pinned


def test_a_stage_says_who_is_left_and_why_the_others_are_not() -> None:
    decision = decision_on(a_node(name="n1"), a_node(name="n2", limit_cpus=2))

    event = told(decision)["schedule at stage sufficient_idle_cpu"]

    assert set(event) == {"candidates", "dropped"}
    assert event["candidates"] == ["n1"]
    assert set(event["dropped"]) == {"n2"}
    assert set(event["dropped"]["n2"]) == CPU


def test_the_reason_for_memory_has_all_three_comparisons() -> None:
    reason = dropped(decision_on(a_node(name="n1", memory_available=4200)), "sufficient_idle_memory", "n1")

    assert set(reason) >= MEMORY
    assert (reason["instance_memory_mb"], reason["memory_max_mb"], reason["overcommit_ratio"]) == (4096, 65536, 3.0)


@pytest.mark.parametrize(
    ("stage", "figures", "keys"),
    [
        ("sufficient_free_disk", {"disk_free_gb": 25}, {"requested_disk_gb", "disk_free_gb", "minimum_free_disk_gb"}),
        ("queue_state", {"queue_waiting": 21}, {"node_queue_waiting", "unreasonable_threshold"}),
        (
            "sufficient_idle_disk",
            {"disk_busy_ms_per_second": 1300.0},
            {"busy_time_delta_per_second", "busy_time_threshold"},
        ),
    ],
)
def test_reasons_keep_the_keys_that_operators_know(stage: str, figures: Mapping[str, Any], keys: set[str]) -> None:
    reason = dropped(decision_on(a_node(name="n1"), a_node(name="n2", **figures)), stage, "n2")

    assert {"reason", *keys} <= set(reason)


@pytest.mark.parametrize(
    ("affinity", "key", "node"),
    [
        ({"require_with_tag": ["web"]}, "require_with_tag", "n1"),
        ({"require_without_tag": ["web"]}, "require_without_tag", "n2"),
    ],
)
def test_hard_affinity_says_which_list_dropped_a_node(affinity: Mapping[str, Any], key: str, node: str) -> None:
    decision = decision_on(a_node(name="n1"), a_node(name="n2"), instances=[FRIEND], affinity=affinity)

    assert list(dropped(decision, "affinity_constraints", node)[key]) == ["web"]
    assert "schedule at stage affinity_constraints" not in told(decision_on(a_node()))


def test_the_stage_that_leaves_nobody_is_the_last_and_says_so() -> None:
    events = schedule_events(decision_on(a_node(name="n1", limit_cpus=2)))

    stage, last = events[-2:]
    assert stage.message == "schedule at stage sufficient_idle_cpu"
    assert last.message == "schedule has no candidates at stage sufficient_idle_cpu, aborting"
    assert set(last.payload) == {"candidates", "dropped"}
    assert last.payload["candidates"] == []
    assert set(last.payload["dropped"]) == {"n1"}


def test_affinity_tells_the_winning_tier_and_everybody_that_it_considered() -> None:
    decision = decision_on(
        *(a_node(name=name) for name in ("n1", "n2", "n3")),
        instances=[NOBODY_WANTS, FRIEND],
        affinity={"prefer_with_tag": ["web"], "prefer_without_tag": ["noisy"]},
    )

    event = told(decision)["schedule have highest affinity"]

    assert set(event) == {
        *("candidates", "requested_affinity", "highest_affinity", "by_affinity", "affinity_detail"),
    }
    assert (event["candidates"], event["highest_affinity"]) == (["n2"], 1)
    assert event["by_affinity"] == {"1": ["n2"], "0": ["n3"], "-1": ["n1"]}
    assert set(event["affinity_detail"]) == {"n1", "n2", "n3"}
    detail = event["affinity_detail"]["n2"]
    assert set(detail) == {"score", "instance_count", "considered"}
    assert detail["considered"] == [
        {"instance_uuid": "i2", "tags": {"web": ""}, "matched": ["web"], "contribution": 1},
    ]


@pytest.mark.parametrize("affinity", [None, {"require_without_tag": ["noisy"]}])
def test_without_a_wish_nothing_is_scored_and_the_event_says_so(affinity: Mapping[str, Any] | None) -> None:
    event = told(decision_on(a_node(name="n1"), a_node(name="n2"), affinity=affinity))["schedule have highest affinity"]

    assert event == {
        "candidates": ["n1", "n2"],
        "requested_affinity": affinity or {},
        "highest_affinity": 0,
        "by_affinity": {"0": ["n1", "n2"]},
        "affinity_detail": {},
    }


def test_keeping_affinity_follows_the_load_shedding_that_it_ignores() -> None:
    decision = decision_on(
        a_node(name="n1"),
        a_node(name="n2", queue_waiting=30),
        instances=[FRIEND],
        affinity={"prefer_with_tag": ["web"]},
    )
    events = {event.message: event.payload for event in schedule_events(decision)}

    keeping = events["schedule keeping affinity despite transient load"]
    assert set(keeping) == {"candidates", "load_shed_candidates", "highest_affinity"}
    assert (keeping["candidates"], keeping["load_shed_candidates"], keeping["highest_affinity"]) == (["n2"], ["n1"], 1)
    assert set(events["schedule at stage queue_state"]["dropped"]) == {"n2"}
    assert list(events).index("schedule keeping affinity despite transient load") == (
        list(events).index("schedule at stage sufficient_idle_disk") + 1
    )
    assert events["schedule final candidates"]["candidates"] == ["n2"]


def test_load_aware_tells_the_lowest_band_and_every_nodes_figures() -> None:
    event = told(decision_on(a_node(name="n1"), a_node(name="n2", cpu_load_1=9.0)))["schedule have lowest cpu load"]

    assert set(event) == {"candidates", "lowest_load", "load_detail"}
    assert (event["candidates"], event["lowest_load"]) == (["n1"], 0)
    assert {frozenset(figures) for figures in event["load_detail"].values()} == {
        frozenset(
            {
                *("cpu_load_1", "cpu_schedulable", "cpu_schedulable_from_fallback"),
                *("normalised_load", "ram_committed_fraction", "bucket"),
            }
        )
    }


@pytest.mark.parametrize("strategy", ["balanced", "spread-3", "best-fit", "spread", "binpack"])
def test_every_other_strategy_tells_its_own_figures(strategy: str) -> None:
    events = told(decision_on(a_node(name="n1"), a_node(name="n2", used_cpus=9), strategy=strategy))

    event = events[f"schedule ordered by strategy {strategy}"]
    assert set(event) == {"candidates", "strategy", "order_detail"}
    assert set(event["order_detail"]) == {"n1", "n2"}
    assert all(event["order_detail"].values())
    assert "schedule have lowest cpu load" not in events


def test_final_candidates_are_ranked_with_their_weights() -> None:
    decision = decision_on(a_node(name="n1"), a_node(name="n2"))
    final = schedule_events(decision, left_out=["n2"])[-1]

    assert final.payload["candidates"] == list(decision.ranked)
    assert final.payload["weights"] == decision.weights
    assert final.payload["left_out"] == ["n2"]
    assert set(told(decision)["schedule final candidates"]) == {"candidates", "weights"}


def test_rules_that_nobody_satisfies_and_are_preferred_tell_whom_they_would_have_dropped() -> None:
    rules = [{"resource": "metal_server", "operator": "has", "tags": {"rack": "z"}}]
    decision = decision_on(a_node(name="n1"), config={"AFFINITY_MATCHING": "preferred"}, placement_rules=rules)

    event = told(decision)["schedule at stage placement_rules"]

    assert (event["candidates"], event["dropped"], event["overridden"]) == (["n1"], {}, True)
    assert set(event["would_drop"]) == {"n1"}


def test_nine_hundred_nodes_make_no_larger_event_than_two_hundred() -> None:
    tight = {"memory_available": 4100}
    nodes = [a_node(name=f"n{at:03}", **(tight if at % 2 else {})) for at in range(900)]
    events = told(decision_on(*nodes, affinity={"prefer_without_tag": ["noisy"]}))

    memory = events["schedule at stage sufficient_idle_memory"]
    assert (len(memory["candidates"]), memory["candidates_total"]) == (200, 450)
    assert (len(memory["dropped"]), memory["dropped_total"]) == (200, 450)
    assert memory["dropped_by_reason"] == {"below_memory_reservation": 450}
    affinity = events["schedule have highest affinity"]
    assert (len(affinity["affinity_detail"]), affinity["affinity_detail_total"]) == (200, 450)
    load = events["schedule have lowest cpu load"]
    assert (len(load["load_detail"]), load["load_detail_total"], load["candidates_total"]) == (200, 450, 450)
    final = events["schedule final candidates"]
    assert (len(final["candidates"]), len(final["weights"]), final["candidates_total"]) == (200, 200, 450)


def test_what_a_node_holds_afterwards_is_what_the_decision_saw_and_the_request() -> None:
    decision = decision_on(a_node(name="n1"), cpus=2)

    assert audit.node_after(decision, "n1") == {
        "node_used_cpus": 4,
        "node_used_memory_mb": 5120,
        "node_used_disk_gb": 30,
        "node_expected_demand": 1.2,
    }
    assert audit.node_after(decision, "gone") == {}


def test_a_record_alone_tells_counts_and_no_names_and_why() -> None:
    decision = decision_on(a_node(name="n1"), a_node(name="n2", limit_cpus=2))
    events = audit.recorded_events(decode_decision(encode_decision(decision)), {"requested_cpus": 1}, "gone")
    found = {event.message: event.payload for event in events}

    assert found["schedule inputs"] == {"requested_cpus": 1, "not_kept": "gone"}
    assert found["schedule at stage sufficient_idle_cpu"] == {
        "candidates": None,
        "candidates_total": 1,
        "dropped": None,
        "dropped_total": 1,
        "dropped_by_reason": {"over_limit_cpus": 1},
    }
    assert found["schedule final candidates"]["candidates_total"] == 1


def test_a_refusals_record_ends_at_its_stage() -> None:
    decision = decision_on(a_node(name="n1", limit_cpus=2))

    last: AuditEvent = audit.recorded_events(decode_decision(encode_decision(decision)), {}, "gone")[-1]

    assert last.message == "schedule has no candidates at stage sufficient_idle_cpu, aborting"
