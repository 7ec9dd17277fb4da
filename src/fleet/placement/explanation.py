"""Decision -> sentences: who fits, who does not and why, and the nearest thing that would help.

Everything is read again from the figures of the decision's own view, so a sentence can never disagree with a decision.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np
from numpy.typing import NDArray

from fleet.model.decision import Decision
from fleet.placement.ask import Ask
from fleet.placement.columns import COLUMN_MAX, CORDONED, Ints, Mask
from fleet.placement.frame import Frame
from fleet.placement.stage import Filter, all_stages

UNITS: Final = {"cpus": "vCPUs", "memory_mb": "MiB of memory", "disk_gb": "GiB of disk", "instances": "slots"}
DIMENSIONS: Final = tuple(UNITS)
_ONE: Final = {"cpus": "vCPU", "instances": "slot"}


def counted(amount: int, dimension: str) -> str:
    """Return an amount with its unit: `1 vCPU`, `512 MiB of memory`."""
    return f"{amount} {_ONE.get(dimension, UNITS[dimension]) if amount == 1 else UNITS[dimension]}"


def counted_gpus(count: int, profile: str = "") -> str:
    """Return a number of GPUs, or of slices of a MIG profile, in words."""
    word = "slice" if profile else "GPU"
    return f"{count} {word}{'' if count == 1 else 's'}"


LEFT: Final = ", among the nodes left by then"
"""Said where a node that another stage dropped has more, so that nobody takes the figure for the whole fleet's."""


def drop_counts(decision: Decision) -> str:
    """Return how many nodes each stage dropped, most first: `7 sufficient_idle_memory, 3 scheduling_state`."""
    totals = [(sum(reasons.values()), stage) for stage, reasons in decision.counts.items()]
    return ", ".join(f"{count} {stage}" for count, stage in sorted(totals, key=lambda item: -item[0]))


def summary(decision: Decision, ask: Ask, frame: Frame, note: str) -> str:
    """Return a ranking in one sentence; `note` is the strategy's word about the first node."""
    total, fit = decision.node_count, len(decision.ranked_indices)
    first = int(decision.ranked_indices[0])
    if ask.is_fork:
        return f"{frame.roster.names[first]} holds what is forked: a fork goes there, and no stage is asked"
    sentence = f"{frame.roster.names[first]} is first of {fit} of {total} nodes: {decision.strategy}, {note}"
    return f"{sentence}; dropped: {drop_counts(decision)}" if decision.counts else sentence


def refusal_summary(decision: Decision, sentence: str, told: str) -> str:
    """Return a refusal in one sentence: what is particular to it, how many nodes fell where, and what follows."""
    counted = drop_counts(decision)
    counts = f"0 of {decision.node_count} nodes fit: {counted}" if counted else ""
    return "; ".join(part for part in (sentence, counts, told) if part)


def known_limits(frame: Frame) -> tuple[Ints, Mask]:
    """Return the limit rows, and which nodes have all of their limits known. Unknown is never room."""
    known: Mask = np.logical_and.reduce(frame.limits >= 0, axis=0)
    return frame.limits, known


def exceeds_every_limit(ask: Ask, frame: Frame, among: Mask) -> bool:
    """Return whether no limits of the nodes `among` hold the request even when the node is empty.

    What an instance holds there already needs no limit: only what lacks counts.
    """
    limits, known = known_limits(frame)
    known = known & among
    if not known.any():
        return False
    wanted = np.array([[getattr(ask.amounts, dimension)] for dimension in DIMENSIONS], dtype=np.int64)
    return bool(((limits < wanted) & (shortfalls(ask, frame) > 0))[:, known].any(axis=0).all())


def largest_limits(ask: Ask, frame: Frame, among: Mask) -> str:
    """Return the dimensions in which the request exceeds the limits of all nodes `among`, with the largest there is."""
    limits, known = known_limits(frame)
    known = known & among
    told = []
    for row, dimension in enumerate(DIMENSIONS):
        column = np.where(known, limits[row], -1)
        best, wanted = int(column.max()), getattr(ask.amounts, dimension)
        if wanted > best:
            owner = min(frame.roster.names[at] for at in np.flatnonzero(column == best))
            larger = bool((limits[row] > best).any())
            told.append(
                f"{counted(wanted, dimension)} exceed the largest limit, {best} ({owner}){LEFT if larger else ''}"
            )
    return "; ".join(told) or "no node's limits hold all amounts of the request together"


def shortfalls(ask: Ask, frame: Frame) -> Ints:
    """Return how much each node lacks in each dimension (rows: `DIMENSIONS`); 0 where it has room."""
    return np.array([shortfall(ask, dimension, frame.room(dimension)) for dimension in DIMENSIONS])


def shortfall(ask: Ask, dimension: str, room: Ints) -> Ints:
    """Return by how much `room` is too small on each node, in the dimension's unit; 0 where it is enough."""
    wanted = ask.added_each(dimension, np.arange(len(room)))
    return np.where(ask.short_of(dimension, room), wanted - room, 0)


