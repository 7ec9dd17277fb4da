"""Read a recorded trace in the openb format: nodes, tasks, and the order of what happened.

Promises: a file is read whole or refused with file, line, column, what stands there and what would be accepted; amounts
are whole numbers; the same seed gives the same arrivals on every machine.

The mapping: CPUs are `ceil(cpu_milli / 1000)` of a task and `floor` of a node (never offer what is not there), memory 0
counts as 1 MiB, and since the trace has no disks a task asks for 10 GB and a node has 4,000 GB. Whole cards only are
asked for; what a share of a card counts as (`gpu_milli` below 1000) says whoever reads.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Final

from fleet.cli.outcome import Misused, reason
from fleet.model.gpu import parse_kind
from fleet.model.gpu_report import MODEL_CHARACTERS_MAX, UNITS_MAX

MILLI: Final = 1000
TASK_DISK_GB: Final = 10
NODE_DISK_GB: Final = 4000
AMOUNT_MAX: Final = 10**12
TASK_GPUS_MAX: Final = 10**6
PROBLEMS_SHOWN: Final = 10
FILL_OF: Final = ("cpus", "gpus")
SHARES: Final = ("none", "card")

NODE_COLUMNS: Final = ("sn", "cpu_milli", "memory_mib")
TASK_COLUMNS: Final = ("name", "cpu_milli", "memory_mib", "creation_time", "deletion_time")


class BadTrace(Exception):
    """A file is not a trace in this format; the message names every fault that was found (at most ten)."""


@dataclass(frozen=True, slots=True)
class TraceNode:
    """One machine of the trace, with the number and the model of its cards."""

    name: str
    cpus: int
    memory_mb: int
    disk_gb: int = NODE_DISK_GB
    gpus: int = 0
    gpu_model: str = ""


@dataclass(frozen=True, slots=True)
class TraceTask:
    """One task, with its times in seconds of the trace; no deletion time: it stays.

    `gpus` are whole cards, of one of `gpu_kinds` (empty: of any); `shares_card`: the trace says a part of one.
    """

    name: str
    cpus: int
    memory_mb: int
    created_s: Fraction
    deleted_s: Fraction | None
    disk_gb: int = TASK_DISK_GB
    gpus: int = 0
    gpu_kinds: tuple[str, ...] = ()
    shares_card: bool = False


class EventKind(IntEnum):
    """What happens. At the same second departures come first: room that is free is free."""

    DEPARTURE = 0
    ARRIVAL = 1


@dataclass(frozen=True, slots=True)
class TraceEvent:
    """One arrival or departure, `at_s` seconds into the trace; `index` counts the arrivals."""

    at_s: Fraction
    kind: EventKind
    index: int
    task: TraceTask


class _Table:
    """A CSV file, row by row, that remembers what was wrong with it."""

    def __init__(self, path: Path, columns: Sequence[str]) -> None:
        self.path = path
        self.problems: list[str] = []
        self._line = 1
        self._columns = columns

    def rows(self) -> Iterator[Mapping[str, str]]:
        try:
            with self.path.open(newline="", encoding="utf-8-sig") as handle:
                reader = csv.DictReader(handle)
                missing = [name for name in self._columns if name not in (reader.fieldnames or ())]
                if missing:
                    found = ", ".join(reader.fieldnames or ()) or "nothing"
                    raise BadTrace(f"{self.path}: line 1: columns {', '.join(missing)} are missing; it has {found}")
                for row in reader:
                    self._line = reader.line_num
                    yield {name: (value or "").strip() for name, value in row.items() if isinstance(name, str)}
        except (OSError, UnicodeDecodeError, csv.Error) as error:
            raise BadTrace(f"{self.path}: cannot be read as CSV: {reason(error)}") from error

    def problem(self, column: str, text: str, accepted: str) -> None:
        self.problems.append(
            f"{self.path}: line {self._line}: column {column}: {text[:40]!r} is refused; accepted: {accepted}"
        )

    def whole(
        self, row: Mapping[str, str], column: str, *, low: int = 0, high: int = AMOUNT_MAX, absent: int | None = None
    ) -> int:
        text = row.get(column, "")
        if not text and absent is not None:
            return absent
        if text.isascii() and text.isdigit() and len(text) <= len(str(high)) and low <= int(text) <= high:
            return int(text)
        self.problem(column, text, f"a whole number from {low} to {high}")
        return low

    def model(self, row: Mapping[str, str], column: str) -> str:
        text = row.get(column, "")
        if len(text) > MODEL_CHARACTERS_MAX or not text.isprintable():
            self.problem(column, text, f"at most {MODEL_CHARACTERS_MAX} printable characters")
        return text

    def kinds(self, row: Mapping[str, str], column: str) -> tuple[str, ...]:
        """`A|B`: each kind once, in the order in which they are tried."""
        found = []
        for text in row.get(column, "").split("|"):
            try:
                found.append(parse_kind(text))
            except ValueError as error:
                self.problem(column, text, str(error))
        return tuple(dict.fromkeys(kind for kind in found if kind))

    def moment(self, row: Mapping[str, str], column: str) -> Fraction | None:
        text = row.get(column, "")
        if not text:
            return None
        try:
            value = Fraction(text)
        except (ValueError, ZeroDivisionError):
            value = Fraction(-1)
        if not 0 <= value <= AMOUNT_MAX:
            self.problem(column, text, f"seconds from 0 to {AMOUNT_MAX}, or nothing")
            return None
        return value

    def name(self, row: Mapping[str, str], column: str, seen: set[str]) -> str:
        text = row.get(column, "")
        if not text or text in seen:
            self.problem(column, text, "a name that stands once")
        seen.add(text)
        return text

    def finish(self, found: int, what: str) -> None:
        if self.problems:
            shown = self.problems[:PROBLEMS_SHOWN]
            more = len(self.problems) - len(shown)
            raise BadTrace("\n".join([*shown, *([f"and {more} more"] if more else [])]))
        if not found:
            raise BadTrace(f"{self.path}: holds no {what}")


def read_nodes(path: Path) -> list[TraceNode]:
    """The machines of a trace."""
    table, seen = _Table(path, NODE_COLUMNS), set[str]()
    nodes = [
        TraceNode(
            name=table.name(row, "sn", seen),
            cpus=table.whole(row, "cpu_milli", low=MILLI) // MILLI,
            memory_mb=table.whole(row, "memory_mib", low=1),
            gpus=table.whole(row, "gpu", high=UNITS_MAX, absent=0),
            gpu_model=table.model(row, "model"),
        )
        for row in table.rows()
    ]
    table.finish(len(nodes), "nodes")
    return nodes


def read_tasks(path: Path, *, card_for_a_share: bool = False) -> list[TraceTask]:
    """The tasks of a trace, in the order of the file.

    A task that asks for a share of a card (`gpu_milli` below 1000) asks for no GPU here, or, with `card_for_a_share`,
    for a whole one.
    """
    table, seen = _Table(path, TASK_COLUMNS), set[str]()
    tasks = []
    for row in table.rows():
        created = table.moment(row, "creation_time")
        if created is None:
            table.problem("creation_time", row.get("creation_time", ""), "seconds")
        share = table.whole(row, "gpu_milli", absent=0)
        counts = share >= MILLI or (card_for_a_share and share > 0)
        gpus = table.whole(row, "num_gpu", high=TASK_GPUS_MAX, absent=0)
        kinds = table.kinds(row, "gpu_spec")
        tasks.append(
            TraceTask(
                name=table.name(row, "name", seen),
                cpus=max(1, -(-table.whole(row, "cpu_milli") // MILLI)),
                memory_mb=max(1, table.whole(row, "memory_mib")),
                created_s=created or Fraction(0),
                deleted_s=table.moment(row, "deletion_time"),
                gpus=gpus if counts else 0,
                gpu_kinds=kinds if counts else (),
                shares_card=gpus > 0 and 0 < share < MILLI,
            )
        )
    table.finish(len(tasks), "tasks")
    return tasks


def events_of(tasks: Sequence[TraceTask]) -> list[TraceEvent]:
    """Arrivals and departures in the order of their times; a task's departure always follows its arrival."""
    events: list[TraceEvent] = []
    for index, task in enumerate(sorted(tasks, key=lambda task: (task.created_s, task.name))):
        events.append(TraceEvent(task.created_s, EventKind.ARRIVAL, index, task))
        if task.deleted_s is not None:
            events.append(TraceEvent(max(task.created_s, task.deleted_s), EventKind.DEPARTURE, index, task))

    def order(event: TraceEvent) -> tuple[Fraction, int, int, int]:
        at_once = event.kind is EventKind.DEPARTURE and event.at_s == event.task.created_s
        return (event.at_s, 2 if at_once else int(event.kind), event.index, int(event.kind))

    return sorted(events, key=order)


