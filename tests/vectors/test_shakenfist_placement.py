"""Numbered vectors of the placement pipeline, and the bug reports that concern it."""

from __future__ import annotations

from collections import Counter
from decimal import Decimal
from typing import Any

import pytest

from fleet.model import capacity
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from tests.documents import a_node
from tests.unit.placement.asking import decision_on, reason_on, request_of, snapshot_of

pytestmark = pytest.mark.vectors

GB = 1024


def n1(**changes: Any) -> dict[str, Any]:
    """N1 of the vectors: limit 12/12288/120, used 8/8192/80."""
    row = {"limit_cpus": 12, "limit_memory_mb": 12288, "limit_disk_gb": 120}
    used = {"used_cpus": 8, "used_memory_mb": 8192, "used_disk_gb": 80}
    return a_node(**{"name": "N1", "cpu_schedulable": 64, "cpu_load_1": 0.5, **row, **used, **changes})


def n2(**changes: Any) -> dict[str, Any]:
    """N2 of the vectors: limit 64/65536/1000, nothing used."""
    row = {"limit_cpus": 64, "limit_memory_mb": 65536, "limit_disk_gb": 1000}
    used = {"used_cpus": 0, "used_memory_mb": 0, "used_disk_gb": 0, "memory_total_instance_actual": 0}
    return a_node(**{"name": "N2", "cpu_schedulable": 64, "cpu_load_1": 0.5, **row, **used, **changes})


@pytest.mark.parametrize(("used", "fits", "refused"), [(40, 2, 3), (0, 42, 43)])
def test_shakenfist_v1_limit_of_14_threads_at_ratio_3_is_42(used: int, fits: int, refused: int) -> None:
    node = a_node(
        cpu_schedulable=14,
        cpu_total_instance_vcpus=0,
        without=["capacity"],
    )
    instances = [{"uuid": "i1", "node": "n1", "cpus": used, "memory_mb": 1, "disk_gb": 0}]

    assert decision_on(node, instances=instances, cpus=fits).ranked == ("n1",)
    assert decision_on(node, instances=instances, cpus=refused).stage == "sufficient_idle_cpu"


def test_shakenfist_v2_limit_is_floored() -> None:
    assert capacity.limit_cpus(5, Decimal("2.5"), 0) == 12


def test_shakenfist_v3_memory_limit_and_its_floor() -> None:
    assert capacity.limit_memory_mb(64243, Decimal("3.0"), 4096, 0) == 188633
    assert capacity.limit_memory_mb(1024, Decimal("1.0"), 4096, 0) == 0


@pytest.mark.parametrize(
    ("age", "decay", "left"),
    [(0, 600, "10.0"), (100, 600, "8.333"), (300, 600, "5.0"), (600, 600, "0"), (-5, 600, "10.0"), (0, 0, "0")],
)
def test_shakenfist_v6_expected_demand_decays_linearly(age: int, decay: int, left: str) -> None:
    assert capacity.expected_demand(4, Decimal("2.5"), Decimal(age), decay) == Decimal(left)


def test_shakenfist_v6_no_window_no_expected_demand() -> None:
    assert capacity.expected_demand(4, Decimal("2.5"), Decimal(0), 0) == 0


def test_shakenfist_v7_exact_fit_passes_the_filters() -> None:
    assert decision_on(n1(), cpus=4, memory_mb=4096, disk_gb=40).ranked == ("N1",)


def test_shakenfist_v8_overflow_is_dropped_on_cpus() -> None:
    decision = decision_on(n1(), cpus=8, memory_mb=4096, disk_gb=40)

    dropped = decision.stages[-1].dropped["N1"]
    assert reason_on(decision, "N1") == ("sufficient_idle_cpu", "over_limit_cpus")
    assert (dropped["limit_cpus"], dropped["committed_cpus"], dropped["requested_cpus"]) == (12, 8, 8)


@pytest.mark.parametrize(
    ("request_amounts", "stage"),
    [
        ({"cpus": 1, "memory_mb": 8192, "disk_gb": 0}, "sufficient_idle_memory"),
        ({"cpus": 1, "memory_mb": 1, "disk_gb": 80}, "sufficient_free_disk"),
    ],
)
def test_shakenfist_v9_each_dimension_alone_binds(request_amounts: dict[str, Any], stage: str) -> None:
    assert decision_on(n1(), **request_amounts).stage == stage


