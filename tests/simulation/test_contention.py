"""Requests that overlap on stale views: the guard holds where a ledger without one sells twice."""

from __future__ import annotations

from collections import Counter

import pytest

from fleet.model.admission import Refused
from fleet.placement.stage import all_strategies
from fleet.services import snapshots
from fleet.simulation import protocol
from fleet.simulation.ledger import Charge, Ledger, Row
from fleet.simulation.protocol import SECOND_US
from fleet.simulation.run import simulate
from fleet.simulation.scenario import Machine, Scenario, Shape, Staleness
from tests.simulation.worlds import SMALL, a_load, a_world, at_once, machines

STALE = Staleness(counters_us=5 * SECOND_US)
STRATEGIES = sorted(all_strategies())


class NaiveLedger(Ledger):
    """Trusts the view that ranked: whoever was chosen is written down, nobody asks whether there is room."""

    def judge(self, row: Row, charge: Charge, *, waived: bool) -> Refused | None:
        return None


def a_rush(shape: Shape = SMALL, count: int = 200) -> Scenario:
    return a_world(at_once(shape, count), machines(4), concurrency=64, workers=8, staleness=STALE)


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_two_hundred_at_once_on_four_nodes_are_exactly_sixty_four(strategy: str) -> None:
    figures = simulate(a_rush(), strategy).figures

    assert figures["placed"] == 64
    assert figures["oversold"] == 0
    assert figures["refused"] == 136
    assert figures["tries_per_placement"] > 1
    assert figures["contended_percent"] > 0


@pytest.mark.parametrize("strategy", STRATEGIES)
def test_a_ledger_without_a_guard_oversells_in_the_same_rush(strategy: str) -> None:
    result = simulate(a_rush(), strategy, ledger=NaiveLedger)

    assert result.figures["oversold"] > 0
    assert not result.good


def test_nothing_is_oversold_while_instances_come_and_go_on_views_of_five_seconds_ago() -> None:
    found = a_load(3, rate=100, seconds=8, life_s=3)
    world = a_world(found, machines(5), concurrency=64, workers=8, staleness=STALE, seed=3)

    guarded, naive = simulate(world, "load-aware"), simulate(world, "load-aware", ledger=NaiveLedger)

    assert guarded.good
    assert guarded.figures["refused_tries_per_placement"] > 0
    assert naive.figures["oversold"] > 0


def test_one_request_at_a_time_meets_no_locked_row() -> None:
    world = a_world(at_once(SMALL, 40), machines(4), concurrency=1, workers=1)

    figures = simulate(world, "load-aware").figures

    assert figures["placed"] == 40
    assert figures["busy_tries_per_placement"] == 0
    assert figures["tries_per_placement"] == 1


def test_a_stale_view_costs_refused_tries_and_a_fresh_one_does_not() -> None:
    found = a_load(1, rate=20, seconds=30, life_s=8)
    fresh, stale = (
        simulate(
            a_world(found, machines(4), workers=1, concurrency=2, staleness=Staleness(counters_us=staleness_us)),
            "best-fit",
        ).figures
        for staleness_us in (0, 5 * SECOND_US)
    )

    assert stale["refused_tries_per_placement"] > fresh["refused_tries_per_placement"]


def test_counters_are_as_quick_as_the_services() -> None:
    assert round(snapshots.QUICK_SECONDS * SECOND_US) == protocol.QUICK_US


def test_five_at_once_for_one_card_bind_it_once() -> None:
    nodes = [*machines(2), Machine("g", 16, 16384, 200, 1, "A100")]
    world = a_world(at_once(Shape("gpu", 1, 1024, 10, 1), 5), nodes, concurrency=8, workers=4, staleness=STALE)

    figures = simulate(world, "load-aware").figures

    assert Counter({"placed": figures["placed"], "refused": figures["refused"]}) == {"placed": 1, "refused": 4}
    assert figures["oversold"] == 0
    assert figures["gpus_unallocated_at_first_refusal"] == 0
