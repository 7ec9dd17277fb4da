"""balanced: lowest projected memory use first, in bands of 5 %, then disk, then CPU, then the name.

Projected use is what a node would be used to with the request on it: the larger of (charged + request) / limit and
1 - (measured headroom - request / ratio) / (physical - reservation). Only memory is banded: nodes at 41 % and 43 % are
equally full, and the one with more free disk is better. Disk and CPU are compared exactly; CPU may exceed the whole.

For a sleepy request the memory of sleepy instances counts for less, because they are often stopped:
`used - sl * (1 - 1/f) + request / f`, where f is `SLEEPY_OVERCOMMIT_FACTOR` and sl the sleepy memory, at most what is
used. Only the order is discounted, never what fits; and a regular request discounts nothing, wherever it asks.

The weight of a node is its projected memory use; -1 where that is not known.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from fleet.model.capacity import MEMORY_BANDS, exact_ratio
from fleet.placement.ask import Ask
from fleet.placement.fractions import LAST, keys
from fleet.placement.frame import Frame
from fleet.placement.projected import (
    PLAIN,
    cpu_use,
    disk_use,
    memory_figures,
    memory_use,
    percent,
    shown_use,
    sleepy_memory,
    weights_of,
)
from fleet.placement.ranking import ranking
from fleet.placement.stage import Figures, Ordering, Strategy


def factor_of(ask: Ask, frame: Frame) -> tuple[int, int]:
    """Return by how much sleepy memory is discounted for this request, as a fraction."""
    return exact_ratio(frame.config.sleepy_overcommit_factor) if ask.is_sleepy else PLAIN


def order(ask: Ask, frame: Frame, candidates: NDArray[np.intp], seed: int) -> Ordering:
    """Return the candidates by band of memory, disk, CPU and name. Nothing is drawn, so the seed does not matter."""
    memory = memory_use(ask, frame, candidates, factor_of(ask, frame))
    band = np.maximum.reduce([term.bands(MEMORY_BANDS) for term in memory])
    by = (band, *keys(*disk_use(ask, frame, candidates)), *keys(*cpu_use(ask, frame, candidates)))
    return ranking(frame, candidates, by, weights_of(memory), lambda at: figures(ask, frame, at), note)


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return what one node's place was computed from."""
    one = np.array([at], dtype=np.intp)
    memory = memory_use(ask, frame, one, factor_of(ask, frame))
    band = max(int(term.bands(MEMORY_BANDS)[0]) for term in memory)
    found: Figures = {
        "memory_band": None if band == LAST else band,
        "projected_memory": shown_use(memory),
        "projected_disk": shown_use(disk_use(ask, frame, one)),
        "projected_cpus": shown_use(cpu_use(ask, frame, one)),
        **memory_figures(ask, frame, at),
    }
    if ask.is_sleepy:
        found["sleepy_memory_mb"] = int(sleepy_memory(frame, one)[0])
        found["sleepy_overcommit_factor"] = float(frame.config.sleepy_overcommit_factor)
    return found


def note(found: Figures) -> str:
    """Return a node's place in words."""
    band = "" if found["memory_band"] is None else f" (band {found['memory_band']})"
    disk, cpus = percent(found["projected_disk"]), percent(found["projected_cpus"])
    return f"projected memory {percent(found['projected_memory'])}{band}, disk {disk}, CPU {cpus}"


STRATEGY = Strategy(order=order, axis="memory_band")