@pytest.mark.parametrize(
    ("node", "config", "over"),
    [
        (n2(cpu_load_1=45, expected_demand=0), {}, False),
        (n2(cpu_load_1=48, expected_demand=0), {}, False),
        (n2(cpu_load_1=49, expected_demand=0), {}, True),
        (n2(cpu_load_1=49, without=["cpu_schedulable"]), {}, False),
        (n2(cpu_load_1=None, expected_demand=500), {}, False),
        (n2(cpu_load_1=49), {"SCHEDULER_TARGET_LOAD": 0}, False),
        (n2(cpu_load_1=49), {"SCHEDULER_TARGET_LOAD": -1}, False),
    ],
)
def test_shakenfist_v20_demand_clause_on_the_snapshot(node: Any, config: dict[str, Any], over: bool) -> None:
    small, large = (decision_on(node, config=config, cpus=cpus) for cpus in (1, 16))

    assert [[over], [over]] == [small.over_demand.tolist(), large.over_demand.tolist()]


def test_shakenfist_v21_an_idle_node_takes_any_request_whatever_its_size() -> None:
    decisions = [
        decision_on(
            n2(cpu_schedulable=threads, cpu_load_1=0, limit_cpus=1000),
            config={"SCHEDULER_DEMAND_PER_VCPU": 2.5},
            cpus=cpus,
        )
        for threads in range(1, 17)
        for cpus in (1, 2, 4, 8, 16)
    ]

    assert sum(len(decision.ranked) for decision in decisions) == 80
    assert not any(decision.over_demand.any() for decision in decisions)


def test_shakenfist_v22_sixteen_small_placements_reach_the_target_of_twelve_threads() -> None:
    expected = Decimal(0)
    walked_over = []
    for _ in range(17):
        node = n2(cpu_schedulable=12, cpu_load_1=0, expected_demand=float(expected))
        walked_over += decision_on(node).over_demand.tolist()
        expected += capacity.demand_at_admission(1, Decimal("0.6"))

    assert walked_over == [False] * 16 + [True]


def v25_fleet() -> Snapshot:
    shape = {"memory_total_instance_actual": 0, "used_memory_mb": 0}
    return snapshot_of(
        a_node(name="first", cpu_threads=12, cpu_schedulable=12, cpu_load_1=2.9, **shape),
        a_node(name="second", cpu_threads=22, cpu_schedulable=22, cpu_load_1=4.4, **shape),
        a_node(name="third", cpu_threads=12, cpu_schedulable=12, cpu_load_1=11.0, **shape),
    )


def test_shakenfist_v25_twice_the_headroom_draws_about_twice_the_share() -> None:
    snapshot = v25_fleet()

    rankings = [decide(request_of(), snapshot, seed) for seed in range(1000)]

    leads = Counter(decision.ranked[0] for decision in rankings)
    assert rankings[0].weights == {"first": 6.1, "second": 12.1, "third": 0.1}
    assert 1.5 <= leads["second"] / leads["first"] <= 3
    assert {decision.ranked[2] for decision in rankings} == {"third"}


def test_shakenfist_v25_every_disk_busy_fails_at_sufficient_idle_disk() -> None:
    decision = decision_on(*[a_node(name=f"n{i}", disk_busy_ms_per_second=2000.5) for i in range(3)])

    assert (decision.code, decision.stage, decision.transient) == ("out_of_capacity", "sufficient_idle_disk", True)


def test_shakenfist_v25_a_preferred_node_is_kept_although_its_disk_is_busy() -> None:
    friend = {"uuid": "i1", "node": "n1", "tags": {"role": "web"}, "cpus": 1, "memory_mb": 1024, "disk_gb": 1}
    nodes = [a_node(name="n1", disk_busy_ms_per_second=2000.5), a_node(name="n2"), a_node(name="n3")]

    decision = decision_on(*nodes, instances=[friend], affinity={"prefer_with_tag": ["role=web"]})

    assert decision.ranked == ("n1",)
    assert "sufficient_idle_disk" in [stage.name for stage in decision.stages if stage.overridden]


# --- bug reports ---------------------------------------------------------------------------------------------------


def b02_nodes(charged_on_b: int) -> list[dict[str, Any]]:
    machine = {"memory_max": 64 * GB, "memory_reserved_mb": 0, "limit_memory_mb": 80 * GB}
    a = a_node(
        name="A",
        memory_available=40 * GB,
        used_memory_mb=78 * GB,
        memory_total_instance_actual=24 * GB,
        cpu_load_1=0.2,
        **machine,
    )
    b = a_node(
        name="B",
        memory_available=60 * GB,
        used_memory_mb=charged_on_b,
        memory_total_instance_actual=0,
        cpu_load_1=0.4,
        **machine,
    )
    return [a, b]


