"""GPUs that an operator declares in a file, read strictly: every fault is told together, with file and path.

The file, YAML or JSON, has the words of a snapshot's node; every key may be absent:

    gpu_kind: A100                      # what the node's registration says where its file sets no NODE_GPU_KIND
    gpu_count: 2                        # cards, where they are not listed; else how many of them may be handed out
    mig_profiles: {1g.10gb: 7}          # slices, likewise
    gpus:
      - {uuid: GPU-1, model: NVIDIA A100-SXM4-80GB, pci_bus_id: "0000:3b:00.0", memory_mb: 81920,
         driver_version: "570.86", cuda_version: "12.8", compute_cap: "8.0", mig_capable: true, mig_mode: true,
         iommu_group: 42}
    mig_instances:
      - {uuid: MIG-1, profile: 1g.10gb, kind: "", parent_gpu_uuid: GPU-1}

Promise: what is accepted here is accepted by the ledger, and no card is offered both whole and in slices.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

from fleet.config.plain_file import read_plain
from fleet.measure.facts import GpuReading
from fleet.model.config_value import ConfigError, ConfigProblem, nearest_name
from fleet.model.findings import as_given, shown
from fleet.model.gpu import parse_declared_kind, parse_profile
from fleet.model.gpu_report import (
    PROFILE_UNITS_MAX,
    PROFILES_MAX,
    UNITS_MAX,
    ReportedUnit,
    Unit,
    twins,
    unit_problem,
)

BYTES_MAX: Final = 1024**2
AMOUNT_MAX: Final = 2**40
TEXT_MAX: Final = 255

_CARD: Final = MappingProxyType(
    {
        "uuid": str,
        "model": str,
        "pci_bus_id": str,
        "memory_mb": int,
        "driver_version": str,
        "cuda_version": str,
        "compute_cap": str,
        "mig_capable": bool,
        "mig_mode": bool,
        "iommu_group": int,
    }
)
_SLICE: Final = MappingProxyType({"uuid": str, "profile": str, "kind": str, "parent_gpu_uuid": str})
_WANTED: Final[Mapping[type, str]] = MappingProxyType(
    {
        str: f"a text of at most {TEXT_MAX} printable characters, in quotes where it looks like a number",
        int: f"a whole number from 0 to {AMOUNT_MAX}",
        bool: "true or false",
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredGpus:
    """What is declared of one node. `reading` is None where neither cards nor slices are listed."""

    gpu_kind: str = ""
    gpu_count: int | None = None
    mig_profiles: Mapping[str, int] = field(default_factory=dict)
    reading: GpuReading | None = None

    def registration(self) -> dict[str, Any]:
        """What of it belongs into the node's registration: kind and counts."""
        body: dict[str, Any] = {"gpu_kind": self.gpu_kind} if self.gpu_kind else {}
        body |= {"gpu_count": self.gpu_count} if self.gpu_count is not None else {}
        return body | ({"mig_profiles": dict(self.mig_profiles)} if self.mig_profiles else {})


KEYS: Final = ("gpu_kind", "gpu_count", "mig_profiles", "gpus", "mig_instances")
NOTHING_DECLARED: Final = DeclaredGpus()


def read_gpu_file(path: Path) -> DeclaredGpus:
    """What a file declares; ConfigError with every problem in it."""
    try:
        with path.open("rb") as file:
            content = file.read(BYTES_MAX + 1)
        document = _parsed(content, json_form=path.suffix == ".json")
    except (OSError, ValueError) as fault:
        reason = f"cannot be read: {' '.join(str(fault).split())}"
        raise ConfigError([ConfigProblem(key="file", where=str(path), reason=reason)]) from None
    return declared_gpus({} if document is None else document, where=str(path))


def declared_gpus(document: object, *, where: str = "", place: str = "") -> DeclaredGpus:
    """What a document declares; `place` goes before each path. ConfigError with every problem in it."""
    reader = _Reader(where, place)
    found = reader.declared(document)
    if reader.problems:
        raise ConfigError(reader.problems)
    return found


