"""NVML, on a fake with the library's contract: each card and slice exactly, or left out by name, and no hang."""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml
import pytest

from fleet.measure import GpuReading
from fleet.measure.gpus import Bounded
from fleet.measure.nvml import (
    DRIVER_FAULTS,
    NO_DRIVER,
    UNTOLD,
    Nvml,
    library,
    pci_address,
    profile_by_size,
    profile_of,
    read_driver,
)
from fleet.model.gpu_inventory import GpuAsk, GpuDevice, GpuInventory, MigInstance, free_units
from fleet.model.gpu_report import ReportedUnit, Unit

GPU_IS_LOST, NO_PERMISSION, UNKNOWN = 15, 4, 999
NOT_SUPPORTED, NOT_FOUND = 3, 6
GB = 1024**3
PATIENCE_SECONDS = 60.0
"""The bound where an answer comes: how long a thread takes to start here is not what is tested."""


class FakeError(Exception):
    def __init__(self, value: int) -> None:
        super().__init__(f"fault {value}")
        self.value = value


@dataclass
class Slice:
    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB MIG 1g.5gb"
    gpu_slices: int = 1
    compute_slices: int = 1
    memory_mb: int = 4864


@dataclass
class Card:
    uuid: str
    name: str = "NVIDIA A100-SXM4-40GB"
    bus_id: str | bytes = "00000000:3B:00.0"
    memory: int = 40 * GB
    capability: tuple[int, int] = (8, 0)
    mig: list[int] | None = field(default_factory=lambda: [0, 0])
    slices: list[Slice | None] = field(default_factory=list)
    broken: Mapping[str, int] = field(default_factory=dict)


class FakeNvml:
    """A driver with cards. `broken` maps a function to the code it fails with, on the driver or on one card."""

    NVMLError = FakeError

    def __init__(self, *cards: Card, broken: Mapping[str, int] | None = None) -> None:
        self.cards = cards
        self.broken = dict(broken or {})
        self.opened = 0

    def _may_fail(self, function: str, of: object = None) -> None:
        for broken in (self.broken, getattr(of, "broken", {})):
            if function in broken:
                raise FakeError(broken[function])

    def nvmlInit(self) -> None:  # noqa: N802
        self._may_fail("nvmlInit")
        self.opened += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.opened -= 1

    def nvmlSystemGetDriverVersion(self) -> str | bytes:  # noqa: N802
        self._may_fail("nvmlSystemGetDriverVersion")
        return b"570.86.15"

    def nvmlSystemGetCudaDriverVersion_v2(self) -> int:  # noqa: N802
        self._may_fail("nvmlSystemGetCudaDriverVersion_v2")
        return 12080

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        self._may_fail("nvmlDeviceGetCount")
        return len(self.cards)

    def nvmlDeviceGetHandleByIndex(self, index: int, /) -> Any:  # noqa: N802
        self._may_fail("nvmlDeviceGetHandleByIndex", self.cards[index])
        return self.cards[index]

    def nvmlDeviceGetUUID(self, handle: Any, /) -> str | bytes:  # noqa: N802
        self._may_fail("nvmlDeviceGetUUID", handle)
        uuid: str = handle.uuid
        return uuid

    def nvmlDeviceGetName(self, handle: Any, /) -> str | bytes:  # noqa: N802
        self._may_fail("nvmlDeviceGetName", handle)
        name: str = handle.name
        return name

    def nvmlDeviceGetPciInfo(self, handle: Any, /) -> Any:  # noqa: N802
        self._may_fail("nvmlDeviceGetPciInfo", handle)
        return SimpleNamespace(busId=handle.bus_id)

    def nvmlDeviceGetMemoryInfo(self, handle: Any, /) -> Any:  # noqa: N802
        self._may_fail("nvmlDeviceGetMemoryInfo", handle)
        return SimpleNamespace(total=handle.memory)

    def nvmlDeviceGetCudaComputeCapability(self, handle: Any, /) -> tuple[int, int]:  # noqa: N802
        self._may_fail("nvmlDeviceGetCudaComputeCapability", handle)
        capability: tuple[int, int] = handle.capability
        return capability

    def nvmlDeviceGetMigMode(self, handle: Any, /) -> list[int]:  # noqa: N802
        self._may_fail("nvmlDeviceGetMigMode", handle)
        if handle.mig is None:
            raise FakeError(NOT_SUPPORTED)
        return list(handle.mig)

    def nvmlDeviceGetMaxMigDeviceCount(self, handle: Any, /) -> int:  # noqa: N802
        self._may_fail("nvmlDeviceGetMaxMigDeviceCount", handle)
        return 7

    def nvmlDeviceGetMigDeviceHandleByIndex(self, handle: Any, index: int, /) -> Any:  # noqa: N802
        self._may_fail("nvmlDeviceGetMigDeviceHandleByIndex", handle)
        found = handle.slices[index] if index < len(handle.slices) else None
        if found is None:
            raise FakeError(NOT_FOUND)
        return found

    def nvmlDeviceGetAttributes(self, handle: Any, /) -> Any:  # noqa: N802
        return SimpleNamespace(
            gpuInstanceSliceCount=handle.gpu_slices,
            computeInstanceSliceCount=handle.compute_slices,
            memorySizeMB=handle.memory_mb,
        )


