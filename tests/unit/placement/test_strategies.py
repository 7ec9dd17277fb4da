"""The strategies on single nodes: projected use to the letter, what is unknown, what is unlimited, growth, the door."""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fleet.model.decision import Decision
from fleet.model.errors import BrokenPromise
from fleet.placement.ask import Ask
from fleet.placement.frame import Frame
from fleet.placement.stage import (
    Figures,
    NamedStrategy,
    Ordering,
    Strategy,
    own_strategies,
    read_strategies,
    strategy_named,
)
from tests.documents import a_node
from tests.unit.placement.asking import decision_on, request_of, snapshot_of

# Full of nothing: 10,000 MiB and 1,000 GiB, all of them free, nothing reserved, no charge.
EMPTY: dict[str, Any] = {
    "memory_max": 10000,
    "memory_available": 10000,
    "memory_reserved_mb": 0,
    "memory_total_instance_actual": 0,
    "limit_memory_mb": 30000,
    "used_memory_mb": 0,
    "disk_total_gb": 1000,
    "disk_free_gb": 1000,
    "disk_reservation_gb": 0,
    "limit_disk_gb": 1000,
    "used_disk_gb": 0,
    "limit_cpus": 20,
    "used_cpus": 0,
    "cpu_total_instance_vcpus": 0,
}


def a_host(name: str = "n1", **changes: Any) -> dict[str, Any]:
    return a_node(**{**EMPTY, "name": name, **changes})


def figures_of(strategy: str, node: dict[str, Any], config: Any = None, **request: Any) -> Figures:
    """The figures of one node, also of one that the stages would drop."""
    frame = snapshot_of(node, config=config).frame
    body = {"memory_mb": 1000, "disk_gb": 0, **request}
    ordering = strategy_named(strategy).order(Ask.of(request_of(**body), frame), frame, np.arange(1), 0)
    assert ordering.note(0)
    return ordering.figures(0)


# --- projected use ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "config", "projected"),
    [
        # The ledger's term: (charged + request) / limit.
        ({"used_memory_mb": 14000}, {}, 0.5),
        ({"used_memory_mb": 0, "memory_total_instance_actual": 14000}, {}, 0.5),
        # The measured term: 1 - (headroom - request / ratio) / (physical - reservation).
        ({"memory_available": 4000}, {}, 0.633333),
        ({"memory_available": 4000}, {"RAM_OVERCOMMIT_RATIO": 1}, 0.7),
        ({"memory_available": 4000, "memory_reserved_mb": 2000}, {"RAM_OVERCOMMIT_RATIO": 1}, 0.875),
        ({"memory_available": 4000, "pending_memory_mb": 500}, {"RAM_OVERCOMMIT_RATIO": 1}, 0.75),
        ({"memory_available": 4000, "pending_memory_mb": 500}, {"RAM_OVERCOMMIT_RATIO": 1.15}, 0.730457),
        # Unclamped: what is over the limit, and what is freer than free.
        ({"used_memory_mb": 59000}, {}, 2.0),
        ({"limit_memory_mb": None, "memory_available": 20000}, {"RAM_OVERCOMMIT_RATIO": 1}, 0.0),
        # An endless limit is not filled, so that the measurement alone counts.
        ({"limit_memory_mb": None, "used_memory_mb": 10**9, "memory_available": 4000}, {}, 0.633333),
    ],
)
def test_projected_memory_is_the_larger_of_both_terms(
    changes: dict[str, Any], config: dict[str, Any], projected: float
) -> None:
    assert figures_of("balanced", a_host(**changes), config)["projected_memory"] == projected


@pytest.mark.parametrize(
    ("changes", "config", "projected"),
    [
        ({"used_disk_gb": 400}, {}, 0.5),
        ({"disk_free_gb": 300}, {}, 0.8),
        ({"disk_free_gb": 300, "limit_disk_gb": 2000}, {"DISK_OVERCOMMIT_RATIO": 2}, 0.75),
        ({"disk_free_gb": 300, "pending_disk_gb": 10}, {}, 0.81),
        # (700 + 100) / (1000 - 0.5): not rounded to a whole GiB.
        ({"disk_free_gb": 300, "disk_reservation_gb": 0.5}, {}, 0.8004),
    ],
)
def test_projected_disk_has_the_same_two_terms(
    changes: dict[str, Any], config: dict[str, Any], projected: float
) -> None:
    assert figures_of("spread-3", a_host(**changes), config, disk_gb=100)["projected_disk"] == projected


