"""node_pin: keep only the node that the request names.

Why: an operator or tenant who knows a node by name may insist on it. A pin narrows, it never overrides: the node still
has to pass every other stage, and it is not a reservation. A name that no node has is answered before any stage.
"""

from __future__ import annotations

import numpy as np

from fleet.placement.ask import Ask
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

NOT_THE_PINNED = Reason("not_the_pinned_node", "the request names another node")


def drops(ask: Ask, frame: Frame) -> Drops | None:
    """Drop every node but the pinned one."""
    if not ask.is_pinned:
        return None
    others = np.ones(len(frame), dtype=np.bool_)
    if ask.pin >= 0:
        others[ask.pin] = False
    return ((NOT_THE_PINNED, others),)


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return the name that was asked for."""
    del frame, at
    return {"pinned_node": ask.request.placement.node}


STAGE = Filter(
    order=1,
    reasons=(NOT_THE_PINNED,),
    drops=drops,
    figures=figures,
    refusal="pin_ineligible",
    examples=(
        Example("without a pin every node is considered"),
        Example("the pinned node is kept", request={"placement": {"node": "n1"}}),
        Example("every other is dropped", NOT_THE_PINNED, request={"placement": {"node": "n2"}}),
    ),
)