def told(*cards: Card, sysfs: Path = Path("/nowhere"), broken: Mapping[str, int] | None = None) -> GpuReading:
    nvml = FakeNvml(*cards, broken=broken)
    found = read_driver(nvml, sysfs)
    assert nvml.opened == 0, "the library stays open: its devices cannot be given to instances"
    assert found is not None
    return found


def uuids(reading: GpuReading) -> tuple[list[str], list[str]]:
    return [one.uuid for one in reading.gpus], [one.uuid for one in reading.mig_instances]


FUNCTIONS = [name for name in vars(Nvml) if name.startswith("nvml")]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_library_and_the_fake_have_every_function_that_is_used(name: str) -> None:
    """The fake keeps the library's contract: the same functions, called with as many values."""
    wanted = len(inspect.signature(getattr(Nvml, name)).parameters) - 1
    real = inspect.signature(getattr(pynvml, name)).parameters.values()
    needed = sum(parameter.default is parameter.empty for parameter in real)

    assert needed <= wanted <= len(real)
    assert len(inspect.signature(getattr(FakeNvml(), name)).parameters) == wanted


def test_the_numbers_of_faults_are_the_library_s() -> None:
    names = {name.removeprefix("NVML_ERROR_"): value for name, value in vars(pynvml).items() if "NVML_ERROR_" in name}

    assert {names["DRIVER_NOT_LOADED"], names["LIBRARY_NOT_FOUND"]} == NO_DRIVER
    assert {
        "UNINITIALIZED",
        "DRIVER_NOT_LOADED",
        "LIBRARY_NOT_FOUND",
        "FUNCTION_NOT_FOUND",
        "LIB_RM_VERSION_MISMATCH",
    } == {name for name, value in names.items() if value in DRIVER_FAULTS}
    assert {
        "NOT_SUPPORTED",
        "NO_PERMISSION",
        "NOT_FOUND",
        "FUNCTION_NOT_FOUND",
        "NO_DATA",
        "ARGUMENT_VERSION_MISMATCH",
    } | {"DEPRECATED"} == {name for name, value in names.items() if value in UNTOLD}
    assert (names["GPU_IS_LOST"], names["NO_PERMISSION"], names["UNKNOWN"]) == (GPU_IS_LOST, NO_PERMISSION, UNKNOWN)


def test_a_fault_of_the_library_has_its_number() -> None:
    with pytest.raises(pynvml.NVMLError) as caught:
        raise pynvml.NVMLError(GPU_IS_LOST)

    assert caught.value.value == GPU_IS_LOST
    assert str(caught.value) == "GPU is lost"


