"""Draws of a simulation: each is named by its event, so that two runs of one seed meet the same world.

Promise: a draw depends on the seed and on the event's name only, never on what was drawn before. So the streams of two
strategies stay aligned whatever each of them does: request 17 arrives, sleeps and leaves at the same times in both.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np

from fleet.placement.draws import SEED_MAX, name_hash, natural_log, uniforms

POLAR_TRIES_MAX: Final = 64
"""Of which each fails with a chance of 0.21: all of them never do."""


class Chance:
    """The draws of one seed. An event is any number of words."""

    def __init__(self, seed: int) -> None:
        """Draw from `seed`, 0 to `SEED_MAX`."""
        self._seed = seed

    def uniform(self, *event: object) -> float:
        """Return a draw in (0, 1]."""
        return self.uniforms(1, *event)[0]

    def uniforms(self, count: int, *event: object) -> list[float]:
        """Return several draws in (0, 1], of which the first is the event's `uniform`."""
        start = _hash(event)
        hashes = np.array([(start + place) % 2**64 for place in range(count)], dtype=np.uint64)
        drawn: list[float] = uniforms(self._seed, hashes).tolist()
        return drawn

    def below(self, bound: int, *event: object) -> int:
        """Return a whole number from 0 to `bound` - 1."""
        return min(bound - 1, int(self.uniform(*event) * bound))

    def between(self, low: float, high: float, *event: object) -> float:
        """Return a draw between two bounds."""
        return low + (high - low) * self.uniform(*event)

    def exponential(self, mean: float, *event: object) -> float:
        """Return a draw of the exponential distribution."""
        return -mean * float(natural_log(np.array([self.uniform(*event)]))[0])

    def lognormal(self, median: float, sigma: float, *event: object) -> float:
        """Return a draw of the log-normal distribution with that median."""
        return median * math.exp(sigma * self._normal(*event))

    def seed_of(self, *event: object) -> int:
        """Return a seed of its own for an event."""
        return name_hash(f"{self._seed}/{_words(event)}") & SEED_MAX

    def _normal(self, *event: object) -> float:
        """Return a draw of the normal distribution, by Marsaglia's polar method."""
        for attempt in range(POLAR_TRIES_MAX):
            x = 2.0 * self.uniform(*event, attempt, "x") - 1.0
            y = 2.0 * self.uniform(*event, attempt, "y") - 1.0
            square = x * x + y * y
            if 0.0 < square < 1.0:
                return x * math.sqrt(-2.0 * float(natural_log(np.array([square]))[0]) / square)
        return 0.0


def _words(event: tuple[object, ...]) -> str:
    return "/".join(map(str, event))


def _hash(event: tuple[object, ...]) -> int:
    return name_hash(_words(event))
