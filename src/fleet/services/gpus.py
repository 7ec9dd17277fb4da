"""GPUs as they come over HTTP: a node's cards and slices, in a sample or as an operator declares them.

Whoever sends a list is told of every problem in it, and nothing of it is kept; a daemon's own sample loses only the
units that cannot be kept (see `ledger/gpu_refresh.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationInfo, field_validator

from fleet.ledger import samples
from fleet.ledger.database import Database
from fleet.ledger.gpu_refresh import Report
from fleet.model.body_problems import refusal
from fleet.model.gpu_report import (
    MODEL_CHARACTERS_MAX,
    UNITS_MAX,
    UUID_CHARACTERS_MAX,
    ReportedUnit,
    Unit,
    twins,
    unit_problem,
)
from fleet.model.request import AMOUNT_MAX, GpuKind, GpuProfile

DETAIL_CHARACTERS_MAX: Final = 255
_DETAILS: Final = ("pci_bus_id", "driver_version", "cuda_version", "compute_cap", "iommu_group")

Uuid = Annotated[str, Field(min_length=1, max_length=UUID_CHARACTERS_MAX)]
Detail = Annotated[str, Field(max_length=DETAIL_CHARACTERS_MAX)]
Memory = Annotated[int, Field(ge=0, le=AMOUNT_MAX)]


class CardBody(BaseModel):
    """One card. Only the uuid is needed; a driver often does not tell the rest."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    uuid: Uuid
    model: Annotated[str, Field(max_length=MODEL_CHARACTERS_MAX)] = ""
    memory_mb: Memory | None = None
    mig_capable: bool = False
    mig_mode: bool = False
    pci_bus_id: Detail = ""
    driver_version: Detail = ""
    cuda_version: Detail = ""
    compute_cap: Detail = ""
    iommu_group: Annotated[int, Field(ge=0, le=2**31)] | None = None

    def reported(self) -> ReportedUnit:
        """Return it as the ledger takes it."""
        told = {name: getattr(self, name) for name in _DETAILS}
        return ReportedUnit(
            uuid=self.uuid,
            model=self.model,
            memory_mb=self.memory_mb,
            mig_capable=self.mig_capable,
            mig_mode=self.mig_mode,
            details={name: str(value) for name, value in told.items() if value not in ("", None)},
        )


class SliceBody(BaseModel):
    """One MIG instance: a slice of a card."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    uuid: Uuid
    profile: GpuProfile
    kind: GpuKind = ""
    parent_gpu_uuid: Annotated[str, Field(max_length=UUID_CHARACTERS_MAX)] = ""
    memory_mb: Memory | None = None

    def reported(self) -> ReportedUnit:
        """Return it as the ledger takes it."""
        return ReportedUnit(
            uuid=self.uuid,
            unit=Unit.SLICE,
            profile=self.profile,
            kind=self.kind,
            parent_gpu_uuid=self.parent_gpu_uuid,
            memory_mb=self.memory_mb,
        )


class InventoryBody(BaseModel):
    """All cards and all slices of a node. A list left out, or null, leaves what is known; empty: it has none."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    gpus: Annotated[list[CardBody], Field(max_length=UNITS_MAX)] | None = None
    mig_instances: Annotated[list[SliceBody], Field(max_length=UNITS_MAX)] | None = None

    @field_validator("gpus", "mig_instances")
    @classmethod
    def _units_can_be_kept(
        cls, value: list[CardBody] | list[SliceBody] | None, info: ValidationInfo
    ) -> list[CardBody] | list[SliceBody] | None:
        name = str(info.field_name)
        listed: Sequence[CardBody | SliceBody] = value or ()
        units = {f"{name}[{at}]": one for at, one in enumerate(listed)}
        cards = {} if name == "gpus" else {f"gpus[{at}]": one for at, one in enumerate(info.data.get("gpus") or ())}
        first = twins({place: one.uuid for place, one in {**cards, **units}.items()})
        problems = []
        for place, one in units.items():
            problem = unit_problem(one.reported())
            if place in first:
                problem = f"{one.uuid!r} stands at {first[place]} already; a uuid names one card or slice"
            if problem is not None:
                problems.append({"field": f"{place}.uuid", "message": problem})
        if problems:
            raise refusal(name, problems)
        return value

    def cards(self) -> Sequence[ReportedUnit] | None:
        """Return the cards as the ledger takes them; None: not told."""
        return None if self.gpus is None else [one.reported() for one in self.gpus]

    def slices(self) -> Sequence[ReportedUnit] | None:
        """Return the slices as the ledger takes them; None: not told."""
        return None if self.mig_instances is None else [one.reported() for one in self.mig_instances]


def declare(db: Database, name: str, body: InventoryBody, *, by: str) -> None:
    """Replace a node's inventory by what an operator declares; `by` is who does it.

    Raises:
        NodeNotFound: no such node.
        InvalidRequest: its hypervisor serves no GPUs.
        Conflict: another node has one of the units; the sentence names both.
    """
    samples.set_gpus(db, name, Report(cards=body.cards(), slices=body.slices(), strict=True, by=by))