def test_a_whole_card_is_told_with_all_that_its_driver_knows(tmp_path: Path) -> None:
    group = tmp_path / "kernel/iommu_groups/42"
    group.mkdir(parents=True)
    device = tmp_path / "bus/pci/devices/0000:3b:00.0"
    device.mkdir(parents=True)
    (device / "iommu_group").symlink_to(group)

    assert told(Card("GPU-1"), sysfs=tmp_path) == GpuReading(
        gpus=(
            ReportedUnit(
                uuid="GPU-1",
                model="NVIDIA A100-SXM4-40GB",
                memory_mb=40960,
                mig_capable=True,
                mig_mode=False,
                details={
                    "pci_bus_id": "0000:3b:00.0",
                    "driver_version": "570.86.15",
                    "cuda_version": "12.8",
                    "compute_cap": "8.0",
                    "iommu_group": "42",
                },
            ),
        )
    )


def test_a_card_without_slices_in_its_silicon_is_no_mig_card() -> None:
    (card,) = told(Card("GPU-1", name="NVIDIA L40S", mig=None)).gpus

    assert (card.mig_capable, card.mig_mode) == (False, False)


def test_the_mode_that_holds_now_decides_and_not_the_one_after_the_next_reset() -> None:
    cards = told(Card("GPU-1", mig=[0, 1]), Card("GPU-2", mig=[1, 0])).gpus

    assert [card.mig_mode for card in cards] == [False, True]


def test_a_card_in_slices_is_told_with_its_slices_and_is_no_whole_card() -> None:
    slices: list[Slice | None] = [Slice("MIG-1"), None, Slice("MIG-2", "NVIDIA A100-SXM4-40GB MIG 2g.10gb+ME")]
    reading = told(Card("GPU-1", mig=[1, 1], slices=slices), Card("GPU-2"))

    assert uuids(reading) == (["GPU-1", "GPU-2"], ["MIG-1", "MIG-2"])
    assert [one.mig_mode for one in reading.gpus] == [True, False]
    assert reading.mig_instances[0] == ReportedUnit(
        uuid="MIG-1",
        unit=Unit.SLICE,
        profile="1g.5gb",
        kind="NVIDIA A100-SXM4-40GB",
        parent_gpu_uuid="GPU-1",
    )
    assert reading.mig_instances[1].profile == "2g.10gb+me"
    assert reading.left_out == ()


def test_b40_eight_whole_cards_cut_into_sevenths_are_fifty_six_slices_and_no_card() -> None:
    cut = [
        Card(f"GPU-{card}", mig=[1, 1], slices=[Slice(f"MIG-{card}-{part}") for part in range(7)]) for card in range(8)
    ]
    reading = told(*cut)
    inventory = GpuInventory(
        devices=tuple(GpuDevice(one.uuid, one.model, one.mig_capable, one.mig_mode) for one in reading.gpus),
        instances=tuple(
            MigInstance(one.uuid, one.profile, one.kind, one.parent_gpu_uuid) for one in reading.mig_instances
        ),
    )

    assert free_units(inventory, GpuAsk(1, "a100")) == 0
    assert free_units(inventory, GpuAsk(1, "a100", "1g.5gb")) == 56


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", "1g.10gb"),
        ("NVIDIA H100 80GB HBM3 MIG 1g.10gb+me", "1g.10gb+me"),
        ("NVIDIA H100 80GB HBM3 MIG 1c.3g.40gb", ""),
        ("NVIDIA H100 80GB HBM3", ""),
        ("", ""),
    ],
)
def test_a_slice_s_profile_stands_in_its_name(name: str, profile: str) -> None:
    assert profile_of(name) == profile


@pytest.mark.parametrize(
    ("slices", "memory_mb", "card_memory_mb", "profile"),
    [
        (1, 4864, 40536, "1g.5gb"),
        (3, 19968, 40536, "3g.20gb"),
        (7, 40192, 40536, "7g.40gb"),
        (1, 9984, 81559, "1g.10gb"),
        (1, 16384, 143771, "1g.18gb"),
        (0, 4864, 40536, ""),
        (1, 0, 40536, ""),
        (1, 4864, 0, ""),
    ],
)
def test_where_no_name_tells_it_the_size_does(slices: int, memory_mb: int, card_memory_mb: int, profile: str) -> None:
    assert profile_by_size(slices, memory_mb, card_memory_mb) == profile


