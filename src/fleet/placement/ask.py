"""What a decision is asked, in the form that stages compare: amounts, who holds a charge already, where it may not go.

A re-placement is never charged for itself: on a node that holds its charge only the growth counts (a resize), or
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from fleet.model.errors import InvalidRequest
from fleet.model.gpu_inventory import GpuAsk
from fleet.model.request import PlacementRequest, Reason
from fleet.model.resources import Amounts
from fleet.placement.columns import Ints, Mask
from fleet.placement.frame import Frame

T = TypeVar("T")

MOVES: Final = frozenset({Reason.MIGRATE, Reason.EVACUATE})


@dataclass(frozen=True, slots=True)
class Ask:
    """A request against one frame.

    `growth` maps the index of each node that holds a charge of the instance to what would be added there. `source` is
    the index of the node that a move leaves, `resize_home` the one a resize starts from, `fork_home` the one that holds
    what is forked, `pin` the one that the request names; -1: none. `memo` keeps what one stage computed for this
    question and asks again when it explains itself.
    """

    request: PlacementRequest
    amounts: Amounts
    growth: Mapping[int, Amounts]
    source: int = -1
    resize_home: int = -1
    fork_home: int = -1
    destinations: Mask | None = None
    unknown_destinations: tuple[str, ...] = ()
    pin: int = -1
    memo: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    @property
    def is_pinned(self) -> bool:
        """Whether the request names its node, known or not."""
        return self.request.placement.node is not None

    @property
    def gpus(self) -> GpuAsk:
        """The GPUs asked for; a kind without a count asks for nothing."""
        return self.request.gpu_ask

    @property
    def is_fork(self) -> bool:
        """Whether it goes where what it is forked from is, whatever the stages would say."""
        return self.request.reason is Reason.FORK

    @property
    def is_sleepy(self) -> bool:
        """Whether the instance sleeps when it is idle."""
        return self.request.is_sleepy

    @property
    def namespace(self) -> str:
        """Whose instances the rules see; never another's."""
        return self.request.namespace or ""

    def once(self, name: str, compute: Callable[[], T]) -> T:
        """Return what `compute` returns; it is called once a question."""
        if name not in self.memo:
            self.memo[name] = compute()
        found: T = self.memo[name]
        return found

    @classmethod
    def of(cls, request: PlacementRequest, frame: Frame) -> Ask:
        """Return the ask of a request.

        Raises:
            InvalidRequest: a resize, a move or a fork names no instance, or one that the snapshot does not hold.
        """
        amounts = request.amounts(frame.config.instance_overhead_mb)
        held = _held(request, frame)
        resize, fork = request.reason is Reason.RESIZE, request.reason is Reason.FORK
        growth = {at: (amounts - before).floored() if resize else Amounts() for at, before in held.items()}
        if fork:
            # What is forked keeps its charge; the fork gets one of its own beside it.
            growth = {}
        home = _home(request, frame)
        allowed, strangers = _destinations(request, frame)
        return cls(
            request,
            amounts,
            growth,
            source=home if request.reason in MOVES else -1,
            resize_home=home if resize else -1,
            fork_home=home if fork else -1,
            destinations=allowed,
            unknown_destinations=strangers,
            pin=-1 if request.placement.node is None else frame.roster.index.get(request.placement.node, -1),
        )

    def added(self, dimension: str, at: int) -> int:
        """Return what would be added in a dimension to the node at an index."""
        amounts = self.growth.get(at, self.amounts)
        added: int = getattr(amounts, dimension)
        return added

    def added_each(self, dimension: str, at: NDArray[np.intp]) -> Ints:
        """Return what would be added in a dimension to each of the nodes at some indexes: all, or only the growth."""
        added = np.full(len(at), getattr(self.amounts, dimension), dtype=np.int64)
        for holder in self.growth:
            added[at == holder] = self.added(dimension, holder)
        return added

    def short_of(self, dimension: str, room: Ints) -> Mask:
        """Return where `room` is too small. Adding nothing to a charge that is there always fits."""
        short: Mask = room < getattr(self.amounts, dimension)
        for at, amounts in self.growth.items():
            more = getattr(amounts, dimension)
            short[at] = more > 0 and bool(room[at] < more)
        return short

    def needed(self, dimension: str, missing: Mask) -> Mask:
        """Return where a missing figure matters: not where nothing would be added to a charge that is there."""
        settled = [at for at, amounts in self.growth.items() if getattr(amounts, dimension) == 0]
        if not settled:
            return missing
        missing = missing.copy()
        missing[settled] = False
        return missing


def _held(request: PlacementRequest, frame: Frame) -> dict[int, Amounts]:
    """Return what the request's instance holds, by node index; the primary charge first."""
    instance = None if request.instance is None else frame.instances.get(request.instance)
    if instance is None:
        if request.reason is Reason.CREATE:
            return {}
        problem = "is needed to know where the instance is" if request.instance is None else "is not in the snapshot"
        message = f"{problem}; a request with reason {request.reason} starts from a placed instance"
        raise InvalidRequest(f"instance: {message}", errors=[{"field": "instance", "message": message}])
    index = frame.roster.index
    return {
        index[node]: Amounts(held.cpus, held.memory_mb, held.disk_gb, 1)
        for node, held in instance.held()
        if node in index
    }


def _home(request: PlacementRequest, frame: Frame) -> int:
    """Return the index of the node with the instance's primary charge, or -1."""
    instance = None if request.instance is None else frame.instances.get(request.instance)
    node = None if instance is None else instance.node
    return -1 if node is None else frame.roster.index.get(node, -1)


def _destinations(request: PlacementRequest, frame: Frame) -> tuple[Mask | None, tuple[str, ...]]:
    if request.destinations is None:
        return None, ()
    index = frame.roster.index
    allowed = np.zeros(len(frame), dtype=np.bool_)
    allowed[[index[name] for name in request.destinations if name in index]] = True
    return allowed, tuple(name for name in request.destinations if name not in index)
