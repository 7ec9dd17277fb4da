"""What a placement answers when nodes were ranked and the guards said no: its code, its sentence, its figures.

The notes of a walk hold what the guards said, so that whoever reads a stored decision comes to the same last word.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fleet.model.admission import Refused, Stage
from fleet.model.request import PlacementRequest, Reason
from fleet.model.resources import DimensionFigure
from fleet.placement.guarded import GuardAnswer
from fleet.placement.walk import DEADLINE_SECONDS, Walk

Note = Mapping[str, Any]
OWNERS = {Stage.CLAIM: "the namespace's claim", Stage.CLUSTER: "the cluster's unclaimed side"}


@dataclass(frozen=True, slots=True)
class Answer:
    """A `code` for programs, one sentence, and the figures beside them."""

    code: str
    detail: str
    extra: Mapping[str, Any] = field(default_factory=dict)


def said(walk: Walk, name: Callable[[int], str]) -> Answer:
    """Return the answer to a walk on which no node admitted; `name` names a node, given its id."""
    if walk.ended_by is not None:
        return _by_one(walk.ended_by, name(walk.ended_by.node_id))
    return _by_all(tuple(walk.refused.values())) if walk.proven else _nobody_in_time(walk)


def _by_one(refused: Refused, node: str) -> Answer:
    if refused.ineligible:
        return Answer("pin_ineligible", _not_eligible(node, refused), {"node": node, "ineligible": refused.ineligible})
    return by_owner(refused.failing_stage, refused.figures, OWNERS.get(refused.failing_stage, f"node {node}"))


def by_owner(stage: Stage, figures: Sequence[DimensionFigure], owner: str = "") -> Answer:
    """Return the answer when whoever has to have the room, by default the payer of a stage, has none."""
    code = "claim_exceeded" if stage is Stage.CLAIM else "out_of_capacity"
    said = "; ".join(_said(figure) for figure in figures if figure.exceeded)
    said = said or "the room was taken while this was decided; try again"
    extra = {"failing_stage": str(stage), "dimensions": _forms(figures)}
    return Answer(code, f"{owner or OWNERS[stage]} has no room: {said}", extra)


def _by_all(refusals: Sequence[Refused]) -> Answer:
    dimensions = _by_dimension(refusals)
    counted = ", ".join(f"{count} {name}" for name, count in dimensions.items())
    detail = f"all {len(refusals)} candidates refused at the capacity guard: {counted}"
    return Answer("out_of_capacity", detail, _counts(refusals, 0))


def _nobody_in_time(walk: Walk) -> Answer:
    detail = (
        f"{len(walk.busy)} candidates were locked by other placements, on {len(walk.broken)} others broke a rule "
        f"meanwhile, {walk.ineligible} take none any more and {len(walk.refused)} refused within {DEADLINE_SECONDS} s: "
        "that proves nothing about room; try again in a second"
    )
    return Answer("placement_busy", detail, _counts(tuple(walk.refused.values()), len(walk.busy)))


def note_of(refused: Refused) -> dict[str, Any]:
    """Return what a walk's note keeps of a refusal: the figures that say no, all of them of whoever pays."""
    paying = refused.failing_stage in OWNERS
    told = [figure for figure in refused.figures if figure.exceeded or paying]
    note: dict[str, Any] = {"failing_stage": str(refused.failing_stage), "dimensions": _forms(told)}
    if refused.unclaimed:
        note["unclaimed"] = _forms(refused.unclaimed)
    if refused.idle:
        # Whoever was refused may read this: of what others' claims hold back, no more than what was lacking is told.
        lacking = {figure.dimension: int(figure.shortfall) for figure in refused.figures if figure.exceeded}
        note["idle"] = {name: min(short, refused.idle.get(name, 0)) for name, short in lacking.items()}
    return note | ({"ineligible": refused.ineligible} if refused.ineligible else {})


def last_word(code: str, request: PlacementRequest, walk: Sequence[Note]) -> GuardAnswer:
    """Return what the guards' last word was, from the answer's code and the notes of its walk."""
    said = [note for note in walk if note.get("outcome") == "refused"]
    if code == "placement_busy" or not said:
        return GuardAnswer()
    last = said[-1]
    stage = Stage(last["failing_stage"])
    if stage in OWNERS:
        figures, unclaimed = _read(last["dimensions"]), _read(last.get("unclaimed", ()))
        return GuardAnswer(stage, figures=figures, unclaimed=unclaimed, idle=last.get("idle", {}))
    return GuardAnswer(stage, node=last["node"]) if request.reason is Reason.FORK else GuardAnswer()


def _read(forms: Sequence[Mapping[str, Any]]) -> tuple[DimensionFigure, ...]:
    return tuple(DimensionFigure.read(form) for form in forms)


def _forms(figures: Sequence[DimensionFigure]) -> list[dict[str, object]]:
    return [figure.as_dict() for figure in figures]


def _said(figure: DimensionFigure) -> str:
    return f"{figure.dimension} (limit {figure.limit}, used {figure.used}, requested {figure.requested})"


def _not_eligible(name: str, refused: Refused) -> str:
    figures = {"state": refused.state, "scheduling": refused.scheduling, "sample age": refused.sample_age_seconds}
    told = ", ".join(f"{name} {value}" for name, value in figures.items() if value not in ("", None))
    return (
        f"node {name} is not eligible, and no other will do: {refused.ineligible} ({told or 'nothing more is known'})"
    )


def _counts(refusals: Sequence[Refused], busy: int) -> dict[str, Any]:
    stages = {refusal.failing_stage for refusal in refusals} or {Stage.NODE}
    first = next(stage for stage in Stage if stage in stages)
    dimensions = _by_dimension(refusals)
    return {"failing_stage": str(first), "refused": len(refusals), "busy": busy, "dimensions": dimensions}


def _by_dimension(refusals: Sequence[Refused]) -> dict[str, int]:
    """Count the refusals by the dimensions that were exceeded; a refusal may count in several."""
    counts: dict[str, int] = {}
    for refused in refusals:
        over = [figure.dimension for figure in refused.figures if figure.exceeded] or ["taken meanwhile"]
        for name in over:
            counts[name] = counts.get(name, 0) + 1
    return counts