def test_a_slice_that_nobody_can_ask_for_is_left_out_and_named() -> None:
    """A part of a slice shares its memory; offered by the slice's profile it would promise too much."""
    parts: list[Slice | None] = [
        Slice("MIG-1", "NVIDIA A100-SXM4-40GB MIG 1c.3g.20gb"),
        Slice("MIG-2", "NVIDIA A100-SXM4-40GB", gpu_slices=3, compute_slices=1, memory_mb=19968),
        Slice("MIG-3", "NVIDIA A100-SXM4-40GB"),
    ]
    reading = told(Card("GPU-1", mig=[1, 1], slices=parts))

    assert uuids(reading) == (["GPU-1"], ["MIG-3"])
    assert [sentence.split(":")[0] for sentence in reading.left_out] == ["slice 0 of GPU-1", "slice 1 of GPU-1"]
    assert "1c.3g.20gb" in reading.left_out[0]


@pytest.mark.parametrize("function", ["nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID", "nvmlDeviceGetMigMode"])
@pytest.mark.parametrize("code", [GPU_IS_LOST, UNKNOWN, NO_PERMISSION])
def test_a_broken_card_is_left_out_and_named_and_hides_no_other_one(function: str, code: int) -> None:
    """Also one whose mode nobody tells: it may be in slices, so it is not offered as a whole one."""
    reading = told(Card("GPU-1"), Card("GPU-2", broken={function: code}), Card("GPU-3"))

    assert uuids(reading) == (["GPU-1", "GPU-3"], [])
    assert reading.left_out == (f"card 1: fault {code}",)


def test_a_card_whose_slices_cannot_be_told_offers_neither_itself_nor_them() -> None:
    card = Card("GPU-1", mig=[1, 1], slices=[Slice("MIG-1")], broken={"nvmlDeviceGetMaxMigDeviceCount": UNKNOWN})
    reading = told(card)

    assert uuids(reading) == (["GPU-1"], [])
    assert reading.gpus[0].mig_mode
    assert reading.left_out == ("slices of card 0 (GPU-1): fault 999",)


def test_a_card_without_a_uuid_or_with_another_one_s_is_left_out() -> None:
    reading = told(Card("GPU-1"), Card(""), Card("GPU-1"), Card("GPU 4"))

    assert uuids(reading) == (["GPU-1"], [])
    assert [sentence.split(":")[0] for sentence in reading.left_out] == ["card 1", "card 2", "card 3"]


@pytest.mark.parametrize("code", sorted(UNTOLD))
def test_what_a_driver_does_not_tell_is_absent(code: int) -> None:
    silent = ("Name", "PciInfo", "MemoryInfo", "CudaComputeCapability")
    versions = ("nvmlSystemGetDriverVersion", "nvmlSystemGetCudaDriverVersion_v2")
    card = Card("GPU-1", broken={f"nvmlDeviceGet{name}": code for name in silent})
    reading = told(card, broken=dict.fromkeys(versions, code))

    assert reading == GpuReading(gpus=(ReportedUnit(uuid="GPU-1", mig_capable=True),))


def test_a_library_that_lacks_functions_and_fields_tells_what_it_has() -> None:
    class Old(FakeNvml):
        def __getattribute__(self, name: str) -> Any:
            if name in {"nvmlDeviceGetMigMode", "nvmlSystemGetCudaDriverVersion_v2", "nvmlDeviceGetMemoryInfo"}:
                raise AttributeError(name)
            return super().__getattribute__(name)

        def nvmlDeviceGetPciInfo(self, handle: Any, /) -> Any:  # noqa: N802
            return SimpleNamespace()

    reading = read_driver(Old(Card("GPU-1", bus_id=b"00000000:3B:00.0")), Path("/nowhere"))

    assert reading is not None
    assert reading.gpus == (
        ReportedUnit(
            uuid="GPU-1",
            model="NVIDIA A100-SXM4-40GB",
            details={"driver_version": "570.86.15", "compute_cap": "8.0"},
        ),
    )


@pytest.mark.parametrize("code", sorted(NO_DRIVER))
def test_without_a_driver_nothing_is_told_and_nothing_fails(code: int) -> None:
    assert read_driver(FakeNvml(broken={"nvmlInit": code}), Path("/nowhere")) is None