@pytest.mark.parametrize(
    ("changes", "projected"),
    [
        ({"used_cpus": 9}, 0.5),
        ({"used_cpus": 2, "cpu_total_instance_vcpus": 9}, 0.5),
        ({"limit_cpus": None, "used_cpus": 13}, 1.0),
        ({"limit_cpus": None, "used_cpus": 27}, 2.0),
        ({"limit_cpus": None, "used_cpus": 13, "without": ["cpu_schedulable"]}, 1.0),
        ({"limit_cpus": None, "without": ["cpu_schedulable", "cpu_threads"]}, None),
        ({"cpu_total_instance_vcpus": None}, None),
    ],
)
def test_projected_cpu_is_the_ledgers_and_against_the_threads_where_it_only_ranks(
    changes: dict[str, Any], projected: float | None
) -> None:
    assert figures_of("balanced", a_host(**changes), cpus=1)["projected_cpus"] == projected


def test_the_overhead_of_an_instance_is_projected_too() -> None:
    found = figures_of("balanced", a_host(), {"INSTANCE_OVERHEAD_MB": 500, "RAM_OVERCOMMIT_RATIO": 1})

    assert found["projected_memory"] == 0.15


def test_a_sleepy_discount_is_measured_in_what_the_machine_holds() -> None:
    node = a_host(memory_available=4000, limit_memory_mb=30000, used_memory_mb=9000)
    node["capacity"]["sleepy_memory_mb"] = 6000
    config = {"RAM_OVERCOMMIT_RATIO": 3, "SLEEPY_OVERCOMMIT_FACTOR": 2}

    found = figures_of("balanced", node, config, memory_mb=3000, sleep_after_idle_seconds=1)

    # Measured: 6000 - 6000/3 * 1/2 + 3000/3 / 2 = 5500 of 10000; the ledger's 9000 - 3000 + 1500 = 7500 of 30000.
    assert (found["projected_memory"], found["memory_band"]) == (0.55, 11)
    assert (found["sleepy_memory_mb"], found["sleepy_overcommit_factor"]) == (6000, 2.0)


def test_nothing_is_discounted_for_best_fit_and_spread_3() -> None:
    node = a_host(used_memory_mb=14000)
    node["capacity"]["sleepy_memory_mb"] = 5000

    found = figures_of("spread-3", node, {"SLEEPY_OVERCOMMIT_FACTOR": 4}, sleep_after_idle_seconds=1)

    assert (found["subscribed"], found["projected_use"]) == (0.2, 0.5)


def test_an_unlimited_node_subscribes_against_what_it_offers() -> None:
    node = a_host(limit_memory_mb=None, memory_reserved_mb=2000)
    node["capacity"]["sleepy_memory_mb"] = 3000

    assert figures_of("best-fit", node, sleep_after_idle_seconds=1)["subscribed"] == 0.5


# --- what is unknown is last, and nobody is dropped ------------------------------------------------------------------

UNKNOWN_SOMEWHERE: list[dict[str, Any]] = [
    {"capacity": None},
    {"memory_max": None},
    {"memory_available": None},
    {"memory_total_instance_actual": None},
    {"without": ["used_memory_mb"]},
    {"limit_memory_mb": 0},
    {"memory_reserved_mb": 10000},
    {"memory_reserved_mb": 20000},
]


@pytest.mark.parametrize("strategy", ["balanced", "spread-3", "best-fit"])
@pytest.mark.parametrize("changes", UNKNOWN_SOMEWHERE)
@pytest.mark.parametrize("sleepy", [0, 1])
def test_a_node_whose_memory_cannot_be_projected_is_last(strategy: str, changes: dict[str, Any], sleepy: int) -> None:
    nodes = [a_host("a", **changes), a_host("b", used_memory_mb=1000), a_host("c", used_memory_mb=29000)]
    frame = snapshot_of(*nodes).frame
    ask = Ask.of(request_of(memory_mb=1000, disk_gb=0, sleep_after_idle_seconds=sleepy), frame)

    ordering = strategy_named(strategy).order(ask, frame, np.arange(3), 0)

    assert sorted(ordering.ranked.tolist()) == [0, 1, 2]
    if not (sleepy and strategy != "balanced"):
        assert ordering.ranked[-1] == 0
        assert ordering.weights[-1] == -1


