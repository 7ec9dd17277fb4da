"""Simulated nodes: machines that exist in a file, measured by the same collectors as real ones.

Their load follows from what their domains do, their memory and disk shrink by what their domains take, so a decision
sees them move as it sees real nodes move.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Final

from fleet.measure.facts import (
    GIB_BYTES,
    MIB_BYTES,
    MIB_PER_GIB,
    CpuCounts,
    DomainSource,
    FilesystemFacts,
    HybridCpus,
    MemoryFacts,
    Paths,
)
from fleet.measure.sample import Sample, measure
from fleet.measure.simulated_node import SimulatedNode, read_nodes
from fleet.model.domain import Domain, DomainSums, sum_domains

_PATHS: Final = Paths(instances="instances", blobs="blobs")


class SimulatedMachine:
    """States a simulated node's facts from its size and its domains."""

    def __init__(self, node: SimulatedNode, source: DomainSource, monotonic: Callable[[], float]) -> None:
        self._node = node
        self._source = source
        self._monotonic = monotonic

    def monotonic(self) -> float:
        return self._monotonic()

    def cpu_counts(self) -> CpuCounts:
        return CpuCounts(threads=self._node.cpu_threads, cores=self._node.cpu_cores)

    def hybrid_cpus(self) -> HybridCpus | None:
        return None

    def load(self) -> tuple[float, float, float]:
        sums = self._sums()
        load = float(self._node.base_load + self._node.load_per_vcpu * (sums.vcpus + sums.foreign_vcpus))
        return (load, load, load)

    def memory(self) -> MemoryFacts:
        sums = self._sums()
        taken_mb = self._node.base_memory_mb + sums.memory_mb + sums.foreign_memory_mb
        return MemoryFacts(
            total_bytes=self._node.memory_mb * MIB_BYTES,
            available_bytes=max(0, self._node.memory_mb - taken_mb) * MIB_BYTES,
        )

    def filesystem(self, path: str) -> FilesystemFacts:
        taken_mb = sum(domain.disk_occupied_mb or 0 for domain in self._source.domains())
        taken_gb = self._node.base_disk_gb + -(-taken_mb // MIB_PER_GIB)
        available = max(0, self._node.disk_gb - taken_gb) * GIB_BYTES
        total = self._node.disk_gb * GIB_BYTES
        return FilesystemFacts(device="simulated", total_bytes=total, free_bytes=available, available_bytes=available)

    def disk_busy_ms(self) -> Mapping[str, int]:
        return {"simulated": int(self._node.disk_busy_ms_per_second * Decimal(str(self._monotonic())))}

    def _sums(self) -> DomainSums:
        return sum_domains(self._source.domains())


class SimulatedFleet:
    """Many simulated nodes; `sample` measures one of them. Each node's domains come from its own driver."""

    def __init__(
        self,
        nodes: Sequence[SimulatedNode],
        domains_of: Callable[[SimulatedNode], DomainSource],
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self.nodes: Mapping[str, SimulatedNode] = {node.name: node for node in nodes}
        self._sources = {node.name: domains_of(node) for node in nodes}
        self._monotonic = monotonic
        self._previous: dict[str, Sample] = {}

    @classmethod
    def load(cls, path: Path, domains_of: Callable[[SimulatedNode], DomainSource]) -> SimulatedFleet:
        """The fleet of a JSON or YAML file: a list of nodes, or a mapping that holds it as `nodes`."""
        return cls(read_nodes(path), domains_of)

    def source(self, name: str) -> DomainSource:
        """The driver of one node."""
        return self._sources[name]

    def sample(self, name: str) -> Sample:
        """Measure one node now."""
        node = self.nodes[name]
        source = _ReadOnce(self._sources[name])
        taken = measure(
            SimulatedMachine(node, source, self._monotonic),
            source,
            paths=_PATHS,
            reservations=node.reservations,
            previous=self._previous.get(name),
            gpus=lambda: node.gpu_inventory.reading,
        )
        self._previous[name] = taken
        return taken


class _ReadOnce:
    """All collectors of one sample see the same domains, or the same failure."""

    def __init__(self, source: DomainSource) -> None:
        self._source = source
        self._answer: Sequence[Domain] | None = None
        self._failure: Exception | None = None

    def domains(self) -> Sequence[Domain]:
        if self._answer is None and self._failure is None:
            try:
                self._answer = self._source.domains()
            except Exception as failure:  # noqa: BLE001  # kept and raised for every collector that asks
                self._failure = failure
        if self._failure is not None:
            raise self._failure
        return self._answer or ()

    def max_vcpus(self) -> int | None:
        return self._source.max_vcpus()
