"""`placement.decide` alone: the pure function, no database, no HTTP."""

from __future__ import annotations

import time
from dataclasses import replace
from decimal import Decimal

from fleet.model.cluster_config import ClusterConfig
from fleet.model.node import CapacityRow, NodeRecord
from fleet.model.request import PlacementRequest
from fleet.model.resources import Amounts, Limits
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from fleet.placement.stage import all_stages
from tests.benchmarks.figures import Figure
from tests.benchmarks.stage import METRICS

NOW_US = 1_800_000_000_000_000
DECISIONS = 200


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
        )
        found.append(replace(node, scheduling="cordoned") if number % 97 == 0 else node)
    return found


def decide_alone(count: int) -> list[Figure]:
    """The p50 of a decision over `count` nodes, load-aware; every decision on a view that has just changed."""
    snapshot = Snapshot.from_records(records(count), ClusterConfig(), NOW_US)
    request = PlacementRequest(cpus=2, memory_mb=4096, disk_gb=20)
    times = []
    for seed in range(DECISIONS):
        # Another instant, as in the service: nothing may be kept from the decision before.
        snapshot.now_us = NOW_US + seed
        started = time.perf_counter()
        decision = decide(request, snapshot, seed)
        times.append(time.perf_counter() - started)
        assert decision.ranked, decision.summary
    ordered = sorted(times)
    return [
        Figure(
            name=f"placement.decide alone, {count:,} nodes, p50",
            value=ordered[len(ordered) // 2] * 1000,
            unit="ms",
            below=3.0 if count == 10_000 else None,
            detail=f"{len(all_stages())} stages, load-aware, p99 {ordered[int(len(ordered) * 0.99)] * 1000:.2f} ms",
        )
    ]
