"""Relaxations: each single thing that could be asked for less, or changed in the fleet, after a refusal.

A relaxation says which stages it answers to and which nodes fail them nevertheless (`still`), so that a refusal's own
masks tell, without another decision, where it could help; and it makes the changed case, on which a decision proves it.
None of them widens what is asked for, and none changes more than it says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fleet.model.request import PlacementRequest
from fleet.placement.ask import Ask
from fleet.placement.columns import Ints, Mask
from fleet.placement.frame import Frame
from fleet.placement.pipeline import walk_stages
from fleet.placement.stage import Filter, all_stages
from fleet.placement.trail import Step

NAMES_SHOWN_MAX: Final = 3
UNKNOWN_NAME: Final = "an unknown name"
"""The stage, so to say, of a destination that no node is called."""


class By(StrEnum):
    """Who makes a change: whoever asked, an operator of the fleet, or time alone."""

    CALLER = "caller"
    OPERATOR = "operator"
    TIME = "time"


class Kind(IntEnum):
    """Kinds of change in the order in which they are listed: the smallest first.

    A wish less changes least; then comes less of an amount; then what an operator does to one node, a setting of the
    cluster, waiting, and a new node.
    """

    LABEL = 1
    LABELS = 2
    REGION = 3
    ARCH = 4
    GPU_KIND = 5
    GPU_PROFILE = 6
    TAG = 7
    RULE = 8
    RULES = 9
    SLEEP = 10
    PIN = 11
    DESTINATIONS = 12
    AMOUNT = 13
    NO_GPUS = 14
    NAME = 15
    UNCORDON = 16
    UNDRAIN = 17
    SLOTS = 18
    SAMPLE = 19
    REPAIR = 20
    LABEL_A_NODE = 21
    SETTING = 22
    WAIT = 23
    REGISTER = 24

    @property
    def by(self) -> By:
        """Who can make such a change."""
        if self is Kind.WAIT:
            return By.TIME
        return By.OPERATOR if self >= Kind.NAME else By.CALLER


@dataclass(frozen=True, slots=True)
class Case:
    """What a decision is made on."""

    request: PlacementRequest
    frame: Frame


@dataclass(frozen=True, slots=True)
class Edit:
    """A changed case; what was changed, for programs and in words that begin a sentence."""

    case: Case
    change: tuple[Mapping[str, Any], ...]
    words: str


Editing = Callable[[Case, int, int], Edit]
"""Makes the change, given the case, the node that it is made for, and on how many others it would do as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation:
    """One change. `given_up` is, for each node, the share of what was asked that must go; None: no amount goes.

    `amount` names the field that is made as large as the node allows. `on_node`: it changes one node only.
    """

    kind: Kind
    stages: frozenset[str]
    still: Mask
    edit: Editing
    given_up: NDArray[np.float64] | None = None
    amount: str = ""
    on_node: bool = False


