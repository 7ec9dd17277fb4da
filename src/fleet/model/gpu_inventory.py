"""A node's GPUs as placement and ledger see them: what there is, what is free for a request, which units it gets.

Promise: *free* and *chosen* are one law. A request that `free_units` says fits gets exactly its units from `choose`,
the first matching ones in inventory order, and no unit that is bound, missing, without a uuid or (as a whole card) in
MIG mode. Source: the Fuse document, "What has room means", and the product's decisions, section "GPUs".

Which of four forms of matching applies depends on what the node reports (`Form`). The forms differ in how they match
kinds, on purpose: cards and slices by their model, in any case and as a part of it; a legacy node that only knows a
count by exact spelling.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from fleet.model.gpu import device_kind_matches, mig_kind_matches, scalar_kind_matches


class Form(StrEnum):
    """How a request's GPUs are matched on a node."""

    MIG_INSTANCES = "mig_instances"
    MIG_PROFILES = "mig_profiles"
    DEVICES = "devices"
    SCALAR = "scalar"


@dataclass(frozen=True, slots=True)
class GpuAsk:
    """What a request asks: `count` whole cards, or slices of a MIG `profile`; `kind` empty: any."""

    count: int
    kind: str = ""
    profile: str = ""


NO_GPUS_ASKED: Final = GpuAsk(0)


