"""affinity_constraints: keep the nodes whose neighbours satisfy every `require_*` tag.

Why: a hard constraint is admission, not ranking. A node where no instance of the namespace carries a required tag, or
where one carries a forbidden tag, cannot host this instance at all, and no amount of added capacity would change that:
the answer is `affinity_unsatisfiable`, never "full". Without hard constraints the stage is skipped.
"""

from __future__ import annotations

import numpy as np

from fleet.model.affinity import TagMatch
from fleet.placement.ask import Ask
from fleet.placement.columns import Mask
from fleet.placement.frame import Frame
from fleet.placement.rules.ground import FrameGround
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

REQUIRED_MISSING = Reason("require_with_tag", "no neighbour there carries a tag that is required")
FORBIDDEN_PRESENT = Reason("require_without_tag", "a neighbour there carries a tag that must not be there")


def drops(ask: Ask, frame: Frame) -> Drops | None:
    """Drop nodes without a required tag, then those with a forbidden one."""
    asked = ask.request.affinity_spec
    if asked is None or not (asked.require_with or asked.require_without):
        return None
    missing, present = np.zeros(len(frame), dtype=np.bool_), np.zeros(len(frame), dtype=np.bool_)
    for match in asked.require_with:
        missing |= ~carried(ask, frame, match)
    for match in asked.require_without:
        present |= carried(ask, frame, match)
    return (REQUIRED_MISSING, missing), (FORBIDDEN_PRESENT, present)


def carried(ask: Ask, frame: Frame, match: TagMatch) -> Mask:
    """Return the nodes where some neighbour carries a tag."""

    def found() -> Mask:
        seen = FrameGround(frame, ask.namespace, ask.request.instance)
        return seen.mask(seen.places(seen.matching(match)))

    return ask.once(f"carried {match}", found)


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return the tags that one node fails on."""
    asked = ask.request.affinity_spec
    if asked is None:
        return {}
    missing = {str(match): "missing" for match in asked.require_with if not carried(ask, frame, match)[at]}
    present = {str(match): "present" for match in asked.require_without if carried(ask, frame, match)[at]}
    return {name: tags for name, tags in (("require_with_tag", missing), ("require_without_tag", present)) if tags}


_WITH = {"affinity": {"require_with_tag": ["web"]}}
_WITHOUT = {"affinity": {"require_without_tag": ["web"]}}
_WEB = {"uuid": "i1", "node": "n1", "tags": {"web": ""}, "cpus": 1, "memory_mb": 1024, "disk_gb": 10}

STAGE = Filter(
    order=16,
    reasons=(REQUIRED_MISSING, FORBIDDEN_PRESENT),
    drops=drops,
    figures=figures,
    spares_resize_home=True,
    refusal="affinity_unsatisfiable",
    examples=(
        Example("a required tag that a neighbour carries", request=_WITH, instances=(_WEB,)),
        Example("a required tag that nobody there carries", REQUIRED_MISSING, request=_WITH),
        Example("a forbidden tag that nobody there carries", request=_WITHOUT),
        Example("a forbidden tag that a neighbour carries", FORBIDDEN_PRESENT, request=_WITHOUT, instances=(_WEB,)),
        Example(
            "another namespace's instances are never seen",
            REQUIRED_MISSING,
            request=_WITH,
            instances=({**_WEB, "namespace": "other"},),
        ),
    ),
)
