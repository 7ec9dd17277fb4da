"""gpu: keep the nodes with enough free GPUs of the kind that is asked for.

Why: a card is somebody's or it is not. One of four forms applies to a node, by what it reports: MIG slices by uuid, MIG
slices by count, cards by uuid, or, on a legacy node, a count of cards. Cards and slices match a kind as a part of
their model in any letter case (`a100` matches `NVIDIA A100-SXM4-40GB`); a legacy node's kind must be spelled exactly.
Cards in MIG mode are no whole cards, and a unit that the node no longer reports is missing, not free. Slices and whole
cards are counted apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.model.gpu import ambiguous_kind
from fleet.model.gpu_inventory import form_of
from fleet.placement.ask import Ask
from fleet.placement.columns import Ints
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

NO_GPUS = Reason("no_gpus", "the node has no GPUs")
TOO_FEW_GPUS = Reason("too_few_gpus", "too few GPUs of that kind are free on the node")


def free(ask: Ask, frame: Frame) -> Ints:
    """Return how many units of what is asked each node has free."""
    return ask.once("gpu", lambda: frame.gpus.free(ask.gpus))


def drops(ask: Ask, frame: Frame) -> Drops | None:
    """Drop nodes without GPUs, then those with too few free ones; a node that holds a charge needs no more."""
    wanted = ask.gpus.count
    if not wanted:
        return None
    none, short = ~frame.gpus.serving(), free(ask, frame) < wanted
    for at in ask.growth:
        none[at] = short[at] = False
    return (NO_GPUS, none), (TOO_FEW_GPUS, short)


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return what one node has free of what is asked, and by which form that was counted."""
    asked, inventory = ask.gpus, frame.gpus.inventory(at)
    return {
        "requested_gpus": asked.count,
        "gpu_kind": asked.kind,
        "gpu_profile": asked.profile,
        "free_gpus": int(free(ask, frame)[at]),
        "counted_by": str(form_of(inventory, asked)),
    }


def warnings(ask: Ask, frame: Frame) -> Sequence[str]:
    """Warn of a kind that is a part of several models' names: whoever asks may get a card that was not meant."""
    asked = ask.gpus
    if not asked.kind:
        return ()
    if not asked.count:
        return (f"gpu_kind {asked.kind!r} asks for nothing without gpus",)
    others = ambiguous_kind(asked.kind, sorted(frame.gpus.kinds()))
    return (f"gpu_kind {asked.kind!r} also matches {', '.join(others)}",) if others else ()


def _cards(*bound: str | None) -> list[dict[str, object]]:
    return [
        {"uuid": f"GPU-{at}", "model": "NVIDIA A100-SXM4-40GB", "mig_capable": True, "bound_to": one}
        for at, one in enumerate(bound)
    ]


_SLICE = {"uuid": "MIG-1", "profile": "1g.10gb", "kind": "a100", "parent_gpu_uuid": "GPU-0"}
_ASK_SLICE = {"gpus": 1, "gpu_kind": "a100", "gpu_profile": "1g.10gb"}

STAGE = Filter(
    order=15,
    reasons=(NO_GPUS, TOO_FEW_GPUS),
    drops=drops,
    figures=figures,
    warnings=warnings,
    capacity=True,
    examples=(
        Example("without GPUs asked for, none are needed"),
        Example("a node without GPUs", NO_GPUS, request={"gpus": 1}),
        Example("one card of two is free", request={"gpus": 1, "gpu_kind": "a100"}, node={"gpus": _cards("i9", None)}),
        Example(
            "but not two", TOO_FEW_GPUS, request={"gpus": 2, "gpu_kind": "a100"}, node={"gpus": _cards("i9", None)}
        ),
        Example("another kind", TOO_FEW_GPUS, request={"gpus": 1, "gpu_kind": "h100"}, node={"gpus": _cards(None)}),
        Example(
            "a legacy node's kind is spelled exactly",
            request={"gpus": 1, "gpu_kind": "a100"},
            node={"gpu_count": 2, "gpu_kind": "a100"},
        ),
        Example(
            "and not otherwise",
            TOO_FEW_GPUS,
            request={"gpus": 1, "gpu_kind": "A100"},
            node={"gpu_count": 2, "gpu_kind": "a100"},
        ),
        Example(
            "a free slice of the profile", request=_ASK_SLICE, node={"gpus": _cards(None), "mig_instances": [_SLICE]}
        ),
        Example(
            "a bound slice",
            TOO_FEW_GPUS,
            request=_ASK_SLICE,
            node={"gpus": _cards(None), "mig_instances": [{**_SLICE, "bound_to": "i9"}]},
        ),
        Example(
            "a card in MIG mode is no whole card",
            TOO_FEW_GPUS,
            request={"gpus": 1},
            node={"gpus": [{**_cards(None)[0], "mig_mode": True}]},
        ),
        Example(
            "a missing card is not free",
            TOO_FEW_GPUS,
            request={"gpus": 1},
            node={"gpus": [{**_cards(None)[0], "missing": True}]},
        ),
    ),
)
