"""What is left, and how much of it is of use: stranded room, fragmented GPUs, compaction, the largest shape.

One formula serves memory, disk and GPUs. It is the measure of fragmentation of Weng et al., "Beware of Fragmentation:
Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent" (USENIX ATC 2023), for whole units: with M the
shapes of the load, p(m) the share of requests that ask for m, and free(n) what node n has left,

    F = sum over n, sum over m of p(m) * free(n) * [m does not fit on n]

is the amount that a request drawn from the load is expected to find and be unable to use; F / sum of free(n) is the
rate. For GPUs, M holds the shapes that ask for GPUs: whoever asks for none is no user of what is left of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fleet.model.gpu_inventory import GpuAsk, GpuInventory, free_units
from fleet.model.resources import DIMENSIONS, Amounts, Limits
from fleet.placement.columns import UNLIMITED
from fleet.simulation.scenario import Arrival, Shape

Ints = NDArray[np.int64]
Mask = NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Popular:
    """The shapes of a load and how many requests ask for each, commonest first."""

    shapes: tuple[tuple[Shape, int], ...]

    @classmethod
    def of(cls, arrivals: Iterable[Arrival]) -> Popular:
        """Count the shapes of a load."""
        counts = Counter(arrival.shape for arrival in arrivals)
        return cls(tuple(counts.most_common()))

    def classes(self) -> list[str]:
        """Return the size classes, smallest first."""
        sizes: dict[str, tuple[int, ...]] = {}
        for shape, _ in self.shapes:
            sizes[shape.size_class] = min(sizes.get(shape.size_class, _size(shape)), _size(shape))
        return sorted(sizes, key=lambda name: (sizes[name], name))

    def asking_gpus(self) -> Popular:
        """Return the shapes that ask for GPUs."""
        return Popular(tuple((shape, count) for shape, count in self.shapes if shape.gpus))


class Remainder:
    """What every node has left, as columns."""

    def __init__(self, limits: Sequence[Limits], used: Sequence[Amounts], inventories: Sequence[GpuInventory]) -> None:
        """Subtract what is used from what is offered."""
        offered = [[UNLIMITED if x is None else x for x in one.as_dict().values()] for one in limits]
        taken = [list(one.as_dict().values()) for one in used]
        self.room: Ints = np.maximum(np.array(offered, dtype=np.int64).T - np.array(taken, dtype=np.int64).T, 0)
        self._shape_of: list[int] = []
        self._models: list[GpuInventory] = []
        numbers: dict[object, int] = {}
        for inventory in inventories:
            shape = inventory.shape()
            if shape not in numbers:
                numbers[shape] = len(self._models)
                self._models.append(inventory)
            self._shape_of.append(numbers[shape])
        self.free_gpus = self._units(GpuAsk(0))

    def _units(self, ask: GpuAsk) -> Ints:
        by_shape = np.array([free_units(model, ask) for model in self._models], dtype=np.int64)
        found: Ints = by_shape[np.array(self._shape_of, dtype=np.intp)]
        return found

    def fits(self, shape: Shape) -> Mask:
        """Return the nodes on which a shape fits now; of several kinds of GPU any will do."""
        asked = np.array([[shape.cpus], [shape.memory_mb], [shape.disk_gb], [1]], dtype=np.int64)
        found: Mask = np.asarray((self.room >= asked).all(axis=0))
        if shape.gpus:
            kinds = shape.gpu_kinds or ("",)
            most = np.max([self._units(GpuAsk(shape.gpus, kind)) for kind in kinds], axis=0)
            found &= most >= shape.gpus
        return found

    def fragmentation(self, free: Ints, popular: Popular) -> float | None:
        """Return the rate of the module's formula, 0 to 1; None where nothing is free or nothing asks."""
        total, asked = int(free.sum()), sum(count for _, count in popular.shapes)
        if not total or not asked:
            return None
        lost = sum(count * int(free[~self.fits(shape)].sum()) for shape, count in popular.shapes)
        return lost / (asked * total)

    def of(self, dimension: str) -> Ints:
        """Return what is left of a dimension on every node."""
        found: Ints = self.room[DIMENSIONS.index(dimension)]
        return found

    def largest(self, popular: Popular) -> Shape | None:
        """Return the largest shape of the load that some node still takes: by GPUs, memory, CPUs, disk."""
        by_size = sorted(popular.shapes, key=lambda item: _size(item[0]), reverse=True)
        return next((shape for shape, _ in by_size if self.fits(shape).any()), None)


def _size(shape: Shape) -> tuple[int, int, int, int]:
    return (shape.gpus, shape.memory_mb, shape.cpus, shape.disk_gb)


def compaction(limits: Sequence[Limits], total: Amounts, nodes_in_use: int) -> float:
    """Return the fewest nodes that could hold the sums, divided by the nodes in use; 1.0 for an empty fleet.

    A lower bound: in each dimension the largest nodes are filled to the brim, and shapes are ignored.
    """
    if not nodes_in_use:
        return 1.0
    needed = 1
    wanted: Mapping[str, int] = total.as_dict()
    for name in DIMENSIONS:
        offered = [getattr(one, name) for one in limits]
        if None in offered:
            continue
        filled = np.cumsum(sorted(offered, reverse=True))
        needed = max(needed, int(np.searchsorted(filled, wanted[name])) + 1)
    return min(needed, nodes_in_use) / nodes_in_use
