"""How many more of a shape fit: on each node, in all, and what binds. The same arithmetic as placement and admission.

The count is of this moment: each instance that is placed is charged and pending until its node's next sample. What a
namespace may be charged (its claim under hard enforcement, else the cluster's unclaimed side) bounds the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fleet.ledger import promised
from fleet.ledger.promised import PayerRoom
from fleet.model.request import InstanceRequest, PlacementRequest
from fleet.model.resources import Amounts
from fleet.placement.frame import Frame
from fleet.placement.room import ShapeCount, count_shape
from fleet.services.context import Context

CLAIM = "claim"
CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Bound:
    """What the payer bears: how many more, and the dimension that ends it. `fits` None: it bounds nothing."""

    payer: str
    fits: int | None
    binds: str | None

    def as_dict(self) -> dict[str, Any]:
        """Return the public form."""
        return {"payer": self.payer, "fits": self.fits, "binds": self.binds}


@dataclass(frozen=True, slots=True)
class Capacity:
    """The answer. Nodes are told in pages: those with the most room first, then by name."""

    frame: Frame
    found: ShapeCount
    bound: Bound

    @property
    def fits(self) -> int:
        """How many more fit in all: on the nodes, and within what the payer bears."""
        total = self.found.total
        return total if self.bound.fits is None else min(total, self.bound.fits)

    @property
    def binds(self) -> str | None:
        """What ends it: the payer, else the dimension (or the stage) that bounds most nodes; None: no nodes."""
        if self.bound.fits is not None and self.bound.fits < self.found.total:
            return f"{self.bound.payer} {self.bound.binds}"
        bounded = self.found.bounded_by()
        with_room = [why.name for why in bounded if not why.reason]
        return next(iter([*with_room, *(why.name for why in bounded)]), None)

    def summary(self) -> dict[str, Any]:
        """Return the figures of the fleet."""
        bounded = self.found.bounded_by()
        return {
            "fits": self.fits,
            "binds": self.binds,
            "on_nodes": self.found.total,
            "nodes": len(self.frame),
            "nodes_with_room": int(np.count_nonzero(self.found.counts)),
            "bounded": [{"binds": why.name, "reason": why.reason or None, "nodes": n} for why, n in bounded.items()],
            "charged_to": self.bound.as_dict(),
        }

    def nodes(self, after: int, limit: int) -> Sequence[dict[str, Any]]:
        """Return so many nodes from a place on, most room first."""
        order = np.lexsort((self.frame.roster.name_rank, -self.found.counts))[after : after + limit]
        return [self._node(int(at)) for at in order]

    def _node(self, at: int) -> dict[str, Any]:
        why = self.found.why_of(at)
        fits = int(self.found.counts[at])
        return {"node": self.frame.roster.names[at], "fits": fits, "binds": why.name, "reason": why.reason or None}


def capacity(ctx: Context, namespace: str, shape: InstanceRequest) -> Capacity:
    """Return how many more instances of a shape fit now, for a namespace.

    Raises:
        DatabaseUnavailable: the ledger cannot be read.
    """
    config = ctx.configuration()
    frame = ctx.snapshots.peek().frame
    asked = PlacementRequest.of(shape, namespace)
    room = promised.room_of(ctx.database, namespace, claim_hard=config.claim_enforcement == "hard")
    return Capacity(frame, count_shape(asked, frame), bound_of(room, asked.amounts(config.instance_overhead_mb)))


def bound_of(room: PayerRoom, amounts: Amounts) -> Bound:
    """Return how often the amounts fit into what a payer has left.

    Where it has less than nothing left, not even a create fits that asks for nothing there: the guard compares it too.
    """
    payer = CLUSTER if room.claim is None else CLAIM
    asked = {name: getattr(amounts, name) for name in room.side.limit}
    often = [
        (max(0, left) // asked[name] if asked[name] else 0, name)
        for name, left in room.side.left.items()
        if left is not None and (asked[name] or left < 0)
    ]
    if not often:
        return Bound(payer, None, None)
    fits = min(count for count, _ in often)
    return Bound(payer, fits, next(name for count, name in often if count == fits))
