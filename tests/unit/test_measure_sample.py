"""What a node measures, from recorded facts: formulas, one disk once, available blocks, and silence where it fails."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import TypeVar

import pytest

from fleet.measure import (
    CpuCounts,
    FilesystemFacts,
    HugePages,
    HybridCpus,
    MemoryFacts,
    Paths,
    Reservations,
    Sample,
    measure,
)
from fleet.measure.facts import GIB_BYTES, MIB_BYTES
from fleet.model.capacity import limit_disk_gb, limit_memory_mb, measured_headroom
from fleet.model.domain import Domain, DomainState

T = TypeVar("T")
PATHS = Paths(instances="/i", blobs="/b")
RESERVED = Reservations(ram_gb=Decimal("2.0"), cpu_threads=2, disk_gb=Decimal("20.0"))


def a_filesystem(
    available_gb: int, *, total_gb: int = 1000, free_gb: int | None = None, device: str = "d"
) -> FilesystemFacts:
    return FilesystemFacts(
        device=device,
        total_bytes=total_gb * GIB_BYTES,
        free_bytes=(available_gb if free_gb is None else free_gb) * GIB_BYTES,
        available_bytes=available_gb * GIB_BYTES,
    )


@dataclass
class RecordedMachine:
    cpus: CpuCounts | Exception = field(default_factory=lambda: CpuCounts(threads=16, cores=8))
    hybrid: HybridCpus | None = None
    loads: tuple[float, float, float] | Exception = (0.5, 0.25, 0.12345)
    mem: MemoryFacts | Exception = field(
        default_factory=lambda: MemoryFacts(total_bytes=65536 * MIB_BYTES, available_bytes=60000 * MIB_BYTES)
    )
    filesystems: Mapping[str, FilesystemFacts] = field(
        default_factory=lambda: {"/i": a_filesystem(500), "/b": a_filesystem(500)}
    )
    busy: Mapping[str, int] | Exception = field(default_factory=lambda: {"sda": 1000})
    now: float = 100.0

    def monotonic(self) -> float:
        return self.now

    def cpu_counts(self) -> CpuCounts:
        return _told(self.cpus)

    def hybrid_cpus(self) -> HybridCpus | None:
        return self.hybrid

    def load(self) -> tuple[float, float, float]:
        return _told(self.loads)

    def memory(self) -> MemoryFacts:
        return _told(self.mem)

    def filesystem(self, path: str) -> FilesystemFacts:
        if path not in self.filesystems:
            raise FileNotFoundError(2, "No such file or directory", path)
        return self.filesystems[path]

    def disk_busy_ms(self) -> Mapping[str, int]:
        return _told(self.busy)


@dataclass
class RecordedDomains:
    known: Sequence[Domain] | Exception = ()
    vcpus_max: int | None = 16

    def domains(self) -> Sequence[Domain]:
        return _told(self.known)

    def max_vcpus(self) -> int | None:
        return self.vcpus_max


def _told(answer: T | Exception) -> T:
    if isinstance(answer, Exception):
        raise answer
    return answer


def a_domain(
    state: DomainState = DomainState.RUNNING,
    *,
    vcpus: int = 2,
    memory_mb: int = 4096,
    disk_gb: int = 20,
    owned: bool = True,
    occupied_mb: int | None = 0,
) -> Domain:
    name = f"{state}-{vcpus}-{memory_mb}-{owned}"
    return Domain(
        uuid=name,
        name=name,
        state=state,
        vcpus=vcpus,
        memory_mb=memory_mb,
        disk_gb=disk_gb,
        owned=owned,
        disk_occupied_mb=occupied_mb,
    )


def sampled(
    machine: RecordedMachine | None = None,
    domains: RecordedDomains | None = None,
    *,
    reservations: Reservations = RESERVED,
    previous: Sample | None = None,
    is_hypervisor: bool = True,
) -> Sample:
    return measure(
        machine or RecordedMachine(),
        domains or RecordedDomains(),
        paths=PATHS,
        reservations=reservations,
        previous=previous,
        is_hypervisor=is_hypervisor,
    )


def test_an_idle_node_publishes_every_figure_by_its_public_name() -> None:
    sample = sampled(domains=RecordedDomains([a_domain()]))

    assert sample.failed == {}
    assert {name: value for name, value in sample.metrics.items() if not name.startswith("domains_")} == {
        "is_hypervisor": True,
        "cpu_threads": 16,
        "cpu_max": 16,
        "cpu_cores": 8,
        "cpu_schedulable": 14,
        "cpu_schedulable_clamped": False,
        "cpu_cores_reserved": 1,
        "cpu_cores_schedulable": 7,
        "cpu_load_1": 0.5,
        "cpu_load_5": 0.25,
        "cpu_load_15": 0.123,
        "memory_max": 65536,
        "memory_available": 60000,
        "memory_reserved_mb": 2048,
        "memory_reserved_mb_clamped": False,
        "disk_total_gb": 1000,
        "disk_free_gb": 500,
        "disk_reservation_gb": 20,
        "blobs_share_instances_disk": True,
        "cpu_max_per_instance": 16,
        "cpu_total_instance_vcpus": 2,
        "cpu_foreign_vcpus": 0,
        "memory_total_instance_actual": 4096,
        "memory_foreign_mb": 0,
        "instances_total": 1,
        "instances_active": 1,
        "disk_foreign_gb": 500,
    }


def test_the_age_of_a_sample_counts_from_when_measuring_began() -> None:
    assert sampled(RecordedMachine(now=100.0)).age_seconds(112.5) == 12.5


def test_a_machine_that_is_no_hypervisor_has_no_domain_figures_and_no_failure() -> None:
    sample = sampled(domains=RecordedDomains(OSError("no hypervisor here")), is_hypervisor=False)

    assert sample.metrics["is_hypervisor"] is False
    assert "cpu_total_instance_vcpus" not in sample.metrics
    assert sample.failed == {}


def test_b12_a_hypervisor_that_cannot_be_asked_is_unknown_and_never_without_domains() -> None:
    sample = sampled(domains=RecordedDomains(ConnectionError("libvirtd restarted")))

    absent = {"cpu_total_instance_vcpus", "memory_total_instance_actual", "instances_total", "domains_running",
              "cpu_foreign_vcpus", "memory_foreign_mb", "disk_foreign_gb"}  # fmt: skip
    assert absent.isdisjoint(sample.metrics)
    assert sample.failed["domains"] == "ConnectionError: libvirtd restarted"
    assert "disk_foreign" in sample.failed
    assert sample.metrics["memory_max"] == 65536

    again = sampled(domains=RecordedDomains([]), previous=sample)

    assert again.metrics["cpu_total_instance_vcpus"] == 0
    assert again.failed == {}


@pytest.mark.parametrize(
    ("machine", "collector", "fields"),
    [
        (RecordedMachine(cpus=LookupError("no count")), "cpu", {"cpu_threads", "cpu_schedulable", "cpu_max"}),
        (RecordedMachine(loads=OSError("no load")), "load", {"cpu_load_1", "cpu_load_5", "cpu_load_15"}),
        (RecordedMachine(mem=OSError("no memory")), "memory", {"memory_max", "memory_available", "memory_reserved_mb"}),
        (RecordedMachine(filesystems={}), "disk", {"disk_total_gb", "disk_free_gb", "disk_foreign_gb"}),
        (
            RecordedMachine(filesystems={"/i": a_filesystem(5)}),
            "blobs",
            {"blobs_free_gb", "blobs_share_instances_disk"},
        ),
        (RecordedMachine(busy=OSError("no counters")), "disk_busy", {"disk_busy_ms_per_second"}),
    ],
)
def test_a_collector_that_fails_publishes_nothing_and_is_named(
    machine: RecordedMachine, collector: str, fields: set[str]
) -> None:
    sample = sampled(machine)

    assert collector in sample.failed
    assert fields.isdisjoint(sample.metrics)
    assert sample.metrics["instances_total"] == 0


def test_an_unknown_bound_of_vcpus_is_a_failure_and_not_a_figure() -> None:
    sample = sampled(domains=RecordedDomains(vcpus_max=None))

    assert "cpu_max_per_instance" not in sample.metrics
    assert "does not say how many vCPUs" in sample.failed["max_vcpus"]


def test_b28_free_huge_pages_count_as_available_and_the_figure_falls_as_they_are_taken() -> None:
    def available(free_pages: int, reserved_pages: int = 0) -> int:
        pool = HugePages(size_bytes=GIB_BYTES, total=100, free=free_pages, reserved=reserved_pages)
        memory = MemoryFacts(total_bytes=128 * GIB_BYTES, available_bytes=20 * GIB_BYTES, huge_pages=(pool,))
        value = sampled(RecordedMachine(mem=memory)).metrics["memory_available"]
        assert isinstance(value, int)
        return value

    assert available(100) == 120 * 1024
    assert available(60) == 80 * 1024
    assert available(60, reserved_pages=40) == 40 * 1024

    without = MemoryFacts(total_bytes=128 * GIB_BYTES, available_bytes=20 * GIB_BYTES)
    assert sampled(RecordedMachine(mem=without)).metrics["memory_available"] == 20 * 1024


def test_b29_the_written_rule_says_which_states_hold_vcpus_and_memory() -> None:
    domains = [
        a_domain(DomainState.RUNNING, vcpus=4, memory_mb=400),
        a_domain(DomainState.PAUSED, vcpus=2, memory_mb=200),
        a_domain(DomainState.CRASHED, vcpus=2, memory_mb=200),
        a_domain(DomainState.SHUT_OFF, vcpus=8, memory_mb=800),
        a_domain(DomainState.MIGRATING_IN, vcpus=4, memory_mb=400),
    ]
    metrics = sampled(domains=RecordedDomains(domains)).metrics

    assert metrics["cpu_total_instance_vcpus"] == 12
    assert metrics["memory_total_instance_actual"] == 1200
    assert (metrics["instances_total"], metrics["instances_active"]) == (5, 4)
    states = ("running", "paused", "crashed", "shut_off", "migrating_in", "shutting_down", "unknown")
    assert [metrics[f"domains_{state}"] for state in states] == [1, 1, 1, 1, 1, 0, 0]


def test_b30_two_paths_on_one_device_count_once() -> None:
    machine = RecordedMachine(
        filesystems={"/i": a_filesystem(500, total_gb=500), "/b": a_filesystem(500, total_gb=500)}
    )
    metrics = sampled(machine).metrics

    assert metrics["disk_free_gb"] == 500
    assert not [name for name in metrics if name.startswith("blobs_") and name.endswith("_gb")]
    limit = limit_disk_gb(500, Decimal(20), metrics["disk_foreign_gb"], Decimal("1.0"))
    assert limit == 480
    assert limit >= 300  # the first of two instances of 300 GB
    assert limit - 300 < 300  # and not the second


def test_b30_two_filesystems_each_keep_their_own_reserve() -> None:
    machine = RecordedMachine(
        filesystems={
            "/i": a_filesystem(500, total_gb=600, device="a"),
            "/b": a_filesystem(90, total_gb=100, device="b"),
        }
    )
    metrics = sampled(machine).metrics

    assert (metrics["disk_total_gb"], metrics["disk_free_gb"], metrics["disk_reservation_gb"]) == (600, 500, 20)
    assert (metrics["blobs_total_gb"], metrics["blobs_free_gb"], metrics["blobs_reservation_gb"]) == (100, 90, 20)
    assert metrics["disk_foreign_gb"] == 100


def test_b31_a_disk_is_offered_by_one_formula_in_one_unit() -> None:
    disk = a_filesystem(21)

    published = sampled(RecordedMachine(filesystems={"/i": disk, "/b": disk})).metrics
    assert measured_headroom(published["disk_free_gb"], published["disk_reservation_gb"], 0, 1000) == 1
    assert all(
        name.endswith(("_gb", "_disk", "_per_second")) for name in published if name.startswith(("disk_", "blobs_"))
    )


def clamped(sample: Sample) -> set[str]:
    return {
        name.removesuffix("_clamped") for name, value in sample.metrics.items() if name.endswith("_clamped") and value
    }


def test_b35_clamps_are_published_and_named() -> None:
    small = RecordedMachine(
        cpus=CpuCounts(threads=4, cores=4),
        mem=MemoryFacts(total_bytes=8 * GIB_BYTES, available_bytes=7 * GIB_BYTES),
    )
    tight = Reservations(ram_gb=Decimal(6), cpu_threads=4, disk_gb=Decimal(20))
    sample = sampled(small, reservations=tight)

    assert (sample.metrics["cpu_schedulable"], sample.metrics["cpu_schedulable_clamped"]) == (1, True)
    assert (sample.metrics["memory_reserved_mb"], sample.metrics["memory_reserved_mb_clamped"]) == (4096, True)
    assert clamped(sample) == {"cpu_schedulable", "memory_reserved_mb"}
    assert clamped(sampled()) == set()


def test_what_says_that_a_figure_is_clamped_is_named_after_the_figure() -> None:
    flags = {name for name in sampled().metrics if name.endswith("_clamped")}

    assert flags
    assert {name.removesuffix("_clamped") for name in flags} <= sampled().metrics.keys()


def test_b43_blocks_kept_for_root_are_not_offered() -> None:
    disk = a_filesystem(50, total_gb=200, free_gb=100)
    metrics = sampled(RecordedMachine(filesystems={"/i": disk, "/b": disk})).metrics

    assert metrics["disk_free_gb"] == 50
    assert metrics["disk_free_gb"] - metrics["disk_reservation_gb"] == 30
    assert limit_disk_gb(metrics["disk_total_gb"], Decimal(20), metrics["disk_foreign_gb"], Decimal("1.0")) == 30


def test_b48_the_reserve_is_the_same_in_every_round() -> None:
    own = Reservations(ram_gb=Decimal(6), cpu_threads=4, disk_gb=Decimal(20))

    first = sampled(reservations=own)
    touched = sampled(reservations=own, previous=first)

    assert first.metrics["memory_reserved_mb"] == touched.metrics["memory_reserved_mb"] == 6 * 1024
    assert limit_memory_mb(65536, Decimal("1.0"), 6 * 1024, 0) == 59392


def test_b52_a_huge_node_is_exact() -> None:
    machine = RecordedMachine(
        cpus=CpuCounts(threads=512, cores=256),
        mem=MemoryFacts(total_bytes=6 * 1024 * GIB_BYTES, available_bytes=6 * 1024 * GIB_BYTES - 1),
        filesystems={path: a_filesystem(200 * 1024, total_gb=200 * 1024) for path in ("/i", "/b")},
    )
    metrics = sampled(machine).metrics

    assert metrics["memory_max"] == 6_291_456
    assert metrics["memory_available"] == 6_291_455
    assert metrics["disk_total_gb"] == 204_800
    assert metrics["cpu_schedulable"] == 510
    assert limit_memory_mb(metrics["memory_max"], Decimal("1.0"), 2048, 0) > 2_621_440


def test_b59_definitions_that_never_run_hold_nothing_and_foreign_domains_are_foreign() -> None:
    template = a_domain(DomainState.SHUT_OFF, vcpus=64, memory_mb=512 * 1024, owned=False)
    foreign = a_domain(DomainState.RUNNING, vcpus=4, memory_mb=8 * 1024, owned=False)
    metrics = sampled(domains=RecordedDomains([template, foreign])).metrics

    assert (metrics["cpu_foreign_vcpus"], metrics["memory_foreign_mb"]) == (4, 8192)
    assert (metrics["cpu_total_instance_vcpus"], metrics["memory_total_instance_actual"]) == (0, 0)
    assert (metrics["instances_total"], metrics["instances_active"]) == (0, 0)


def test_what_own_disks_occupy_is_not_foreign_and_stopped_instances_keep_theirs() -> None:
    domains = [
        a_domain(occupied_mb=100 * 1024),
        a_domain(DomainState.SHUT_OFF, occupied_mb=50 * 1024),
        a_domain(owned=False, occupied_mb=70 * 1024),
    ]

    assert sampled(domains=RecordedDomains(domains)).metrics["disk_foreign_gb"] == 500 - 150


def test_one_own_disk_of_unknown_size_makes_the_foreign_part_unknown() -> None:
    sample = sampled(domains=RecordedDomains([a_domain(occupied_mb=None), a_domain(occupied_mb=1024)]))

    assert "disk_foreign_gb" not in sample.metrics
    assert "disk_foreign" in sample.failed


def test_cores_are_left_out_where_the_system_does_not_know_them() -> None:
    sample = sampled(RecordedMachine(cpus=CpuCounts(threads=16, cores=None)))

    assert sample.metrics["cpu_schedulable"] == 14
    assert {"cpu_cores", "cpu_cores_reserved", "cpu_cores_schedulable"}.isdisjoint(sample.metrics)
    assert sample.failed == {}


def test_reserved_threads_round_up_to_cores_for_display() -> None:
    metrics = sampled(reservations=Reservations(ram_gb=Decimal(2), cpu_threads=3, disk_gb=Decimal(20))).metrics

    assert (metrics["cpu_cores_reserved"], metrics["cpu_cores_schedulable"]) == (2, 6)


def test_hybrid_cores_are_published_on_hybrid_processors_only() -> None:
    metrics = sampled(RecordedMachine(hybrid=HybridCpus(performance_cores=6, efficiency_cores=8))).metrics

    assert (metrics["cpu_cores_performance"], metrics["cpu_cores_efficiency"]) == (6, 8)
    assert "cpu_cores_performance" not in sampled().metrics


def test_reservations_of_zero_are_allowed_and_fractions_stay_exact() -> None:
    none = Reservations(ram_gb=Decimal(0), cpu_threads=0, disk_gb=Decimal("0.125"))
    sample = sampled(reservations=none)

    assert (sample.metrics["cpu_schedulable"], sample.metrics["memory_reserved_mb"]) == (16, 0)
    assert Decimal(str(sample.metrics["disk_reservation_gb"])) == Decimal("0.125")
    assert clamped(sample) == set()


def test_disk_busy_is_the_difference_of_two_samples() -> None:
    first = sampled(RecordedMachine(busy={"sda": 1000, "sdb": 0}, now=100.0))
    second = sampled(RecordedMachine(busy={"sda": 13000, "sdb": 3000}, now=110.0), previous=first)

    assert "disk_busy_ms_per_second" not in first.metrics
    assert second.metrics["disk_busy_ms_per_second"] == 1500.0


@pytest.mark.parametrize(
    ("busy", "now"), [({"sda": 999}, 110.0), ({"sda": 2000, "sdb": 5}, 110.0), ({"sda": 2000}, 100.0), ({}, 110.0)]
)
def test_disk_busy_is_absent_when_the_samples_cannot_be_compared(busy: Mapping[str, int], now: float) -> None:
    first = sampled(RecordedMachine(busy={"sda": 1000} if busy else {}, now=100.0))

    assert "disk_busy_ms_per_second" not in sampled(RecordedMachine(busy=busy, now=now), previous=first).metrics
