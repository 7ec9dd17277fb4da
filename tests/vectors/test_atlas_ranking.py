"""Numbered vectors of ranking: balanced, spread-3, best-fit; bands, discount, packing, ties."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.model.decision import Decision
from tests.documents import a_node
from tests.unit.placement.asking import decision_on

pytestmark = pytest.mark.vectors

ALL_THREE = ("balanced", "spread-3", "best-fit")


def a_host(
    name: str, total: int = 10000, used: int = 0, disk: int = 10000, used_disk: int = 0, sleepy: int = 0, **changes: Any
) -> dict[str, Any]:
    """A host that holds what its sample says and nothing else: no reservation, ratio 1, the ledger below it."""
    node = a_node(
        name=name,
        memory_max=total,
        memory_available=total - used,
        memory_reserved_mb=0,
        memory_total_instance_actual=0,
        limit_memory_mb=total,
        used_memory_mb=0,
        disk_total_gb=disk,
        disk_free_gb=disk - used_disk,
        disk_reservation_gb=0,
        limit_disk_gb=disk,
        used_disk_gb=0,
        **changes,
    )
    node["capacity"]["sleepy_memory_mb"] = sleepy
    return node


def decided(strategy: str, *hosts: dict[str, Any], factor: float = 1, **request: Any) -> Decision:
    config = {"RAM_OVERCOMMIT_RATIO": 1, "DISK_OVERCOMMIT_RATIO": 1, "SLEEPY_OVERCOMMIT_FACTOR": factor}
    return decision_on(*hosts, config=config, strategy=strategy, **{"memory_mb": 1000, "disk_gb": 1000, **request})


def bands(decision: Decision) -> list[int]:
    return [decision.ordered_by(int(at))["memory_band"] for at in decision.ranked_indices]


def test_atlas_v10_two_hosts_in_one_band_are_told_apart_by_disk() -> None:
    found = decided("balanced", a_host("a", used=3100, used_disk=5000), a_host("b", used=3300, used_disk=0))

    assert found.ranked == ("b", "a")
    assert bands(found) == [8, 8]
    assert found.weights == {"a": 0.41, "b": 0.43}


def test_atlas_v11_one_mib_may_cross_into_the_next_band() -> None:
    found = decided("balanced", a_host("a", used=3499, used_disk=7000), a_host("b", used=3500, used_disk=0))

    assert found.ranked == ("a", "b")
    assert bands(found) == [8, 9]


@pytest.mark.parametrize("twentieths", [3, 6, 7, 12, 14, 19, 20])
@pytest.mark.parametrize("unit", [1, 7, 3277])
def test_atlas_v12_a_band_begins_exactly_at_its_edge(twentieths: int, unit: int) -> None:
    at_the_edge = a_host("edge", total=20 * unit, used=twentieths * unit - 1)
    below = a_host("below", total=20 * unit, used=max(0, twentieths * unit - 2))

    found = decided("balanced", at_the_edge, below, memory_mb=1)

    assert bands(found) == [twentieths - 1, twentieths]


@pytest.mark.parametrize(("factor", "projected", "band"), [(2, 0.45, 9), (1.5, 0.533333, 10), (1, 0.7, 14)])
def test_atlas_v13_a_sleepy_request_discounts_sleepy_memory(factor: float, projected: float, band: int) -> None:
    host = a_host("a", used=6000, sleepy=4000)

    found = decided("balanced", host, factor=factor, sleep_after_idle_seconds=60).ordered_by(0)

    assert (found["memory_band"], found["projected_memory"]) == (band, projected)


def test_atlas_v13_a_regular_request_discounts_nothing() -> None:
    found = decided("balanced", a_host("a", used=6000, sleepy=4000), factor=2).ordered_by(0)

    assert (found["memory_band"], found["projected_memory"]) == (14, 0.7)
    assert "sleepy_memory_mb" not in found


def test_atlas_v14_never_more_is_discounted_than_is_used() -> None:
    host = a_host("a", used=2000, sleepy=5000)

    found = decided("balanced", host, factor=2, sleep_after_idle_seconds=60).ordered_by(0)

    assert (found["memory_band"], found["projected_memory"]) == (3, 0.15)


def three_hosts() -> list[dict[str, Any]]:
    return [
        a_host(
            name,
            total=65536,
            used=65536 - memory,
            disk=1_000_000,
            used_disk=1_000_000 - disk,
            limit_cpus=32000,
            used_cpus=32000 - cpu,
        )
        for name, cpu, memory, disk in (
            ("a", 8000, 40000, 700_000),
            ("b", 2000, 41000, 600_000),
            ("c", 32000, 36000, 950_000),
        )
    ]


def test_atlas_v15_memory_decides_before_the_worst_disk_and_cpu() -> None:
    found = decided("balanced", *three_hosts(), cpus=2000, memory_mb=4096, disk_gb=50000)

    assert found.ranked == ("b", "a", "c")
    assert bands(found) == [8, 9, 10]
    assert found.ordered_by(1)["projected_disk"] == 0.45
    assert found.ordered_by(1)["projected_cpus"] == 1.0


@pytest.mark.parametrize(("strategy", "order"), [("spread-3", ("b", "a", "c")), ("best-fit", ("c", "a", "b"))])
def test_atlas_v16_projected_use_is_the_worse_of_memory_and_disk(strategy: str, order: tuple[str, ...]) -> None:
    found = decided(strategy, *three_hosts(), cpus=2000, memory_mb=4096, disk_gb=50000)

    assert found.ranked == order
    assert {name: round(use, 4) for name, use in found.weights.items()} == {"a": 0.4521, "b": 0.45, "c": 0.5132}


def test_atlas_v17_spread_3_takes_the_least_used() -> None:
    hosts = [a_host(name, used=used) for name, used in (("fuller", 8400), ("middle", 8300), ("least", 8200))]

    assert decided("spread-3", *hosts).weights == {"least": 0.92, "middle": 0.93, "fuller": 0.94}
    assert decided("spread-3", *hosts).ranked[0] == "least"


def test_atlas_v17_best_fit_takes_the_most_used() -> None:
    found = decided("best-fit", a_host("free", used=8000), a_host("full", used=8800))

    assert found.ranked == ("full", "free")
    assert found.weights["full"] == 0.98


@pytest.mark.parametrize("strategy", ALL_THREE)
@pytest.mark.parametrize("sleepy", [0, 60])
def test_atlas_v18_a_full_tie_goes_to_the_smallest_name(strategy: str, sleepy: int) -> None:
    hosts = [a_host(name, used=5000, sleepy=100) for name in ("host-b", "host-c", "Host-d", "host-a", "host-10")]

    found = decided(strategy, *hosts, sleep_after_idle_seconds=sleepy)

    assert found.ranked == ("Host-d", "host-10", "host-a", "host-b", "host-c")


@pytest.mark.parametrize("strategy", ["spread-3", "best-fit"])
def test_atlas_v19_sleepy_packing_goes_by_fraction_and_not_by_mib(strategy: str) -> None:
    hosts = [a_host("s2", total=32768, sleepy=12288), a_host("s1", total=16384, sleepy=8192)]

    found = decided(strategy, *hosts, memory_mb=1024, sleep_after_idle_seconds=60)

    assert found.ranked == ("s1", "s2")
    assert found.weights == {"s1": 0.5625, "s2": 0.40625}


@pytest.mark.parametrize("strategy", ALL_THREE)
@pytest.mark.parametrize(("dedicated", "ranked"), [(True, ()), (False, ("regular",))])
def test_atlas_v20_a_regular_host_takes_sleepy_requests_only_without_pools(
    strategy: str, dedicated: bool, ranked: tuple[str, ...]
) -> None:
    found = decision_on(
        a_host("regular"),
        config={"DEDICATED_SLEEPY_NODES": dedicated},
        strategy=strategy,
        sleep_after_idle_seconds=60,
    )

    assert found.ranked == ranked
