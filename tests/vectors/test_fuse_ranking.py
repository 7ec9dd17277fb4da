"""Numbered vectors of the score of free capacity: spread and binpack."""

from __future__ import annotations

from typing import Any

import pytest

from tests.documents import a_node
from tests.unit.placement.asking import decision_on

pytestmark = pytest.mark.vectors


def a_host(name: str, cpus: int, ram: int, **changes: Any) -> dict[str, Any]:
    """A host of 8 CPUs and 4096 MiB, of which so much is allocated; nothing but the ledger stands in the way."""
    return a_node(
        name=name,
        limit_cpus=8,
        used_cpus=cpus,
        limit_memory_mb=4096,
        used_memory_mb=ram,
        cpu_total_instance_vcpus=0,
        memory_total_instance_actual=0,
        **changes,
    )


@pytest.mark.parametrize(
    ("request_says", "cluster_says", "order"),
    [
        ("binpack", "spread", ("h1", "h2")),
        ("spread", "binpack", ("h2", "h1")),
        ("", "spread", ("h2", "h1")),
        ("", "binpack", ("h1", "h2")),
    ],
)
def test_fuse_v05_spread_takes_the_highest_score_and_binpack_the_lowest(
    request_says: str, cluster_says: str, order: tuple[str, ...]
) -> None:
    found = decision_on(
        a_host("h1", 6, 3072),
        a_host("h2", 2, 1024),
        config={"PLACEMENT_STRATEGY": cluster_says},
        strategy=request_says,
        memory_mb=256,
    )

    assert found.ranked == order
    assert found.weights == {"h1": 21024, "h2": 63072}
    assert [found.ordered_by(at)["score"] for at in (0, 1)] == [21024, 63072]


@pytest.mark.parametrize("strategy", ["spread", "binpack"])
def test_fuse_v06_equal_scores_go_to_the_smallest_name(strategy: str) -> None:
    found = decision_on(a_host("b-host", 4, 2048), a_host("a-host", 4, 2048), strategy=strategy, memory_mb=256)

    assert found.ranked == ("a-host", "b-host")


@pytest.mark.parametrize("strategy", ["spread", "binpack"])
def test_fuse_v08_the_figures_tell_what_the_placement_leaves(strategy: str) -> None:
    found = decision_on(a_host("h1", 2, 1024), strategy=strategy, cpus=2, memory_mb=512)

    assert found.ordered_by(0)["headroom_cpus"] == 4
    assert found.ordered_by(0)["headroom_ram"] == 2560
    assert found.summary == f"h1 is first of 1 of 1 nodes: {strategy}, score 63072, leaves 4 vCPUs and 2560 MiB"


@pytest.mark.parametrize("strategy", ["spread", "binpack"])
def test_fuse_v30_labels_decide_before_any_score(strategy: str) -> None:
    found = decision_on(
        a_host("h1", 0, 0),
        a_host("h2", 4, 2048, labels={"disk": "nvme", "tier": "build"}),
        strategy=strategy,
        memory_mb=256,
        placement={"labels": {"disk": "nvme"}},
    )

    assert found.ranked == ("h2",)


def test_fuse_one_cpu_is_worth_ten_thousand_mib() -> None:
    few_cpus = a_node(name="few", limit_cpus=1, used_cpus=0, limit_memory_mb=40000, used_memory_mb=0)
    many_cpus = a_node(name="many", limit_cpus=3, used_cpus=0, limit_memory_mb=8000, used_memory_mb=0)
    idle = {"cpu_total_instance_vcpus": 0, "memory_total_instance_actual": 0}
    for node in (few_cpus, many_cpus):
        node["metrics"] |= idle

    found = decision_on(few_cpus, many_cpus, strategy="spread", memory_mb=1)

    assert found.ranked == ("few", "many")
    assert found.weights == {"few": 50000, "many": 38000}
