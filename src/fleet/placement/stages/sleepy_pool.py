"""sleepy_pool: with dedicated sleepy nodes, sleepy instances and regular ones have pools of their own.

Why: sleepy instances are packed, because most of them sleep; a regular instance beside them would pay for a morning on
which they all wake. `DEDICATED_SLEEPY_NODES` turns the pools on; without it every node takes both kinds. An instance
is sleepy when it says after how many idle seconds it may sleep.
"""

from __future__ import annotations

from fleet.placement.ask import Ask
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

NOT_A_SLEEPY_NODE = Reason("not_a_sleepy_node", "sleepy instances have nodes of their own, and this is none")
A_SLEEPY_NODE = Reason("a_sleepy_node", "the node is kept for sleepy instances")


def drops(ask: Ask, frame: Frame) -> Drops | None:
    """Drop the nodes of the other pool."""
    if not frame.config.dedicated_sleepy_nodes:
        return None
    if ask.is_sleepy:
        return ((NOT_A_SLEEPY_NODE, ~frame.roster.sleepy_pool),)
    return ((A_SLEEPY_NODE, frame.roster.sleepy_pool),)


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return the pool of one node and the kind of the instance."""
    return {"sleepy_pool": bool(frame.roster.sleepy_pool[at]), "sleepy": ask.is_sleepy}


_POOLS = {"DEDICATED_SLEEPY_NODES": True}
_SLEEPY = {"sleep_after_idle_seconds": 600}

STAGE = Filter(
    order=5,
    reasons=(NOT_A_SLEEPY_NODE, A_SLEEPY_NODE),
    drops=drops,
    figures=figures,
    spares_resize_home=True,
    examples=(
        Example("without pools a sleepy instance may go anywhere", request=_SLEEPY),
        Example("without pools a sleepy node takes regular instances", node={"sleepy_pool": True}),
        Example("with pools a sleepy instance needs a sleepy node", NOT_A_SLEEPY_NODE, request=_SLEEPY, config=_POOLS),
        Example("and finds one", request=_SLEEPY, config=_POOLS, node={"sleepy_pool": True}),
        Example("a regular one is kept out of it", A_SLEEPY_NODE, config=_POOLS, node={"sleepy_pool": True}),
    ),
)