def remedy(decision: Decision, ask: Ask, frame: Frame, among: Callable[[], Mask]) -> str:
    """Return the nearest thing that would help: what the best of the refusing nodes lacks, or whom to uncordon.

    `among` finds the nodes that only a lack of room stands against: it judges every node again, so it is asked for a
    refusal alone. Every decision that is stored comes by here.
    """
    if not decision.refused or decision.stage is None:
        return ""
    if decision.code == "no_schedulable_nodes":
        return _schedulable_remedy(decision, ask, frame)
    if exceeds_every_limit(ask, frame, among()):
        return "ask for less, or register a larger node: waiting cannot help"
    best = nearest(decision, ask, frame)
    if best is None:
        return _unknown_remedy(decision)
    lacking = shortfalls(ask, frame)[:, best]
    parts = [counted(int(amount), name) for name, amount in zip(DIMENSIONS, lacking, strict=True) if amount]
    if ask.gpus.count and best not in ask.growth:
        short = ask.gpus.count - int(frame.gpus.free(ask.gpus)[best])
        parts += [counted_gpus(short, ask.gpus.profile)] if short > 0 else []
    return f"nearest is {frame.roster.names[best]}: it lacks {' and '.join(parts)}"


def nearest(decision: Decision, ask: Ask, frame: Frame) -> int | None:
    """Return the index of the node that lacks least, of those that nothing but a lack of room stands against."""
    lacking = shortfalls(ask, frame)
    most = lacking.max(axis=0)
    near = _refused_on_capacity(decision) & (most > 0) & (most <= COLUMN_MAX)
    if near.any():
        near &= ~_refused_with_room(ask, frame)
    found = np.flatnonzero(near)
    if not len(found):
        return None
    return int(found[np.lexsort((frame.roster.name_rank[found], distance(ask, lacking[:, found])))[0]])


def distance(ask: Ask, lacking: Ints) -> NDArray[np.float64]:
    """Return how far nodes are from fitting: fewest dimensions short first, then least lacking of what is wanted."""
    wanted = np.array([[max(1, getattr(ask.amounts, name))] for name in DIMENSIONS])
    share = (lacking / wanted).sum(axis=0)
    found: NDArray[np.float64] = np.count_nonzero(lacking, axis=0) + share / (1 + share)
    return found


def _refused_with_room(ask: Ask, frame: Frame) -> Mask:
    """Return the nodes that would be dropped had they room: for neighbours, where that is no wish, for their load, or
    because they do not own the GPUs that are asked for.
    """
    dropped = np.zeros(len(frame), dtype=np.bool_)
    for named in all_stages():
        stage = named.stage
        if not isinstance(stage, Filter) or stage.may_yield(ask, frame):
            continue
        if stage.sheds_load or stage.refusal.startswith("affinity_"):
            for _, mask in stage.drops(ask, frame) or ():
                dropped |= mask
    if ask.resize_home >= 0:
        dropped[ask.resize_home] = False
    if ask.gpus.count:
        without = frame.gpus.owned(ask.gpus) < ask.gpus.count
        without[list(ask.growth)] = False
        dropped |= without
    return dropped


def _dropped_but_for(spared: str, ask: Ask, frame: Frame) -> Mask:
    """Return the nodes that some stage drops for any other reason; not where the stage is only a wish."""
    dropped = np.zeros(len(frame), dtype=np.bool_)
    for named in all_stages():
        stage = named.stage
        if isinstance(stage, Filter) and not stage.may_yield(ask, frame):
            masks = (mask for reason, mask in stage.drops(ask, frame) or () if reason.code != spared)
            found = np.logical_or.reduce([dropped, *masks])
            if stage.spares_resize_home and ask.resize_home >= 0:
                found[ask.resize_home] = dropped[ask.resize_home]
            dropped = found
    return dropped


def _refused_on_capacity(decision: Decision) -> Mask:
    masks = [
        mask
        for reasons in decision.evidence.masks().values()
        for reason, mask in reasons.items()
        if reason.startswith(("over_limit", "below_"))
    ]
    return np.logical_or.reduce(masks) if masks else np.zeros(decision.node_count, dtype=np.bool_)


def _unknown_remedy(decision: Decision) -> str:
    """Return which figure most of the dropped nodes do not tell: nothing is promised until it is measured."""
    masks = decision.evidence.masks()
    unknown = {
        code: mask for reasons in masks.values() for code, mask in reasons.items() if code.startswith("unknown_")
    }
    if not unknown:
        return ""
    code = max(unknown, key=lambda code: int(np.count_nonzero(unknown[code])))
    names = sorted(decision.evidence.names[at] for at in np.flatnonzero(unknown[code]).tolist())
    who = names[0] if len(names) == 1 else f"{len(names)} nodes, such as {names[0]}"
    return f"{code} on {who}: see what sf-resources measures there, for unknown is never room"


def _schedulable_remedy(decision: Decision, ask: Ask, frame: Frame) -> str:
    if decision.counts.get("scheduling_state", {}).get("cordoned"):
        fit = (frame.counter("scheduling") == CORDONED) & ~_dropped_but_for("cordoned", ask, frame)
        names = sorted(frame.roster.names[at] for at in np.flatnonzero(fit))
        if names:
            return (
                f"uncordon {names[0]}" if len(names) == 1 else f"uncordon one of {len(names)} nodes, such as {names[0]}"
            )
    stale = decision.counts.get("node_state", {}).get("stale_sample", 0)
    if not stale:
        return ""
    who = "1 node has" if stale == 1 else f"{stale} nodes have"
    return f"{who} sent no fresh sample: see whether sf-resources runs there"
