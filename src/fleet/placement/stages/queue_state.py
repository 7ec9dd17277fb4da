"""queue_state: shed nodes that do not keep up with their work.

Why: a node with more than 20 waiting jobs would start the instance late. It fails a placement only when it leaves no
node at all. A node that does not say how long its queue is stays, with a remark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fleet.placement.ask import Ask
from fleet.placement.columns import Mask, shown
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

WAITING_MAX: Final = 20
QUEUE_TOO_LONG = Reason("queue_too_long", "too many jobs are waiting on the node")


def drops(ask: Ask, frame: Frame) -> Drops:
    """Drop nodes with more than the maximum of waiting jobs."""
    del ask
    return ((QUEUE_TOO_LONG, frame.sample.column("queue_waiting") > WAITING_MAX),)


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return the length of one node's queue."""
    del ask
    waiting = shown(frame.sample.column("queue_waiting")[at])
    return {"node_queue_waiting": waiting, "unreasonable_threshold": WAITING_MAX}


def flags(ask: Ask, frame: Frame) -> Mapping[str, Mask]:
    """Mark nodes that do not say."""
    del ask
    return {"unknown_queue_waiting": frame.sample.unknown("queue_waiting")}


STAGE = Filter(
    order=19,
    reasons=(QUEUE_TOO_LONG,),
    drops=drops,
    figures=figures,
    flags=flags,
    capacity=True,
    sheds_load=True,
    spares_resize_home=True,
    examples=(
        Example("20 waiting jobs are bearable", node={"queue_waiting": 20}),
        Example("21 are not", QUEUE_TOO_LONG, node={"queue_waiting": 21}),
        Example("a node that does not say is kept", node={"queue_waiting": None}),
    ),
)
