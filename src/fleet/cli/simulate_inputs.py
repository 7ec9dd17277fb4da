"""What `fleet simulate` is given: flags, files and traces, read whole or refused, and the scenario they make of a seed.

Promise: everything random is drawn from the seed by the simulation's own draws; the same words give the same scenario.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from fleet.cli.openb import TraceNode, TraceTask, read_nodes, read_tasks
from fleet.cli.outcome import Misused, reason
from fleet.config.plain_file import read_plain
from fleet.measure.simulated_node import SimulatedNode
from fleet.measure.simulated_node import read_nodes as read_described_nodes
from fleet.model.capacity import memory_reserved_mb
from fleet.model.cluster_config import FALLBACK_NAMES, ClusterConfig
from fleet.model.config_value import ConfigError
from fleet.simulation.chance import Chance
from fleet.simulation.load import Habit, Lives, Mix, arrivals, drawn_from, filling, until
from fleet.simulation.protocol import SECOND_US
from fleet.simulation.scenario import Arrival, Habits, Machine, Scenario, Shape, Staleness
from fleet.simulation.tally import describe

NODE_COUNT: Final = 100
RATE: Final = 2.0
TRACE_RATE: Final = 10.0
SPEED: Final = 1000
DURATION_S: Final = 3600
DEFAULTS: Final = ClusterConfig()

_SHAPE: Final = re.compile(r"(\d{1,9})x(\d{1,12})x(\d{1,12})(?:\+(\d{1,4})(?::([^,=+]+))?)?", re.ASCII)
_SHAPE_FORM: Final = "vCPUs x MiB x GiB, with GPUs and their kinds after a plus: 4x8192x40 or 16x65536x200+2:A100|H100"
_MIX_FIELDS: Final = {"name", "cpus", "memory_mb", "disk_gb", "weight", "gpus", "gpu_kinds", "sleepy"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """The flags of the command, as given. None: not given."""

    nodes: str | None = None
    node_shape: str
    trace: tuple[Path, Path] | None = None
    mix: str
    rate: float | None = None
    duration_s: int | None = None
    lives: Lives = Lives.EXPONENTIAL
    lifetime_s: int = 600
    sleepy_percent: int = 0
    sleepy_nodes_percent: int = 0
    fill: int | None = None
    fill_of: str = "cpus"
    shares: str = "none"
    speed: int | None = None
    limit: int | None = None
    wait_s: int = 0
    staleness_s: float = 0.01
    sample_period_s: int = 60
    concurrency: int = 16
    workers: int = 2
    settings: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Inputs:
    """Everything that was read; `scenario` makes one seed's run of it."""

    asked: Asked
    machines: Sequence[Machine]
    mix: Mix
    tasks: Sequence[TraceTask]
    config: ClusterConfig

    def scenario(self, seed: int) -> Scenario:
        """Return the scenario of a seed."""
        asked = self.asked
        found, until_us = self._arrivals(Chance(seed))
        return Scenario(
            machines=self.machines,
            arrivals=found,
            config=self.config,
            seed=seed,
            concurrency=asked.concurrency,
            workers=asked.workers,
            wait_us=asked.wait_s * SECOND_US,
            until_us=until_us,
            habits=Habits(),
            staleness=Staleness(
                counters_us=round(asked.staleness_s * SECOND_US), sample_period_us=asked.sample_period_s * SECOND_US
            ),
        )

    def _arrivals(self, chance: Chance) -> tuple[list[Arrival], int | None]:
        asked = self.asked
        if self.tasks and asked.fill is None:
            return self._as_recorded()[: asked.limit], None
        habit = Habit(
            rate=asked.rate or (TRACE_RATE if self.tasks else RATE),
            lives=asked.lives,
            mean_life_us=asked.lifetime_s * SECOND_US,
            sleepy_percent=asked.sleepy_percent,
        )
        if self.tasks:
            stream = drawn_from([shape_of(task) for task in self.tasks], chance, habit.rate)
        else:
            stream = arrivals(chance, self.mix, habit)
        if asked.fill is not None:
            return filling(stream, self._wanted(asked.fill), self._amount)[: asked.limit], None
        end_us = (asked.duration_s or DURATION_S) * SECOND_US
        return until(stream, end_us)[: asked.limit], end_us

    def _as_recorded(self) -> list[Arrival]:
        """Return the trace's own arrivals and lifetimes, sped up; or in its order at a rate."""
        ordered = sorted(self.tasks, key=lambda task: (task.created_s, task.name))
        speed, rate = self.asked.speed or SPEED, self.asked.rate
        begin = ordered[0].created_s
        found = []
        for index, task in enumerate(ordered):
            at_us = (
                int((task.created_s - begin) * SECOND_US / speed) if rate is None else round(index / rate * SECOND_US)
            )
            life = (
                None if task.deleted_s is None else max(0, int((task.deleted_s - task.created_s) * SECOND_US / speed))
            )
            found.append(Arrival(index, at_us, shape_of(task), life))
        return found

    def _amount(self, shape: Shape) -> int:
        return shape.gpus if self.asked.fill_of == "gpus" else shape.cpus

    def _wanted(self, percent: int) -> int:
        of_gpus = self.asked.fill_of == "gpus"
        offered = sum(machine.gpus if of_gpus else machine.cpus for machine in self.machines)
        shapes = [shape_of(task) for task in self.tasks] or [shape for shape, _ in self.mix.shapes]
        if not offered or not any(map(self._amount, shapes)):
            raise Misused(f"--fill-of {self.asked.fill_of}: the nodes have none, or nothing asks for any")
        return -(-offered * percent // 100)

    def shown(self) -> dict[str, Any]:
        """Return the inputs as the report shows them: words and numbers, no paths."""
        asked = self.asked
        defaults = DEFAULTS.to_mapping()
        return {
            "nodes": len(self.machines),
            "gpus": sum(machine.gpus for machine in self.machines),
            "load": self._load_shown(),
            "concurrency": asked.concurrency,
            "workers": asked.workers,
            "staleness_s": asked.staleness_s,
            "sample_period_s": asked.sample_period_s,
            "wait_for_capacity_s": asked.wait_s,
            "config": {key: text for key, text in self.config.to_mapping().items() if text != defaults[key]},
        }

    def _load_shown(self) -> dict[str, Any]:
        asked = self.asked
        if self.tasks and asked.fill is None:
            pace = {"speed": asked.speed or SPEED} if asked.rate is None else {"rate": asked.rate}
            return {"kind": "trace", "tasks": len(self.tasks), "shares": asked.shares, **pace}
        common: dict[str, Any] = {"rate": asked.rate or (TRACE_RATE if self.tasks else RATE)}
        if self.tasks:
            common |= {"tasks": len(self.tasks), "shares": asked.shares}
        else:
            common |= {"mix": {describe(shape): weight for shape, weight in self.mix.shapes}}
            common |= {"sleepy_percent": asked.sleepy_percent} if asked.sleepy_percent else {}
        if asked.fill is not None:
            return {"kind": "fill", "percent": asked.fill, "of": asked.fill_of, **common}
        life = {"lives": str(asked.lives), "mean_lifetime_s": asked.lifetime_s}
        return {"kind": "seeded", "duration_s": asked.duration_s or DURATION_S, **life, **common}


def read(asked: Asked) -> Inputs:
    """Read everything.

    Raises:
        Misused: a flag or a file is wrong; the message says which, where and what would be accepted.
        BadTrace: a file of the trace is not in its format.
    """
    config = _config(asked.settings)
    if asked.trace is None:
        return Inputs(asked, _machines(asked, config), read_mix(asked.mix), (), config)
    if asked.nodes is not None:
        raise Misused("--nodes and --trace: a trace brings its own nodes; keep one of them")
    _refuse_reservations(asked.settings)
    nodes, tasks = asked.trace
    recorded = read_tasks(tasks, card_for_a_share=asked.shares == "card")
    return Inputs(asked, [machine_of(node) for node in read_nodes(nodes)], Mix(()), recorded, config)


def machine_of(node: TraceNode) -> Machine:
    """Return a node of a trace; nothing is held back: the trace says what could be allocated."""
    return Machine(node.name, node.cpus, node.memory_mb, node.disk_gb, node.gpus, node.gpu_model)


def shape_of(task: TraceTask) -> Shape:
    """Return what a task asks for."""
    size = size_class(task.cpus, task.gpus)
    return Shape(size, task.cpus, task.memory_mb, task.disk_gb, task.gpus, task.gpu_kinds)


def size_class(cpus: int, gpus: int) -> str:
    """Return the class that a request of a trace is counted in: by its GPUs, else by its CPUs."""
    if gpus:
        return f"{gpus} GPU" + ("s" if gpus > 1 else "")
    bounds = (4, 16, 64)
    low = 1
    for high in bounds:
        if cpus <= high:
            return f"{low}-{high} CPUs"
        low = high + 1
    return f"{low} CPUs and more"


def parse_shape(text: str, flag: str) -> Shape:
    """Return the shape of a text.

    Raises:
        Misused: it is none.
    """
    found = _SHAPE.fullmatch(text.strip())
    if found is None or int(found[1]) < 1 or int(found[2]) < 1:
        raise Misused(f"{flag} {text!r}: write {_SHAPE_FORM}")
    gpus = int(found[4] or 0)
    kinds = tuple(dict.fromkeys(kind.strip() for kind in (found[5] or "").split("|") if kind.strip()))
    shape = Shape("", int(found[1]), int(found[2]), int(found[3]), gpus, kinds if gpus else ())
    return Shape(describe(shape), shape.cpus, shape.memory_mb, shape.disk_gb, shape.gpus, shape.gpu_kinds)


def read_mix(text: str) -> Mix:
    """Return the mix of `SHAPE=WEIGHT,…`, or of a YAML or JSON file."""
    if text.endswith((".yaml", ".yml", ".json")):
        return _mix_of_file(Path(text))
    shapes = []
    for part in text.split(","):
        shape, _, weight = part.partition("=")
        if weight and not (weight.strip().isdecimal() and 0 < int(weight) <= 10**6):
            raise Misused(f"--mix {part!r}: the weight must be a whole number from 1 to 1000000")
        shapes.append((parse_shape(shape, "--mix"), int(weight or 1)))
    return Mix(tuple(shapes))


def _mix_of_file(path: Path) -> Mix:
    try:
        content = read_plain(path.read_text(encoding="utf-8"), json_form=path.suffix == ".json")
    except (OSError, ValueError) as fault:
        raise Misused(f"--mix {path}: cannot be read: {reason(fault)}") from None
    listed = content.get("shapes") if isinstance(content, dict) else content
    if not isinstance(listed, list) or not listed:
        raise Misused(f"--mix {path}: holds no list of shapes; accepted: [{{cpus, memory_mb, disk_gb, weight, …}}]")
    problems: list[str] = []
    shapes = [_mix_entry(entry, f"[{at}]", problems) for at, entry in enumerate(listed)]
    if problems:
        raise Misused(f"--mix {path}: " + "; ".join(problems))
    return Mix(tuple(shapes))


def _mix_entry(entry: Any, place: str, problems: list[str]) -> tuple[Shape, int]:
    given = entry if isinstance(entry, dict) else {}
    if given is not entry:
        problems.append(f"{place} is no mapping")
    problems += [f"{place}.{name} is unknown" for name in given if name not in _MIX_FIELDS]

    def whole(name: str, low: int, default: int | None = None) -> int:
        value = given.get(name, default)
        if isinstance(value, int) and not isinstance(value, bool) and low <= value <= 10**12:
            return value
        problems.append(f"{place}.{name} must be a whole number of at least {low}, not {value!r}")
        return low

    kinds = given.get("gpu_kinds", [])
    if not isinstance(kinds, list) or not all(isinstance(kind, str) for kind in kinds):
        problems.append(f"{place}.gpu_kinds must be a list of texts")
        kinds = []
    amounts = (whole("cpus", 1), whole("memory_mb", 1), whole("disk_gb", 0, 0), whole("gpus", 0, 0))
    shape = Shape("", *amounts, tuple(kinds), bool(given.get("sleepy", False)))
    named = str(given.get("name") or describe(shape))
    return Shape(named, *amounts, tuple(kinds), shape.sleepy), whole("weight", 1, 1)


def _machines(asked: Asked, config: ClusterConfig) -> list[Machine]:
    nodes = str(NODE_COUNT) if asked.nodes is None else asked.nodes
    if nodes.isdecimal():
        if not 1 <= int(nodes) <= 100_000:
            raise Misused(f"--nodes {nodes}: from 1 to 100000")
        shape = parse_shape(asked.node_shape, "--node-shape")
        kind = shape.gpu_kinds[0] if shape.gpu_kinds else ""
        sleepy = int(nodes) * asked.sleepy_nodes_percent // 100
        sizes = (shape.cpus, shape.memory_mb, shape.disk_gb, shape.gpus, kind)
        return [_reserving(Machine(f"n{at:05d}", *sizes, sleepy_pool=at < sleepy), config) for at in range(int(nodes))]
    _refuse_reservations(asked.settings)
    if nodes.endswith(".csv"):
        return [machine_of(node) for node in read_nodes(Path(nodes))]
    try:
        described = read_described_nodes(Path(nodes))
    except ConfigError as fault:
        raise Misused(f"--nodes: {fault}") from None
    return [_described(node) for node in described]


def _described(node: SimulatedNode) -> Machine:
    """Return a node of a simulated-nodes file."""
    gpus, model = _cards(node)
    return Machine(
        node.name,
        node.cpu_threads,
        node.memory_mb,
        node.disk_gb,
        gpus,
        model,
        sleepy_pool=node.sleepy_pool,
        reserved_cpus=node.cpu_reservation_threads,
        reserved_memory_mb=memory_reserved_mb(node.ram_reservation_gb, node.memory_mb).value,
        reserved_disk_gb=math.ceil(node.disk_reservation_gb),
        max_instances=node.max_instances,
    )


def _cards(node: SimulatedNode) -> tuple[int, str]:
    """Return how many whole GPUs a node hands out, and what each is called.

    Raises:
        Misused: it has slices, or cards of several models: leaving them out would be another fleet.
    """
    told = node.gpu_inventory
    listed = () if told.reading is None else told.reading.gpus
    sliced = bool(told.mig_profiles) or (told.reading is not None and bool(told.reading.mig_instances))
    models = sorted({card.model for card in listed})
    if sliced or len(models) > 1 or any(card.mig_mode for card in listed):
        has = "slices of GPUs" if len(models) < 2 else f"cards of several models ({', '.join(models)})"
        raise Misused(f"--nodes: {node.name} has {has}: only whole cards of one model a node are simulated")
    counts = [len(listed)] if listed else []
    counts += [] if told.gpu_count is None else [told.gpu_count]
    return min(counts, default=0), (models[0] if models else "") or told.gpu_kind


def _reserving(machine: Machine, config: ClusterConfig) -> Machine:
    """Return a machine that holds back what the configuration says."""
    return replace(
        machine,
        reserved_cpus=config.node_cpu_reservation_threads,
        reserved_memory_mb=memory_reserved_mb(config.node_ram_reservation_gb, machine.memory_mb).value,
        reserved_disk_gb=math.ceil(config.node_disk_reservation_gb),
    )


def _refuse_reservations(settings: Mapping[str, str]) -> None:
    """Refuse what would change nothing: nodes of a file or a trace hold back what that says."""
    given = [name for name in FALLBACK_NAMES if name in settings]
    if given:
        raise Misused(
            f"--set {', '.join(given)}: only for equal nodes (--nodes N): a file or a trace says it of its own"
        )


def _config(settings: Mapping[str, str]) -> ClusterConfig:
    try:
        return ClusterConfig.from_mapping(dict(settings))
    except ConfigError as fault:
        raise Misused(f"--set: {fault}") from None
