"""The fleet's GPUs beside the columns: one inventory a node, and how many units of anything each node has free.

Nodes whose inventories a request cannot tell apart share a *shape*, so that a decision asks each shape once and not
each card of thousands of nodes. A table never changes; `replace` makes another that shares everything else.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from fleet.model.gpu_inventory import NO_GPUS, GpuAsk, GpuDevice, GpuInventory, MigInstance, free_units, owned_units
from fleet.model.gpu_report import twins
from fleet.placement.columns import COLUMN_MAX, Ints, Mask
from fleet.placement.reader import Reader

GPU_FIELDS: Final = (
    "gpu_count",
    "gpu_count_used",
    "mig_profiles",
    "mig_profiles_used",
    "gpus",
    "mig_instances",
    "gpu_kind",
)
SHAPES_SPARE: Final = 1000
"""Shapes that no node has any more are forgotten when there are this many more shapes than nodes."""


class GpuTable:
    """The inventories of all nodes, by index."""

    def __init__(
        self,
        inventories: Mapping[int, GpuInventory],
        shape_of: Ints,
        shapes: Mapping[Hashable, int],
        models: tuple[GpuInventory, ...],
    ) -> None:
        """Use `of`: `inventories` are those of nodes with GPUs, `shape_of` the number of each node's shape.

        `models` holds one inventory of each shape; shape 0 is that of a node without GPUs.
        """
        self._inventories = inventories
        self._shape_of = shape_of
        self._shapes = shapes
        self._models = models

    @classmethod
    def of(cls, inventories: Sequence[GpuInventory]) -> GpuTable:
        """Return the table of inventories in index order."""
        empty = cls({}, np.zeros(len(inventories), dtype=np.int64), {None: 0}, (NO_GPUS,))
        return empty.replace({at: one for at, one in enumerate(inventories) if one != NO_GPUS})

    def __len__(self) -> int:
        """Return how many nodes there are."""
        return len(self._shape_of)

    def inventory(self, at: int) -> GpuInventory:
        """Return the inventory of the node at an index."""
        return self._inventories.get(at, NO_GPUS)

    def inventories(self) -> Mapping[int, GpuInventory]:
        """Return the inventories of nodes that have one, by index."""
        return self._inventories

    def replace(self, fresh: Mapping[int, GpuInventory]) -> GpuTable:
        """Return the table with other inventories at some indexes."""
        if not fresh:
            return self
        inventories = {**self._inventories, **fresh}
        shape_of, shapes, models = self._shape_of.copy(), dict(self._shapes), list(self._models)
        for at, inventory in fresh.items():
            shape = inventory.shape()
            if shape not in shapes:
                shapes[shape] = len(models)
                models.append(inventory)
            shape_of[at] = shapes[shape]
            if inventory == NO_GPUS:
                del inventories[at]
        if len(models) > len(shape_of) + SHAPES_SPARE:
            return GpuTable.of([inventories.get(at, NO_GPUS) for at in range(len(shape_of))])
        return GpuTable(inventories, shape_of, shapes, tuple(models))

    def resized(self, keep: Sequence[int], more: int = 0) -> GpuTable:
        """Return the table of the nodes at `keep`, in that order, and `more` new ones without GPUs."""
        kept = [self.inventory(at) for at in keep]
        return GpuTable.of([*kept, *[NO_GPUS] * more])

    def free(self, ask: GpuAsk) -> Ints:
        """Return how many units of what is asked each node has free."""
        by_shape = np.array([free_units(model, ask) for model in self._models], dtype=np.int64)
        found: Ints = by_shape[self._shape_of]
        return found

    def owned(self, ask: GpuAsk) -> Ints:
        """Return how many units of what is asked each node has, free or held."""
        by_shape = np.array([owned_units(model, ask) for model in self._models], dtype=np.int64)
        found: Ints = by_shape[self._shape_of]
        return found

    def serving(self) -> Mask:
        """Return which nodes own any GPU capacity, free or not."""
        by_shape = np.array([model.serves_gpus for model in self._models], dtype=np.bool_)
        found: Mask = by_shape[self._shape_of]
        return found

    def kinds(self) -> frozenset[str]:
        """Return the models of all cards that some node has now, and the kinds that nodes declare."""
        present = [self._models[shape] for shape in np.unique(self._shape_of)]
        named = {device.model for one in present for device in one.devices}
        named |= {part.kind for one in present for part in one.instances} | {one.kind for one in present}
        return frozenset(named - {""})


def read_inventory(reader: Reader, form: Mapping[str, Any], path: str) -> GpuInventory:
    """Return the inventory of a document's node; malformed parts are problems with their paths."""
    if not form:
        return NO_GPUS
    devices: dict[str, GpuDevice] = {}
    slices: dict[str, MigInstance] = {}
    for at, item in enumerate(_listed(reader, form.get("gpus"), f"{path}.gpus")):
        where = f"{path}.gpus[{at}]"
        devices[where] = _device(reader, reader.mapping(item, where), where)
    for at, item in enumerate(_listed(reader, form.get("mig_instances"), f"{path}.mig_instances")):
        where = f"{path}.mig_instances[{at}]"
        slices[where] = _slice(reader, reader.mapping(item, where), where)
    uuids = {where: one.uuid for where, one in devices.items()} | {where: one.uuid for where, one in slices.items()}
    _refuse_twins(reader, uuids)
    return GpuInventory(
        count=reader.whole(form.get("gpu_count"), f"{path}.gpu_count", COLUMN_MAX) or 0,
        used=reader.whole(form.get("gpu_count_used"), f"{path}.gpu_count_used", COLUMN_MAX) or 0,
        kind=reader.text(form.get("gpu_kind"), f"{path}.gpu_kind"),
        profiles=_counts(reader, form.get("mig_profiles"), f"{path}.mig_profiles"),
        profiles_used=_counts(reader, form.get("mig_profiles_used"), f"{path}.mig_profiles_used"),
        devices=tuple(devices.values()),
        instances=tuple(slices.values()),
    )


