"""GPUs as a node reports them: its cards, and the slices that cards are cut into.

Promise: every figure but the uuid may be missing, for a driver often does not say; what has no usable uuid cannot be
handed to anybody, and `unit_problem` says so. A uuid names one unit in the whole fleet; `twins` finds those that stand
twice in one report.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from fleet.model.findings import shown
from fleet.model.gpu import parse_kind, parse_profile
from fleet.model.node import BACKENDS

UUID_CHARACTERS_MAX: Final = 128
MODEL_CHARACTERS_MAX: Final = 255
UNITS_MAX: Final = 1024
"""Cards, or slices, of one node: far more than any machine has."""

PROFILE_UNITS_MAX: Final = 7 * UNITS_MAX
"""Slices of one profile that a node may declare: each card cut into the most there are."""

PROFILES_MAX: Final = 64
"""Profiles that a node may declare."""

BACKENDS_WITH_GPUS: Final = tuple(sorted(set(BACKENDS) - {"firecracker"}))
"""Hypervisors that hand GPUs over to instances; a node that declares none may be of any kind, and hands over none."""

_UUID: Final = re.compile(rf"[\x21-\x7e]{{1,{UUID_CHARACTERS_MAX}}}", re.ASCII)


class Unit(StrEnum):
    """What one uuid names."""

    CARD = "card"
    SLICE = "slice"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedUnit:
    """A card or a slice of one. Cards have no `profile` and no parent, slices no `model`.

    `details` is what only people read: the PCI address, the driver's version and the like.
    """

    uuid: str
    unit: Unit = Unit.CARD
    model: str = ""
    profile: str = ""
    kind: str = ""
    parent_gpu_uuid: str = ""
    mig_capable: bool = False
    mig_mode: bool = False
    memory_mb: int | None = None
    details: Mapping[str, str] = field(default_factory=dict)


def unit_problem(one: ReportedUnit) -> str | None:
    """Return why a unit cannot be kept, or None."""
    if not _UUID.fullmatch(one.uuid):
        return f"{shown(one.uuid)} is no uuid: 1 to {UUID_CHARACTERS_MAX} characters without white space"
    if len(one.model) > MODEL_CHARACTERS_MAX or not one.model.isprintable():
        return f"the model of {shown(one.uuid)} must have at most {MODEL_CHARACTERS_MAX} printable characters"
    if one.parent_gpu_uuid and not _UUID.fullmatch(one.parent_gpu_uuid):
        return f"{shown(one.parent_gpu_uuid)}, the card of {shown(one.uuid)}, is no uuid"
    try:
        profile, _ = parse_profile(one.profile), parse_kind(one.kind)
    except ValueError as problem:
        return f"{shown(one.uuid)}: {problem}"
    return f"the slice {shown(one.uuid)} has no profile" if one.unit is Unit.SLICE and not profile else None


def twins(uuids: Mapping[str, str]) -> dict[str, str]:
    """Return the places of uuids that stand already, each with the place where it stood first; `uuids` by place."""
    first: dict[str, str] = {}
    return {place: first[uuid] for place, uuid in uuids.items() if first.setdefault(uuid, place) != place}


def backend_problem(backend: str) -> str | None:
    """Return why a node with a hypervisor cannot have GPUs, or None."""
    if backend in BACKENDS_WITH_GPUS:
        return None
    known = ", ".join(BACKENDS_WITH_GPUS)
    named = f"backend {backend!r} hands over no GPUs" if backend else "a node with GPUs declares its backend"
    return f"{named}; GPUs are served by {known}"


def profile_counts(counts: Mapping[str, int]) -> dict[str, int]:
    """Return declared counts of MIG slices, by profile in lower case.

    Raises:
        ValueError: a profile is malformed or stands twice, or a count is not above 0.
    """
    found: dict[str, int] = {}
    for text, count in counts.items():
        profile = parse_profile(text)
        if not profile:
            raise ValueError("a MIG profile has no name; write slices and memory like '1g.10gb'")
        if profile in found:
            raise ValueError(f"{shown(text)} stands twice: letter case does not count")
        if count < 1:
            raise ValueError(f"{shown(text)}: the number of slices must be 1 or more, not {count}")
        found[profile] = count
    return found
