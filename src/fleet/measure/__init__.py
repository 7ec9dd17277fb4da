"""What a node knows of itself: processors, load, memory, disks, domains, GPUs.

Promise: a figure that could not be measured is absent and its collector is named with the reason; it is never zero
and never a guess. Every field says its unit in its name, and bytes are converted in one place.
"""

from fleet.measure.facts import (
    CpuCounts,
    DomainSource,
    FilesystemFacts,
    GpuReading,
    HugePages,
    HybridCpus,
    Machine,
    MemoryFacts,
    Paths,
    Reservations,
)
from fleet.measure.gpu_file import DeclaredGpus, declared_gpus, read_gpu_file
from fleet.measure.gpus import MachineGpus, shortened, this_driver
from fleet.measure.sample import Sample, measure
from fleet.measure.simulated import SimulatedFleet, SimulatedMachine
from fleet.measure.simulated_node import SimulatedNode, nodes_from, read_nodes
from fleet.measure.this_machine import ThisMachine
from fleet.measure.write_probe import ProbeResult, WriteProbe

__all__ = [
    "CpuCounts",
    "DeclaredGpus",
    "DomainSource",
    "FilesystemFacts",
    "GpuReading",
    "HugePages",
    "HybridCpus",
    "Machine",
    "MachineGpus",
    "MemoryFacts",
    "Paths",
    "ProbeResult",
    "Reservations",
    "Sample",
    "SimulatedFleet",
    "SimulatedMachine",
    "SimulatedNode",
    "ThisMachine",
    "WriteProbe",
    "declared_gpus",
    "measure",
    "nodes_from",
    "read_gpu_file",
    "read_nodes",
    "shortened",
    "this_driver",
]