def without_gpus(nodes: Sequence[TraceNode], events: Sequence[TraceEvent]) -> tuple[list[TraceNode], list[TraceEvent]]:
    """The same nodes and events as if nobody had or wanted a GPU."""
    bare = [replace(node, gpus=0, gpu_model="") for node in nodes]
    return bare, [replace(event, task=replace(event.task, gpus=0, gpu_kinds=())) for event in events]


def scarce(nodes: Sequence[TraceNode], tasks: Sequence[TraceTask]) -> str:
    """What a filling counts unless it is told: GPUs where tasks ask for any and nodes have some, else CPUs."""
    return "gpus" if any(task.gpus for task in tasks) and any(node.gpus for node in nodes) else "cpus"


def filling_arrivals(
    tasks: Sequence[TraceTask], nodes: Sequence[TraceNode], percent: int, seed: int, of: str = "cpus"
) -> list[TraceEvent]:
    """Arrivals only, drawn with replacement by `seed`, until `percent` % of the nodes' CPUs (or GPUs) are asked for.

    One draw stands for one second of the trace, so that a plot has an axis.

    Raises:
        Misused: the nodes have none, or no task asks for any: that would never end.
    """
    amount: Callable[[TraceNode | TraceTask], int] = (lambda one: one.gpus) if of == "gpus" else (lambda one: one.cpus)
    wanted = sum(map(amount, nodes)) * percent
    if not wanted or not any(map(amount, tasks)):
        raise Misused(f"--fill-of {of}: the nodes have none, or no task asks for any")
    draw = random.Random(seed)
    events: list[TraceEvent] = []
    asked = 0
    while asked * 100 < wanted:
        task = tasks[draw.randrange(len(tasks))]
        events.append(TraceEvent(Fraction(len(events)), EventKind.ARRIVAL, len(events), task))
        asked += amount(task)
    return events


def windows_of(events: Sequence[TraceEvent], seconds: int) -> Iterator[list[TraceEvent]]:
    """Consecutive stretches of `seconds` of the trace; empty ones are left out."""
    window: list[TraceEvent] = []
    number = -1
    for event in events:
        current = int(event.at_s // seconds)
        if window and current != number:
            yield window
            window = []
        number = current
        window.append(event)
    if window:
        yield window
