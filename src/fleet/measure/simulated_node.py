"""A simulated node's description, read from a file with every fault named."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from fleet.config.plain_file import read_plain
from fleet.measure.facts import Reservations
from fleet.measure.gpu_file import NOTHING_DECLARED, DeclaredGpus, declared_gpus
from fleet.model.config_value import ConfigError, ConfigProblem, nearest_name
from fleet.model.findings import shown

AMOUNT_MAX: Final = 10**12


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedNode:
    """One simulated machine: its size, what it does when idle, how it behaves, and how it is registered."""

    name: str
    cpu_threads: int
    memory_mb: int
    disk_gb: int
    cpu_cores: int | None = None
    cpu_max_per_instance: int | None = None
    ram_reservation_gb: Decimal = Decimal("2.0")
    cpu_reservation_threads: int = 2
    disk_reservation_gb: Decimal = Decimal("20.0")
    base_load: Decimal = Decimal(0)
    load_per_vcpu: Decimal = Decimal("0.2")
    base_memory_mb: int = 0
    base_disk_gb: int = 0
    disk_busy_ms_per_second: Decimal = Decimal(0)
    region: str = ""
    arch: str = "amd64"
    labels: Mapping[str, str] = field(default_factory=dict)
    sleepy_pool: bool = False
    max_instances: int | None = None
    faults: Mapping[str, Any] = field(default_factory=dict)
    gpu_inventory: DeclaredGpus = NOTHING_DECLARED

    def registration(self) -> dict[str, Any]:
        """The body that registers this node."""
        body: dict[str, Any] = {"name": self.name, "backend": "simulated", "arch": self.arch}
        body |= {"labels": dict(self.labels)} if self.labels else {}
        body |= {"region": self.region} if self.region else {}
        body |= {"sleepy_pool": True} if self.sleepy_pool else {}
        body |= {"max_instances": self.max_instances} if self.max_instances is not None else {}
        return body | self.gpu_inventory.registration()

    @property
    def vcpus_max(self) -> int:
        """The most vCPUs of one instance: what the file says, else all hardware threads."""
        return self.cpu_threads if self.cpu_max_per_instance is None else self.cpu_max_per_instance

    @property
    def reservations(self) -> Reservations:
        """What is held back on this node."""
        return Reservations(
            ram_gb=self.ram_reservation_gb,
            cpu_threads=self.cpu_reservation_threads,
            disk_gb=self.disk_reservation_gb,
        )


def read_nodes(path: Path) -> list[SimulatedNode]:
    """The nodes of a file; ConfigError with every problem in it."""
    try:
        content = read_plain(path.read_text(encoding="utf-8"), json_form=path.suffix == ".json")
    except (OSError, ValueError) as fault:
        raise ConfigError([ConfigProblem(key="file", where=str(path), reason=f"cannot be read: {fault}")]) from None
    listed = content.get("nodes") if isinstance(content, dict) else content
    if not isinstance(listed, list):
        reason = "holds no list of nodes; accepted: [{name, cpu_threads, memory_mb, disk_gb, …}] or {nodes: […]}"
        raise ConfigError([ConfigProblem(key="nodes", where=str(path), reason=reason)])
    return nodes_from(listed, where=str(path))


def nodes_from(listed: Sequence[object], *, where: str = "") -> list[SimulatedNode]:
    """Nodes from plain values; ConfigError with every problem of every node."""
    nodes: dict[str, SimulatedNode] = {}
    problems: list[ConfigProblem] = []
    for index, entry in enumerate(listed):
        place = f"nodes[{index}]"
        found = _problems_of(entry, place, where)
        problems += found
        if found or not isinstance(entry, Mapping):
            continue
        node = SimulatedNode(**{name: _exact(name, value, where) for name, value in entry.items()})
        if node.name in nodes:
            problems.append(ConfigProblem(key=f"{place}.name", where=where, reason=f"{shown(node.name)} stands twice"))
        nodes[node.name] = node
    problems += _shared_gpus(nodes.values(), where)
    if problems:
        raise ConfigError(problems)
    return list(nodes.values())


def _shared_gpus(nodes: Iterable[SimulatedNode], where: str) -> list[ConfigProblem]:
    """A card is in one machine: its uuid on two nodes is a fault."""
    first: dict[str, str] = {}
    problems = []
    for node in nodes:
        told = node.gpu_inventory.reading
        for one in (*told.gpus, *told.mig_instances) if told is not None else ():
            owner = first.setdefault(one.uuid, node.name)
            if owner != node.name:
                reason = f"{shown(one.uuid)} is a unit of {shown(owner)} as well"
                problems.append(ConfigProblem(key=f"{node.name}.gpu_inventory", where=where, reason=reason))
    return problems


_TEXTS: Final = frozenset({"name", "region", "arch"})
_INVENTORY: Final = "gpu_inventory"
_MAPPINGS: Final = frozenset({"labels", "faults"})
_DECIMALS: Final = frozenset(
    {"ram_reservation_gb", "disk_reservation_gb", "base_load", "load_per_vcpu", "disk_busy_ms_per_second"}
)
_OPTIONAL: Final = frozenset({"cpu_cores", "cpu_max_per_instance", "max_instances"})
_AT_LEAST_ONE: Final = frozenset({"cpu_threads", "memory_mb", "cpu_cores"})
_REQUIRED: Final = ("name", "cpu_threads", "memory_mb", "disk_gb")


def _problems_of(entry: object, place: str, where: str) -> list[ConfigProblem]:
    if not isinstance(entry, Mapping):
        return [ConfigProblem(key=place, where=where, reason="not a mapping of a node's properties")]
    known = [known_field.name for known_field in fields(SimulatedNode)]
    problems = [
        ConfigProblem(key=f"{place}.{name}", where=where, reason="missing") for name in _REQUIRED if name not in entry
    ]
    for name, value in entry.items():
        if name == _INVENTORY:
            problems += _inventory_problems(value, place, where)
            continue
        accepted = _accepted(name, value) if name in known else f"a known property ({_near(str(name), known)})"
        if accepted is not None:
            reason = f"{shown(value)} is refused; accepted: {accepted}"
            problems.append(ConfigProblem(key=f"{place}.{name}", where=where, reason=reason))
    return problems


def _inventory_problems(value: object, place: str, where: str) -> Sequence[ConfigProblem]:
    try:
        declared_gpus(value, where=where, place=f"{place}.{_INVENTORY}")
    except ConfigError as refused:
        return refused.problems
    return ()


def _accepted(name: str, value: object) -> str | None:
    """None when the value is good, else what would be."""
    if name in _OPTIONAL and value is None:
        return None
    if name in _TEXTS:
        return None if isinstance(value, str) and (value or name != "name") else "a text"
    if name in _MAPPINGS:
        return None if isinstance(value, Mapping) else "a mapping"
    if name == "sleepy_pool":
        return None if isinstance(value, bool) else "true or false"
    low = 1 if name in _AT_LEAST_ONE else 0
    kinds: tuple[type, ...] = (int, float, Decimal) if name in _DECIMALS else (int,)
    if isinstance(value, kinds) and not isinstance(value, bool) and low <= value <= AMOUNT_MAX:  # type: ignore[operator]
        return None
    return f"a {'number' if name in _DECIMALS else 'whole number'} from {low} to {AMOUNT_MAX}"


def _near(name: str, known: Sequence[str]) -> str:
    near = nearest_name(name, [one.upper() for one in known])
    return f"did you mean {near.lower()}?" if near else ", ".join(known)


def _exact(name: str, value: Any, where: str) -> Any:
    if name == _INVENTORY:
        return declared_gpus(value, where=where)
    return Decimal(str(value)) if name in _DECIMALS else value
