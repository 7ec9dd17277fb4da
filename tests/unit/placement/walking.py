"""A walk followed to its end on a script: what each node answers, in letters, and how many tries there is time for."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field

import numpy as np

from fleet.model.admission import AdmissionOutcome, Admitted, AlreadyPlaced, Busy, Refused, RuleBroken, Stage
from fleet.model.resources import DimensionFigure
from fleet.placement.walk import Look, Nodes, Try, Walk


def _frozen(order: Sequence[int]) -> Nodes:
    """What a decision ranked is not the walk's to change."""
    nodes = np.array(order, dtype=np.intp)
    nodes.flags.writeable = False
    return nodes


def _over(dimension: str) -> tuple[DimensionFigure]:
    return (DimensionFigure(dimension, 1, 1, 1, exceeded=True, shortfall=1),)


ANSWERS: dict[str, AdmissionOutcome] = {
    "A": Admitted(0),
    "P": AlreadyPlaced(0),
    "R": Refused(0, Stage.NODE, _over("cpus")),
    "G": Refused(0, Stage.GPU),
    "D": Refused(0, Stage.NODE, _over("demand")),
    "I": Refused(0, Stage.NODE, ineligible="cordoned"),
    "N": Refused(0, Stage.CLAIM, _over("cpus")),
    "C": Refused(0, Stage.CLUSTER, _over("cpus")),
    "B": Busy(0),
    "X": RuleBroken(0, "placement_rules[0]"),
}


@dataclass
class Followed:
    """What a walk did. `answered` are the tries and their letters, an attempt each."""

    steps: list[Try | Look] = field(default_factory=list)
    answered: list[list[tuple[Try, str]]] = field(default_factory=lambda: [[]])
    drawn: list[tuple[int, tuple[object, ...]]] = field(default_factory=list)
    verdict: str = ""
    late: bool = False
    """Whether time was out at the end."""

    @property
    def words(self) -> str:
        """The steps: a node's number, `w` waived, `!` waits for the row."""
        return " ".join(
            "look" if isinstance(step, Look) else f"{step.index}{'w' * step.waived}{'!' * step.wait}"
            for step in self.steps
        )


def follow(
    answer: Callable[[Try], str],
    *ranked: tuple[Sequence[int], Collection[int]],
    in_time: int | None = None,
    draw: float = 0.0,
    only_here: bool = False,
) -> Followed:
    """Follow a walk. `ranked`: each attempt's order and the nodes over their demand target; the last one stays."""
    found, tries, decided = Followed(), 0, list(ranked)

    def is_late() -> bool:
        return in_time is not None and tries >= in_time

    def drawn(count: int, *event: object) -> list[float]:
        found.drawn.append((count, event))
        return [draw] * count

    def rank() -> None:
        order, over = decided.pop(0) if len(decided) > 1 else decided[0]
        first, left_out = ([node for node in order if (node in over) is wanted] for wanted in (False, True))
        walk.rank(_frozen(first), _frozen(left_out))

    walk = Walk(late=is_late, draw=drawn, only_here=only_here)
    rank()
    for step in walk.steps():
        found.steps.append(step)
        assert len(found.steps) < 10_000, "it does not end"
        if isinstance(step, Look):
            found.answered.append([])
            rank()
            continue
        letter = answer(step)
        tries += 1
        found.answered[-1].append((step, letter))
        walk.tried(step.index, ANSWERS[letter])
        if letter in "AP":
            found.verdict = "placed"
    ended, full = walk.ended_by is not None, walk.proven
    found.verdict = found.verdict or ("ended" if ended else "full" if full else "nobody in time")
    found.late = is_late()
    return found