def test_a_driver_in_the_kernel_that_the_library_does_not_find_is_a_fault(tmp_path: Path) -> None:
    """A sandbox that hides the devices must not look like a machine without cards."""
    (tmp_path / "module/nvidia").mkdir(parents=True)

    with pytest.raises(FakeError):
        read_driver(FakeNvml(broken={"nvmlInit": 9}), tmp_path)


@pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount"])
def test_a_driver_that_fails_tells_nothing(function: str) -> None:
    nvml = FakeNvml(Card("GPU-1"), broken={function: UNKNOWN})

    with pytest.raises(FakeError):
        read_driver(nvml, Path("/nowhere"))
    assert nvml.opened == 0


@pytest.mark.parametrize("code", sorted(DRIVER_FAULTS))
def test_a_driver_that_fails_midway_tells_nothing_instead_of_a_part(code: int) -> None:
    nvml = FakeNvml(Card("GPU-1"), Card("GPU-2", broken={"nvmlDeviceGetUUID": code}))

    with pytest.raises(FakeError):
        read_driver(nvml, Path("/nowhere"))
    assert nvml.opened == 0


@pytest.mark.parametrize(
    ("told_by_nvml", "kernel"),
    [
        ("00000000:3B:00.0", "0000:3b:00.0"),
        ("0000:3b:00.0", "0000:3b:00.0"),
        ("00010000:01:00.0", "10000:01:00.0"),
        ("", ""),
    ],
)
def test_an_address_is_written_as_the_kernel_does(told_by_nvml: str, kernel: str) -> None:
    assert pci_address(told_by_nvml) == kernel


def test_a_driver_that_hangs_is_given_up_and_not_asked_twice_at_once() -> None:
    release, asked = threading.Event(), threading.Semaphore(0)

    def hang() -> GpuReading | None:
        asked.release()
        release.wait(2 * PATIENCE_SECONDS)
        return GpuReading()

    probe = Bounded(hang, timeout_seconds=0.05)
    with pytest.raises(TimeoutError, match=r"no answer within 0\.05 s"):
        probe()
    with pytest.raises(TimeoutError, match="still not answered"):
        probe()
    assert asked.acquire(timeout=PATIENCE_SECONDS)
    assert not asked.acquire(blocking=False)
    blocked = probe._blocked
    assert blocked is not None
    release.set()
    blocked.join(PATIENCE_SECONDS)
    probe._timeout_seconds = PATIENCE_SECONDS
    assert probe() == GpuReading()


def test_what_a_probe_raises_in_its_thread_reaches_whoever_asked() -> None:
    def fail() -> GpuReading | None:
        raise FakeError(UNKNOWN)

    with pytest.raises(FakeError):
        Bounded(fail, timeout_seconds=PATIENCE_SECONDS)()


def this_machine_s_driver() -> str:
    """Why no driver can be asked here; empty where one can."""
    try:
        return "" if read_driver(library()) is not None else "no NVIDIA driver is loaded on this machine"
    except pynvml.NVMLError as fault:
        return f"the NVIDIA driver of this machine does not answer: {fault}"


def test_this_machine_s_driver_is_read_as_its_own_tools_read_it() -> None:
    missing = this_machine_s_driver()
    if missing:
        pytest.skip(f"real NVML: {missing}")
    reading = Bounded(lambda: read_driver(library()))()

    assert reading is not None
    pynvml.nvmlInit()
    try:
        assert len(reading.gpus) + len(reading.left_out) >= pynvml.nvmlDeviceGetCount()
        for card in reading.gpus:
            handle = pynvml.nvmlDeviceGetHandleByUUID(card.uuid)
            assert card.model == pynvml.nvmlDeviceGetName(handle)
            assert card.details["driver_version"] == pynvml.nvmlSystemGetDriverVersion()
    finally:
        pynvml.nvmlShutdown()


def test_without_a_driver_the_real_library_says_so() -> None:
    """The same path as on a machine with cards, down to the loading of the library."""
    ask: Callable[[], GpuReading | None] = Bounded(lambda: read_driver(library()))
    try:
        found = ask()
    except pynvml.NVMLError as fault:
        pytest.skip(f"real NVML: the driver of this machine fails: {fault}")

    assert found is None or isinstance(found, GpuReading)
