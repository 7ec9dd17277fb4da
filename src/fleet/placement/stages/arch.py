"""arch: keep the nodes whose processors run the request's architecture.

Why: an image boots on one architecture only. The kernel's spellings are accepted and normalised (`x86_64` is `amd64`,
`aarch64` is `arm64`); a node that declares none counts as `amd64`, as all were before the field existed. A request
without an architecture turns the stage off.
"""

from __future__ import annotations

import numpy as np

from fleet.model.arch import effective_arch
from fleet.placement.ask import Ask
from fleet.placement.columns import Mask
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

OTHER_ARCH = Reason("other_arch", "the node has another processor architecture")


def drops(ask: Ask, frame: Frame) -> Drops | None:
    """Drop nodes of other architectures."""
    wanted = ask.request.arch
    if not wanted:
        return None
    coded = frame.roster.coded("arch")
    same = np.zeros(len(coded.values) + 1, dtype=np.bool_)
    for word, code in coded.values.items():
        same[code] = effective_arch(word) == effective_arch(wanted)
    matches: Mask = same[coded.codes]
    return ((OTHER_ARCH, ~matches),)


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return the architecture of one node and the one that is needed."""
    return {"arch": effective_arch(frame.roster.traits[at].arch), "required_arch": ask.request.arch}


STAGE = Filter(
    order=7,
    reasons=(OTHER_ARCH,),
    drops=drops,
    figures=figures,
    spares_resize_home=True,
    examples=(
        Example("without an architecture every node is considered", node={"arch": "arm64"}),
        Example("a node that declares none is amd64", request={"arch": "amd64"}),
        Example("so it is not arm64", OTHER_ARCH, request={"arch": "arm64"}),
        Example("the kernel's spelling means the same", request={"arch": "aarch64"}, node={"arch": "arm64"}),
        Example("amd64 does not run on arm64", OTHER_ARCH, request={"arch": "x86_64"}, node={"arch": "arm64"}),
    ),
)
