"""labels: keep the nodes that carry every label of the request's selector.

Why: operators declare what probing cannot know (the kind of disk, the rack, the tier), and a workload may insist on
it. Every pair must match exactly; an empty selector matches every node.
"""

from __future__ import annotations

from fleet.placement.ask import Ask
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

LABELS_MISSING = Reason("labels_missing", "the node lacks a label of the selector, or has another value for it")


def drops(ask: Ask, frame: Frame) -> Drops | None:
    """Drop nodes that do not match the whole selector."""
    asked = ask.request.placement.labels
    return ((LABELS_MISSING, ~frame.roster.carrying(asked)),) if asked else None


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return the pairs that one node does not match, sorted."""
    labels, asked = frame.roster.traits[at].labels, ask.request.placement.labels
    missing = sorted(f"{key}={value}" for key, value in asked.items() if labels.get(key) != value)
    return {"unmatched": missing}


_SELECTOR = {"placement": {"labels": {"disk": "nvme", "tier": "build"}}}

STAGE = Filter(
    order=9,
    reasons=(LABELS_MISSING,),
    drops=drops,
    figures=figures,
    spares_resize_home=True,
    refusal="labels_unmatched",
    examples=(
        Example("an empty selector matches every node", node={"labels": {"disk": "hdd"}}),
        Example(
            "every pair matches", request=_SELECTOR, node={"labels": {"disk": "nvme", "tier": "build", "rack": "a"}}
        ),
        Example("one pair of two is not enough", LABELS_MISSING, request=_SELECTOR, node={"labels": {"disk": "nvme"}}),
        Example("a node without labels matches no selector", LABELS_MISSING, request=_SELECTOR),
    ),
)
