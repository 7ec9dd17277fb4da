"""load-aware: lowest band of load and committed memory first, a weighted shuffle inside each band.

Nodes are bucketed by load per schedulable thread and by committed memory as a fraction of its limit, in bands of 0.25;
the worse of the two bands counts. The bands are coarse on purpose: the sample may be a minute old, and a burst that is
ranked finely would all go to one node. Inside every band, nodes are drawn by weight:

    max(0.1, SCHEDULER_TARGET_LOAD * cpu_schedulable - cpu_load_1) * max(0.1, 1 - committed memory fraction)

Nothing is dropped: a busy node stays in the list, behind the others, for admission to fall through to. A node that
does not say its load, or how many threads it has, is in the last band with a load headroom of 0.1.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from fleet.model.capacity import WEIGHT_FLOOR, load_band, load_headroom_milli, memory_band, to_milli
from fleet.placement.ask import Ask
from fleet.placement.columns import COLUMN_MAX, UNKNOWN, UNLIMITED, Ints, shown, shown_milli
from fleet.placement.draws import shuffle_keys
from fleet.placement.frame import Frame
from fleet.placement.stage import Figures, Ordering, Strategy

LAST_BAND: Final = 2**15 - 1
"""Band of what cannot be judged. Real bands stay below it, so that bands fit 16 bits and sort fast."""


def bands(frame: Frame, at: NDArray[np.intp]) -> NDArray[np.int16]:
    """Return the band of each node at the given indexes: the worse of its load's and its memory's."""
    load, threads = frame.counter("cpu_load_1")[at], frame.schedulable[at]
    judged = (load != UNKNOWN) & (threads > 0)
    by_load = np.where(judged, load_band(np.maximum(load, 0), np.maximum(threads, 1)), LAST_BAND)
    limit, charged = frame.limits[1][at], np.maximum(frame.charged_memory[at], 0)
    by_memory = np.where(limit > 0, memory_band(charged, np.minimum(np.maximum(limit, 1), COLUMN_MAX)), LAST_BAND)
    by_memory[limit == UNLIMITED] = 0
    worse = np.minimum(np.maximum(by_load, by_memory), LAST_BAND - 1)
    worse[~judged | (limit <= 0)] = LAST_BAND
    return worse.astype(np.int16)


def memory_fractions(frame: Frame, at: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return committed memory as a fraction of its limit; an unlimited node has none committed, a zero limit all."""
    limit, charged = frame.limits[1][at], np.maximum(frame.charged_memory[at], 0)
    fraction: NDArray[np.float64] = np.where(limit > 0, charged, 1) / np.maximum(limit, 1)
    fraction[limit == UNLIMITED] = 0.0
    return fraction


def weights(frame: Frame, at: NDArray[np.intp]) -> NDArray[np.float64]:
    """Return each node's weight in the shuffle of its band."""
    load, threads = frame.counter("cpu_load_1")[at], frame.schedulable[at]
    judged = (load != UNKNOWN) & (threads > 0)
    headroom: Ints = load_headroom_milli(to_milli(frame.config.scheduler_target_load), threads, load)
    by_load = np.maximum(WEIGHT_FLOOR, np.where(judged, headroom, 0) / 1000)
    weight: NDArray[np.float64] = by_load * np.maximum(WEIGHT_FLOOR, 1.0 - memory_fractions(frame, at))
    return weight


def order(ask: Ask, frame: Frame, candidates: NDArray[np.intp], seed: int) -> Ordering:
    """Return the candidates by band, each band shuffled by weight."""
    del ask
    band, weight = bands(frame, candidates), weights(frame, candidates)
    keys = shuffle_keys(seed, frame.roster.hashes[candidates], weight)
    best = np.argsort(keys)
    if (keys[best][1:] == keys[best][:-1]).any():
        # Equal draws are next to impossible; when they happen the name decides, not the order of the nodes.
        best = np.lexsort((frame.roster.name_rank[candidates], keys))
    best = best[np.argsort(band[best], kind="stable")]
    band, weight = band[best], weight[best]

    def note(place: int) -> str:
        return f"bucket {band[place]}, weight {weight[place]:.3f}"

    return Ordering(candidates[best], weight, note, lambda at: figures(frame, at))


def figures(frame: Frame, at: int) -> Figures:
    """Return what one node's place was computed from."""
    one = np.array([at], dtype=np.intp)
    load, threads = int(frame.counter("cpu_load_1")[at]), int(frame.schedulable[at])
    judged = load != UNKNOWN and threads > 0
    return {
        "cpu_load_1": shown_milli(load),
        "cpu_schedulable": shown(threads),
        "cpu_schedulable_from_fallback": bool(frame.schedulable_from_fallback[at]),
        "normalised_load": round(load / (1000 * threads), 6) if judged else None,
        "ram_committed_fraction": round(float(memory_fractions(frame, one)[0]), 6),
        "bucket": int(bands(frame, one)[0]),
        "weight": round(float(weights(frame, one)[0]), 6),
    }


STRATEGY = Strategy(order=order, axis="bucket")
