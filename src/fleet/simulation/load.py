"""Seeded loads: who arrives when, how large and for how long, all drawn before anything is placed.

Promise: request `index` has its own draws, named by its number. So the same seed gives the same load to every strategy,
and a longer run begins with the shorter one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from fleet.simulation.chance import Chance
from fleet.simulation.protocol import SECOND_US
from fleet.simulation.scenario import Arrival, Shape

ARRIVALS_MAX: Final = 1_000_000
SIGMA: Final = 1.0
"""Spread of log-normal lifetimes: one in six lives 2.7 times the median or longer."""


class Lives(StrEnum):
    """How long instances stay."""

    EXPONENTIAL = "exponential"
    LOGNORMAL = "lognormal"
    FOREVER = "forever"


@dataclass(frozen=True, slots=True)
class Mix:
    """The shapes that are asked for, each with its weight."""

    shapes: tuple[tuple[Shape, int], ...]

    def draw(self, chance: Chance, index: int) -> Shape:
        """Return the shape of a request."""
        at = chance.below(sum(weight for _, weight in self.shapes), "shape", index)
        for shape, weight in self.shapes:
            at -= weight
            if at < 0:
                return shape
        return self.shapes[-1][0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Habit:
    """How requests come and go: Poisson arrivals, and lifetimes with a mean. `sleepy_percent` of them are sleepy."""

    rate: float
    lives: Lives = Lives.EXPONENTIAL
    mean_life_us: int = 3600 * SECOND_US
    sleepy_percent: int = 0


def arrivals(chance: Chance, mix: Mix, habit: Habit) -> Iterator[Arrival]:
    """Yield the arrivals of a mix, without end (but for `ARRIVALS_MAX`)."""
    at_us = 0
    for index in range(ARRIVALS_MAX):
        at_us += gap_us(chance, habit.rate, index)
        shape = mix.draw(chance, index)
        if habit.sleepy_percent and chance.below(100, "sleepy", index) < habit.sleepy_percent:
            shape = replace(shape, sleepy=True)
        yield Arrival(index, at_us, shape, life_us(chance, habit, index))


def gap_us(chance: Chance, rate: float, index: int) -> int:
    """Return the time between two arrivals of a Poisson stream."""
    return round(chance.exponential(SECOND_US / rate, "gap", index))


def life_us(chance: Chance, habit: Habit, index: int) -> int | None:
    """Return how long the instance of a request lives; None: it stays."""
    if habit.lives is Lives.FOREVER:
        return None
    if habit.lives is Lives.LOGNORMAL:
        # The mean of a log-normal distribution is its median times exp(sigma² / 2).
        median = habit.mean_life_us / math.exp(SIGMA * SIGMA / 2)
        return round(chance.lognormal(median, SIGMA, "life", index))
    return round(chance.exponential(habit.mean_life_us, "life", index))


def until(stream: Iterator[Arrival], until_us: int) -> list[Arrival]:
    """Return the arrivals up to a time."""
    found = []
    for arrival in stream:
        if arrival.at_us > until_us:
            break
        found.append(arrival)
    return found


def filling(stream: Iterator[Arrival], wanted: int, amount_of: Callable[[Shape], int]) -> list[Arrival]:
    """Return arrivals that stay, until together they ask for `wanted` of an amount."""
    found: list[Arrival] = []
    asked = 0
    for arrival in stream:
        if asked >= wanted:
            break
        asked += amount_of(arrival.shape)
        found.append(replace(arrival, lifetime_us=None))
    return found


def drawn_from(shapes: Sequence[Shape], chance: Chance, rate: float) -> Iterator[Arrival]:
    """Yield arrivals that stay, their shapes drawn with replacement from those of a trace."""
    at_us = 0
    for index in range(ARRIVALS_MAX):
        at_us += gap_us(chance, rate, index)
        yield Arrival(index, at_us, shapes[chance.below(len(shapes), "task", index)])
