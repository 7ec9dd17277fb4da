"""The contention protocol: which ranked node is tried next, what ends the walk, and what its tries prove.

Promise: there is one walk. The service drives it on the ledger, the simulation on a ledger in memory; both yield to it
which node comes next, and tell it what the node answered. It always ends: at most `ATTEMPTS_MAX` attempts, in each of
them a node is tried once, once more with the demand clause waived when it was left out for demand alone, and one busy
node is waited for at the very end. Time and chance are asked of whoever drives it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from fleet.model.admission import AdmissionOutcome, Busy, Refused, RuleBroken, Stage

ATTEMPTS_MAX: Final = 3
"""Each on a fresh view."""

DEADLINE_SECONDS: Final = 0.4
"""For all tries together, from the first decision on."""

BACKOFF_SECONDS: Final = 0.02
"""The longest pause before the second attempt; it doubles before the third."""

LOCK_PROBES_MAX: Final = 16
"""So many tries of one attempt may find the row locked, or a rule broken under the lock."""

CAPACITY_REFUSALS_MAX: Final = 32
"""After so many an attempt makes way for a fresh view. The last attempt has no such bound."""

FINAL_WAIT_SECONDS: Final = 0.15
"""For the one busy node, picked at random, that the end of the last attempt waits for."""

Nodes = NDArray[np.intp]


class Draw(Protocol):
    """Where chance comes from."""

    def __call__(self, count: int, *event: object) -> Sequence[float]:
        """Return `count` draws from 0 to 1. The event's name is the same no two times in one walk."""
        ...


@dataclass(frozen=True, slots=True)
class Try:
    """Ask one node: `waived` without the demand clause, `wait` also when its row is locked."""

    index: int
    waived: bool = False
    wait: bool = False


@dataclass(frozen=True, slots=True)
class Look:
    """Pause for a random part of `pause_seconds`, decide again on a fresh view, and `rank` what it says."""

    pause_seconds: float


class Walk:
    """The tries of one placing. What nodes answered is kept for the attempt that is under way, by their index."""

    def __init__(self, *, late: Callable[[], bool], draw: Draw, only_here: bool = False) -> None:
        """`late`: whether time is out. `only_here`: there is no other node, so an ineligible one ends the walk."""
        self._late, self._draw, self._only_here = late, draw, only_here
        self._attempt = 0
        self._admitted = False
        self.ended_by: Refused | None = None

    def rank(self, nodes: Nodes, over_demand: Nodes) -> None:
        """Begin an attempt: nodes in the order in which they are tried, and those left out for demand alone."""
        self._nodes, self._left_out = nodes, over_demand
        self._probes = self.ineligible = 0
        self.refused: dict[int, Refused] = {}
        self.busy: set[int] = set()
        self.broken: set[int] = set()
        self._demand_only: list[int] = []

    def tried(self, index: int, outcome: AdmissionOutcome) -> None:
        """Take what a node answered. An admission ends the walk."""
        self.busy.discard(index)
        if isinstance(outcome, Refused):
            self._take_refusal(index, outcome)
        elif isinstance(outcome, Busy | RuleBroken):
            self._probes += 1
            (self.busy if isinstance(outcome, Busy) else self.broken).add(index)
        else:
            self._admitted = True

    def steps(self) -> Iterator[Try | Look]:
        """Yield what to do next, until a node admits, nothing more can help, or time is out.

        Each is to be followed up before the next is asked for: a `Try` by `tried`, a `Look` by `rank`, as is the first
        decision before all of them.
        """
        for self._attempt in range(ATTEMPTS_MAX):
            yield from self._one_attempt()
            if self._ended:
                return
            if self._is_last or self.proven or self._late():
                break
            yield Look(BACKOFF_SECONDS * 2**self._attempt)
        # Demand alone fails nobody: a node that was left out for it is tried once, also when time is out.
        for index in [*self._demand_only, *self._left_out[:1]][:1]:
            yield Try(int(index), waived=True, wait=True)

    @property
    def proven(self) -> bool:
        """Whether the fleet is full: on a fresh view, in time, everyone refused on capacity and nobody was skipped."""
        cut_short = not self._is_last and len(self.refused) >= CAPACITY_REFUSALS_MAX
        unproven = self.busy or self.broken or self.ineligible or self._demand_only or cut_short
        return self._attempt > 0 and bool(self.refused) and not unproven and not self._late()

    @property
    def _is_last(self) -> bool:
        return self._attempt == ATTEMPTS_MAX - 1

    @property
    def _ended(self) -> bool:
        return self._admitted or self.ended_by is not None

    def _one_attempt(self) -> Iterator[Try]:
        yield from self._round(self._nodes, waived=False)
        if self._ended or (self._is_last and self._late()):
            return
        second = np.concatenate([self._left_out, np.array(self._demand_only, dtype=np.intp)])
        if len(second) and not self._limit_reached():
            self._left_out, self._demand_only = second[:0], []
            yield from self._round(second, waived=True)
        if self._is_last and self.busy and not self._late() and not self._ended:
            (draw,) = self._draw(1, "wait")
            yield Try(sorted(self.busy)[_below(len(self.busy), draw)], wait=True)

    def _round(self, nodes: Nodes, *, waived: bool) -> Iterator[Try]:
        """Nodes in order; after the first busy one (or one with a rule broken) the rest comes in random order."""
        at, probes, shuffled = 0, self._probes, False
        while at < len(nodes) and not self._limit_reached():
            yield Try(int(nodes[at]), waived)
            if self._ended:
                return
            at += 1
            if self._probes > probes and not shuffled:
                nodes, at, shuffled = self._shuffled(nodes[at:], waived=waived), 0, True

    def _shuffled(self, rest: Nodes, *, waived: bool) -> Nodes:
        """Return the rest in random order; only as many as can be tried are drawn."""
        nodes, count = rest.copy(), len(rest)
        take = min(count, LOCK_PROBES_MAX + CAPACITY_REFUSALS_MAX)
        for at, draw in enumerate(self._draw(take, "shuffle", self._attempt, waived)):
            other = at + _below(count - at, draw)
            nodes[at], nodes[other] = nodes[other], nodes[at]
        return nodes

    def _limit_reached(self) -> bool:
        if self._probes >= LOCK_PROBES_MAX or self._late():
            return True
        return not self._is_last and len(self.refused) >= CAPACITY_REFUSALS_MAX

    def _take_refusal(self, index: int, refused: Refused) -> None:
        if refused.failing_stage in {Stage.CLAIM, Stage.CLUSTER} or (refused.ineligible and self._only_here):
            # The same for every node that will do: no further try can help.
            self.ended_by = refused
        elif refused.ineligible:
            self.ineligible += 1
        elif refused.demand_only:
            # No refusal on capacity: it is tried again, waived, so it must not end the attempt.
            self._demand_only.append(index)
        else:
            self.refused[index] = refused
            if index in self._demand_only:
                self._demand_only.remove(index)


def _below(bound: int, draw: float) -> int:
    return min(bound - 1, int(draw * bound))
