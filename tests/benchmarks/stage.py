"""The stage of a measurement: a private MariaDB that flushes every commit, nodes with fresh samples, real daemons."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psutil

from fleet.cli.caller import Session
from fleet.cli.control_plane import ControlPlane, Plan, free_port
from fleet.ledger import cluster_config, nodes, samples
from fleet.ledger.database import Database
from fleet.ledger.migrate import migrate
from fleet.ledger.nodes import NodeIn
from fleet.ledger.samples import SampleIn
from tests.benchmarks.load import Load
from tests.servers import MariaDBServer

# A buffer pool that holds everything, as a production server has; the rest is the tests' server.
MARIADB_OPTIONS = ("--innodb-buffer-pool-size=512M", "--innodb-log-file-size=128M")
METRICS: Mapping[str, Any] = {
    "is_hypervisor": True,
    "cpu_threads": 64,
    "cpu_max": 64,
    "cpu_schedulable": 62,
    "cpu_max_per_instance": 64,
    "cpu_load_1": 4.0,
    "cpu_load_5": 4.0,
    "cpu_load_15": 4.0,
    "cpu_total_instance_vcpus": 0,
    "cpu_foreign_vcpus": 0,
    "memory_max": 262_144,
    "memory_available": 250_000,
    "memory_reserved_mb": 4096,
    "memory_total_instance_actual": 0,
    "memory_foreign_mb": 0,
    "disk_total_gb": 4000,
    "disk_free_gb": 3900,
    "disk_reservation_gb": 20,
    "disk_foreign_gb": 0,
    "disk_busy_ms_per_second": 0.0,
    "queue_waiting": 0,
    "instances_total": 0,
    "instances_active": 0,
}


@dataclass(slots=True)
class Stage:
    """One database that grows, and the control planes that are started on it."""

    server: MariaDBServer
    database_url: str
    folder: Path
    database: Database
    profile: Path | None = None
    nodes: int = 0
    _names: list[str] = field(default_factory=list)

    def grow(self, to: int) -> None:
        """Have `to` nodes, all with a fresh sample."""
        for number in range(self.nodes, to):
            name = f"node-{number:05d}"
            declared = {"backend": "simulated", "arch": "amd64", "labels": {"rack": f"r{number // 8}"}}
            nodes.register(self.database, NodeIn(name=name, declared=declared))
            self._names.append(name)
        self.nodes = max(self.nodes, to)
        self.refresh()

    def refresh(self) -> None:
        """A new sample for every node: what is measured must not grow stale."""
        config = cluster_config.load(self.database)
        samples.publish(self.database, [SampleIn(name, METRICS) for name in self._names], config)

    @contextlib.contextmanager
    def service(self, *, workers: bool = False, reconciler: bool = False, profiled: str = "") -> Iterator[ControlPlane]:
        """The API with two workers, its queue, and what else is asked for."""
        plan = Plan(
            state=self.folder / "state",
            port=free_port(),
            database_url=self.database_url,
            this_machine=False,
            workers=workers,
            reconciler=reconciler,
            log_level="warning",
        )
        if self.profile is not None and profiled:
            output = self.profile / f"{profiled}.pstats"
            command = (str(Path(__file__).with_name("profiled_api.py")), str(output))
            plan = replace(plan, api_command=(sys.executable, *command))
        with ControlPlane(plan) as plane:
            yield plane


@contextlib.contextmanager
def stage(profile: Path | None) -> Iterator[Stage]:
    """A fresh stage with the schema in place."""
    with MariaDBServer(options=MARIADB_OPTIONS) as server, tempfile.TemporaryDirectory(prefix="fleet-bench-") as folder:
        url = server.url(server.create_database())
        database = Database(url)
        migrate(database)
        # Thousands of nodes without daemons: one publish a measurement must be enough.
        cluster_config.store(database, "NODE_METRICS_MAX_AGE_SECONDS", "900")
        try:
            yield Stage(server, url, Path(folder), database, profile)
        finally:
            database.close()


def token_of(session: Session) -> str:
    """A token for the clients."""
    caller = session.caller()
    try:
        return session.token(caller)
    finally:
        caller.close()


def serving(plane: ControlPlane) -> list[psutil.Process]:
    """The API's processes that answer requests."""
    api = psutil.Process(plane.processes.pids["sf-api"])
    found: list[psutil.Process] = api.children(recursive=True)
    return found or [api]


def worker_rss_mb(plane: ControlPlane) -> float:
    """The largest resident set of the API's processes that serve, in MB."""
    return max(float(process.memory_info().rss) for process in serving(plane)) / 1_000_000


class ProcessorTime:
    """What some processes use of the processor from now on: it says the same on a busy machine as on a quiet one."""

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        self._processes = processes
        self._before = self._used()

    def ms_of_each(self, loads: Sequence[Load]) -> float:
        """Milliseconds for each create of all the rounds since the start."""
        creates = sum(len(load.times) for load in loads)
        return (self._used() - self._before) * 1000 / creates if creates else float("nan")

    def _used(self) -> float:
        return sum(float(times.user + times.system) for times in (one.cpu_times() for one in self._processes))
