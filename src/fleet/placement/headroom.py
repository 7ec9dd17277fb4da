"""What `spread` and `binpack` share: the score of a node's ledger headroom before the placement.

    score = free_cpus * 10000 + free_ram_mb

where free is limit less used, both the ledger's. Where a limit is unlimited the total is what the machine offers:
`cpu_schedulable` threads, physical memory less its reservation. A node without a needed figure is last in both.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.model.capacity import headroom_score, ledger_headroom
from fleet.placement.ask import Ask
from fleet.placement.columns import UNKNOWN, UNLIMITED, Ints, Mask
from fleet.placement.fractions import LAST
from fleet.placement.frame import Frame
from fleet.placement.ranking import ranking
from fleet.placement.stage import Figures, Ordering


@dataclass(frozen=True, slots=True)
class Headroom:
    """What the ledger has free on some nodes; meaningless where `known` is False."""

    cpus: Ints
    ram_mb: Ints
    known: Mask

    @classmethod
    def of(cls, frame: Frame, at: NDArray[np.intp]) -> Headroom:
        """Return the headroom of the nodes at the given indexes."""
        limits, used = frame.limits[:2].take(at, axis=1), frame.used[:2].take(at, axis=1)
        physical = frame.sample.column("memory_max")[at]
        offered = np.where(physical == UNKNOWN, UNKNOWN, physical - frame.sample.memory_reserved[at])
        totals = np.where(limits == UNLIMITED, np.stack([frame.schedulable[at], offered]), limits)
        known = ((totals != UNKNOWN) & (used != UNKNOWN)).all(axis=0)
        cpus, ram = np.where(known, ledger_headroom(totals, used), 0)
        return cls(cpus, ram, known)

    @property
    def score(self) -> Ints:
        """The score of each node."""
        return headroom_score(self.cpus, self.ram_mb)


def by_score(ask: Ask, frame: Frame, candidates: NDArray[np.intp], *, highest_first: bool) -> Ordering:
    """Return the candidates by score, and then by name."""
    free = Headroom.of(frame, candidates)
    key = np.where(free.known, -free.score if highest_first else free.score, LAST)
    weights = np.where(free.known, free.score, -1).astype(np.float64)
    return ranking(frame, candidates, (key,), weights, lambda at: figures(ask, frame, at), note)


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return one node's score, what it has free, and as `headroom_*` what the placement would leave."""
    free = Headroom.of(frame, np.array([at], dtype=np.intp))
    if not free.known[0]:
        return dict.fromkeys(("score", "free_cpus", "free_ram_mb", "headroom_cpus", "headroom_ram"))
    cpus, ram = int(free.cpus[0]), int(free.ram_mb[0])
    return {
        "score": int(free.score[0]),
        "free_cpus": cpus,
        "free_ram_mb": ram,
        "headroom_cpus": cpus - ask.added("cpus", at),
        "headroom_ram": ram - ask.added("memory_mb", at),
    }


def note(found: Figures) -> str:
    """Return a node's place in words."""
    if found["score"] is None:
        return "score unknown"
    return f"score {found['score']}, leaves {found['headroom_cpus']} vCPUs and {found['headroom_ram']} MiB"
