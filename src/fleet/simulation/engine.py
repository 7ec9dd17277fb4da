"""The virtual clock: what happens next happens, and nothing else moves time.

Promise: events run in the order of their times, equal times in the order in which they were planned. A *course* is a
generator that yields how many microseconds pass before it goes on; what it returns is handed to whoever started it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from heapq import heappop, heappush
from typing import TypeAlias, TypeVar

R = TypeVar("R")

Course: TypeAlias = Generator[int, None, R]


class Engine:
    """Time, and what is planned."""

    def __init__(self) -> None:
        """Begin at 0 with nothing planned."""
        self.now_us = 0
        self._planned: list[tuple[int, int, Callable[[], None]]] = []
        self._sequence = 0

    def at(self, when_us: int, act: Callable[[], None]) -> None:
        """Plan an act; one planned for the past runs now."""
        self._sequence += 1
        heappush(self._planned, (max(when_us, self.now_us), self._sequence, act))

    def follow(self, course: Course[R], done: Callable[[R], None]) -> None:
        """Follow a course from now on; `done` gets what it returns."""

        def step() -> None:
            try:
                passes_us = next(course)
            except StopIteration as ended:
                done(ended.value)
                return
            self.at(self.now_us + passes_us, step)

        self.at(self.now_us, step)

    def run(self, until_us: int | None, *, while_: Callable[[], bool]) -> None:
        """Run what is planned, up to a time (inclusive), as long as `while_` says so."""
        while self._planned and while_():
            when_us, _, act = self._planned[0]
            if until_us is not None and when_us > until_us:
                self.now_us = until_us
                return
            heappop(self._planned)
            self.now_us = when_us
            act()