def test_bug_b02_commitment_counts_where_the_kernel_sees_room() -> None:
    for placed in range(3):
        nodes = b02_nodes((16 + 16 * placed) * GB)

        decision = decision_on(*nodes, config={"RAM_OVERCOMMIT_RATIO": 1.25}, memory_mb=16 * GB, seed=placed)

        assert decision.ranked == ("B",)
        assert reason_on(decision, "A") == ("sufficient_idle_memory", "over_limit_memory_mb")


@pytest.mark.parametrize("seed", range(20))
def test_bug_b02_the_lighter_committed_node_is_first_although_its_load_is_higher(seed: int) -> None:
    decision = decision_on(*b02_nodes(16 * GB), memory_mb=1024, seed=seed)

    assert decision.ranked == ("B", "A")


@pytest.mark.parametrize("threads", [1, 2, 4])
@pytest.mark.parametrize("cpus", [1, 4])
def test_bug_b04_a_small_idle_node_is_not_over_its_target(threads: int, cpus: int) -> None:
    node = a_node(cpu_threads=threads, cpu_schedulable=threads, cpu_load_1=0, expected_demand=0, limit_cpus=16)

    decision = decision_on(node, cpus=cpus)

    assert decision.ranked == ("n1",)
    assert decision.over_demand.tolist() == [False]


def test_bug_b35_a_node_that_reserves_all_of_its_threads_is_clamped_and_says_so() -> None:
    assert capacity.cpu_schedulable(4, 4) == capacity.Clamped(1, clamped=True)
    assert capacity.cpu_schedulable(4, 3) == capacity.Clamped(1, clamped=False)
    assert capacity.memory_reserved_mb(Decimal(6), 8192) == capacity.Clamped(4096, clamped=True)


def test_bug_b41_a_node_full_in_the_ledger_is_no_candidate_however_idle_it_measures() -> None:
    idle = a_node(name="X", used_cpus=42, cpu_total_instance_vcpus=0, cpu_load_1=0)

    decision = decision_on(idle, a_node(name="Y"))

    assert decision.ranked == ("Y",)


def test_bug_b52_terabytes_are_exact() -> None:
    total = 6 * GB * GB
    node = a_node(
        cpu_threads=512,
        cpu_schedulable=510,
        memory_max=total,
        memory_available=total,
        disk_total_gb=200 * GB,
        disk_free_gb=200 * GB,
        without=["capacity"],
    )

    snapshot = snapshot_of(node)
    decision = decision_on(node, cpus=256, memory_mb=int(2.5 * GB * GB), disk_gb=100 * GB)

    limits = [int(snapshot.frame.counter(name)[0]) for name in ("limit_cpus", "limit_memory_mb", "limit_disk_gb")]
    assert limits == [1530, 3 * total - 4096, 200 * GB - 20]
    assert decision.ranked == ("n1",)


def test_bug_b57_full_now_is_transient_and_larger_than_every_limit_is_not() -> None:
    nodes = [a_node(name="n1", used_memory_mb=192512), a_node(name="n2", used_memory_mb=150000, limit_memory_mb=150000)]

    now = decision_on(*nodes, memory_mb=2048)
    never = decision_on(*nodes, memory_mb=192513)

    assert (now.transient, never.transient) == (True, False)
    assert "192513 MiB of memory exceed the largest limit, 192512 (n1)" in never.summary


def test_bug_b58_a_burst_goes_to_the_big_idle_nodes_first() -> None:
    firsts: Counter[str] = Counter()
    for seed in range(200):
        used = {"small": 0, "big1": 0, "big2": 0}
        for step in range(3):
            nodes = [
                a_node(
                    name=name,
                    cpu_schedulable=12 if name == "small" else 24,
                    cpu_load_1=0.9 if name == "small" else 0,
                    limit_memory_mb=64 * GB if name == "small" else 128 * GB,
                    used_memory_mb=memory,
                    memory_total_instance_actual=0,
                )
                for name, memory in used.items()
            ]
            chosen = decision_on(*nodes, memory_mb=16 * GB, seed=seed * 3 + step).ranked[0]
            used[chosen] += 16 * GB
            firsts[chosen] += 1

    assert firsts["small"] < 600 / 4
    assert min(firsts["big1"], firsts["big2"]) > 600 / 4
