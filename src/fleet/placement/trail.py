"""The trail of a decision: which mask each stage laid over the nodes, and how to read reasons from it afterwards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fleet.model.decision import Decision, StageResult
from fleet.model.resources import CLUSTER_DIMENSIONS
from fleet.placement import explanation
from fleet.placement.ask import Ask
from fleet.placement.columns import Mask
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Filter, NamedStage, Ordering, Reason, all_stages


@dataclass(slots=True)
class Step:
    """One stage's part: who came to it, for which reasons it drops, who went on.

    `judged` are the nodes it answers for: those that came, or all of them in an explanation.
    """

    stage: NamedStage
    before: Mask
    drops: Drops
    after: Mask
    judged: Mask
    overridden: bool = False

    def split(self, among: Mask) -> list[tuple[Reason, Mask]]:
        """Return for each reason the nodes of `among` that it drops; a node counts for its first reason only."""
        if self.overridden:
            return []
        left, found = among, []
        for reason, mask in self.drops:
            hit = left & mask
            if np.count_nonzero(hit):
                left = left & ~mask
                found.append((reason, hit))
        return found

    def reason_at(self, at: int) -> Reason:
        """Return why a dropped node was dropped."""
        return next(reason for reason, mask in self.drops if mask[at])

    def dropped(self) -> Mask:
        """Return the judged nodes that this stage drops."""
        total = np.zeros(len(self.judged), dtype=np.bool_)
        for _, mask in self.split(self.judged):
            total |= mask
        return total


class Told(Protocol):
    """What a refusal's cause adds to the counts: a sentence before them, and one after."""

    @property
    def sentence(self) -> str:
        """Who and what stands in the way."""
        ...

    @property
    def told(self) -> str:
        """What follows from it."""
        ...


class Trail:
    """The evidence of a decision. Everything is read from masks and one frozen frame, whenever it is asked."""

    def __init__(self, ask: Ask, frame: Frame, steps: Sequence[Step]) -> None:
        """Keep the question, the view and the steps; a strategy's answer, or a refusal's cause, is added to them."""
        self.ask = ask
        self.frame = frame
        self.steps = steps
        self.ordering: Ordering | None = None
        self.cause: Told | None = None

    @property
    def names(self) -> Sequence[str]:
        """The name of every node, by index."""
        return self.frame.roster.names

    def stages(self) -> tuple[StageResult, ...]:
        """Return what every stage did."""
        return tuple(self._result(step) for step in self.steps)

    def _result(self, step: Step) -> StageResult:
        def reason_of(at: int) -> Mapping[str, Any]:
            return {"reason": step.reason_at(at).code, **step.stage.stage.figures(self.ask, self.frame, at)}

        return StageResult(
            step.stage.name,
            np.flatnonzero(step.after),
            np.flatnonzero(step.dropped()),
            self.names,
            reason_of,
            overridden=step.overridden,
            flagged=self._flagged(step),
        )

    def _flagged(self, step: Step) -> Mapping[str, NDArray[np.intp]]:
        if not isinstance(step.stage.stage, Filter):
            return {}
        flags = step.stage.stage.flags(self.ask, self.frame)
        return {name: np.flatnonzero(mask & step.after) for name, mask in flags.items() if (mask & step.after).any()}

    def counts(self) -> Mapping[str, Mapping[str, int]]:
        """Return how many nodes each stage dropped for each reason, each node at its first failing stage."""
        return {
            stage: {reason: int(np.count_nonzero(mask)) for reason, mask in reasons.items()}
            for stage, reasons in self.masks().items()
        }

    def masks(self) -> Mapping[str, Mapping[str, NDArray[np.bool_]]]:
        """Return who was dropped where and why, as masks over the nodes."""
        return self._masks

    @cached_property
    def _masks(self) -> Mapping[str, Mapping[str, Mask]]:
        found: dict[str, dict[str, Mask]] = {}
        for step in self.steps:
            split = step.split(step.before)
            if split:
                found[step.stage.name] = {reason.code: mask for reason, mask in split}
        return found

    def ordered_by(self, at: int) -> Mapping[str, Any]:
        """Return the figures that a ranked node's place was computed from."""
        return {} if self.ordering is None else self.ordering.figures(at)

    def steps_by_name(self) -> Mapping[str, Step]:
        """Return the steps by the names of their stages."""
        return {step.stage.name: step for step in self.steps}

    def refused_on_capacity(self) -> Mask:
        """Return the nodes that came as far as the stages of capacity: only a lack of room can stand against them.

        Not those whose limit is 0 for want of a figure: how much they hold is unknown, it is not nothing.
        """
        asked = [step for step in self.steps if isinstance(step.stage.stage, Filter) and step.stage.stage.capacity]
        if not asked:
            return np.zeros(len(self.frame), dtype=np.bool_)
        offers_nothing = (self.frame.limits[: len(CLUSTER_DIMENSIONS)] == 0).any(axis=0)
        found = asked[0].before
        for step in asked:
            for reason, mask in step.split(step.before):
                if reason.code.startswith("unknown_"):
                    found = found & ~(mask & offers_nothing)
        return found

    def warnings(self) -> tuple[str, ...]:
        """Return what the stages want whoever asks to know, whatever the answer."""
        filters = [item.stage for item in all_stages() if isinstance(item.stage, Filter)]
        return tuple(sentence for stage in filters for sentence in stage.warnings(self.ask, self.frame))

    def overridden(self) -> tuple[str, ...]:
        """Return the stages that had a wish and were not followed."""
        return tuple(step.stage.name for step in self.steps if step.overridden)

    def summary(self, decision: Decision) -> str:
        """Return the decision in one sentence."""
        if decision.refused:
            told = ("", "") if self.cause is None else (self.cause.sentence, self.cause.told)
            return explanation.refusal_summary(decision, *told)
        note = "" if self.ordering is None else self.ordering.note(self._first_place(decision))
        return explanation.summary(decision, self.ask, self.frame, note)

    def _first_place(self, decision: Decision) -> int:
        """Return where the strategy put the node that the decision puts first (a resize prefers its own)."""
        assert self.ordering is not None
        return int(np.argmax(self.ordering.ranked == decision.ranked_indices[0]))

    def remedy(self, decision: Decision) -> str:
        """Return what would help, in one sentence."""
        return explanation.remedy(decision, self.ask, self.frame, self.refused_on_capacity)
