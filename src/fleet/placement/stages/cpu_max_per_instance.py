"""cpu_max_per_instance: keep nodes whose hypervisor can give one instance that many vCPUs.

Why: libvirt has a maximum of vCPUs for one domain; beyond it the instance could never start, however idle the node is.
A resize that adds no vCPUs always fits the node that it starts from, whatever that node says.
"""

from __future__ import annotations

from fleet.placement.ask import Ask
from fleet.placement.columns import UNKNOWN, shown
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

UNKNOWN_FIGURE = Reason("unknown_cpu_max_per_instance", "the sample lacks the maximum of vCPUs for one instance")
OVER_MAXIMUM = Reason("over_cpu_max_per_instance", "the instance has more vCPUs than one instance may have there")


def drops(ask: Ask, frame: Frame) -> Drops:
    """Drop nodes without the figure, then those whose maximum is below the request."""
    maximum = frame.sample.column("cpu_max_per_instance")
    unknown, over = maximum == UNKNOWN, maximum < ask.amounts.cpus
    if ask.resize_home >= 0 and not ask.added("cpus", ask.resize_home):
        unknown[ask.resize_home] = over[ask.resize_home] = False
    return (UNKNOWN_FIGURE, unknown), (OVER_MAXIMUM, over)


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return the request and the maximum of one node."""
    maximum = shown(frame.sample.column("cpu_max_per_instance")[at])
    return {"requested_cpus": ask.amounts.cpus, "cpu_max_per_instance": maximum}


_LARGE = ({"uuid": "i1", "node": "n1", "cpus": 20, "memory_mb": 1024, "disk_gb": 10},)

STAGE = Filter(
    order=10,
    reasons=(UNKNOWN_FIGURE, OVER_MAXIMUM),
    drops=drops,
    figures=figures,
    examples=(
        Example("exactly the maximum is kept", request={"cpus": 16}, node={"cpu_max_per_instance": 16}),
        Example("one vCPU more is dropped", OVER_MAXIMUM, request={"cpus": 17}, node={"cpu_max_per_instance": 16}),
        Example("without the figure nothing is promised", UNKNOWN_FIGURE, node={"cpu_max_per_instance": None}),
        Example(
            "a resize that takes vCPUs away fits where the instance is",
            request={"reason": "resize", "instance": "i1", "cpus": 18},
            node={"cpu_max_per_instance": 16},
            instances=_LARGE,
        ),
        Example(
            "one that adds some does not",
            OVER_MAXIMUM,
            request={"reason": "resize", "instance": "i1", "cpus": 21},
            node={"cpu_max_per_instance": 16},
            instances=_LARGE,
        ),
    ),
)
