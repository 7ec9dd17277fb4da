"""Strategies meet the same world: draws are named by events and never by what was drawn before."""

from __future__ import annotations

import pytest

from fleet.simulation.chance import Chance
from fleet.simulation.load import Habit, Lives, Mix, arrivals, filling, until
from fleet.simulation.protocol import SECOND_US
from fleet.simulation.run import simulate
from tests.simulation.worlds import LARGE, MIX, SMALL, a_load, a_world, machines


def test_a_draw_depends_on_its_event_alone() -> None:
    one, other = Chance(7), Chance(7)
    for number in range(100):
        other.uniform("something else", number)

    assert one.uniform("load", 17) == other.uniform("load", 17)
    assert one.uniform("load", 17) != one.uniform("load", 18)
    assert one.uniform("load", 17) != Chance(8).uniform("load", 17)


def test_draws_have_the_means_they_are_asked_for() -> None:
    chance, count = Chance(1), 4000

    exponential = sum(chance.exponential(100, "e", number) for number in range(count)) / count
    habit = Habit(rate=1, lives=Lives.LOGNORMAL, mean_life_us=100 * SECOND_US)
    lives = [arrival.lifetime_us or 0 for arrival in until(arrivals(chance, MIX, habit), count * SECOND_US)]

    assert exponential == pytest.approx(100, rel=0.06)
    assert sum(lives) / len(lives) / SECOND_US == pytest.approx(100, rel=0.1)
    assert len(lives) == pytest.approx(count, rel=0.06)


def test_several_draws_of_one_event_differ_and_the_first_is_its_only_one() -> None:
    first, *others = Chance(1).uniforms(50, "x")

    assert first == Chance(1).uniform("x")
    assert len({first, *others}) == 50


def test_a_longer_run_begins_with_the_shorter() -> None:
    short, long = a_load(5, rate=3, seconds=20), a_load(5, rate=3, seconds=60)

    assert long[: len(short)] == short


def test_the_mix_is_asked_for_by_weight() -> None:
    shapes = [Mix(((SMALL, 3), (LARGE, 1))).draw(Chance(2), number) for number in range(2000)]

    assert shapes.count(SMALL) / len(shapes) == pytest.approx(0.75, abs=0.04)


def test_filling_ends_when_enough_is_asked_for() -> None:
    found = filling(arrivals(Chance(1), MIX, Habit(rate=1)), 100, lambda shape: shape.cpus)

    assert 100 <= sum(arrival.shape.cpus for arrival in found) < 104
    assert all(arrival.lifetime_us is None for arrival in found)


def test_where_all_find_room_every_strategy_sees_the_same_lives() -> None:
    """Each instance sleeps, wakes and leaves at its own times, wherever it is."""
    found = a_load(4, rate=1, seconds=300, life_s=2000, sleepy=100, mix=Mix(((SMALL, 1),)))
    world = a_world(found, machines(40), seed=4, until_us=1500 * SECOND_US)

    runs = [simulate(world, strategy).figures for strategy in ("load-aware", "best-fit", "spread")]

    assert len({(run["placed"], run["departed"]) for run in runs}) == 1
    # Milliseconds of waiting for a row may move a single night over the end.
    nights = [run["sleeps"] for run in runs]
    assert min(nights) > 100
    assert max(nights) - min(nights) <= 1
