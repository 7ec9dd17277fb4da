"""A small fleet for tests of failures: a ledger, simulated nodes, and real worker processes that die where told."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

from fleet import bootstrap
from fleet.config import load_settings
from fleet.hypervisor.contract import Hypervisor
from fleet.hypervisor.faults import FaultPlan
from fleet.hypervisor.simulated import SimulatedHypervisor
from fleet.ledger import instances, namespaces, nodes, operations, samples
from fleet.ledger.database import Sql
from fleet.ledger.instances import InstanceView
from fleet.ledger.migrate import migrate
from fleet.ledger.nodes import NodeIn
from fleet.ledger.operations import OperationView
from fleet.ledger.samples import SampleIn
from fleet.ledger.verify import verify
from fleet.measure import SimulatedNode, nodes_from
from fleet.model.lifecycle import InstanceState
from fleet.model.request import InstanceRequest
from fleet.queue.connection import connect
from fleet.queue.jobs import Inbox, WakeUps
from fleet.services.create import Created, create_instance
from fleet.services.drivers import simulated_drivers
from fleet.services.heartbeat import Heartbeat
from fleet.services.sweep import Swept, sweep_once
from fleet.services.work import Outcome, Workshop, carry_out
from tests.servers import wait_until

METRICS: Mapping[str, Any] = {
    "is_hypervisor": True,
    "cpu_threads": 34,
    "cpu_schedulable": 32,
    "cpu_max_per_instance": 32,
    "cpu_load_1": 0.1,
    "cpu_total_instance_vcpus": 0,
    "memory_max": 65536,
    "memory_available": 60000,
    "memory_reserved_mb": 2048,
    "memory_total_instance_actual": 0,
    "disk_total_gb": 1000,
    "disk_free_gb": 980,
    "disk_reservation_gb": 20,
}
LIVE_LEASES = Sql("SELECT COUNT(*) FROM operations WHERE state = 'running' AND lease_expires_at >= {now}")
PAUSES = Sql("SELECT COUNT(*) FROM operations WHERE state = 'pending' AND next_attempt_at > {now}")
SHORT_LEASE = ("--lease-seconds", "1")
"""For a worker that is going to die: its work is free that soon afterwards."""
WAIT_SECONDS_MAX = 120
"""For whatever is waited for until it is so: an interpreter's start takes long where much else is going on."""
PIN = Sql("UPDATE instances SET request = :request WHERE uuid = :uuid")
CHARGES = Sql("SELECT node_id, settled_at FROM charges WHERE instance_uuid = :uuid")


