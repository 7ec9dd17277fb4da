"""binpack: lowest score of free capacity first, so that busy nodes fill up and others stay empty.

    score = free_cpus * 10000 + free_ram_mb

in the ledger (limit - used), before the placement; equal scores are ordered by name, the smallest first. One vCPU is
worth 10,000 MiB. `headroom_cpus` and `headroom_ram` are what the placement would leave.

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
    """Return the lowest score first. Nothing is drawn, so the seed does not matter."""
    return by_score(ask, frame, candidates, highest_first=False)


STRATEGY = Strategy(order=order, axis="score")
