"""What a replay has seen: answers, times, and its own sums of what is placed where, kept by many threads.

Promise: the sums are the driver's own, from the answers it got, so that the service's books can be held against them.
An instance counts on its node from the answer of its create to the answer of its delete, never longer than the service
holds its charge: where these sums exceed a limit, the node is oversold beyond doubt.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from fleet.cli.caller import Answer
from fleet.cli.openb import TraceTask
from fleet.model.resources import CLUSTER_DIMENSIONS, Amounts

PROBLEMS_KEPT: Final = 50
GPUS: Final = "gpus"
DIMENSIONS: Final = (*CLUSTER_DIMENSIONS, GPUS)
"""What a curve may have; GPUs only where the nodes have any."""


@dataclass(frozen=True, slots=True)
class PlacedTask:
    """Where a task went."""

    uuid: str
    node: str
    amounts: Amounts


@dataclass(frozen=True, slots=True, kw_only=True)
class UtilisationPoint:
    """One row of the curve: committed and total per dimension (None: unlimited), and the counts so far.

    `gpus` are among them where the nodes have any: the most held since the point before, by the driver's books.
    """

    trace_s: int
    elapsed_s: float
    used: Mapping[str, int]
    total: Mapping[str, int | None]
    placed: int
    refused: int
    departed: int


@dataclass(slots=True)
class Tally:
    """Counts of one run. Every method may be called from any thread."""

    placed: dict[int, PlacedTask] = field(default_factory=dict)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    reasons: Counter[tuple[str, str]] = field(default_factory=Counter)
    other_kinds: int = 0
    departed: int = 0
    create_s: list[float] = field(default_factory=list)
    repeats: int = 0
    problems: list[str] = field(default_factory=list)
    problem_count: int = 0
    on_node: dict[str, list[int]] = field(default_factory=dict)
    curve: list[UtilisationPoint] = field(default_factory=list)
    example_refusal: str = ""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def refused_count(self) -> int:
        """All refusals."""
        return sum(self.refused.values())

    def note_placed(self, index: int, task: TraceTask, answer: Answer) -> None:
        """A create was answered with a node."""
        amounts = Amounts(task.cpus, task.memory_mb, task.disk_gb, 1)
        with self._lock:
            self.placed[index] = PlacedTask(answer.body["uuid"], answer.body["node"], amounts)
            self._add(answer.body["node"], amounts, 1)
            self._note_time(answer)

    def note_refused(self, answer: Answer) -> None:
        """A create was answered with a reasoned "no"."""
        body: Mapping[str, Any] = answer.body
        stage = str(body.get("failing_stage") or body.get("stage") or "-")
        with self._lock:
            self.refused[(str(body.get("code", answer.status)), stage)] += 1
            for name, reasons in (body.get("counts") or {}).items():
                counted = reasons.items() if isinstance(reasons, Mapping) else [("-", reasons)]
                self.reasons.update({(str(name), str(reason)): int(count) for reason, count in counted})
            self.example_refusal = str(body.get("detail", ""))
            self._note_time(answer)

    def note_other_kind(self, answer: Answer) -> None:
        """A create was refused for its kind of GPU, and the task asks for its next kind: no refusal of the task yet."""
        with self._lock:
            self.other_kinds += 1
            self._note_time(answer)

    def note_departed(self, index: int) -> None:
        """A delete was answered."""
        with self._lock:
            gone = self.placed[index]
            self._add(gone.node, gone.amounts, -1)
            self.departed += 1

    def note_problem(self, sentence: str) -> None:
        """Something that is neither a placement nor a refusal."""
        with self._lock:
            self.problem_count += 1
            if len(self.problems) < PROBLEMS_KEPT:
                self.problems.append(sentence)

    def note_point(self, point: UtilisationPoint) -> None:
        """One more point of the curve."""
        with self._lock:
            self.curve.append(point)

    def note_repeats(self, repeats: int) -> None:
        """Answers that asked to come again."""
        with self._lock:
            self.repeats += repeats

    def usage(self, node: str) -> Sequence[int]:
        """CPUs, memory, disk and instances on a node, by the driver's own books."""
        with self._lock:
            return tuple(self.on_node.get(node, (0, 0, 0, 0)))

    def _add(self, node: str, amounts: Amounts, sign: int) -> None:
        held = self.on_node.setdefault(node, [0, 0, 0, 0])
        for place, amount in enumerate((amounts.cpus, amounts.memory_mb, amounts.disk_gb, 1)):
            held[place] += sign * amount

    def _note_time(self, answer: Answer) -> None:
        self.create_s.append(answer.seconds)
        self.repeats += answer.repeats


def percentile(values: Sequence[float], percent: int) -> float:
    """The nearest-rank percentile; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)]
