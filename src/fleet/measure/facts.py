"""Facts a machine states about itself, in base units, and who may be asked for them.

A real machine, a simulated one and a recording in a test are the same to the collectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Protocol

from fleet.model.domain import Domain
from fleet.model.gpu_report import ReportedUnit

MIB_BYTES: Final = 1024**2
GIB_BYTES: Final = 1024**3
MIB_PER_GIB: Final = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CpuCounts:
    """Hardware threads, and physical cores where the system can tell them."""

    threads: int
    cores: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridCpus:
    """Cores of the two kinds of a hybrid processor."""

    performance_cores: int
    efficiency_cores: int


@dataclass(frozen=True, slots=True, kw_only=True)
class HugePages:
    """One pool of huge pages. `reserved` pages are free but promised to a process that has not touched them yet."""

    size_bytes: int
    total: int
    free: int
    reserved: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryFacts:
    """Physical memory; `available_bytes` is the kernel's figure, which leaves huge-page pools out."""

    total_bytes: int
    available_bytes: int
    huge_pages: tuple[HugePages, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class FilesystemFacts:
    """The file system a path lies on. `available_bytes` leaves out the blocks kept for root, `free_bytes` does not.

    Two paths with one `device` share their space: a bind mount, two directories, two subvolumes of one pool.
    """

    device: str
    total_bytes: int
    free_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Paths:
    """Where instances' disks and where images and blobs lie."""

    instances: str
    blobs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Reservations:
    """What is held back for the operating system on this node."""

    ram_gb: Decimal
    cpu_threads: int
    disk_gb: Decimal


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuReading:
    """Cards and slices, in the driver's order or the file's.

    `left_out` names what could not be told and why. `contradictions` are the differences between what an operator
    declares and what the driver says; None where not both spoke.
    """

    gpus: tuple[ReportedUnit, ...] = ()
    mig_instances: tuple[ReportedUnit, ...] = ()
    left_out: tuple[str, ...] = ()
    contradictions: tuple[str, ...] | None = None


class Machine(Protocol):
    """Who states the facts. Any method may raise; that collector then publishes nothing."""

    def monotonic(self) -> float:
        """Seconds of a clock that never steps."""

    def cpu_counts(self) -> CpuCounts:
        """Threads and cores."""

    def hybrid_cpus(self) -> HybridCpus | None:
        """Cores by kind, None on processors with one kind."""

    def load(self) -> tuple[float, float, float]:
        """Load averages over 1, 5 and 15 minutes."""

    def memory(self) -> MemoryFacts:
        """Physical memory and pools of huge pages."""

    def filesystem(self, path: str) -> FilesystemFacts:
        """The file system `path` lies on."""

    def disk_busy_ms(self) -> Mapping[str, int]:
        """Milliseconds each physical disk has been busy since it appeared."""


class DomainSource(Protocol):
    """Who states the domains: a hypervisor driver."""

    def domains(self) -> Sequence[Domain]:
        """All domains, in every state."""

    def max_vcpus(self) -> int | None:
        """The most vCPUs one domain may have; None when the hypervisor does not say."""
