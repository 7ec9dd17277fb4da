"""What is simulated: machines, requests over time, habits of instances, and how stale a view may be.

Promise: a scenario is a value. It holds every draw of the load already (who arrives when, how large, for how long), so
every strategy is given exactly the same requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet.model.cluster_config import ClusterConfig
from fleet.simulation.protocol import QUICK_US, SECOND_US

BOOT_US: Final = 2_500_000
SAMPLE_PERIOD_US: Final = 60 * SECOND_US


@dataclass(frozen=True, slots=True)
class Machine:
    """One node: all it has is offered but what is reserved; `gpu_model` names each of its cards."""

    name: str
    cpus: int
    memory_mb: int
    disk_gb: int
    gpus: int = 0
    gpu_model: str = ""
    sleepy_pool: bool = False
    reserved_cpus: int = 0
    reserved_memory_mb: int = 0
    reserved_disk_gb: int = 0
    max_instances: int | None = None


@dataclass(frozen=True, slots=True)
class Shape:
    """What a request asks for, and the size class its refusals are counted in.

    `gpu_kinds`: each kind is asked for in turn until one is placed; empty: any.
    """

    size_class: str
    cpus: int
    memory_mb: int
    disk_gb: int
    gpus: int = 0
    gpu_kinds: tuple[str, ...] = ()
    sleepy: bool = False


@dataclass(frozen=True, slots=True)
class Arrival:
    """One request. `lifetime_us` None: its instance stays. `index` names its draws, the same for every strategy."""

    index: int
    at_us: int
    shape: Shape
    lifetime_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Habits:
    """What instances do once they are there."""

    boot_us: int = BOOT_US
    load_per_vcpu_max: float = 0.4
    """Each instance draws its own load for each vCPU, from 0 to this: 0.2 on average, as simulated nodes have it."""
    load_lag_us: int = 60 * SECOND_US
    """`cpu_load_1` is an exponential average over one minute."""
    memory_lag_us: int = 120 * SECOND_US
    """Guests touch their memory by and by."""
    awake_us: int = 900 * SECOND_US
    asleep_us: int = 2700 * SECOND_US


@dataclass(frozen=True, slots=True, kw_only=True)
class Staleness:
    """How old what a decision sees may be."""

    counters_us: int = QUICK_US
    sample_period_us: int = SAMPLE_PERIOD_US


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Everything but the strategy.

    `concurrency` requests are placed at a time, by `workers` processes with a view each. `wait_us` is what requests
    say as `wait_for_capacity_seconds`. `until_us` None: until every request was answered and every departure was.
    """

    machines: Sequence[Machine]
    arrivals: Sequence[Arrival]
    config: ClusterConfig = field(default_factory=ClusterConfig)
    seed: int = 0
    concurrency: int = 16
    workers: int = 2
    wait_us: int = 0
    until_us: int | None = None
    habits: Habits = field(default_factory=Habits)
    staleness: Staleness = field(default_factory=Staleness)
