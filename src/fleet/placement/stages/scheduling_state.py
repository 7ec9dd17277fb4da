"""scheduling_state: respect what an operator intends, where a move comes from and where a drain may go.

Why: a cordoned node takes nothing new, a draining one even less; a migration never chooses its own source; a drain
that names destinations wants no others. An empty list of destinations means nowhere, none at all means anywhere. A
resize may grow an instance on the cordoned node that it is on, for it brings nothing new there.
"""

from __future__ import annotations

import numpy as np

from fleet.placement.ask import Ask
from fleet.placement.columns import CORDONED, ENABLED, SCHEDULINGS, UNKNOWN, Mask
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

MIGRATION_SOURCE = Reason("migration_source", "the instance is moving away from this node")
NOT_A_DESTINATION = Reason("not_a_destination", "the drain names destinations, and this node is not among them")
CORDONED_NODE = Reason("cordoned", "an operator cordoned the node")
DRAINING_NODE = Reason("draining", "the node is being drained")


def drops(ask: Ask, frame: Frame) -> Drops:
    """Drop the source of a move, then what is no destination, then cordoned and draining nodes."""
    found: list[tuple[Reason, Mask]] = []
    if ask.source >= 0:
        source = np.zeros(len(frame), dtype=np.bool_)
        source[ask.source] = True
        found.append((MIGRATION_SOURCE, source))
    if ask.destinations is not None:
        found.append((NOT_A_DESTINATION, ~ask.destinations))
    intent = frame.counter("scheduling")
    cordoned: Mask = intent == CORDONED
    if ask.resize_home >= 0:
        cordoned[ask.resize_home] = False
    return (*found, (CORDONED_NODE, cordoned), (DRAINING_NODE, (intent != ENABLED) & (intent != CORDONED)))


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return the operator's intent for one node."""
    del ask
    intent = int(frame.counter("scheduling")[at])
    return {"scheduling": None if intent == UNKNOWN else SCHEDULINGS[intent]}


_MOVE = {"reason": "migrate", "instance": "i1"}
_PLACED = ({"uuid": "i1", "node": "n1", "cpus": 1, "memory_mb": 1024, "disk_gb": 10},)

STAGE = Filter(
    order=3,
    reasons=(MIGRATION_SOURCE, NOT_A_DESTINATION, CORDONED_NODE, DRAINING_NODE),
    drops=drops,
    figures=figures,
    refusal="no_schedulable_nodes",
    examples=(
        Example("an enabled node is kept"),
        Example("a cordoned node takes nothing new", CORDONED_NODE, node={"scheduling": "cordoned"}),
        Example("a draining node takes nothing", DRAINING_NODE, node={"scheduling": "draining"}),
        Example("a move never goes where it comes from", MIGRATION_SOURCE, request=_MOVE, instances=_PLACED),
        Example("a named destination is kept", request={"destinations": ["n1"]}),
        Example("an empty list of destinations means nowhere", NOT_A_DESTINATION, request={"destinations": []}),
        Example(
            "a resize may grow on its own cordoned node",
            request={"reason": "resize", "instance": "i1"},
            instances=_PLACED,
            node={"scheduling": "cordoned"},
        ),
        Example(
            "but not on its own draining node",
            DRAINING_NODE,
            request={"reason": "resize", "instance": "i1"},
            instances=_PLACED,
            node={"scheduling": "draining"},
        ),
    ),
)