@pytest.mark.parametrize("strategy", ["spread", "binpack"])
@pytest.mark.parametrize("changes", [{"capacity": None}, {"without": ["used_cpus"]}, {"without": ["limit_memory_mb"]}])
def test_a_node_without_a_score_is_last_under_both(strategy: str, changes: dict[str, Any]) -> None:
    frame = snapshot_of(a_host("a", **changes), a_host("b"), a_host("c", used_cpus=25)).frame

    ordering = strategy_named(strategy).order(Ask.of(request_of(), frame), frame, np.arange(3), 0)

    assert ordering.ranked[-1] == 0
    assert ordering.note(2) == "score unknown"


def test_a_resize_that_grows_no_memory_stays_on_a_node_without_any() -> None:
    placed = {"uuid": "i1", "node": "n1", "cpus": 1, "memory_mb": 1000, "disk_gb": 10}
    full = a_host("n1", limit_memory_mb=0, used_memory_mb=1000, memory_available=0)

    for strategy in own_strategies():
        found = decision_on(full, instances=[placed], reason="resize", instance="i1", memory_mb=1000, strategy=strategy)

        assert found.ranked == ("n1",), strategy


# --- the score of free capacity --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "score"),
    [
        ({"used_cpus": 5, "used_memory_mb": 10000}, 15 * 10000 + 20000),
        # The ledger's headroom: what runs and what is available do not move it.
        ({"cpu_total_instance_vcpus": 9, "memory_total_instance_actual": 9000, "memory_available": 1}, 230000),
        ({"limit_cpus": None, "used_cpus": 4}, 10 * 10000 + 30000),
        ({"limit_cpus": None, "used_cpus": 20}, -6 * 10000 + 30000),
        ({"limit_memory_mb": None, "memory_reserved_mb": 500, "used_memory_mb": 1000}, 20 * 10000 + 8500),
    ],
)
def test_the_score_is_ledger_headroom_before_the_placement(changes: dict[str, Any], score: int) -> None:
    assert figures_of("spread", a_host(**changes))["score"] == score


@pytest.mark.parametrize("strategy", ["spread", "binpack"])
def test_huge_scores_are_told_apart_by_one_mib(strategy: str) -> None:
    big = {"limit_cpus": 2**31 - 1, "limit_memory_mb": 2**50}
    frame = snapshot_of(a_host("a", **big, used_memory_mb=1), a_host("b", **big), a_host("c", **big)).frame

    ordering = strategy_named(strategy).order(Ask.of(request_of(), frame), frame, np.arange(3), 0)

    assert ordering.ranked.tolist() == ([1, 2, 0] if strategy == "spread" else [0, 1, 2])


# --- re-placements: a node that holds the charge adds the growth -----------------------------------------------------

PLACED = {"uuid": "i1", "node": "n1", "cpus": 2, "memory_mb": 8000, "disk_gb": 100}


@pytest.mark.parametrize(
    ("reason", "memory", "added", "projected"), [("resize", 11000, 3000, 0.366667), ("resize", 8000, 0, 0.266667)]
)
def test_on_its_own_node_an_instance_adds_its_growth_alone(
    reason: str, memory: int, added: int, projected: float
) -> None:
    large = {"memory_max": 20000, "memory_available": 20000}
    nodes = [a_host(name, used_memory_mb=8000, **large) for name in ("n1", "n2")]

    found = decision_on(
        *nodes, instances=[PLACED], reason=reason, instance="i1", memory_mb=memory, disk_gb=100, strategy="balanced"
    )

    home, other = (found.ordered_by(at) for at in (0, 1))
    assert (home["requested_memory_mb"], home["projected_memory"]) == (added, projected)
    assert other["requested_memory_mb"] == memory
    assert found.ranked == ("n1", "n2")


@pytest.mark.parametrize("strategy", sorted(own_strategies()))
def test_a_resize_prefers_its_own_node_under_every_strategy(strategy: str) -> None:
    nodes = [a_host("n1", used_memory_mb=20000, used_cpus=10), a_host("n2"), a_host("n3", used_memory_mb=21000)]

    found = decision_on(
        *nodes, instances=[PLACED], reason="resize", instance="i1", memory_mb=8500, disk_gb=100, strategy=strategy
    )

    assert found.ranked[0] == "n1"
    assert set(found.ranked) == {"n1", "n2", "n3"}


# --- the door for the strategies of packages -------------------------------------------------------------------------

Written = Callable[[Ask, Frame, NDArray[np.intp], int], Any]