def _listed(reader: Reader, value: object, path: str) -> Sequence[Any]:
    return () if value is None else reader.items(value, path)


def _device(reader: Reader, item: Mapping[str, Any], path: str) -> GpuDevice:
    return GpuDevice(
        uuid=reader.text(item.get("uuid"), f"{path}.uuid"),
        model=reader.text(item.get("model"), f"{path}.model"),
        mig_capable=bool(reader.flag(item.get("mig_capable"), f"{path}.mig_capable")),
        mig_mode=bool(reader.flag(item.get("mig_mode"), f"{path}.mig_mode")),
        bound_to=reader.text(item.get("bound_to"), f"{path}.bound_to") or None,
        missing=bool(reader.flag(item.get("missing"), f"{path}.missing")),
    )


def _slice(reader: Reader, item: Mapping[str, Any], path: str) -> MigInstance:
    return MigInstance(
        uuid=reader.text(item.get("uuid"), f"{path}.uuid"),
        profile=reader.text(item.get("profile"), f"{path}.profile").lower(),
        kind=reader.text(item.get("kind"), f"{path}.kind"),
        parent_gpu_uuid=reader.text(item.get("parent_gpu_uuid"), f"{path}.parent_gpu_uuid"),
        bound_to=reader.text(item.get("bound_to"), f"{path}.bound_to") or None,
        missing=bool(reader.flag(item.get("missing"), f"{path}.missing")),
    )


def _counts(reader: Reader, value: object, path: str) -> dict[str, int]:
    counts = reader.mapping({} if value is None else value, path)
    return {
        profile.lower(): reader.whole(count, f"{path}.{profile}", COLUMN_MAX) or 0 for profile, count in counts.items()
    }


def _refuse_twins(reader: Reader, uuids: Mapping[str, str]) -> None:
    for place, first in twins({place: uuid for place, uuid in uuids.items() if uuid}).items():
        reader.problem(f"{place}.uuid", f"{uuids[place]!r} is the uuid of {first} already")


def inventory_form(inventory: GpuInventory) -> dict[str, Any]:
    """Return the document's form of an inventory; what has its default is left out."""
    form: dict[str, Any] = {
        "gpu_count": inventory.count,
        "gpu_count_used": inventory.used,
        "mig_profiles": dict(inventory.profiles),
        "mig_profiles_used": dict(inventory.profiles_used),
        "gpus": [_unit_form(one) for one in inventory.devices],
        "mig_instances": [_unit_form(one) for one in inventory.instances],
        "gpu_kind": inventory.kind,
    }
    return {name: value for name, value in form.items() if value}


def _unit_form(one: GpuDevice | MigInstance) -> dict[str, Any]:
    named = {name: getattr(one, name) for name in one.__slots__}
    return {name: value for name, value in named.items() if value or name == "uuid"}


def inventory_of(form: Mapping[str, Any]) -> GpuInventory:
    """Return the inventory of a form.

    Raises:
        InvalidRequest: with every problem.
    """
    reader = Reader()
    inventory = read_inventory(reader, form, "gpu")
    reader.finish()
    return inventory
