"""region: keep the nodes of the region that the request names.

Why: a region is a promise about where data is. It is compared exactly, letter case included; a node that declares no
region is in none. A request without a region is content with any.
"""

from __future__ import annotations

from fleet.placement.ask import Ask
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

OTHER_REGION = Reason("other_region", "the node is in another region, or in none")


def drops(ask: Ask, frame: Frame) -> Drops | None:
    """Drop nodes of other regions."""
    wanted = ask.request.region
    return ((OTHER_REGION, ~frame.roster.coded("region").equal(wanted)),) if wanted else None


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return the region of one node and the one that is needed."""
    return {"region": frame.roster.traits[at].region, "required_region": ask.request.region}


STAGE = Filter(
    order=6,
    reasons=(OTHER_REGION,),
    drops=drops,
    figures=figures,
    spares_resize_home=True,
    examples=(
        Example("without a region every node is considered", node={"region": "eu-west"}),
        Example("the same region is kept", request={"region": "eu-west"}, node={"region": "eu-west"}),
        Example("letter case counts", OTHER_REGION, request={"region": "eu-west"}, node={"region": "EU-West"}),
        Example("a node without a region is in none", OTHER_REGION, request={"region": "eu-west"}),
    ),
)
