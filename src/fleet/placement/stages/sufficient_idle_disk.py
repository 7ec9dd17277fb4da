"""sufficient_idle_disk: shed nodes whose disks are saturated.

Why: disks that are busy for more than 1200 ms of every second, over all spindles, would make the new instance and its
neighbours crawl. It fails a placement only when it leaves no node at all. A node that does not say stays, with a
remark.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from fleet.placement.ask import Ask
from fleet.placement.columns import Mask, shown_milli
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

BUSY_MS_PER_SECOND_MAX: Final = 1200
DISK_SATURATED = Reason("disk_saturated", "the node's disks are busy most of the time")


def drops(ask: Ask, frame: Frame) -> Drops:
    """Drop nodes whose disks are busier than the maximum."""
    del ask
    return ((DISK_SATURATED, frame.sample.column("disk_busy_ms_per_second") > BUSY_MS_PER_SECOND_MAX * 1000),)


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return how busy one node's disks are."""
    del ask
    busy = shown_milli(frame.sample.column("disk_busy_ms_per_second")[at])
    return {"busy_time_delta_per_second": busy, "busy_time_threshold": BUSY_MS_PER_SECOND_MAX}


def flags(ask: Ask, frame: Frame) -> Mapping[str, Mask]:
    """Mark nodes that do not say."""
    del ask
    return {"unknown_disk_busy_ms_per_second": frame.sample.unknown("disk_busy_ms_per_second")}


STAGE = Filter(
    order=20,
    reasons=(DISK_SATURATED,),
    drops=drops,
    figures=figures,
    flags=flags,
    capacity=True,
    sheds_load=True,
    spares_resize_home=True,
    examples=(
        Example("exactly 120 % is bearable", node={"disk_busy_ms_per_second": 1200.0}),
        Example("anything above is not", DISK_SATURATED, node={"disk_busy_ms_per_second": 1200.5}),
        Example("a node that does not say is kept", node={"disk_busy_ms_per_second": None}),
    ),
)
