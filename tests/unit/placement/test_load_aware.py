"""load-aware, to the letter: bands of a quarter, the worse of two, weights, a shuffle in every band."""

from typing import Any

import pytest

from fleet.placement.pipeline import decide
from fleet.placement.strategies.load_aware import LAST_BAND
from tests.documents import a_node
from tests.unit.placement.asking import decision_on, request_of, snapshot_of


def figures_of(**changes: Any) -> Any:
    decision = decision_on(a_node(**changes))
    return decision.ordered_by(0)


@pytest.mark.parametrize(
    ("changes", "band"),
    [
        ({"cpu_load_1": 0, "used_memory_mb": 0, "memory_total_instance_actual": 0}, 0),
        ({"cpu_load_1": 3.499}, 0),
        ({"cpu_load_1": 3.5}, 1),
        ({"cpu_load_1": 14.0}, 4),
        ({"used_memory_mb": 48127}, 0),
        ({"used_memory_mb": 48128}, 1),
        ({"used_memory_mb": 96256}, 2),
        ({"memory_total_instance_actual": 144384}, 3),
        ({"cpu_load_1": 7.0, "used_memory_mb": 48128}, 2),
        ({"cpu_load_1": 3.5, "used_memory_mb": 96256}, 2),
        ({"cpu_load_1": None}, LAST_BAND),
        ({"without": ["cpu_schedulable", "cpu_threads"]}, LAST_BAND),
        ({"limit_memory_mb": None, "used_memory_mb": 10**9}, 0),
    ],
)
def test_band_is_the_worse_quarter_of_load_and_memory(changes: dict[str, Any], band: int) -> None:
    assert figures_of(**changes)["bucket"] == band


@pytest.mark.parametrize(
    ("changes", "weight"),
    [
        ({"cpu_load_1": 0.5, "used_memory_mb": 0, "memory_total_instance_actual": 0}, 10.0),
        ({"cpu_load_1": 0.5, "used_memory_mb": 96256}, 5.0),
        ({"cpu_load_1": 12.0, "used_memory_mb": 0, "memory_total_instance_actual": 0}, 0.1),
        ({"cpu_load_1": 0.5, "used_memory_mb": 185000}, 1.0),
        ({"cpu_load_1": None, "used_memory_mb": 96256}, 0.05),
        ({"cpu_load_1": 0.5, "limit_memory_mb": None}, 10.0),
    ],
)
def test_weight_is_load_headroom_times_free_memory(changes: dict[str, Any], weight: float) -> None:
    assert figures_of(**changes)["weight"] == pytest.approx(weight)


def test_an_older_sample_is_normalised_by_the_fallback_and_flagged() -> None:
    found = figures_of(cpu_load_1=7.0, without=["cpu_schedulable"])

    assert (found["cpu_schedulable"], found["normalised_load"], found["bucket"]) == (14, 0.5, 2)
    assert found["cpu_schedulable_from_fallback"] is True


@pytest.mark.parametrize("seed", range(20))
def test_bands_come_in_order_whatever_the_seed(seed: int) -> None:
    nodes = [a_node(name=f"n{i:02}", cpu_load_1=i * 0.7) for i in range(20)]

    decision = decision_on(*nodes, seed=seed)

    found = [decision.ordered_by(int(at))["bucket"] for at in decision.ranked_indices]
    assert found == sorted(found)
    assert len(decision.ranked) == 20


def test_every_band_is_shuffled() -> None:
    nodes = [a_node(name=f"n{i}", cpu_load_1=8.0 if i < 4 else 0.5) for i in range(8)]
    snapshot = snapshot_of(*nodes)

    orders = [decide(request_of(), snapshot, seed).ranked for seed in range(40)]

    assert len({order[:4] for order in orders}) > 10
    assert len({order[4:] for order in orders}) > 10


def test_the_order_of_the_nodes_does_not_matter() -> None:
    nodes = [a_node(name=f"n{i}", cpu_load_1=i % 3) for i in range(9)]

    assert decision_on(*nodes, seed=5).ranked == decision_on(*reversed(nodes), seed=5).ranked


def test_a_burst_lands_on_every_node_because_commitment_counts_at_once() -> None:
    used = dict.fromkeys(("n1", "n2", "n3", "n4"), 0)
    for seed in range(40):
        nodes = [
            a_node(name=name, limit_memory_mb=65536, used_memory_mb=mb, memory_total_instance_actual=0)
            for name, mb in used.items()
        ]
        used[decision_on(*nodes, memory_mb=4096, seed=seed).ranked[0]] += 4096

    assert all(30000 <= mb <= 50000 for mb in used.values()), used
