"""Wiring: the only module that knows all others. Builds what a process needs, once, after its fork.

Time, randomness, ids, engines and settings enter the product here and nowhere else.
"""

from __future__ import annotations

import os
import random
import signal
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path

import fleet
from fleet.config import Settings
from fleet.ledger.database import Database
from fleet.placement.draws import SEED_MAX
from fleet.placement.stage import all_stages, all_strategies
from fleet.queue.connection import connect
from fleet.queue.jobs import WakeUp, WakeUps
from fleet.services.configuration import Configuration
from fleet.services.context import Context
from fleet.services.neighbours import NeighbourCache
from fleet.services.snapshots import SnapshotCache
from fleet.services.wake import Wake

POOL_SIZE = 10


def build(settings: Settings, environ: Mapping[str, str], *, pool_size: int = POOL_SIZE) -> Context:
    """Return the context of one process.

    Raises:
        ConfigError: `DATABASE_URL` or `REDIS_URL` is not set.
    """
    settings.require("DATABASE_URL", "REDIS_URL")
    wake = Wake(WakeUps(connect(settings.redis_url)))
    database = Database(settings.database_url, pool_size=pool_size)
    return with_parts(settings, database, wake, environ, flush_wake_ups=wake.flush)


def with_parts(
    settings: Settings,
    database: Database,
    wake: Callable[[WakeUp], None],
    environ: Mapping[str, str],
    *,
    flush_wake_ups: Callable[[float], bool] = lambda _seconds: True,
) -> Context:
    """Return a context around a given database and wake-up: what tests use."""
    # A stage or strategy file that is not whole stops the start, by name, and not the first request.
    all_stages()
    all_strategies()
    draws = random.SystemRandom()
    configuration = Configuration(database, time.monotonic)
    return Context(
        settings=settings,
        database=database,
        configuration=configuration,
        snapshots=SnapshotCache(database, configuration, time.monotonic, new_uuid),
        neighbours=NeighbourCache(database, time.monotonic),
        wake=wake,
        flush_wake_ups=flush_wake_ups,
        fault=faults(environ),
        seed=lambda: draws.randrange(SEED_MAX + 1),
        new_uuid=new_uuid,
        elapsed=time.monotonic,
        sleep=time.sleep,
        uniform=draws.uniform,
        version=fleet.__version__,
    )


def new_uuid() -> str:
    """Return a fresh random uuid in its dashed form."""
    return str(uuid.uuid4())


def faults(environ: Mapping[str, str]) -> Callable[[str], None]:
    """Return the fault points of this process: nothing happens unless `FLEET_FAULTS` names one.

    `FLEET_FAULTS="point:kill,other:pause"` with `FLEET_FAULT_DIR=DIR`: at a named point a marker file is written, so a
    test knows that it was reached; then the process kills itself, or waits until the marker `DIR/<point>.go` appears.
    """
    wanted = dict(item.split(":", 1) for item in environ.get("FLEET_FAULTS", "").split(",") if ":" in item)
    if not wanted:
        return _no_fault
    folder = Path(environ.get("FLEET_FAULT_DIR", "."))

    def fault(point: str) -> None:
        action = wanted.get(point)
        if action is None:
            return
        (folder / point).write_text(str(os.getpid()), encoding="ascii")
        if action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        deadline = time.monotonic() + FAULT_PAUSE_SECONDS_MAX
        while not (folder / f"{point}.go").exists() and time.monotonic() < deadline:
            time.sleep(0.01)

    return fault


FAULT_PAUSE_SECONDS_MAX = 60


def _no_fault(_point: str) -> None:
    """Do nothing: the ordinary case."""
