"""A node's GPUs: what an operator declares, else what the driver tells, read at most every `READ_SECONDS`.

Promise: the answer is one whole inventory, or none. None means that nothing is known (no driver and nothing declared,
or a reading that failed), and then whatever was known stays as it is; an empty inventory means that there are no GPUs.

Declared cards and slices hold against the driver's, because a card that is handed over to instances belongs to another
driver and NVML does not see it. Where both speak, each difference is told as a contradiction; nothing is mended.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from fleet.measure.facts import GpuReading
from fleet.measure.gpu_file import DeclaredGpus, read_gpu_file
from fleet.measure.nvml import library, read_driver
from fleet.model.gpu_report import ReportedUnit

READ_SECONDS: Final = 15.0
TIMEOUT_SECONDS: Final = 20.0
"""Opening eight cards without a persistence daemon takes most of it."""
TOLD_MAX: Final = 8

_COMPARED: Final = ("model", "memory_mb", "mig_capable", "mig_mode", "profile", "parent_gpu_uuid")


class Bounded:
    """A reading that ends within a bound: a driver may block for ever, and a second call never piles up behind it."""

    def __init__(self, read: Callable[[], GpuReading | None], *, timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        """`read` is done in a thread of its own."""
        self._read = read
        self._timeout_seconds = timeout_seconds
        self._blocked: threading.Thread | None = None

    def __call__(self) -> GpuReading | None:
        """The reading.

        Raises:
            TimeoutError: it did not end within the bound.
            Exception: what `read` raised.
        """
        if self._blocked is not None and self._blocked.is_alive():
            raise TimeoutError("an earlier question to the driver is still not answered")
        ended: list[GpuReading | Exception | None] = []
        thread = threading.Thread(target=self._attempt, args=(ended,), name="gpu-probe", daemon=True)
        thread.start()
        thread.join(self._timeout_seconds)
        if not ended:
            self._blocked = thread
            raise TimeoutError(f"the driver gave no answer within {self._timeout_seconds:g} s")
        self._blocked = None
        if isinstance(ended[0], Exception):
            raise ended[0]
        return ended[0]

    def _attempt(self, ended: list[GpuReading | Exception | None]) -> None:
        try:
            ended.append(self._read())
        except Exception as fault:  # noqa: BLE001  # it belongs to whoever asked, in another thread
            ended.append(fault)


def this_driver() -> Callable[[], GpuReading | None]:
    """This machine's driver, asked within the bound."""
    return Bounded(lambda: read_driver(library()))


class MachineGpus:
    """The GPUs of one machine. A reading that failed keeps its reason until the next one."""

    def __init__(
        self,
        driver: Callable[[], GpuReading | None],
        *,
        file: Path | None = None,
        sysfs: Path = Path("/sys"),
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`file` is what the operator declares; it is read again whenever it has changed."""
        self._driver = driver
        self._file = file
        self._sysfs = sysfs
        self._monotonic = monotonic
        self._read_at = float("-inf")
        self._reading: GpuReading | None = None
        self._failure: Exception | None = None
        self._driver_told: GpuReading | None = None
        self._units: frozenset[tuple[str, bool]] | None = None
        self._declared: tuple[object, DeclaredGpus] | None = None

    def read(self) -> GpuReading | None:
        """The inventory, at most `READ_SECONDS` old; None where there is no driver and nothing is declared.

        Raises:
            Exception: the reading failed; nothing is known.
        """
        self._refresh()
        if self._failure is not None:
            raise self._failure
        return self._reading

    def units(self) -> frozenset[tuple[str, bool]] | None:
        """The uuids last known, each with whether it is a card in slices: what, when it changes, is worth a sample."""
        self._refresh()
        return self._units

    def _refresh(self) -> None:
        if self._monotonic() - self._read_at < READ_SECONDS:
            return
        self._reading, self._failure = None, None
        try:
            self._reading = self._now()
        except Exception as failure:  # noqa: BLE001  # told to whoever asks; what was known stays
            # Without its frames, which would be kept for as long as the reason is.
            self._failure = failure.with_traceback(None)
        if self._reading is not None:
            both = (*self._reading.gpus, *self._reading.mig_instances)
            self._units = frozenset((one.uuid, one.mig_mode) for one in both)
        # After the reading, so that a driver that takes its time is not asked all the time.
        self._read_at = self._monotonic()

    def _now(self) -> GpuReading | None:
        declared = self._declared_now()
        if declared is None:
            return self._driver_now()
        try:
            told = self._driver_now()
        except Exception as failure:  # noqa: BLE001  # what is declared holds without a driver as well
            return replace(declared, left_out=(f"not compared with the driver: {failure}",))
        if told is None:
            return declared
        return replace(declared, contradictions=contradictions(declared, told, self._sysfs), left_out=told.left_out)

    def _driver_now(self) -> GpuReading | None:
        told = self._driver()
        if told is None and self._driver_told is not None:
            count = len(self._driver_told.gpus)
            raise LookupError(f"the driver that told {count} cards before is not there any more")
        self._driver_told = told
        return told

    def _declared_now(self) -> GpuReading | None:
        if self._file is None:
            return None
        state = self._file.stat()
        version = (state.st_mtime_ns, state.st_size, state.st_ino)
        if self._declared is None or self._declared[0] != version:
            self._declared = (version, read_gpu_file(self._file))
        return self._declared[1].reading


def contradictions(declared: GpuReading, told: GpuReading, sysfs: Path = Path("/sys")) -> tuple[str, ...]:
    """Where a declared inventory and the driver's differ, in sentences.

    A declared card that the driver does not tell is no contradiction while another driver of the kernel has it.
    """
    found: list[str] = []
    for name, what in (("gpus", "card"), ("mig_instances", "slice")):
        ours, theirs = _by_uuid(getattr(declared, name)), _by_uuid(getattr(told, name))
        found += [f"{what} {uuid} is there and not declared" for uuid in theirs if uuid not in ours]
        for uuid, one in ours.items():
            if uuid in theirs:
                found += [f"{what} {uuid}: {difference}" for difference in _differences(one, theirs[uuid])]
            elif not _is_elsewhere(one, sysfs):
                found.append(f"{what} {uuid} is declared and the driver does not tell it")
    return tuple(found)


def shortened(told: Sequence[str]) -> str:
    """Some sentences as one line that cannot grow without end."""
    more = f"; and {len(told) - TOLD_MAX} more" if len(told) > TOLD_MAX else ""
    return "; ".join(told[:TOLD_MAX]) + more


def _by_uuid(units: Sequence[ReportedUnit]) -> dict[str, ReportedUnit]:
    return {one.uuid: one for one in units}


def _differences(ours: ReportedUnit, theirs: ReportedUnit) -> list[str]:
    """What both tell and tell differently; a text or an amount that is not told differs from nothing."""
    pairs = {name: (getattr(ours, name), getattr(theirs, name)) for name in _COMPARED}
    pairs["pci_bus_id"] = (ours.details.get("pci_bus_id", ""), theirs.details.get("pci_bus_id", ""))
    return [
        f"{name} is declared as {declared!r}, the driver tells {told!r}"
        for name, (declared, told) in pairs.items()
        if _plain(declared) != _plain(told) and declared not in ("", None) and told not in ("", None)
    ]


def _plain(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _is_elsewhere(one: ReportedUnit, sysfs: Path) -> bool:
    address = one.details.get("pci_bus_id", "").lower()
    if not address or "/" in address:
        return False
    try:
        return (sysfs / "bus/pci/devices" / address / "driver").readlink().name != "nvidia"
    except OSError:
        return False