class Rig:
    """The fleet. `faults` are those of every simulated node's driver."""

    def __init__(
        self,
        folder: Path,
        database_url: str,
        redis_url: str,
        *,
        node_count: int = 2,
        faults: Mapping[str, Any] | None = None,
    ) -> None:
        self.folder = folder
        self.instances_folder = folder / "instances"
        self.instances_folder.mkdir()
        self.markers = folder / "markers"
        self.markers.mkdir()
        self.redis_url = redis_url
        self.environment = {
            "FLEET_DATABASE_URL": database_url,
            "FLEET_REDIS_URL": redis_url,
            "FLEET_INSTANCES_PATH": str(self.instances_folder),
            "FLEET_NODE_NAME": "test-machine",
            "FLEET_NODE_BACKEND": "simulated",
        }
        settings = load_settings(folder / "config", self.environment)
        self.context = bootstrap.build(settings, {})
        self.db = self.context.database
        migrate(self.db)
        namespaces.ensure(self.db, "system")
        size = {"cpu_threads": 34, "memory_mb": 65536, "disk_gb": 1000}
        described = [
            {"name": f"n{number}", **size, "faults": dict(faults or {})} for number in range(1, node_count + 1)
        ]
        self.described: list[SimulatedNode] = nodes_from(described)
        self.described_file = folder / "nodes.json"
        self.described_file.write_text(json.dumps(described))
        self.drivers = simulated_drivers(settings, self.described)
        for node in self.described:
            nodes.register(self.db, NodeIn(name=node.name, declared={"backend": "simulated"}))
        self.publish()
        self.client = connect(redis_url)
        self.wake_ups = WakeUps(self.client)
        self._processes: list[subprocess.Popen[bytes]] = []

    @property
    def node_ids(self) -> list[int]:
        """The ids of all nodes."""
        return [node.node_id for node in nodes.listing(self.db, 1000)]

    def publish(self, *names: str) -> None:
        """Publish a good sample of these nodes, or of all."""
        wanted = names or tuple(node.name for node in self.described)
        samples.publish(
            self.db,
            [SampleIn(node_name=name, metrics=METRICS, age_seconds=Decimal(0), healthy=True) for name in wanted],
            self.context.configuration(),
        )

    def create(self, name: str = "i", **fields: Any) -> Created:
        """Have an instance accepted, and its wake-up put or lost: it changes nothing in the queue any more."""
        created = self.accept(name, **fields)
        assert self.context.flush_wake_ups(WAIT_SECONDS_MAX), "the wake-up is still on its way"
        return created

    def accept(self, name: str = "i", **fields: Any) -> Created:
        """Have an instance accepted; its wake-up is on its way, as a caller of the API finds it."""
        request = InstanceRequest.model_validate({"name": name, "cpus": 1, "memory_mb": 512, "disk_gb": 1, **fields})
        created = create_instance(self.context, "system", request)
        assert isinstance(created, Created), created
        return created

    def operation(self, uuid: str) -> OperationView:
        found = operations.get(self.db, uuid)
        assert found is not None
        return found

    def instance(self, uuid: str) -> InstanceView:
        found = instances.get(self.db, uuid)
        assert found is not None
        return found

    def charges(self, uuid: str) -> list[tuple[int, int | None]]:
        """Node and settling of every charge of the instance."""
        with self.db.read() as conn:
            return [(row.node_id, row.settled_at) for row in CHARGES.run(conn, uuid=uuid)]

    def homes(self, uuid: str) -> list[str]:
        """The nodes on which a domain of the instance exists."""
        return [node.name for node in self.described if uuid in {d.uuid for d in self.driver(node.name).domains()}]

    def driver(self, name: str) -> Hypervisor:
        return self.drivers(name)

    def set_faults(self, name: str, faults: Mapping[str, Any]) -> None:
        """From now on a node's driver, in this process, does so."""
        driver = self.driver(name)
        assert isinstance(driver, SimulatedHypervisor)
        driver._plan = FaultPlan.parse(dict(faults))

    def pin(self, uuid: str, node: str) -> None:
        """Let the instance have been asked for on that node."""
        request = json.dumps({**self.instance(uuid).request, "placement": {"node": node}})
        self.db.unit(lambda conn: PIN.run(conn, uuid=uuid, request=request).rowcount)

    def differences(self) -> list[Any]:
        """What the ledger's verification finds."""
        return list(verify(self.db).differences)

    def sweep(self) -> Swept:
        """One round of the sweeper."""
        return sweep_once(self.db, self.wake_ups, grace_seconds=0)

    def wait_for_leases(self) -> None:
        """Wait until the leases of the dead have run out, by the database's clock."""
        wait_until(lambda: not self._count(LIVE_LEASES), seconds=WAIT_SECONDS_MAX, what="all leases run out")

    def wait_for_pauses(self) -> None:
        """Wait until the pauses between attempts are over, by the database's clock."""
        wait_until(lambda: not self._count(PAUSES), seconds=WAIT_SECONDS_MAX, what="all pauses are over")

    def _count(self, statement: Sql) -> int:
        with self.db.read() as conn:
            return int(statement.run(conn).scalar_one())

    @contextlib.contextmanager
    def workshop(self, owner: str = "in-process") -> Iterator[Workshop]:
        """A worker's means in this process."""
        with Heartbeat(self.db) as heartbeat:
            yield Workshop(self.context, self.drivers, heartbeat, owner)

    def carry_out(self, operation_uuid: str, owner: str = "in-process") -> Outcome:
        """One attempt, in this process."""
        with self.workshop(owner) as shop:
            return carry_out(shop, operation_uuid)

    def inbox(self) -> Inbox:
        """A consumer of all nodes' queues."""
        inbox = Inbox(connect(self.redis_url, blocking=True))
        inbox.serve(self.node_ids)
        return inbox

    def start(
        self, daemon: str, *arguments: str, faults: str = "", more: Mapping[str, str] | None = None
    ) -> subprocess.Popen[bytes]:
        """Start a real daemon process; `faults` as `FLEET_FAULTS` takes them, `more` for its environment."""
        environment = {**os.environ, **self.environment, **(more or {})}
        if faults:
            environment |= {"FLEET_FAULTS": faults, "FLEET_FAULT_DIR": str(self.markers)}
        log = (self.folder / f"{daemon}-{len(self._processes)}.log").open("wb")
        with log:
            process = subprocess.Popen(
                [sys.executable, "-m", f"daemons.{daemon}", *arguments], env=environment, stdout=log, stderr=log
            )
        self._processes.append(process)
        return process

    def start_worker(self, *arguments: str, faults: str = "") -> subprocess.Popen[bytes]:
        """Start a worker of all nodes."""
        return self.start(
            "worker", "--all-simulated", "--simulated", str(self.described_file), *arguments, faults=faults
        )

    def wait_for_kill(self, process: subprocess.Popen[bytes], point: str) -> None:
        """Wait until the process has killed itself at the named point, which its marker proves."""
        wait_until(
            lambda: process.poll() is not None,
            seconds=WAIT_SECONDS_MAX,
            what=f"the worker dies at {point}\n{self.logs()}",
        )
        assert (process.returncode, (self.markers / point).exists()) == (-signal.SIGKILL, True), self.logs()

    def wait_for_state(self, uuid: str, state: InstanceState) -> None:
        """Wait until the instance is in that state."""
        wait_until(
            lambda: self.instance(uuid).state is state,
            seconds=WAIT_SECONDS_MAX,
            what=f"{uuid} is {state}, it is {self.instance(uuid).state}\n{self.logs()}",
        )

    def logs(self) -> str:
        """How the processes do, and the ends of their logs."""
        ended = ", ".join(f"{process.args[2:4]!r} {process.poll()}" for process in self._processes)  # type: ignore[index]
        return (
            ended
            + "\n"
            + "\n".join(path.read_text(errors="replace")[-3000:] for path in sorted(self.folder.glob("*.log")))
        )

    def close(self) -> None:
        """End what was started, and let nothing of it come to the queue of the next: its nodes have the same ids."""
        for process in self._processes:
            if process.poll() is None:
                process.kill()
            process.wait(WAIT_SECONDS_MAX)
        on_their_way = not self.context.flush_wake_ups(WAIT_SECONDS_MAX)
        self.db.close()
        self.client.close()
        assert not on_their_way, "a wake-up is neither put nor lost"


def assert_made_once(rig: Rig, uuid: str) -> None:
    instance = rig.instance(uuid)
    assert instance.state is InstanceState.RUNNING
    assert rig.homes(uuid) == [instance.node]
    [(node_id, settled_at)] = rig.charges(uuid)
    assert (node_id, settled_at is not None) == (instance.node_id, True)
    assert rig.differences() == []
