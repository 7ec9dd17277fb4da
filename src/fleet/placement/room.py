"""Room: the largest amount that a node would still take, and how many more instances of one shape it takes.

Promise: both are exact for the snapshot they read. `most_of` is the largest amount with which a node passes the stages
of that dimension; `count_shape` is how often one shape could be placed, each placement charged to the ledger and
pending until the next sample, before `decide` finds no node. Unknown is never room.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from fleet.model.capacity import THOUSAND, to_milli
from fleet.model.request import PlacementRequest, Reason
from fleet.placement.ask import Ask
from fleet.placement.columns import UNLIMITED, Ints, Mask
from fleet.placement.frame import Frame, row
from fleet.placement.pipeline import walk_stages
from fleet.placement.stage import Filter, all_stages

DIMENSIONS: Final = ("cpus", "memory_mb", "disk_gb", "instances", "gpus")
"""What may bind, in the order in which the stages ask."""

WITHOUT_BOUND: Final = UNLIMITED // 2
"""From here on a room is that of a limit which does not bind."""

_DIMENSION_OF: Final[Mapping[str, str]] = {
    "sufficient_idle_cpu": "cpus",
    "sufficient_idle_memory": "memory_mb",
    "sufficient_free_disk": "disk_gb",
    "instance_slots": "instances",
    "gpu": "gpus",
}


def most_of(ask: Ask, frame: Frame, dimension: str, unknown: Mask) -> Ints:
    """Return the largest amount of a dimension that a request like this one could ask for on each node.

    It may be below what any request can ask for. Where a figure is `unknown` it is what is held there already: that
    needs no figure.
    """
    most = np.where(unknown, -1, frame.room(dimension))
    held: dict[int, int] = {}
    if ask.request.reason is Reason.RESIZE and ask.request.instance is not None:
        charges = frame.instances[ask.request.instance].held()
        index = frame.roster.index
        held = {index[node]: getattr(amounts, dimension) for node, amounts in charges if node in index}
    for at, amount in held.items():
        most[at] = amount + max(0, int(most[at]))
    if dimension == "memory_mb":
        most -= frame.config.instance_overhead_mb
    if dimension == "cpus":
        most = np.minimum(most, frame.sample.column("cpu_max_per_instance"))
        if ask.resize_home in held:
            most[ask.resize_home] = max(int(most[ask.resize_home]), held[ask.resize_home])
    return most


@dataclass(frozen=True, slots=True)
class Why:
    """What bounds a node: a dimension of `DIMENSIONS`, or the stage that keeps it out; `reason` where nothing fits."""

    name: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ShapeCount:
    """How many more of a shape fit on each node, and what bounds each: a place in `whys`."""

    counts: Ints
    why: Ints
    whys: tuple[Why, ...]

    @property
    def total(self) -> int:
        """How many fit in all."""
        return int(self.counts.sum())

    def why_of(self, at: int) -> Why:
        """Return what bounds the node at an index."""
        return self.whys[int(self.why[at])]

    def bounded_by(self) -> Mapping[Why, int]:
        """Return how many nodes each thing bounds, most first; among equals in the order of the pipeline."""
        found = np.bincount(self.why, minlength=len(self.whys))
        return {self.whys[at]: int(found[at]) for at in np.argsort(-found, kind="stable") if found[at]}


def count_shape(request: PlacementRequest, frame: Frame) -> ShapeCount:
    """Return how many more instances like `request` fit. It may ask for anything but neighbours.

    Raises:
        ValueError: the request has rules or tag affinity: every placement changes what they say.
    """
    if request.placement_rules or request.affinity_spec:
        raise ValueError("a shape has no rules and no affinity: every instance that is placed changes what they say")
    ask = Ask.of(request, frame)
    each = _each(ask, frame)
    counts = each.min(axis=0, initial=WITHOUT_BOUND)
    why, whys = each.argmin(axis=0), [Why(name) for name in DIMENSIONS]
    left = np.ones(len(frame), dtype=np.bool_)
    for step in walk_stages(all_stages(), ask, frame, explain=True).steps:
        for reason, mask in step.drops if isinstance(step.stage.stage, Filter) else ():
            why = np.where(left & mask, len(whys), why)
            whys.append(Why(_DIMENSION_OF.get(step.stage.name, step.stage.name), reason.code))
            left &= ~mask
    return ShapeCount(np.where(left, counts, 0), why.astype(np.int64), tuple(whys))


def _each(ask: Ask, frame: Frame) -> Ints:
    """Return how often the shape fits in each dimension of `DIMENSIONS` by itself, where its stages let it pass."""
    asked = ask.amounts
    pending = frame.counter
    memory = _often(row(frame.limits, 1) - row(frame.used, 1), asked.memory_mb)
    disk = _often(row(frame.limits, 2) - row(frame.used, 2), asked.disk_gb)
    ram, thin = to_milli(frame.config.ram_overcommit_ratio), to_milli(frame.config.disk_overcommit_ratio)
    available = frame.sample.column("memory_available") - frame.sample.memory_reserved
    free = frame.sample.column("disk_free_gb") - frame.sample.disk_reserved
    rows = [
        _often(row(frame.limits, 0) - row(frame.used, 0), asked.cpus),
        np.minimum(memory, _often_measured(available, pending("pending_memory_mb"), asked.memory_mb, ram)),
        np.minimum(disk, _often_measured(free, pending("pending_disk_gb"), asked.disk_gb, thin)),
        _often(frame.room_instances, asked.instances),
    ]
    wanted = ask.gpus.count
    units = frame.gpus.free(ask.gpus) // wanted if wanted else np.full(len(frame), WITHOUT_BOUND, dtype=np.int64)
    return np.array([*rows, units], dtype=np.int64).reshape(len(DIMENSIONS), len(frame))


def _often(room: Ints, amount: int) -> Ints:
    """Return how often an amount fits into a room; nothing fits without end."""
    if not amount:
        return np.full(len(room), WITHOUT_BOUND, dtype=np.int64)
    return np.where(room >= WITHOUT_BOUND, WITHOUT_BOUND, np.maximum(room, 0) // amount)


def _often_measured(margin: Ints, pending: Ints, amount: int, ratio_milli: int) -> Ints:
    """Return how often an amount fits under a measured headroom that each placement shrinks by its pending part.

    The last of k still sees `margin - ceil((pending + (k - 1) * amount) / ratio) >= amount`.
    """
    if not amount:
        return np.full(len(margin), WITHOUT_BOUND, dtype=np.int64)
    spare = margin - amount
    # floor(spare * ratio), in two parts so that no product leaves 64 bits.
    bearable = spare // THOUSAND * ratio_milli + spare % THOUSAND * ratio_milli // THOUSAND
    fits = (spare >= 0) & (pending <= bearable)
    return np.where(fits, (bearable - pending) // amount + 1, 0)