def decided_by(order: Any, monkeypatch: pytest.MonkeyPatch) -> Decision:
    """A decision on three nodes, of which the third does not fit, by the strategy of a package."""
    foreign = NamedStrategy("foreign", Strategy(order=order, axis="nothing"), "", "a-package 1.2")
    monkeypatch.setattr("fleet.placement.stage.all_strategies", lambda: {"foreign": foreign})
    return decision_on(a_host("a"), a_host("b"), a_host("c", used_cpus=20), strategy="foreign")


def answer(*ranked: int, weights: Any = None, kind: str = "i8") -> Ordering:
    weights = [0.5] * len(ranked) if weights is None else weights
    return Ordering(np.array(ranked, dtype=kind), np.array(weights), lambda place: "", lambda at: {})


def test_what_a_package_orders_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    found = decided_by(lambda ask, frame, candidates, seed: answer(1, 0), monkeypatch)

    assert (found.strategy, found.ranked) == ("foreign", ("b", "a"))


@pytest.mark.parametrize(
    ("order", "problem"),
    [
        (lambda *_: answer(1), "of 2 nodes that fit it ranked 1, and 0 that do not fit"),
        (lambda *_: answer(0, 1, 2), "of 2 nodes that fit it ranked 2, and 1 that do not fit"),
        (lambda *_: answer(0, 2), "of 2 nodes that fit it ranked 1, and 1 that do not fit"),
        (lambda *_: answer(0, 0), "it ranked 1 nodes more than once"),
        (lambda *_: answer(0, 1, 1), "it ranked 1 nodes more than once"),
        (lambda *_: answer(), "of 2 nodes that fit it ranked 0"),
        (lambda *_: answer(0, 7), "a node that does not exist"),
        (lambda *_: answer(0, -1), "a node that does not exist"),
        (lambda *_: answer(0, 1, kind="f8"), "not a column of node indexes"),
        (lambda *_: answer(0, 1, weights=[1.0]), "not one finite number for each ranked node"),
        (lambda *_: answer(0, 1, weights=[1.0, float("nan")]), "not one finite number for each ranked node"),
        (lambda *_: [1, 0], "it returned list, not an Ordering"),
        (lambda *_: 1 // 0, "it failed with ZeroDivisionError"),
        (lambda ask, frame, candidates, seed: candidates.sort(), "it failed with ValueError"),
    ],
)
def test_whoever_does_not_order_exactly_the_candidates_is_refused_by_name(
    order: Written, problem: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BrokenPromise, match=r"strategy foreign of a-package 1\.2: ") as refused:
        decided_by(order, monkeypatch)

    assert problem in refused.value.detail


def test_a_failure_to_explain_is_told_by_name_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def silent(_: int) -> Any:
        raise KeyError("nothing to say")

    found = decided_by(lambda *_: Ordering(np.array([0, 1]), np.array([1.0, 1.0]), silent, silent), monkeypatch)

    assert found.ranked == ("a", "b")
    with pytest.raises(BrokenPromise, match=r"strategy foreign of a-package 1\.2: it failed with KeyError"):
        found.ordered_by(0)


GOOD = "fleet.placement.strategies.spread"


def entry(name: str, value: str) -> EntryPoint:
    return EntryPoint(name, value, "fleet.strategies")


@pytest.mark.parametrize("value", [GOOD, f"{GOOD}:STRATEGY"])
def test_an_entry_point_names_a_module_or_its_strategy(value: str) -> None:
    found = read_strategies([entry("wide", value)], own_strategies())

    assert found["wide"].strategy is own_strategies()["spread"].strategy
    assert found["wide"].text.startswith("spread:")


@pytest.mark.parametrize(
    ("points", "problem"),
    [
        ([("spread", GOOD)], r"strategy 'spread' of .*: the name is taken by the product"),
        ([("x", GOOD), ("x", f"{GOOD}:STRATEGY")], r"strategy 'x' of .*: the name is taken by "),
        ([("x", "no_such_module")], r"strategy 'x' of no_such_module .*: No module named 'no_such_module'"),
        ([("x", f"{GOOD}:MISSING")], r"strategy 'x' of .*: .*MISSING"),
        ([("x", "fleet.placement.headroom")], "is no Strategy and no module with one named STRATEGY"),
        ([("Load Aware", GOOD)], r"strategy 'Load Aware' of .*is not a strategy's name"),
        ([("x", "no_such_module"), ("y", "no_such_either")], "no_such_module.*; .*no_such_either"),
    ],
)
def test_an_entry_point_that_brings_no_strategy_is_refused_by_name(points: list[tuple[str, str]], problem: str) -> None:
    with pytest.raises(BrokenPromise, match=problem):
        read_strategies([entry(*point) for point in points], own_strategies())
