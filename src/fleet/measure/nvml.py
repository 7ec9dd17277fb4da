# ruff: noqa: N802 - the functions have the names that the library gives them
"""GPUs as their driver tells them, through NVML: whole cards, and the slices that cards are cut into.

Promise: a card or slice that cannot be told exactly is left out and named, and hides no other one: what is left out is
not there any more for the ledger, so it is never handed to anybody. A figure that a driver does not have is absent. The
library is opened for one reading and closed again, because a device that a process holds open cannot be given to an
instance.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol, TypeVar, cast

from fleet.measure.facts import MIB_BYTES, MIB_PER_GIB, GpuReading
from fleet.model.findings import shown
from fleet.model.gpu import parse_profile
from fleet.model.gpu_report import UNITS_MAX, ReportedUnit, Unit, unit_problem

T = TypeVar("T")

# The library's own numbers.
NOT_SUPPORTED: Final = 3
NOT_FOUND: Final = 6
FUNCTION_NOT_FOUND: Final = 13
NO_DRIVER: Final = frozenset({9, 12})
"""Driver not loaded, library not found."""
UNTOLD: Final = frozenset({NOT_SUPPORTED, 4, NOT_FOUND, FUNCTION_NOT_FOUND, 21, 25, 26})
"""The card is well and does not tell this: also no permission, no data, another version, not any more."""
DRIVER_FAULTS: Final = frozenset({1, *NO_DRIVER, FUNCTION_NOT_FOUND, 18})
"""No card's fault: also not initialised, library and driver of different versions."""


class Nvml(Protocol):
    """What is used of the module `pynvml` (nvidia-ml-py); every function may raise `NVMLError` with its `value`."""

    @property
    def NVMLError(self) -> type[Exception]: ...

    def nvmlInit(self) -> None: ...
    def nvmlShutdown(self) -> None: ...
    def nvmlSystemGetDriverVersion(self) -> str | bytes: ...
    def nvmlSystemGetCudaDriverVersion_v2(self) -> int: ...
    def nvmlDeviceGetCount(self) -> int: ...
    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Any: ...
    def nvmlDeviceGetUUID(self, handle: Any, /) -> str | bytes: ...
    def nvmlDeviceGetName(self, handle: Any, /) -> str | bytes: ...
    def nvmlDeviceGetPciInfo(self, handle: Any, /) -> Any: ...
    def nvmlDeviceGetMemoryInfo(self, handle: Any, /) -> Any: ...
    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, /) -> tuple[int, int]: ...
    def nvmlDeviceGetMigMode(self, handle: Any, /) -> list[int]: ...
    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, /) -> int: ...
    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int, /) -> Any: ...
    def nvmlDeviceGetAttributes(self, handle: Any, /) -> Any: ...


def library() -> Nvml:
    """The library's module; it is read only where somebody probes."""
    return cast("Nvml", importlib.import_module("pynvml"))


def read_driver(nvml: Nvml, sysfs: Path = Path("/sys")) -> GpuReading | None:
    """What the driver tells now; None where there is no driver.

    Raises:
        NVMLError: there is a driver and it fails; then nothing is known of any card.
    """
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as fault:
        # With the kernel's part loaded this is a broken installation, or a sandbox that hides the devices.
        if code_of(fault) in NO_DRIVER and not (sysfs / "module" / "nvidia").exists():
            return None
        raise
    try:
        walk = _Walk(nvml, sysfs)
        walk.everything()
        return GpuReading(gpus=tuple(walk.gpus), mig_instances=tuple(walk.mig_instances), left_out=tuple(walk.left_out))
    finally:
        with suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def code_of(fault: Exception) -> int | None:
    """The library's number of a fault."""
    value = getattr(fault, "value", None)
    return value if isinstance(value, int) else None


def profile_of(name: str) -> str:
    """The MIG profile at the end of a slice's name (`… MIG 1g.10gb`); empty when it is none that can be asked for."""
    with suppress(ValueError):
        return parse_profile(name.rpartition("MIG ")[2]) if "MIG " in name else ""
    return ""


