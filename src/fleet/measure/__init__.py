"""What a node knows of itself: processors, load, memory, disks, domains.

Promise: a figure that could not be measured is absent and its collector is named with the reason; it is never zero
and never a guess. Every field says its unit in its name, and bytes are converted in one place.
"""

from fleet.measure.facts import (
    CpuCounts,
    DomainSource,
    FilesystemFacts,
    HugePages,
    HybridCpus,
    Machine,
    MemoryFacts,
    Paths,
    Reservations,
)
from fleet.measure.sample import Sample, measure
from fleet.measure.simulated import SimulatedFleet, SimulatedMachine
from fleet.measure.simulated_node import SimulatedNode, nodes_from, read_nodes
from fleet.measure.this_machine import ThisMachine
from fleet.measure.write_probe import HealthGate, NodeHealth, ProbeResult, WriteProbe, probe_write

__all__ = [
    "CpuCounts",
    "DomainSource",
    "FilesystemFacts",
    "HealthGate",
    "HugePages",
    "HybridCpus",
    "Machine",
    "MemoryFacts",
    "NodeHealth",
    "Paths",
    "ProbeResult",
    "Reservations",
    "Sample",
    "SimulatedFleet",
    "SimulatedMachine",
    "SimulatedNode",
    "ThisMachine",
    "WriteProbe",
    "measure",
    "nodes_from",
    "probe_write",
    "read_nodes",
]