class _Reader:
    """One document and what is wrong with it."""

    def __init__(self, where: str, place: str) -> None:
        self._where = where
        self._place = place
        self.problems: list[ConfigProblem] = []

    def declared(self, document: object) -> DeclaredGpus:
        if not isinstance(document, Mapping):
            self._wrong("gpus", f"{as_given(document)} is refused; accepted: a mapping with {', '.join(KEYS)}")
            return NOTHING_DECLARED
        self._known("", document, KEYS)
        gpus = self._units("gpus", document.get("gpus"), _CARD, Unit.CARD)
        slices = self._units("mig_instances", document.get("mig_instances"), _SLICE, Unit.SLICE)
        self._twins(gpus | slices)
        self._whole_or_cut(gpus, slices)
        listed = document.get("gpus") is not None or document.get("mig_instances") is not None
        return DeclaredGpus(
            gpu_kind=self._read("gpu_kind", document.get("gpu_kind", ""), parse_declared_kind) or "",
            gpu_count=self._count("gpu_count", document["gpu_count"], 0, UNITS_MAX)
            if "gpu_count" in document
            else None,
            mig_profiles=self._profiles(document.get("mig_profiles")),
            reading=GpuReading(gpus=tuple(gpus.values()), mig_instances=tuple(slices.values())) if listed else None,
        )

    def _units(self, name: str, listed: object, fields: Mapping[str, type], unit: Unit) -> dict[str, ReportedUnit]:
        """The good units by their paths."""
        if listed is None:
            return {}
        if not isinstance(listed, list):
            self._wrong(name, f"{as_given(listed)} is refused; accepted: a list")
            return {}
        if len(listed) > UNITS_MAX:
            self._wrong(name, f"lists {len(listed)}; accepted: at most {UNITS_MAX}")
            return {}
        found = {f"{name}[{at}]": self._unit(f"{name}[{at}]", item, fields, unit) for at, item in enumerate(listed)}
        return {path: one for path, one in found.items() if one is not None}

    def _unit(self, path: str, item: object, fields: Mapping[str, type], unit: Unit) -> ReportedUnit | None:
        before = len(self.problems)
        if not isinstance(item, Mapping):
            self._wrong(path, f"{as_given(item)} is refused; accepted: a mapping with {', '.join(fields)}")
            return None
        self._known(path, item, tuple(fields))
        for name in ("uuid", "profile") if unit is Unit.SLICE else ("uuid",):
            if item.get(name) is None:
                self._wrong(f"{path}.{name}", "missing")
        for name, value in item.items():
            if name in fields and not _is(value, fields[name]):
                self._wrong(f"{path}.{name}", f"{as_given(value)} is refused; accepted: {_WANTED[fields[name]]}")
        if len(self.problems) > before:
            return None
        one = _unit_of(item, unit)
        problem = unit_problem(one)
        if problem is not None:
            self._wrong(path, problem)
            return None
        return one if unit is Unit.CARD else replace(one, profile=parse_profile(one.profile))

    def _twins(self, units: Mapping[str, ReportedUnit]) -> None:
        for path, first in twins({path: one.uuid for path, one in units.items()}).items():
            self._wrong(f"{path}.uuid", f"{shown(units[path].uuid)} stands twice, first at {first}")

    def _whole_or_cut(self, gpus: Mapping[str, ReportedUnit], slices: Mapping[str, ReportedUnit]) -> None:
        """A card with slices says that it is cut: otherwise it would be offered whole beside them."""
        for path, card in gpus.items():
            if card.mig_mode and not card.mig_capable:
                self._wrong(f"{path}.mig_capable", "must be true where mig_mode is")
        cards = {card.uuid: (path, card) for path, card in gpus.items()}
        for at, one in slices.items():
            if not one.parent_gpu_uuid or not cards:
                continue
            if one.parent_gpu_uuid not in cards:
                reason = f"{shown(one.parent_gpu_uuid)} is none of the cards listed under gpus"
                self._wrong(f"{at}.parent_gpu_uuid", reason)
            elif not cards[one.parent_gpu_uuid][1].mig_mode:
                path = cards[one.parent_gpu_uuid][0]
                self._wrong(f"{path}.mig_mode", f"must be true: {at} is a slice of this card")

    def _profiles(self, counts: object) -> Mapping[str, int]:
        if counts is None:
            return {}
        if not isinstance(counts, Mapping):
            self._wrong("mig_profiles", f"{as_given(counts)} is refused; accepted: a mapping like {{1g.10gb: 7}}")
            return {}
        if len(counts) > PROFILES_MAX:
            self._wrong("mig_profiles", f"lists {len(counts)}; accepted: at most {PROFILES_MAX}")
            return {}
        found: dict[str, int] = {}
        for name, value in counts.items():
            path = f"mig_profiles.{name}"
            profile, count = self._read(path, name, parse_profile), self._count(path, value, 1, PROFILE_UNITS_MAX)
            if profile in found:
                self._wrong(path, "stands twice: letter case does not count")
            elif profile == "":
                self._wrong(path, "a profile has a name like 1g.10gb")
            elif profile is not None and count is not None:
                found[profile] = count
        return found

    def _count(self, path: str, value: object, low: int, high: int) -> int | None:
        if isinstance(value, int) and _is(value, int) and low <= value <= high:
            return value
        self._wrong(path, f"{as_given(value)} is refused; accepted: a whole number from {low} to {high}")
        return None

    def _read(self, path: str, value: object, parse: Callable[[str], str]) -> str | None:
        try:
            if isinstance(value, str):
                return parse(value)
            self._wrong(path, f"{as_given(value)} is refused; accepted: {_WANTED[str]}")
        except ValueError as refusal:
            self._wrong(path, str(refusal))
        return None

    def _known(self, path: str, given: Mapping[Any, object], known: tuple[str, ...]) -> None:
        for name in given:
            if name not in known:
                near = nearest_name(str(name), [one.upper() for one in known])
                hint = f"did you mean {near.lower()}?" if near else f"known are {', '.join(known)}"
                self._wrong(f"{path}.{name}".lstrip("."), f"unknown ({hint})")

    def _wrong(self, path: str, reason: str) -> None:
        key = f"{self._place}.{path}" if self._place else path
        self.problems.append(ConfigProblem(key=key, where=self._where, reason=reason))


def _unit_of(item: Mapping[str, Any], unit: Unit) -> ReportedUnit:
    """The unit of an item whose values have the right types; what only people read becomes its details."""
    given = {name: value for name, value in item.items() if value not in (None, "")}
    known = {name: value for name, value in given.items() if name in ReportedUnit.__slots__}
    details = {name: str(value) for name, value in given.items() if name not in known}
    return ReportedUnit(**{"uuid": "", **known}, unit=unit, details=details)


def _is(value: object, wanted: type) -> bool:
    if value is None:  # as good as absent
        return True
    if wanted is int:
        return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= AMOUNT_MAX
    if wanted is str:
        return isinstance(value, str) and len(value) <= TEXT_MAX and value.isprintable()
    return isinstance(value, wanted)


def _parsed(content: bytes, *, json_form: bool) -> object:
    if len(content) > BYTES_MAX:
        raise ValueError(f"is larger than {BYTES_MAX} bytes")
    return read_plain(content.decode(), json_form=json_form)
