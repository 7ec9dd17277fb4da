"""spread: highest score of free capacity first, so that load goes where most is free.

    score = free_cpus * 10000 + free_ram_mb

in the ledger (limit - used), before the placement; equal scores are ordered by name. The formula rules, not the saying
that CPUs decide and memory breaks ties: one vCPU is worth 10,000 MiB, so a node with 1 free vCPU and 40,000 MiB
(50,000) comes before one with 3 free vCPUs and 8,000 MiB (38,000). `headroom_cpus` and `headroom_ram` are what the
placement would leave.

The weight of a node is its score; -1 where a figure is not known, and such a node comes last.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet.placement.ask import Ask
from fleet.placement.frame import Frame
from fleet.placement.headroom import by_score
from fleet.placement.stage import Ordering, Strategy


def order(ask: Ask, frame: Frame, candidates: NDArray[np.intp], seed: int) -> Ordering:
    """Return the highest score first. Nothing is drawn, so the seed does not matter."""
    return by_score(ask, frame, candidates, highest_first=True)


STRATEGY = Strategy(order=order, axis="score", highest_first=True)
