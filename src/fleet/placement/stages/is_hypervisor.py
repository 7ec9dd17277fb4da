"""is_hypervisor: keep nodes that say they run instances.

Why: a fleet also has nodes that only serve its network or its database; they publish samples, too.
"""

from __future__ import annotations

from fleet.placement.ask import Ask
from fleet.placement.columns import UNKNOWN
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

UNKNOWN_FIGURE = Reason("unknown_is_hypervisor", "the sample does not say whether the node is a hypervisor")
NOT_A_HYPERVISOR = Reason("not_a_hypervisor", "the node runs no instances")


def drops(ask: Ask, frame: Frame) -> Drops:
    """Drop nodes that do not say so, then those that say no."""
    del ask
    says = frame.sample.column("is_hypervisor")
    return (UNKNOWN_FIGURE, says == UNKNOWN), (NOT_A_HYPERVISOR, says == 0)


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return what one node says."""
    del ask
    says = int(frame.sample.column("is_hypervisor")[at])
    return {"is_hypervisor": None if says == UNKNOWN else bool(says)}


STAGE = Filter(
    order=4,
    reasons=(UNKNOWN_FIGURE, NOT_A_HYPERVISOR),
    drops=drops,
    figures=figures,
    refusal="no_schedulable_nodes",
    examples=(
        Example("a hypervisor is kept"),
        Example("a network node is dropped", NOT_A_HYPERVISOR, node={"is_hypervisor": False}),
        Example("silence is not a yes", UNKNOWN_FIGURE, node={"is_hypervisor": None}),
    ),
)
