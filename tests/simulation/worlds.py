"""Small worlds for the simulator."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from typing import Any

from fleet.model.cluster_config import ClusterConfig
from fleet.simulation.chance import Chance
from fleet.simulation.load import Habit, Lives, Mix, arrivals, until
from fleet.simulation.protocol import SECOND_US
from fleet.simulation.scenario import Arrival, Machine, Scenario, Shape

# Ratios of one, and no demand clause: what a node offers is what it has.
PLAIN = ClusterConfig(
    cpu_overcommit_ratio=Decimal(1), ram_overcommit_ratio=Decimal(1), scheduler_target_load=Decimal(0)
)
SMALL = Shape("small", 1, 1024, 10)
LARGE = Shape("large", 4, 8192, 40)
MIX = Mix(((SMALL, 3), (LARGE, 1)))


def machines(count: int, **other: Any) -> list[Machine]:
    given = {"cpus": 16, "memory_mb": 16384, "disk_gb": 200} | other
    return [Machine(f"n{number:03d}", **given) for number in range(count)]


def at_once(shape: Shape, count: int, *, at_us: int = SECOND_US) -> list[Arrival]:
    return [Arrival(index, at_us, shape) for index in range(count)]


def a_load(seed: int, *, rate: float, seconds: int, life_s: int = 60, mix: Mix = MIX, sleepy: int = 0) -> list[Arrival]:
    habit = Habit(rate=rate, lives=Lives.EXPONENTIAL, mean_life_us=life_s * SECOND_US, sleepy_percent=sleepy)
    return until(arrivals(Chance(seed), mix, habit), seconds * SECOND_US)


def a_world(found: Sequence[Arrival], nodes: Sequence[Machine], **other: Any) -> Scenario:
    return Scenario(machines=nodes, arrivals=found, **({"config": PLAIN} | other))
