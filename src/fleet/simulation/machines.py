"""The machines themselves: what runs on them, and what a sample would measure. Nothing here decides anything.

Promise: measurements lag behind what is true, as they do on real nodes: a domain counts once it has booted, its memory
is touched by and by, and the load is an average over a minute. Figures are rounded to whole units before anybody sees
them.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from fleet.model.gpu_inventory import NO_GPUS, GpuDevice, GpuInventory
from fleet.model.resources import Amounts
from fleet.simulation.scenario import Habits, Machine


@dataclass(slots=True)
class Domain:
    """An instance as its machine knows it."""

    amounts: Amounts
    load: float
    awake: bool = True


@dataclass(slots=True)
class _Lagging:
    """A measured value that follows the true one exponentially."""

    value: float = 0.0
    at_us: int = 0

    def follow(self, true: float, now_us: int, lag_us: int) -> float:
        behind = (self.value - true) * math.exp(-(now_us - self.at_us) / lag_us)
        self.value, self.at_us = true + behind, now_us
        return self.value


@dataclass(slots=True)
class Ground:
    """One machine with its domains. Sums are kept, so that a sample costs the same however many domains there are."""

    machine: Machine
    habits: Habits
    domains: dict[int, Domain] = field(default_factory=dict)
    load: float = 0.0
    awake_mb: int = 0
    held: Amounts = field(default_factory=Amounts)
    _load: _Lagging = field(default_factory=_Lagging)
    _memory: _Lagging = field(default_factory=_Lagging)

    def boot(self, index: int, domain: Domain, now_us: int) -> None:
        """Start a domain."""
        self._catch_up(now_us)
        self.domains[index] = domain
        self.held += domain.amounts
        self.load += domain.load
        self.awake_mb += domain.amounts.memory_mb

    def end(self, index: int, now_us: int) -> None:
        """End a domain; its memory is free at once."""
        domain = self.domains.get(index)
        if domain is None:
            return
        self.sleep(index, now_us)
        del self.domains[index]
        self.held -= domain.amounts

    def sleep(self, index: int, now_us: int) -> None:
        """Put a domain to sleep: it holds no memory and brings no load until it wakes."""
        domain = self.domains[index]
        if not domain.awake:
            return
        self._catch_up(now_us)
        domain.awake = False
        before, self.awake_mb = self.awake_mb, self.awake_mb - domain.amounts.memory_mb
        self.load = max(0.0, self.load - domain.load)
        self._memory.value *= self.awake_mb / before if before else 0.0

    def wake(self, index: int, now_us: int) -> int:
        """Wake a domain; return how many MiB of its memory the machine does not have."""
        domain = self.domains[index]
        if domain.awake:
            return 0
        self._catch_up(now_us)
        room = max(0, self.machine.memory_mb - self.machine.reserved_memory_mb - self.awake_mb)
        domain.awake = True
        self.awake_mb += domain.amounts.memory_mb
        self.load += domain.load
        return max(0, domain.amounts.memory_mb - room)

    def sample(self, now_us: int) -> dict[str, Any]:
        """Return the figures that a daemon would publish now."""
        self._catch_up(now_us)
        machine, held = self.machine, self.held
        return {
            "is_hypervisor": True,
            "cpu_threads": machine.cpus,
            "cpu_max": machine.cpus,
            "cpu_schedulable": max(1, machine.cpus - machine.reserved_cpus),
            "cpu_max_per_instance": machine.cpus,
            "cpu_load_1": round(self._load.value, 3),
            "cpu_total_instance_vcpus": held.cpus,
            "cpu_foreign_vcpus": 0,
            "memory_max": machine.memory_mb,
            "memory_available": max(0, machine.memory_mb - round(self._memory.value)),
            "memory_reserved_mb": machine.reserved_memory_mb,
            "memory_total_instance_actual": held.memory_mb,
            "memory_foreign_mb": 0,
            "disk_total_gb": machine.disk_gb,
            "disk_free_gb": max(0, machine.disk_gb - held.disk_gb),
            "disk_reservation_gb": machine.reserved_disk_gb,
            "disk_foreign_gb": 0,
            "disk_busy_ms_per_second": 0,
            "queue_waiting": 0,
        }

    def _catch_up(self, now_us: int) -> None:
        self._load.follow(self.load, now_us, self.habits.load_lag_us)
        self._memory.follow(float(self.awake_mb), now_us, self.habits.memory_lag_us)


def inventory_of(machine: Machine) -> GpuInventory:
    """Return a machine's cards, each with a uuid of its own."""
    if not machine.gpus:
        return NO_GPUS
    cards = (GpuDevice(f"{machine.name}/{number}", machine.gpu_model) for number in range(machine.gpus))
    return GpuInventory(kind=machine.gpu_model, devices=tuple(cards))
