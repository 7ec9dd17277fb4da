"""instance_slots: keep nodes with a slot left for one more instance.

Why: some hypervisors bear only so many instances, whatever their size. A node without a configured maximum has no
bound.
"""

from __future__ import annotations

from fleet.placement.ask import Ask
from fleet.placement.columns import UNKNOWN, UNLIMITED, shown
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

UNKNOWN_LIMIT = Reason("unknown_limit_instances", "the ledger has no row for the node")
UNKNOWN_USED = Reason("unknown_used_instances", "how many instances the node holds is unknown")
OVER_LIMIT = Reason("over_limit_instances", "all of the node's slots are taken")


def drops(ask: Ask, frame: Frame) -> Drops:
    """Drop nodes with an unknown figure, then those without a free slot."""
    limit = frame.limits[3]
    bound = limit != UNLIMITED
    return (
        (UNKNOWN_LIMIT, ask.needed("instances", limit == UNKNOWN)),
        (UNKNOWN_USED, ask.needed("instances", (frame.used[3] == UNKNOWN) & bound)),
        (OVER_LIMIT, ask.short_of("instances", frame.room_instances)),
    )


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return the slots of one node."""
    return {
        "used_instances": shown(frame.used[3][at]),
        "requested_instances": ask.added("instances", at),
        "limit_instances": shown(frame.limits[3][at]),
    }


STAGE = Filter(
    order=14,
    reasons=(UNKNOWN_LIMIT, UNKNOWN_USED, OVER_LIMIT),
    drops=drops,
    figures=figures,
    capacity=True,
    examples=(
        Example("the last slot is given", node={"limit_instances": 2, "used_instances": 1}),
        Example("two of two are taken", OVER_LIMIT, node={"limit_instances": 2, "used_instances": 2}),
        Example("no maximum, no bound", node={"limit_instances": None, "used_instances": 10_000}),
        Example("no ledger row, no known limit", UNKNOWN_LIMIT, node={"capacity": None}),
        Example(
            "an unknown number of instances is not zero",
            UNKNOWN_USED,
            node={"limit_instances": 2, "without": ["used_instances"]},
        ),
    ),
)
