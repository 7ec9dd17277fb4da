"""What `spread-3` and `best-fit` share: one ratio of projected use for regular requests, one packing for sleepy ones.

Projected use is the larger of memory's and disk's, each the larger of the ledger's and the measured term; CPU does not
matter. A sleepy request goes to the node with the most subscribed sleepy memory, by fraction and not by MiB, so that
sleepy nodes fill one at a time; the fuller node is better among equals. Packing discounts nothing, and it applies
whether or not sleepy nodes have a pool of their own.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet.placement.ask import Ask
from fleet.placement.fractions import keys
from fleet.placement.frame import Frame
from fleet.placement.projected import (
    disk_use,
    memory_figures,
    memory_use,
    percent,
    shown_use,
    sleepy_memory,
    subscribed,
    weights_of,
)
from fleet.placement.ranking import ranking
from fleet.placement.stage import Figures, Ordering


def by_projected_use(ask: Ask, frame: Frame, candidates: NDArray[np.intp], *, highest_first: bool) -> Ordering:
    """Return the candidates by projected use, and then by name; for a sleepy request packed."""
    use = (*memory_use(ask, frame, candidates), *disk_use(ask, frame, candidates))
    if not ask.is_sleepy:
        by, weights = keys(*use, highest_first=highest_first), weights_of(use)
    else:
        packed = subscribed(ask, frame, candidates)
        by = (*keys(*packed, highest_first=True), *keys(*use, highest_first=True))
        weights = weights_of(packed)
    return ranking(frame, candidates, by, weights, lambda at: figures(ask, frame, at), note)


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return what one node's place was computed from."""
    one = np.array([at], dtype=np.intp)
    memory, disk = memory_use(ask, frame, one), disk_use(ask, frame, one)
    found: Figures = {
        "projected_use": shown_use((*memory, *disk)),
        "projected_memory": shown_use(memory),
        "projected_disk": shown_use(disk),
        **memory_figures(ask, frame, at),
    }
    if ask.is_sleepy:
        packed = {"subscribed": shown_use(subscribed(ask, frame, one))}
        found = {**packed, "sleepy_memory_mb": int(sleepy_memory(frame, one)[0]), **found}
    return found


def note(found: Figures) -> str:
    """Return a node's place in words."""
    packed = f"subscribed {percent(found['subscribed'])}, " if "subscribed" in found else ""
    return f"{packed}projected use {percent(found['projected_use'])}"
