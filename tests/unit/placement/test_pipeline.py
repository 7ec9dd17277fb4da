"""What decides: the order of causes, the codes, re-placements, load shedding beside a scorer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from fleet.model.errors import InvalidRequest, StrategyUnavailable
from fleet.placement.ask import Ask
from fleet.placement.pipeline import decide, walk_stages
from fleet.placement.stage import Example, NamedStage, Reason, Scorer, all_stages
from tests.documents import a_node
from tests.unit.placement.asking import decision_on, reason_on, request_of, snapshot_of

ON_N1 = ({"uuid": "i1", "node": "n1", "cpus": 2, "memory_mb": 4096, "disk_gb": 20},)


def test_all_survivors_are_ranked_and_dropped_nodes_have_one_reason() -> None:
    decision = decision_on(a_node(name="n1"), a_node(name="n2", scheduling="cordoned"), a_node(name="n3"))

    assert {"n1", "n3"} == set(decision.ranked)
    assert reason_on(decision, "n2") == ("scheduling_state", "cordoned")
    assert decision.counts == {"scheduling_state": {"cordoned": 1}}
    assert decision.outcome == "ranked"
    assert decision.code is None
    assert f"{decision.ranked[0]} is first of 2 of 3 nodes" in decision.summary


def test_an_empty_fleet_has_no_nodes() -> None:
    decision = decision_on()

    assert (
        str(decision.outcome),
        decision.code,
        decision.stage,
        decision.transient,
    ) == ("refused", "no_nodes", None, False)
    assert decision.summary == "placement requires registered nodes: no node is registered"


@pytest.mark.parametrize(
    "nodes",
    [
        [a_node(state="error")],
        [a_node(name="n1", scheduling="cordoned"), a_node(name="n2", scheduling="draining")],
        [a_node(is_hypervisor=False)],
        [a_node(name="n1", state="missing"), a_node(name="n2", is_hypervisor=False)],
    ],
)
def test_nothing_schedulable_is_not_full(nodes: list[dict[str, Any]]) -> None:
    decision = decision_on(*nodes)

    assert decision.code == "no_schedulable_nodes"
    assert not decision.transient


def test_the_summary_counts_by_stage_most_first() -> None:
    nodes = [a_node(name=f"full{i}", limit_memory_mb=4096) for i in range(7)]
    nodes += [a_node(name=f"shut{i}", scheduling="cordoned") for i in range(3)]
    nodes += [a_node(name=f"dead{i}", state="missing") for i in range(2)]

    decision = decision_on(*nodes)

    assert decision.summary.startswith("0 of 12 nodes fit: 7 sufficient_idle_memory, 3 scheduling_state, 2 node_state")


def test_the_stage_that_emptied_the_set_decides() -> None:
    decision = decision_on(a_node(name="n1", used_cpus=42), a_node(name="n2", used_memory_mb=192512))

    assert (decision.code, decision.stage, decision.transient) == ("out_of_capacity", "sufficient_idle_memory", True)
    assert [stage.name for stage in decision.stages][:4] == [
        "node_state",
        "scheduling_state",
        "is_hypervisor",
        "cpu_max_per_instance",
    ]
    assert decision.stages[-1].name == "sufficient_idle_memory"


def test_a_maximum_of_vcpus_that_no_node_offers_is_not_transient() -> None:
    decision = decision_on(a_node(cpu_max_per_instance=4), cpus=5)

    assert (decision.code, decision.stage, decision.transient) == ("out_of_capacity", "cpu_max_per_instance", False)


def test_more_than_every_limit_is_permanent_and_names_the_largest() -> None:
    decision = decision_on(a_node(name="n1"), a_node(name="n2", limit_memory_mb=200000), memory_mb=200001)

    assert not decision.transient
    assert "200001 MiB of memory exceed the largest limit, 200000 (n2)" in decision.summary


def test_one_node_that_could_hold_it_when_empty_makes_a_refusal_transient() -> None:
    small, full = a_node(name="n1", limit_cpus=2, used_cpus=0), a_node(name="n2", used_cpus=42)

    assert decision_on(small, full, cpus=4).transient
    assert not decision_on(small, cpus=4).transient


def test_amounts_that_no_single_node_could_hold_are_permanent() -> None:
    small, wide = a_node(name="n1", limit_cpus=4), a_node(name="n2", limit_memory_mb=4096)

    decision = decision_on(small, wide, cpus=8, memory_mb=8192)

    assert not decision.transient
    assert "no node's limits hold all amounts of the request together" in decision.summary


def test_a_node_that_is_full_now_is_transient_and_the_nearest_is_named() -> None:
    decision = decision_on(a_node(name="n4", used_memory_mb=190464 + 1024), memory_mb=3072)

    assert decision.transient
    assert decision.remedy == "nearest is n4: it lacks 2048 MiB of memory"


@pytest.mark.parametrize(
    ("first", "second", "stage"),
    [
        ({"queue_waiting": 21}, {"queue_waiting": 30}, "queue_state"),
        ({"disk_busy_ms_per_second": 1201}, {"disk_busy_ms_per_second": 2000}, "sufficient_idle_disk"),
        ({"queue_waiting": 21}, {"disk_busy_ms_per_second": 1201}, "sufficient_idle_disk"),
    ],
)
def test_shedding_everybody_fails_at_the_stage_that_emptied(
    first: dict[str, Any], second: dict[str, Any], stage: str
) -> None:
    decision = decision_on(a_node(name="n1", **first), a_node(name="n2", **second))

    assert ("out_of_capacity", stage, True) == (decision.code, decision.stage, decision.transient)


def test_a_busy_node_is_shed_while_another_is_left() -> None:
    decision = decision_on(a_node(name="n1", queue_waiting=21), a_node(name="n2"))

    assert decision.ranked == ("n2",)


def test_unknown_load_figures_of_shedding_keep_the_node_with_a_remark() -> None:
    decision = decision_on(a_node(queue_waiting=None, disk_busy_ms_per_second=None))

    flagged = {stage.name: stage.as_dict().get("flagged") for stage in decision.stages}
    assert decision.ranked == ("n1",)
    assert flagged["queue_state"] == {"unknown_queue_waiting": ["n1"]}
    assert flagged["sufficient_idle_disk"] == {"unknown_disk_busy_ms_per_second": ["n1"]}


def test_a_move_never_chooses_its_source() -> None:
    decision = decision_on(a_node(name="n1"), a_node(name="n2"), instances=ON_N1, reason="migrate", instance="i1")

    assert decision.ranked == ("n2",)
    assert reason_on(decision, "n1") == ("scheduling_state", "migration_source")


def test_a_move_alone_in_the_fleet_goes_nowhere() -> None:
    decision = decision_on(a_node(name="n1"), instances=ON_N1, reason="evacuate", instance="i1")

    assert decision.code == "no_schedulable_nodes"


def test_destinations_bound_a_drain() -> None:
    nodes = [a_node(name=name) for name in ("n1", "n2", "n3")]

    decision = decision_on(*nodes, instances=ON_N1, reason="evacuate", instance="i1", destinations=["n3"])

    assert decision.ranked == ("n3",)
    assert reason_on(decision, "n2") == ("scheduling_state", "not_a_destination")


def test_an_unknown_destination_is_told_before_anything_else() -> None:
    decision = decision_on(a_node(name="n1", state="error"), destinations=["n1", "n9"])

    assert (decision.code, decision.stage) == ("node_not_found", None)
    assert "no node is called n9" in decision.summary


def test_a_retry_on_its_own_node_is_not_charged_for_itself() -> None:
    full = a_node(
        name="n1", used_cpus=42, used_memory_mb=192512, used_disk_gb=980, limit_instances=1, memory_available=0
    )

    decision = decision_on(full, instances=ON_N1, instance="i1", cpus=2, memory_mb=4096, disk_gb=20)

    assert decision.ranked == ("n1",)


def test_a_resize_is_judged_by_its_growth_alone() -> None:
    tight = a_node(name="n1", used_cpus=40, memory_available=4096 + 2048, limit_instances=1)
    grown: dict[str, Any] = {"instances": ON_N1, "reason": "resize", "instance": "i1", "disk_gb": 20}

    fits = decision_on(tight, cpus=4, memory_mb=6144, **grown)
    too_many = decision_on(tight, cpus=5, memory_mb=6144, **grown)
    too_much = decision_on(tight, cpus=4, memory_mb=6145, **grown)

    assert fits.ranked == ("n1",)
    assert reason_on(too_many, "n1") == ("sufficient_idle_cpu", "over_limit_cpus")
    assert reason_on(too_much, "n1") == ("sufficient_idle_memory", "below_memory_reservation")


def test_a_shrink_always_fits_even_over_the_limit() -> None:
    over = a_node(name="n1", used_cpus=50, used_memory_mb=300000, used_disk_gb=2000, memory_available=None)

    decision = decision_on(over, instances=ON_N1, reason="resize", instance="i1", cpus=1, memory_mb=4096, disk_gb=10)

    assert decision.ranked == ("n1",)


@pytest.mark.parametrize("seed", range(5))
def test_a_resize_stays_first_on_its_own_busy_cordoned_node(seed: int) -> None:
    own = a_node(name="n1", scheduling="cordoned", queue_waiting=50, disk_busy_ms_per_second=3000, cpu_load_1=13)
    others = [a_node(name=f"n{i}") for i in range(2, 6)]

    decision = decision_on(*others, own, instances=ON_N1, reason="resize", instance="i1", cpus=4, seed=seed)

    assert decision.ranked[0] == "n1"
    assert len(decision.ranked) == 5


def test_a_resize_moves_on_when_its_growth_does_not_fit() -> None:
    decision = decision_on(
        a_node(name="n1", used_cpus=42), a_node(name="n2"), instances=ON_N1, reason="resize", instance="i1", cpus=4
    )

    assert decision.ranked == ("n2",)


@pytest.mark.parametrize("reason", ["resize", "migrate", "evacuate"])
@pytest.mark.parametrize("instance", [None, "i9"])
def test_a_replacement_needs_its_instance(reason: str, instance: str | None) -> None:
    with pytest.raises(InvalidRequest) as refused:
        decision_on(a_node(), reason=reason, instance=instance)

    assert [item["field"] for item in refused.value.extra["errors"]] == ["instance"]


def test_demand_marks_ranked_nodes_over_their_target() -> None:
    over = a_node(name="n1", cpu_load_1=10.0, expected_demand=0.501)
    at_target = a_node(name="n2", cpu_load_1=10.0, expected_demand=0.5)
    unknown = a_node(name="n3", cpu_load_1=None, expected_demand=100)

    decision = decision_on(over, at_target, unknown)
    off = decision_on(over, config={"SCHEDULER_TARGET_LOAD": 0})

    assert dict(zip(decision.ranked, decision.over_demand.tolist(), strict=True)) == {
        "n1": True,
        "n2": False,
        "n3": False,
    }
    assert off.over_demand.tolist() == [False]


def test_the_request_names_the_strategy_before_the_configuration_does() -> None:
    by_config = decision_on(a_node(), config={"PLACEMENT_STRATEGY": "nearest"}, strategy="load-aware")

    assert by_config.strategy == "load-aware"


def test_an_unknown_strategy_is_a_bad_request() -> None:
    with pytest.raises(InvalidRequest, match=r"there is: balanced, .*, load-aware") as refused:
        decision_on(a_node(), strategy="nearest")

    assert refused.value.extra["errors"][0]["field"] == "strategy"


def test_a_strategy_of_the_cluster_that_is_not_installed_is_no_fault_of_the_request() -> None:
    with pytest.raises(StrategyUnavailable, match=r"'nearest' of .* there is: balanced, .*, load-aware") as missing:
        decision_on(a_node(), config={"PLACEMENT_STRATEGY": "nearest"})

    assert missing.value.extra["strategy"] == "nearest"
    assert "load-aware" in missing.value.extra["installed"]


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_has_63_bits(seed: int) -> None:
    with pytest.raises(InvalidRequest, match="seed"):
        decision_on(a_node(), seed=seed)


def test_an_explanation_tells_every_stage_that_would_drop_a_node() -> None:
    bad = a_node(name="n1", scheduling="cordoned", used_cpus=42, queue_waiting=40)

    decision = decision_on(bad, a_node(name="n2"), explain=True)

    told = [stage.name for stage in decision.stages if "n1" in stage.dropped]
    assert told == ["scheduling_state", "sufficient_idle_cpu", "queue_state"]
    assert decision.counts == {"scheduling_state": {"cordoned": 1}}
    assert decision.ranked == ("n2",)


def test_an_explanation_of_a_refusal_goes_to_the_end_and_answers_the_same() -> None:
    plain = decision_on(a_node(state="error"))
    explained = decision_on(a_node(state="error"), explain=True)

    assert (plain.code, plain.stage, plain.counts) == (explained.code, explained.stage, explained.counts)
    assert len(explained.stages) == 10, "stages whose question was not asked are left out"


def test_the_public_form_of_a_refusal() -> None:
    form = decision_on(a_node(name="n1", used_cpus=41), cpus=2).as_dict()

    assert form["outcome"] == "refused"
    assert form["ranked"] == []
    assert form["stages"][-1]["dropped"]["n1"] == {
        "reason": "over_limit_cpus",
        "current_cpus": 41,
        "measured_cpus": 2,
        "committed_cpus": 41,
        "capacity_row_present": True,
        "requested_cpus": 2,
        "limit_cpus": 42,
        "hard_max_cpus": 42,
        "cpu_schedulable": 14,
        "cpu_schedulable_from_fallback": False,
    }


def test_long_lists_are_cut_on_demand() -> None:
    nodes = [a_node(name=f"n{i}") for i in range(10)] + [a_node(name=f"x{i}", state="error") for i in range(10)]

    form = decision_on(*nodes).as_dict(limit=3)

    assert len(form["ranked"]) == len(form["weights"]) == 3
    assert len(form["stages"][0]["kept"]) == len(form["stages"][0]["dropped"]) == 3


# --- load shedding beside a scorer: the contract that the affinity stage will use -----------------------------------

LOST = Reason("lower_score", "another node has a higher score")


def with_scorer(*liked: str) -> Sequence[NamedStage]:
    def score(ask: Ask, frame: Any) -> Any:
        return np.array([int(name in liked) for name in frame.roster.names], dtype=np.int64)

    scorer = Scorer(
        order=18, reasons=(LOST,), examples=(Example("x", LOST),), score=score, figures=lambda ask, frame, at: {}
    )
    return sorted(
        [*all_stages(), NamedStage("affinity", scorer, "affinity: a test's own.")], key=lambda s: s.stage.order
    )


def left_after(stages: Sequence[NamedStage], *nodes: dict[str, Any]) -> tuple[set[str], dict[str, bool], str | None]:
    frame = snapshot_of(*nodes).frame
    walk = walk_stages(stages, Ask.of(request_of(), frame), frame, explain=False)
    names = {frame.roster.names[at] for at in np.flatnonzero(walk.left)}
    return (
        names,
        {step.stage.name: step.overridden for step in walk.steps},
        None if walk.emptied is None else walk.emptied.name,
    )


def test_only_the_highest_score_goes_on() -> None:
    names, _, _ = left_after(with_scorer("n1", "n2"), *[a_node(name=f"n{i}") for i in range(1, 4)])

    assert names == {"n1", "n2"}


def test_load_shedding_narrows_the_winning_group() -> None:
    nodes = [a_node(name="n1", queue_waiting=30), a_node(name="n2"), a_node(name="n3")]

    names, overridden, _ = left_after(with_scorer("n1", "n2"), *nodes)

    assert names == {"n2"}
    assert not any(overridden.values())


def test_load_shedding_never_moves_a_placement_out_of_the_winning_group() -> None:
    nodes = [a_node(name="n1", disk_busy_ms_per_second=2000.5), a_node(name="n2"), a_node(name="n3")]

    names, overridden, emptied = left_after(with_scorer("n1"), *nodes)

    assert names == {"n1"}
    assert [name for name, flag in overridden.items() if flag] == ["queue_state", "sufficient_idle_disk"]
    assert emptied is None


def test_load_shedding_that_leaves_nobody_still_fails_beside_a_scorer() -> None:
    nodes = [a_node(name=f"n{i}", disk_busy_ms_per_second=2000.5) for i in (1, 2)]

    _, _, emptied = left_after(with_scorer("n1"), *nodes)

    assert emptied == "sufficient_idle_disk"


def test_a_decision_does_not_change_when_the_snapshot_moves_on() -> None:
    snapshot = snapshot_of(a_node(name="n1", node_id=1), a_node(name="n2", node_id=2, used_cpus=42))
    decision = decide(request_of(), snapshot, 3)
    row = (2, 42, 192512, 980, None, 0, 0, 0, 0, 0, 0, 0, 0, 14, "active", "cordoned", snapshot.now_us, True, 0)

    snapshot.update_counters([row])
    snapshot.remove(1)

    assert decision.ranked == ("n1",)
    assert decision.stages[4].dropped["n2"]["committed_cpus"] == 42
    assert decide(request_of(), snapshot, 3).code == "no_schedulable_nodes"
