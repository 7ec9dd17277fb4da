"""What would have helped where nodes were ranked and a guard said no nevertheless.

Promise: as for other refusals (`counterfactuals`), every remedy was decided again on the same view and seed before it
is told, and an amount is the largest that helps. The room of whoever pays, which no decision sees, is judged by the
guard's own figures. The same answer has the same remedies, so that they need not be stored.

Three answers come from a guard: whoever pays (a namespace's claim, the cluster's unclaimed side) has no room on any
node; the one node that will do does not (a fork's); or nobody admitted in time, which proves nothing about room.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fleet.model.admission import Stage
from fleet.model.request import PlacementRequest, Reason
from fleet.model.resources import CLUSTER_DIMENSIONS, Amounts, DimensionFigure
from fleet.placement import counterfactuals, what_if
from fleet.placement.counterfactuals import Remedy, node_remedy, then_fits
from fleet.placement.explanation import counted
from fleet.placement.frame import Frame
from fleet.placement.pipeline import decide_on
from fleet.placement.relaxations import By, change_of
from fleet.placement.wishes import LEAST, is_sized

RETRY_SECONDS: Final = 1
"""Whoever met only locks, or room that came free meanwhile, comes again so soon."""


@dataclass(frozen=True, slots=True)
class GuardAnswer:
    """What a guard said that no other node could change.

    `stage`: `CLAIM` or `CLUSTER`, and its `figures`; `unclaimed` are the cluster's, beside a claim's; `idle` is what
    claims hold back and do not use. `NODE`: the one node that will do, by name, refused. None: nobody admitted in time.
    """

    stage: Stage | None = None
    node: str = ""
    figures: tuple[DimensionFigure, ...] = ()
    unclaimed: tuple[DimensionFigure, ...] = ()
    idle: Mapping[str, int] = field(default_factory=dict)


def remedies(request: PlacementRequest, frame: Frame, seed: int, answer: GuardAnswer) -> tuple[Remedy, ...]:
    """Return what would have helped, the smallest change first.

    Raises:
        InvalidRequest: what `decide` raises it for.
    """
    if answer.stage is None:
        return _again(request, frame, seed)
    if answer.node:
        return _on_the_only_node(request, frame, seed, answer.node)
    return (*_less(request, frame, seed, answer), *_more_room(request, frame, seed, answer))


def _again(request: PlacementRequest, frame: Frame, seed: int) -> tuple[Remedy, ...]:
    """Time: nodes have room, as far as is committed."""
    decision = decide_on(request, frame, seed)
    if decision.refused:
        return ()
    first, count = frame.roster.names[int(decision.ranked_indices[0])], len(decision.ranked_indices)
    has = f"{first} has" if count == 1 else f"{count} nodes, {first} first, have"
    text = f"Try again in a second: {has} the room by what is committed now."
    return (Remedy(({"action": "retry", "seconds": RETRY_SECONDS},), text, first, count, By.TIME),)


def _on_the_only_node(request: PlacementRequest, frame: Frame, seed: int, node: str) -> tuple[Remedy, ...]:
    """Judge the node as the stages would, had they been asked: what helps there, and nothing elsewhere.

    What the request asks of other nodes and of neighbours is for later moves, as in the guard.
    """
    pinned = request.model_copy(
        update={
            "reason": Reason.CREATE,
            "instance": None,
            "placement": request.placement.model_copy(update={"node": node, "labels": {}}),
            "placement_rules": (),
            "affinity": None,
            "metadata": None,
            "region": "",
            "arch": "",
        }
    )
    decision = decide_on(pinned, frame, seed)
    if not decision.refused:
        return _again(pinned, frame, seed)
    found = counterfactuals.of_refusal(pinned, frame, seed, decision)
    return tuple(one for one in found if not any(change.get("field") == "placement.node" for change in one.change))


def _less(request: PlacementRequest, frame: Frame, seed: int, answer: GuardAnswer) -> tuple[Remedy, ...]:
    """Return what the caller may do: ask for so much less that whoever pays has room, in all dimensions at once.

    What does not grow at all needs no room, wherever the payer stands. A create is compared in every dimension: where
    the payer stands above its limit already, asking for nothing there does not help it.
    """
    if not is_sized(request):
        return ()
    is_new = request.reason is Reason.CREATE
    left = {
        figure.dimension: getattr(request, figure.dimension)
        - int(figure.shortfall if is_new else min(figure.shortfall, figure.requested))
        for figure in answer.figures
        if figure.exceeded
    }
    if not left or any(amount < LEAST[name] for name, amount in left.items()):
        return ()
    decision = decide_on(request.model_copy(update=left), frame, seed)
    if decision.refused:
        return ()
    change = tuple(change_of(name, getattr(request, name), amount) for name, amount in left.items())
    parts = (f"{counted(amount, name)} instead of {getattr(request, name)}" for name, amount in left.items())
    first, count = frame.roster.names[int(decision.ranked_indices[0])], len(decision.ranked_indices)
    return (Remedy(change, f"Ask for {' and '.join(parts)}: {then_fits(decision)}.", first, count, By.CALLER),)


def _more_room(request: PlacementRequest, frame: Frame, seed: int, answer: GuardAnswer) -> tuple[Remedy, ...]:
    """Return what others may do, or time: the nodes have room as they are, once whoever pays has it."""
    decision = decide_on(request, frame, seed)
    if decision.refused:
        return ()
    lacking = {figure.dimension: int(figure.shortfall) for figure in answer.figures if figure.exceeded}
    if not lacking:
        return _again(request, frame, seed)
    at = (frame.roster.names[int(decision.ranked_indices[0])], len(decision.ranked_indices))
    found: list[Remedy] = []
    if answer.stage is Stage.CLAIM and _has_room_for(answer.unclaimed, lacking):
        found.append(_grown_claim(answer.figures, at))
    if answer.stage is Stage.CLUSTER and all(answer.idle.get(name, 0) >= short for name, short in lacking.items()):
        found.append(_shrunk_claims(lacking, at))
    if all(figure.limit is None or figure.requested <= figure.limit for figure in answer.figures):
        found.append(_leaving(answer.stage, lacking, at))
    if answer.stage is Stage.CLUSTER:
        found += _new_node(request, frame, seed, lacking)
    return tuple(found)


def _has_room_for(unclaimed: Sequence[DimensionFigure], lacking: Mapping[str, int]) -> bool:
    """Whether the cluster's unclaimed side could be promised so much more: what a claim's growth is judged by."""
    return bool(unclaimed) and all(
        figure.limit is None or figure.used + lacking.get(figure.dimension, 0) <= figure.limit for figure in unclaimed
    )


def _grown_claim(figures: Sequence[DimensionFigure], at: tuple[str, int]) -> Remedy:
    grown = [(figure.dimension, int(figure.limit or 0), int(figure.shortfall)) for figure in figures if figure.exceeded]
    change = tuple(
        {"action": "grow-claim", "field": f"limit_{name}", "from": limit, "to": limit + short}
        for name, limit, short in grown
    )
    parts = (f"from {limit} to {counted(limit + short, name)}" for name, limit, short in grown)
    text = f"Grow the namespace's claim {' and '.join(parts)}: the cluster has that much unclaimed."
    return Remedy(change, text, at[0], at[1], By.OPERATOR)


def _shrunk_claims(lacking: Mapping[str, int], at: tuple[str, int]) -> Remedy:
    parts = " and ".join(counted(short, name) for name, short in lacking.items())
    change = ({"action": "shrink-claims", "frees": dict(lacking)},)
    text = f"Shrink or delete claims by {parts}: that much of what they reserve is not used."
    return Remedy(change, text, at[0], at[1], By.OPERATOR)


def _leaving(stage: Stage | None, lacking: Mapping[str, int], at: tuple[str, int]) -> Remedy:
    holders = "instances of the namespace" if stage is Stage.CLAIM else "instances of namespaces without a claim"
    parts = " and ".join(counted(short, name) for name, short in lacking.items())
    whose = "claim" if stage is Stage.CLAIM else "cluster"
    change = ({"action": "wait", "payer": whose, "frees": dict(lacking)},)
    return Remedy(change, f"Wait until {holders} that hold {parts} have gone.", at[0], at[1], By.TIME)


def _new_node(request: PlacementRequest, frame: Frame, seed: int, lacking: Mapping[str, int]) -> tuple[Remedy, ...]:
    """Return the node whose capacity, counted, makes the room: as much as lacks, and enough for the request."""
    asked = request.amounts(0)
    shape = Amounts(**{name: max(getattr(asked, name), lacking.get(name, 0)) for name in CLUSTER_DIMENSIONS})
    larger = request.model_copy(update={name: getattr(shape, name) for name in CLUSTER_DIMENSIONS})
    record = what_if.fresh_node(larger, frame)
    if not what_if.can_be_registered(record):
        return ()
    with_it = what_if.only(record, frame, request)
    decision = decide_on(request.model_copy(update=_unpinned(request)), with_it, seed)
    return () if decision.refused else (node_remedy(larger, record),)


def _unpinned(request: PlacementRequest) -> dict[str, Any]:
    """The new node's capacity helps wherever the instance then runs."""
    return {"placement": request.placement.model_copy(update={"node": None}), "destinations": None}