def profile_by_size(slices: int, memory_mb: int, card_memory_mb: int) -> str:
    """The MIG profile by its size: the memory's share of the card in whole eighths, of the card's whole GiB."""
    if min(slices, memory_mb, card_memory_mb) < 1:
        return ""
    eighths = -(-memory_mb * 8 // card_memory_mb)
    card_gb = -(-card_memory_mb // MIB_PER_GIB)
    with suppress(ValueError):
        return parse_profile(f"{slices}g.{(2 * eighths * card_gb + 8) // 16}gb")
    return ""


@dataclass(slots=True)
class _Walk:
    """One reading while it is made."""

    nvml: Nvml
    sysfs: Path
    gpus: list[ReportedUnit] = field(default_factory=list)
    mig_instances: list[ReportedUnit] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    _seen: set[str] = field(default_factory=set)

    def everything(self) -> None:
        count = self.nvml.nvmlDeviceGetCount()
        cuda = self._told(self.nvml, "nvmlSystemGetCudaDriverVersion_v2")
        versions = {
            "driver_version": _text(self._told(self.nvml, "nvmlSystemGetDriverVersion")),
            "cuda_version": "" if cuda is None else f"{cuda // 1000}.{cuda % 1000 // 10}",
        }
        for index in range(min(count, UNITS_MAX)):
            self._one(f"card {index}", lambda index=index: self._card(index, versions))  # type: ignore[misc]

    def _one(self, which: str, read: Callable[[], None]) -> None:
        """Read one card or slice; what fails is named and left out, unless it is the driver that fails."""
        try:
            read()
        except (self.nvml.NVMLError, ValueError, LookupError) as fault:
            if code_of(fault) in DRIVER_FAULTS:
                raise
            self.left_out.append(f"{which}: {fault}")

    def _card(self, index: int, versions: Mapping[str, str]) -> None:
        handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = self._uuid(handle)
        model = _text(self._told(self.nvml, "nvmlDeviceGetName", handle))
        capability = self._told(self.nvml, "nvmlDeviceGetCudaComputeCapability", handle)
        memory = getattr(self._told(self.nvml, "nvmlDeviceGetMemoryInfo", handle), "total", None)
        address = pci_address(_text(getattr(self._told(self.nvml, "nvmlDeviceGetPciInfo", handle), "busId", None)))
        capable, cut = self._mig(handle)
        group = iommu_group(self.sysfs, address)
        details = {
            "pci_bus_id": address,
            **versions,
            "compute_cap": "" if capability is None else ".".join(str(part) for part in capability),
            "iommu_group": "" if group is None else str(group),
        }
        card = ReportedUnit(
            uuid=uuid,
            model=model,
            memory_mb=None if memory is None else int(memory) // MIB_BYTES,
            mig_capable=capable,
            mig_mode=cut,
            details={name: text for name, text in details.items() if text},
        )
        self._keep(card, self.gpus)
        if cut:
            self._one(f"slices of card {index} ({uuid})", lambda: self._slices(handle, card))

    def _keep(self, one: ReportedUnit, among: list[ReportedUnit]) -> None:
        problem = unit_problem(one)
        if problem is not None:
            raise LookupError(problem)
        self._seen.add(one.uuid)
        among.append(one)

    def _mig(self, handle: Any) -> tuple[bool, bool]:
        """Whether it can be cut and is. A card whose mode is not known might be in slices: then it is left out."""
        try:
            current, _pending = self.nvml.nvmlDeviceGetMigMode(handle)
        except AttributeError:
            return False, False
        except self.nvml.NVMLError as fault:
            if code_of(fault) in {NOT_SUPPORTED, FUNCTION_NOT_FOUND}:  # or a driver from before there were slices
                return False, False
            raise
        return True, bool(current)

    def _slices(self, handle: Any, card: ReportedUnit) -> None:
        for index in range(min(self.nvml.nvmlDeviceGetMaxMigDeviceCount(handle), UNITS_MAX)):
            self._one(f"slice {index} of {card.uuid}", lambda index=index: self._slice(handle, index, card))  # type: ignore[misc]

    def _slice(self, handle: Any, index: int, card: ReportedUnit) -> None:
        try:
            part = self.nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, index)
        except self.nvml.NVMLError as fault:
            if code_of(fault) == NOT_FOUND:  # a place where no slice is
                return
            raise
        uuid = self._uuid(part)
        name = _text(self._told(self.nvml, "nvmlDeviceGetName", part))
        profile = profile_of(name)
        if not profile and "MIG " not in name:
            profile = self._profile_by_size(part, card)
        if not profile:
            raise LookupError(f"{uuid} ({name or 'no name'}) has no profile that can be asked for")
        self._keep(
            ReportedUnit(uuid=uuid, unit=Unit.SLICE, profile=profile, kind=card.model, parent_gpu_uuid=card.uuid),
            self.mig_instances,
        )

    def _profile_by_size(self, part: Any, card: ReportedUnit) -> str:
        size = self._told(self.nvml, "nvmlDeviceGetAttributes", part)
        slices, computing, memory_mb = (
            int(getattr(size, name, 0))
            for name in ("gpuInstanceSliceCount", "computeInstanceSliceCount", "memorySizeMB")
        )
        # A part of a slice shares its memory with others, so no profile describes it.
        return profile_by_size(slices, memory_mb, card.memory_mb or 0) if computing == slices else ""

    def _uuid(self, handle: Any) -> str:
        uuid = _text(self.nvml.nvmlDeviceGetUUID(handle))
        if not uuid or uuid in self._seen:
            raise LookupError(f"its uuid {shown(uuid)} stands twice" if uuid else "it has no uuid")
        return uuid

    def _told(self, nvml: Nvml, function: str, *given: Any) -> Any:
        """The function's answer, or None where the card, the driver or the library does not have it."""
        try:
            return getattr(nvml, function)(*given)
        except AttributeError:
            return None
        except nvml.NVMLError as fault:
            if code_of(fault) in UNTOLD:
                return None
            raise


def _text(value: object) -> str:
    """A text of the library, which older versions give as bytes; empty where there is none."""
    text = value.decode() if isinstance(value, bytes) else value
    return text.strip() if isinstance(text, str) else ""


def pci_address(bus_id: str) -> str:
    """An address as the kernel writes it: `00000000:3B:00.0` is `0000:3b:00.0`."""
    domain, _, rest = bus_id.lower().partition(":")
    with suppress(ValueError):
        return f"{int(domain, 16):04x}:{rest}"
    return bus_id.lower()


def iommu_group(sysfs: Path, address: str) -> int | None:
    """The group of devices that can only be given away together; None where the kernel makes none."""
    if not address or "/" in address:
        return None
    with suppress(OSError, ValueError):
        return int((sysfs / "bus/pci/devices" / address / "iommu_group").readlink().name)
    return None
