"""`placement.decide` alone: the pure function, no database, no HTTP; and the GPU stage on a fleet full of cards."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from itertools import cycle, islice
from pathlib import Path

from fleet.cli.openb import read_nodes
from fleet.model.cluster_config import ClusterConfig
from fleet.model.gpu_inventory import NO_GPUS, GpuDevice, GpuInventory, MigInstance
from fleet.model.node import CapacityRow, NodeRecord
from fleet.model.request import PlacementRequest, parse_placement_request
from fleet.model.resources import Amounts, Limits
from fleet.placement.ask import Ask
from fleet.placement.instances import InstanceRecord
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from fleet.placement.stage import all_stages
from fleet.placement.stages import gpu
from tests.benchmarks.figures import Figure
from tests.benchmarks.stage import METRICS

NOW_US = 1_800_000_000_000_000
DECISIONS = 200
COUNTS = (100, 1000, 10_000, 100_000)
CHANGES = 12
TRACE = "openb_node_list_all_node.csv"
# Cards a node and their model, as often as they are in the openb trace; the models of two are not told there.
MADE_UP = (
    *[(0, "")] * 310,
    *[(2, "T4")] * 387,
    *[(2, "P100")] * 134,
    *[(4, "T4")] * 17,
    *[(4, "V100M16")] * 55,
    *[(4, "V100M32")] * 32,
    *[(8, "G2")] * 549,
    *[(8, "G3")] * 39,
)
GPU_ASKS = (
    {"gpus": 4, "gpu_kind": "g2"},
    {"gpus": 1, "gpu_kind": "T4"},
    {"gpus": 2},
    {"gpus": 2, "gpu_kind": "g3", "gpu_profile": "1g.10gb"},
)

# Everything a request may ask of nodes and neighbours, and still find some.
WISHES = {
    "namespace": "tenant-1",
    "region": "eu",
    "arch": "amd64",
    "placement": {"labels": {"disk": "nvme"}},
    "affinity": {"require_without_tag": ["noisy"], "prefer_without_tag": ["role=cache"]},
    "placement_rules": [
        {"resource": "virtual_machine", "operator": "has_not", "tags": {"app": "a-7"}, "within": "rack"},
        {"resource": "virtual_machine", "operator": "has", "tags": {"role": "web"}, "within": "zone"},
    ],
}
SIZE = {"cpus": 2, "memory_mb": 4096, "disk_gb": 20}


def records(count: int) -> list[NodeRecord]:
    """Nodes of one size in different states of use, so that every band has some and every stage drops some."""
    found = []
    for number in range(count):
        used = Amounts(number % 190, (number * 37) % 700_000, (number * 11) % 3900, number % 90)
        row = CapacityRow(limits=Limits(186, 782_336, 3980, None), used=used, expected_demand=Decimal(number % 50) / 10)
        node = NodeRecord(
            name=f"node-{number:05d}",
            node_id=number + 1,
            sample_at_us=NOW_US - (number % 100) * 1_000_000,
            metrics={**METRICS, "cpu_load_1": (number % 60) / 1.0},
            capacity=row,
            labels={
                "rack": f"rack-{number // 40}",
                "zone": f"zone-{number % 5}",
                "disk": "hdd" if number % 3 == 0 else "nvme",
            },
            region="us" if number % 11 == 0 else "eu",
            arch="arm64" if number % 13 == 0 else "amd64",
            backend="libvirt",
        )
        found.append(replace(node, scheduling="cordoned") if number % 97 == 0 else node)
    return found


def neighbours(count: int) -> list[InstanceRecord]:
    """Two tagged instances a node, half of them of the one namespace that asks."""
    return [
        InstanceRecord(
            uuid=f"instance-{number:06d}",
            namespace=f"tenant-{1 if number % 2 else number % 50}",
            node=f"node-{number // 2:05d}",
            tags={"role": ("db", "web", "cache")[number % 3], "app": f"a-{number % 400}"},
            amounts=Amounts(1, 1024, 10, 1),
        )
        for number in range(2 * count)
    ]


@dataclass(frozen=True, slots=True)
class Times:
    """Milliseconds of each call, in ascending order."""

    ascending: Sequence[float]

    @property
    def p50(self) -> float:
        return self.ascending[len(self.ascending) // 2]

    def __str__(self) -> str:
        return f"fastest {self.ascending[0]:.2f} ms, p99 {self.ascending[int(len(self.ascending) * 0.99)]:.2f} ms"


def timed(calls: Iterator[Callable[[], object]]) -> Times:
    """How long each call took; what comes before it, when the iterator makes it, is not measured."""
    times = []
    for call in calls:
        started = time.perf_counter()
        call()
        times.append((time.perf_counter() - started) * 1000)
    return Times(sorted(times))


def asked(snapshot: Snapshot, request: PlacementRequest, times: int) -> Iterator[Callable[[], object]]:
    for seed in range(times):
        # Another instant, as in the service: nothing may be kept from the decision before.
        snapshot.now_us = NOW_US + seed
        yield lambda seed=seed: _ranked(request, snapshot, seed)  # type: ignore[misc]


def _ranked(request: PlacementRequest, snapshot: Snapshot, seed: int) -> None:
    decision = decide(request, snapshot, seed)
    assert decision.ranked_indices.size, decision.summary


def decide_alone() -> list[Figure]:
    """The p50 of a decision, load-aware, at four sizes; every decision on a view that has just changed."""
    figures: list[Figure] = []
    normal: dict[int, float] = {}
    for count in COUNTS:
        snapshot = Snapshot.from_records(records(count), ClusterConfig(), NOW_US, neighbours(count))
        times = DECISIONS if count < COUNTS[-1] else DECISIONS // 2
        plain = timed(asked(snapshot, parse_placement_request(SIZE), times))
        request = parse_placement_request({**SIZE, **WISHES})
        _ranked(request, snapshot, 0)
        full = timed(asked(snapshot, request, times))
        normal[count] = full.ascending[0] / (count * math.log2(count)) * 1e6
        bars = {10_000: (3.0, 6.0), 100_000: (None, 60.0)}.get(count, (None, None))
        figures += [
            _figure(f"placement.decide alone, {count:,} nodes, p50", plain, bars[0], "nothing asked but room"),
            _figure(
                f"placement.decide, {count:,} nodes, selector, two rules within, affinity, p50",
                full,
                bars[1],
                f"{len(all_stages())} stages, {2 * count:,} tagged instances",
            ),
        ]
        if count >= 10_000:
            figures.append(_after_changes(snapshot, request, count))
    return [*figures, _growth(normal)]


def _figure(name: str, times: Times, below: float | None, detail: str) -> Figure:
    parts = [part for part in (detail, str(times)) if part]
    return Figure(name=name, value=times.p50, unit="ms", below=below, detail="; ".join(parts))


def _after_changes(snapshot: Snapshot, request: PlacementRequest, count: int) -> Figure:
    """The first decision after a label of one node changed."""

    def labels() -> Iterator[Callable[[], object]]:
        for number, node in enumerate(records(CHANGES)):
            snapshot.update_records([replace(node, labels={**node.labels, "rack": f"moved-{number}"})])
            yield lambda number=number: _ranked(request, snapshot, number)  # type: ignore[misc]

    bar = 60.0 if count == COUNTS[-1] else 6.0
    return _figure(f"the same, first after a label changed, {count:,} nodes, p50", timed(labels()), bar, "")


def _growth(normal: dict[int, float]) -> Figure:
    """Time over n log n: it must not grow with n."""
    shown = ", ".join(f"{count:,}: {value:.1f}" for count, value in normal.items())
    return Figure(
        name="growth: fastest time over n log n, 100,000 nodes beside 10,000",
        value=normal[100_000] / normal[10_000],
        unit="",
        below=1.25,
        detail=f"ms over n log2 n, in millionths, at {shown}",
    )


# --- GPUs -----------------------------------------------------------------------------------------------------------


def gpu_stage() -> list[Figure]:
    """The GPU stage alone, on the openb nodes where the trace is at hand: the slowest of four kinds of request."""
    path = Path(os.environ.get("FLEET_TRACES", "traces")) / TRACE
    from_trace = path.is_file()
    cards = [(node.gpus, node.gpu_model) for node in read_nodes(path)] if from_trace else list(MADE_UP)
    named = "openb" if from_trace else "made up after openb: FLEET_TRACES names no folder with the trace"
    nodes = [replace(node, gpu=inventory(number, *cards[number])) for number, node in enumerate(records(len(cards)))]
    snapshot = Snapshot.from_records(nodes, ClusterConfig(), NOW_US)
    figures = []
    for form in GPU_ASKS:
        request = parse_placement_request({**SIZE, **form})
        times = timed(_judged(snapshot, request, nodes))
        words = " ".join(str(value) for value in form.values())
        detail = f"{named}; asked: {words}; one node's cards changed before each"
        figures.append(_figure(f"GPU stage alone, {len(nodes):,} nodes, p50", times, 3.0, detail))
    return [max(figures, key=lambda figure: figure.value)]


def _judged(
    snapshot: Snapshot, request: PlacementRequest, nodes: Sequence[NodeRecord]
) -> Iterator[Callable[[], object]]:
    holders = cycle(node for node in nodes if node.gpu is not NO_GPUS)
    for node in islice(holders, DECISIONS):
        snapshot.update_gpus({node.node_id: replace(node.gpu, used=0)})
        frame = snapshot.frame
        ask = Ask.of(request, frame)
        yield lambda ask=ask, frame=frame: gpu.drops(ask, frame)  # type: ignore[misc]


def inventory(number: int, count: int, model: str) -> GpuInventory:
    """A node's cards in one of four forms: by uuid (most), counted, cut into slices, and slices only counted."""
    if not count:
        return NO_GPUS
    held = number % (count + 1)
    if number % 10 == 0:
        return GpuInventory(count=count, used=held, kind=model)
    if number % 10 == 1 and count == 8:
        return GpuInventory(profiles={"1g.10gb": 56}, profiles_used={"1g.10gb": 7 * held}, kind=model)
    cut = number % 10 == 2 and count == 8
    devices = tuple(
        GpuDevice(f"GPU-{number}-{at}", f"NVIDIA {model}", mig_capable=count == 8, mig_mode=cut,
                  bound_to="somebody" if at < held and not cut else None)
        for at in range(count)
    )  # fmt: skip
    slices = tuple(
        MigInstance(f"MIG-{number}-{at}", "1g.10gb", parent_gpu_uuid=f"GPU-{number}-{at // 7}",
                    bound_to="somebody" if at < 7 * held else None)
        for at in range(7 * count if cut else 0)
    )  # fmt: skip
    return GpuInventory(devices=devices, instances=slices)
