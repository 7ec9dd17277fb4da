"""backend: a request for GPUs needs a hypervisor that can hand them over.

Why: GPUs are passed through by `qemu`, `libvirt` and `simulated` nodes, never by `firecracker`. Registration refuses
GPUs on such a node already, and on one that declares no backend; this catches a record that is stale or was edited.
Without GPUs every backend will do.
"""

from __future__ import annotations

import numpy as np

from fleet.model.gpu_report import BACKENDS_WITH_GPUS
from fleet.placement.ask import Ask
from fleet.placement.columns import Mask
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

NO_GPU_BACKEND = Reason("backend_without_gpus", "the node's hypervisor cannot hand over GPUs")


def serving(frame: Frame) -> Mask:
    """Return which nodes have a backend that can hand over GPUs."""
    coded = frame.roster.coded("backend")
    able = np.zeros(len(coded.values) + 1, dtype=np.bool_)
    able[[code for word, code in coded.values.items() if word in BACKENDS_WITH_GPUS]] = True
    found: Mask = able[coded.codes]
    return found


def drops(ask: Ask, frame: Frame) -> Drops | None:
    """Drop nodes that cannot hand over GPUs, when any are asked for."""
    return ((NO_GPU_BACKEND, ~serving(frame)),) if ask.request.gpus else None


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return the backend of one node."""
    del ask
    return {"backend": frame.roster.traits[at].backend, "backends_with_gpus": list(BACKENDS_WITH_GPUS)}


_GPU = {"gpus": 1}

STAGE = Filter(
    order=8,
    reasons=(NO_GPU_BACKEND,),
    drops=drops,
    figures=figures,
    spares_resize_home=True,
    examples=(
        Example("without GPUs every backend will do", node={"backend": "firecracker"}),
        Example("firecracker hands over no GPU", NO_GPU_BACKEND, request=_GPU, node={"backend": "firecracker"}),
        Example("nor does a hypervisor that nobody declared", NO_GPU_BACKEND, request=_GPU, node={"backend": ""}),
        Example("qemu does", request=_GPU, node={"backend": "qemu", "gpu_count": 1}),
        Example("libvirt does", request=_GPU, node={"backend": "libvirt", "gpu_count": 1}),
    ),
)