@dataclass(frozen=True, slots=True)
class Verdicts:
    """What every stage says of every node, for one refused case."""

    case: Case
    ask: Ask
    steps: Mapping[str, Step]
    fails: Mapping[str, Mask]
    failing: Ints = field(repr=False)

    @classmethod
    def of(cls, case: Case) -> Verdicts:
        """Let every stage judge every node."""
        request, frame = case.request, case.frame
        ask = Ask.of(request, frame)
        walk = walk_stages(all_stages(), ask, frame, explain=True)
        steps = {step.stage.name: step for step in walk.steps if isinstance(step.stage.stage, Filter)}
        fails = {name: union(len(frame), (mask for _, mask in step.drops)) for name, step in steps.items()}
        for name, step in steps.items():
            stage = step.stage.stage
            # What is only a wish refuses nobody, whether or not the walk came far enough to say so.
            if step.overridden or (isinstance(stage, Filter) and stage.may_yield(ask, frame)):
                fails[name] = np.zeros(len(frame), dtype=np.bool_)
        if ask.unknown_destinations:
            fails[UNKNOWN_NAME] = np.ones(len(frame), dtype=np.bool_)
        failing = sum((mask.astype(np.int64) for mask in fails.values()), np.zeros(len(frame), dtype=np.int64))
        return cls(case, ask, steps, fails, failing)

    def but_for(self, stages: frozenset[str]) -> Mask:
        """Return the nodes that pass all other stages."""
        spared = [self.fails[name].astype(np.int64) for name in stages if name in self.fails]
        found: Mask = self.failing == sum(spared, np.zeros(len(self.failing), dtype=np.int64))
        return found

    def fit_after(self, relaxations: Sequence[Relaxation]) -> Mask:
        """Return the nodes that would pass every stage with these changes, whose stages are not the same."""
        fit = self.but_for(frozenset().union(*(one.stages for one in relaxations)))
        for one in relaxations:
            fit = fit & ~one.still
        return fit

    def dropped_for(self, stage: str, *, but: Sequence[str] = (), only: Sequence[str] = ()) -> Mask:
        """Return the nodes that a stage drops for some of its reasons: all but some, or only some."""
        step = self.steps.get(stage)
        drops = () if step is None else step.drops
        chosen = (mask for reason, mask in drops if reason.code not in but and (not only or reason.code in only))
        return union(len(self.failing), chosen)

    def unknown(self, stages: frozenset[str]) -> Mask:
        """Return the nodes of which stages do not know a figure: no change of the request helps there."""
        drops = [drop for name in stages if name in self.steps for drop in self.steps[name].drops]
        return union(len(self.failing), (mask for reason, mask in drops if reason.code.startswith("unknown_")))

    def still_failing(self, request: PlacementRequest, stages: frozenset[str]) -> Mask:
        """Return the nodes that these stages drop when the request is another one."""
        frame = self.case.frame
        ask = Ask.of(request, frame)
        found = np.zeros(len(frame), dtype=np.bool_)
        for named in all_stages():
            if named.name in stages and isinstance(named.stage, Filter):
                dropped = union(len(frame), (mask for _, mask in named.stage.drops(ask, frame) or ()))
                if named.stage.spares_resize_home and ask.resize_home >= 0:
                    dropped[ask.resize_home] = False
                found |= dropped
        return found


def union(count: int, masks: Iterator[Mask]) -> Mask:
    """Return where any of the masks holds."""
    found = np.zeros(count, dtype=np.bool_)
    for mask in masks:
        found |= mask
    return found


def change_of(name: str, before: object, after: object) -> dict[str, Any]:
    """Return a change of one field of the request."""
    return {"field": name, "from": before, "to": after}


def wish(
    verdicts: Verdicts,
    kind: Kind,
    stages: frozenset[str],
    values: Mapping[str, Any],
    said: tuple[Sequence[Mapping[str, Any]], str],
    still: Mask | None = None,
) -> Relaxation:
    """Return the relaxation that gives up a wish: fields of the request get other values."""

    def edit(case: Case, _at: int, _others: int) -> Edit:
        return Edit(Case(_updated(case.request, values), case.frame), tuple(said[0]), said[1])

    left = verdicts.still_failing(_updated(verdicts.case.request, values), stages) if still is None else still
    return Relaxation(kind=kind, stages=stages, still=left, edit=edit)


def _updated(request: PlacementRequest, values: Mapping[str, Any]) -> PlacementRequest:
    """Return the request with other values; a pin and a selector are given up without each other."""
    given = dict(values)
    inner = {name.removeprefix("placement."): given.pop(name) for name in list(given) if name.startswith("placement.")}
    if inner:
        given["placement"] = request.placement.model_copy(update=inner)
    return request.model_copy(update=given)


def or_others(others: int) -> str:
    """Return how many other nodes would do as well."""
    return f" (or one of {others} others)" if others > 1 else " (or one other)" if others else ""


def names_of(frame: Frame, mask: Mask) -> str:
    """Return the first nodes of a mask by name, and how many more there are."""
    found = sorted(frame.roster.names[at] for at in np.flatnonzero(mask))
    more = f" and {len(found) - NAMES_SHOWN_MAX} more" if len(found) > NAMES_SHOWN_MAX else ""
    return ", ".join(found[:NAMES_SHOWN_MAX]) + more
