"""best-fit: most projected use first, so that whole nodes stay free for large requests; sleepy instances are packed.

Projected use is the larger of memory's and disk's with the request on the node, each the larger of (charged + request)
/ limit and 1 - (measured headroom - request / ratio) / (physical - reservation); CPU does not matter. A request that
would bring one node to 80 % and another to 60 % goes to the first. Equal nodes are ordered by name, the smallest first.

A sleepy request goes to the node with the most subscribed sleepy memory, (sleepy memory + request) / memory limit, then
to the fuller one, then by name.

The weight of a node is its projected use, for a sleepy request the subscribed fraction; -1 where that is not known. A
node whose use is not known comes last, not first.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet.placement.ask import Ask
from fleet.placement.frame import Frame
from fleet.placement.packing import by_projected_use
from fleet.placement.stage import Ordering, Strategy


def order(ask: Ask, frame: Frame, candidates: NDArray[np.intp], seed: int) -> Ordering:
    """Return the most used first. Nothing is drawn, so the seed does not matter."""
    return by_projected_use(ask, frame, candidates, highest_first=True)


STRATEGY = Strategy(order=order, axis="projected_use", highest_first=True)
