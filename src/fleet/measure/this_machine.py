"""This machine's own facts, through psutil and the kernel's files. The only module of the package that reads them."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import psutil

from fleet.measure.facts import CpuCounts, FilesystemFacts, HugePages, HybridCpus, MemoryFacts

CPUS_MAX: Final = 65_536


class ThisMachine:
    """Facts of the machine the process runs on; another `sysfs` is a recording of one."""

    def __init__(self, sysfs: Path = Path("/sys")) -> None:
        self._sysfs = sysfs

    def monotonic(self) -> float:
        return time.monotonic()

    def cpu_counts(self) -> CpuCounts:
        threads = psutil.cpu_count(logical=True)
        if threads is None:
            raise LookupError("the system does not report its hardware threads")
        return CpuCounts(threads=threads, cores=psutil.cpu_count(logical=False))

    def hybrid_cpus(self) -> HybridCpus | None:
        """Cores by kind; anything unexpected in these files means "not hybrid", because the figures only inform."""
        devices = self._sysfs / "devices"
        try:
            performance = parse_cpu_list((devices / "cpu_core" / "cpus").read_text())
            efficiency = parse_cpu_list((devices / "cpu_atom" / "cpus").read_text())
            return HybridCpus(
                performance_cores=self._distinct_cores(performance),
                efficiency_cores=self._distinct_cores(efficiency),
            )
        except (OSError, ValueError):
            return None

    def load(self) -> tuple[float, float, float]:
        return os.getloadavg()

    def memory(self) -> MemoryFacts:
        memory = psutil.virtual_memory()
        return MemoryFacts(
            total_bytes=memory.total, available_bytes=memory.available, huge_pages=tuple(self._huge_page_pools())
        )

    def filesystem(self, path: str) -> FilesystemFacts:
        usage = os.statvfs(path)
        return FilesystemFacts(
            device=device_of(path),
            total_bytes=usage.f_blocks * usage.f_frsize,
            free_bytes=usage.f_bfree * usage.f_frsize,
            available_bytes=usage.f_bavail * usage.f_frsize,
        )

    def disk_busy_ms(self) -> Mapping[str, int]:
        """Only physical disks: partitions, loop devices and mapped devices would count the same work again."""
        counters = psutil.disk_io_counters(perdisk=True)
        busy = {
            name: int(counter.busy_time)
            for name, counter in counters.items()
            if (self._sysfs / "block" / name / "device").exists()
        }
        if not busy:
            raise LookupError("the system shows no physical disk")
        return busy

    def _huge_page_pools(self) -> list[HugePages]:
        pools = []
        for pool in sorted((self._sysfs / "kernel" / "mm" / "hugepages").glob("hugepages-*kB")):
            size_kb = int(pool.name.removeprefix("hugepages-").removesuffix("kB"))
            total, free, reserved = (
                int((pool / name).read_text()) for name in ("nr_hugepages", "free_hugepages", "resv_hugepages")
            )
            pools.append(HugePages(size_bytes=size_kb * 1024, total=total, free=free, reserved=reserved))
        return pools

    def _distinct_cores(self, cpus: list[int]) -> int:
        topology = [self._sysfs / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology" for cpu in cpus]
        return len(
            {(_optional(folder / "physical_package_id"), (folder / "core_id").read_text()) for folder in topology}
        )


def parse_cpu_list(text: str) -> list[int]:
    """The numbers of the kernel's list syntax: `0-7,16` and, with a stride, `0-31:2/4`; else ValueError."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        span, _, stride = part.partition(":")
        first, dash, last = span.partition("-")
        low, high = int(first), int(last if dash else first)
        used, every = (int(number) for number in stride.split("/")) if stride else (1, 1)
        if not 0 <= low <= high < CPUS_MAX or not 1 <= used <= every:
            raise ValueError(f"{part!r} is no range of processors")
        cpus += [cpu for cpu in range(low, high + 1) if (cpu - low) % every < used]
    return cpus


def device_of(path: str) -> str:
    """What holds the path's space: the mounted block device or pool, else the kernel's device number.

    Subvolumes of one btrfs and datasets of one ZFS pool have device numbers of their own and share their space, so
    the mount's source decides where it names one.
    """
    number = Path(path).stat().st_dev
    mounts = [part for part in psutil.disk_partitions(all=True) if _holds(part.mountpoint, path)]
    if mounts:
        # Of two mounts on one point, the later one covers the earlier.
        best = max(enumerate(mounts), key=lambda numbered: (len(numbered[1].mountpoint), numbered[0]))[1]
        if best.fstype == "zfs":
            return "zfs:" + best.device.split("/")[0]
        if best.device.startswith("/"):
            return os.path.realpath(best.device)
    return f"{os.major(number)}:{os.minor(number)}"


def _holds(mountpoint: str, path: str) -> bool:
    return Path(os.path.realpath(path)).is_relative_to(mountpoint)


def _optional(file: Path) -> str:
    return file.read_text() if file.exists() else ""