@dataclass(frozen=True, slots=True)
class GpuDevice:
    """A whole card. `bound_to` is the uuid of the instance that holds it; `missing`: the node does not report it."""

    uuid: str
    model: str = ""
    mig_capable: bool = False
    mig_mode: bool = False
    bound_to: str | None = None
    missing: bool = False

    @property
    def is_whole_unit(self) -> bool:
        """Whether it can be handed over as a whole card: it is there, can be named and is not cut into slices."""
        return bool(self.uuid) and not self.missing and not self.mig_mode

    @property
    def is_free(self) -> bool:
        """Whether an instance can get it as a whole card now."""
        return self.is_whole_unit and self.bound_to is None


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A slice of a card. `kind` and `parent_gpu_uuid` may be empty: not reported."""

    uuid: str
    profile: str
    kind: str = ""
    parent_gpu_uuid: str = ""
    bound_to: str | None = None
    missing: bool = False

    @property
    def is_whole_unit(self) -> bool:
        """Whether it can be handed over: it is there and can be named."""
        return bool(self.uuid) and not self.missing

    @property
    def is_free(self) -> bool:
        """Whether an instance can get it now."""
        return self.is_whole_unit and self.bound_to is None


@dataclass(frozen=True, slots=True)
class GpuInventory:
    """Everything known of a node's GPUs. `count` and `used` are the legacy scalar, `profiles` the MIG counts.

    Where cards or slices are known one by one, a declared count is how many of them may be handed out (0 or absent: all
    of them): an operator keeps the others back.
    """

    count: int = 0
    used: int = 0
    kind: str = ""
    profiles: Mapping[str, int] = field(default_factory=dict)
    profiles_used: Mapping[str, int] = field(default_factory=dict)
    devices: tuple[GpuDevice, ...] = ()
    instances: tuple[MigInstance, ...] = ()

    @property
    def serves_gpus(self) -> bool:
        """Whether the node owns any GPU capacity, free or not."""
        return bool(self.count or self.devices or self.instances or any(self.profiles.values()))

    def card(self, uuid: str) -> GpuDevice | None:
        """Return the card with a uuid, if the node reports it."""
        return next((device for device in self.devices if device.uuid == uuid), None) if uuid else None

    def shape(self) -> Hashable:
        """Return what a request can tell of this inventory: equal shapes offer every request equally much."""
        if not self.serves_gpus:
            return None
        cards = {device.uuid: device for device in self.devices}
        devices = Counter(
            (one.model, one.mig_capable, one.is_free, one.is_whole_unit, one.missing) for one in self.devices
        )
        slices = Counter(
            (one.profile.lower(), one.kind, one.is_free, one.is_whole_unit, *_card_shape(cards, one))
            for one in self.instances
        )
        profiles = tuple(sorted((name, n, self.profiles_used.get(name, 0)) for name, n in self.profiles.items()))
        return (self.count, self.used, self.kind, profiles, frozenset(devices.items()), frozenset(slices.items()))


NO_GPUS = GpuInventory()


def _card_shape(cards: Mapping[str, GpuDevice], one: MigInstance) -> tuple[str | None, bool]:
    card = cards.get(one.parent_gpu_uuid) if one.parent_gpu_uuid else None
    return (None, False) if card is None else (card.model, card.mig_capable)


def form_of(inventory: GpuInventory, ask: GpuAsk) -> Form:
    """Return the form that applies; exactly one does, and none falls back to another when it is exhausted."""
    if ask.profile:
        return Form.MIG_INSTANCES if inventory.instances else Form.MIG_PROFILES
    return Form.DEVICES if inventory.devices else Form.SCALAR


def matching_devices(inventory: GpuInventory, kind: str) -> list[GpuDevice]:
    """Return the cards of a kind, free or not, in inventory order."""
    return [one for one in inventory.devices if device_kind_matches(kind, one.model, inventory.kind)]


def matching_instances(inventory: GpuInventory, ask: GpuAsk) -> list[MigInstance]:
    """Return the slices of a profile and kind whose card, when it is known, is MIG-capable; free or not."""
    found = []
    for one in inventory.instances:
        card = inventory.card(one.parent_gpu_uuid)
        model = None if card is None else card.model
        capable = None if card is None else card.mig_capable
        if one.profile.lower() == ask.profile and mig_kind_matches(ask.kind, one.kind, model, capable, inventory.kind):
            found.append(one)
    return found


def free_units(inventory: GpuInventory, ask: GpuAsk) -> int:
    """Return how many units of what is asked the node has free: cards, or slices of the profile."""
    return _units(inventory, ask, free=True)


def owned_units(inventory: GpuInventory, ask: GpuAsk) -> int:
    """Return how many units of what is asked the node has, free or held by instances."""
    return _units(inventory, ask, free=False)


def _units(inventory: GpuInventory, ask: GpuAsk, *, free: bool) -> int:
    form = form_of(inventory, ask)
    if form in {Form.MIG_INSTANCES, Form.DEVICES}:
        units = sum(one.is_free if free else one.is_whole_unit for one in _matching(inventory, ask))
        return min(units, _carved_out(inventory, ask, units, free=free))
    if form is Form.MIG_PROFILES:
        total, used = inventory.profiles.get(ask.profile, 0), inventory.profiles_used.get(ask.profile, 0)
        fits = _profile_kind_matches(inventory, ask.kind)
    else:
        total, used = inventory.count, inventory.used
        fits = not ask.kind or scalar_kind_matches(ask.kind, inventory.kind)
    if not fits:
        return 0
    return max(0, total - used) if free else total


def _carved_out(inventory: GpuInventory, ask: GpuAsk, units: int, *, free: bool) -> int:
    """Return how many units a declared count leaves to be handed out, of any kind; `units` where none is declared."""
    declared = inventory.profiles.get(ask.profile, 0) if ask.profile else inventory.count
    if not declared:
        return units
    pool: Sequence[GpuDevice | MigInstance] = inventory.devices
    if ask.profile:
        pool = [one for one in inventory.instances if one.profile.lower() == ask.profile]
    held = sum(one.is_whole_unit and not one.is_free for one in pool)
    return max(0, declared - held) if free else declared


def _matching(inventory: GpuInventory, ask: GpuAsk) -> Sequence[GpuDevice | MigInstance]:
    return matching_instances(inventory, ask) if ask.profile else matching_devices(inventory, ask.kind)


def _profile_kind_matches(inventory: GpuInventory, kind: str) -> bool:
    """Return whether some one card is both MIG-capable and of the kind; without cards the node's kind decides."""
    if not inventory.devices:
        return device_kind_matches(kind, "", inventory.kind)
    return any(one.mig_capable and not one.missing for one in matching_devices(inventory, kind))


def choose(inventory: GpuInventory, ask: GpuAsk) -> tuple[str, ...] | None:
    """Return the uuids that the request gets; none for a form that only counts; None when too few are free."""
    if free_units(inventory, ask) < ask.count:
        return None
    if form_of(inventory, ask) in {Form.MIG_PROFILES, Form.SCALAR}:
        return ()
    return tuple(one.uuid for one in _matching(inventory, ask) if one.is_free)[: ask.count]
