"""This machine's facts: the kernel's files as recorded, and the real machine as it is."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from fleet.measure import ThisMachine
from fleet.measure.facts import HugePages, HybridCpus
from fleet.measure.this_machine import device_of, parse_cpu_list


def a_sysfs(root: Path, *, performance: str, efficiency: str, cores: dict[int, int]) -> Path:
    for kind, text in (("cpu_core", performance), ("cpu_atom", efficiency)):
        (root / "devices" / kind).mkdir(parents=True)
        (root / "devices" / kind / "cpus").write_text(text)
    for cpu, core in cores.items():
        topology = root / "devices" / "system" / "cpu" / f"cpu{cpu}" / "topology"
        topology.mkdir(parents=True)
        (topology / "core_id").write_text(f"{core}\n")
    return root


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("0-3\n", [0, 1, 2, 3]), ("0,4,6-7", [0, 4, 6, 7]), ("5", [5]), ("0-7:1/4", [0, 4]), ("0-7:2/4", [0, 1, 4, 5])],
)
def test_the_kernels_list_syntax_is_read(text: str, cpus: list[int]) -> None:
    assert parse_cpu_list(text) == cpus


@pytest.mark.parametrize("text", ["", "a", "3-1", "-1", "0-", "0-99999999", "0-3:3/2", "0-3:1"])
def test_anything_else_is_no_list(text: str) -> None:
    with pytest.raises(ValueError):
        parse_cpu_list(text)


def test_hybrid_cores_are_distinct_cores_and_not_threads(tmp_path: Path) -> None:
    cores = {0: 0, 1: 0, 2: 4, 3: 4, 4: 8, 5: 9}
    machine = ThisMachine(a_sysfs(tmp_path, performance="0-3\n", efficiency="4-5\n", cores=cores))

    assert machine.hybrid_cpus() == HybridCpus(performance_cores=2, efficiency_cores=2)


@pytest.mark.parametrize(("performance", "efficiency"), [("", "4-5"), ("0-3", "nonsense"), ("0-3", "4-9")])
def test_a_hybrid_layout_that_cannot_be_read_yields_nothing(tmp_path: Path, performance: str, efficiency: str) -> None:
    cores = dict.fromkeys(range(6), 0)
    machine = ThisMachine(a_sysfs(tmp_path, performance=performance, efficiency=efficiency, cores=cores))

    assert machine.hybrid_cpus() is None


def test_an_ordinary_processor_is_not_hybrid(tmp_path: Path) -> None:
    assert ThisMachine(tmp_path).hybrid_cpus() is None


def test_huge_page_pools_are_read(tmp_path: Path) -> None:
    pool = tmp_path / "kernel" / "mm" / "hugepages" / "hugepages-1048576kB"
    pool.mkdir(parents=True)
    for name, count in (("nr_hugepages", 100), ("free_hugepages", 60), ("resv_hugepages", 5)):
        (pool / name).write_text(f"{count}\n")

    assert ThisMachine(tmp_path).memory().huge_pages == (HugePages(size_bytes=1024**3, total=100, free=60, reserved=5),)


def test_only_physical_disks_are_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Counter:
        busy_time = 1200

    monkeypatch.setattr(psutil, "disk_io_counters", lambda perdisk: dict.fromkeys(("sda", "sda1", "dm-0"), Counter))
    (tmp_path / "block" / "sda" / "device").mkdir(parents=True)
    (tmp_path / "block" / "dm-0").mkdir(parents=True)

    assert ThisMachine(tmp_path).disk_busy_ms() == {"sda": 1200}


def test_a_machine_without_a_visible_disk_is_unknown_and_not_idle(tmp_path: Path) -> None:
    with pytest.raises(LookupError):
        ThisMachine(tmp_path).disk_busy_ms()


class Mount:
    def __init__(self, mountpoint: str, device: str, fstype: str) -> None:
        self.mountpoint, self.device, self.fstype = mountpoint, device, fstype


def test_b30_subvolumes_and_datasets_of_one_pool_are_one_device(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("a", "b", "c", "d", "e"):
        (tmp_path / name).mkdir()
    mounts = [
        Mount("/", "overlay", "overlay"),
        Mount(f"{tmp_path}/a", "/dev/disk0", "btrfs"),
        Mount(f"{tmp_path}/b", "/dev/disk0", "btrfs"),
        Mount(f"{tmp_path}/c", "tank/instances", "zfs"),
        Mount(f"{tmp_path}/d", "tank/blobs", "zfs"),
    ]
    monkeypatch.setattr(psutil, "disk_partitions", lambda all: mounts)  # noqa: A006

    devices = [device_of(str(tmp_path / name)) for name in ("a", "b", "c", "d", "e")]

    assert devices[0] == devices[1] == "/dev/disk0"
    assert devices[2] == devices[3] == "zfs:tank"
    assert devices[4] not in devices[:4]


def test_two_folders_of_this_machine_are_on_one_device(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    machine = ThisMachine()

    assert machine.filesystem(str(tmp_path / "a")).device == machine.filesystem(str(tmp_path / "b")).device


def test_available_blocks_are_told_apart_from_free_blocks(tmp_path: Path) -> None:
    facts = ThisMachine().filesystem(str(tmp_path))

    assert 0 <= facts.available_bytes <= facts.free_bytes <= facts.total_bytes


def test_a_path_that_does_not_exist_has_no_file_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        ThisMachine().filesystem(str(tmp_path / "absent"))


def test_this_machine_states_what_psutil_states() -> None:
    machine = ThisMachine()

    assert machine.cpu_counts().threads == psutil.cpu_count()
    assert machine.memory().total_bytes == psutil.virtual_memory().total
    assert len(machine.load()) == 3
