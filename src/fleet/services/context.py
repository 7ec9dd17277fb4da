"""What every use case needs, handed in: nothing here is built or looked up by a service."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from fleet.config import Settings
from fleet.ledger.database import Database
from fleet.queue.jobs import WakeUp
from fleet.services.configuration import Configuration
from fleet.services.neighbours import NeighbourCache
from fleet.services.remedies import Allowance
from fleet.services.snapshots import SnapshotCache


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """One process's view of the services. Built by `fleet.bootstrap`, once, after the fork.

    `wake` never raises and never waits: a wake-up that cannot be put is found by the sweeper; `flush_wake_ups` waits,
    for so many seconds, until those on their way are put. `fault` is a named fault point: it does
    nothing unless a test of failures turned it on. `seed` makes 63-bit seeds, `new_uuid` dashed uuids, `elapsed` is a
    monotonic clock in seconds. `allowance` bounds what the remedies of refused creates may cost. `decided` is told how
    many seconds each decision took, reading what it saw included, and its outcome.
    """

    settings: Settings
    database: Database
    configuration: Configuration
    snapshots: SnapshotCache
    neighbours: NeighbourCache
    wake: Callable[[WakeUp], None]
    flush_wake_ups: Callable[[float], bool]
    fault: Callable[[str], None]
    seed: Callable[[], int]
    new_uuid: Callable[[], str]
    elapsed: Callable[[], float]
    sleep: Callable[[float], None]
    uniform: Callable[[float, float], float]
    version: str
    allowance: Allowance = field(default_factory=Allowance)
    decided: Callable[[float, str], None] = lambda _seconds, _outcome: None
