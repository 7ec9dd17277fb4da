"""The resources daemon's loop: when a node is published, and what its sample says when something fails."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from decimal import Decimal
from pathlib import Path

import pytest

from fleet.hypervisor.contract import DomainSpec, Fault, HypervisorError
from fleet.hypervisor.simulated import SimulatedHypervisor
from fleet.ledger import events, node_names, nodes, operations, snapshots
from fleet.ledger.cluster_config import load
from fleet.ledger.database import Database
from fleet.ledger.nodes import NodeIn, NodeView
from fleet.measure import Paths, Reservations, SimulatedFleet, ThisMachine, nodes_from
from fleet.model.domain import Domain
from fleet.model.errors import DatabaseUnavailable
from fleet.model.lifecycle import OperationKind
from fleet.model.node import NodeState
from fleet.model.request import parse_placement_request
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from fleet.services.drivers import SimulatedDrivers
from fleet.services.resources import POLL_SECONDS, PROBE_SECONDS, PUBLISH_SECONDS, RealNode, Resources, SimulatedNodes

SPEC = DomainSpec(uuid="11111111-1111-4111-8111-111111111111", name="i", cpus=2, memory_mb=512, disk_gb=1)


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Driver(SimulatedHypervisor):
    """A driver that can be made to fail."""

    silent = False

    def domains(self) -> Sequence[Domain]:
        if self.silent:
            raise HypervisorError(Fault.UNREACHABLE, "the hypervisor went away")
        return super().domains()


class RealRig:
    def __init__(self, db: Database, folder: Path) -> None:
        self.db = db
        self.clock = Clock()
        self.instances, self.blobs = folder / "instances", folder / "blobs"
        self.instances.mkdir()
        self.blobs.mkdir()
        self.driver = Driver(folder / "domains.json", occupies_disk=False)
        node = RealNode(
            "n1",
            ThisMachine(),
            self.driver,
            paths=Paths(instances=str(self.instances), blobs=str(self.blobs)),
            reservations=Reservations(ram_gb=Decimal("0.1"), cpu_threads=0, disk_gb=Decimal(0)),
            is_hypervisor=True,
            monotonic=self.clock,
        )
        self.resources = Resources(db, lambda: load(db), node, monotonic=self.clock)

    def after(self, seconds: float) -> int:
        self.clock.now += seconds
        return self.resources.turn()

    @property
    def node(self) -> NodeView:
        found = nodes.get(self.db, "n1")
        assert found is not None
        return found


@pytest.fixture
def rig(db: Database, tmp_path: Path) -> RealRig:
    nodes.register(db, NodeIn(name="n1", declared={"backend": "simulated"}))
    return RealRig(db, tmp_path)


def test_a_node_is_published_at_once_and_then_every_minute(rig: RealRig) -> None:
    assert rig.after(0) == 1
    assert rig.node.state is NodeState.ACTIVE
    published = [second for second in range(1, 181) if rig.after(1)]

    assert published == [PUBLISH_SECONDS, 2 * PUBLISH_SECONDS, 3 * PUBLISH_SECONDS]


def test_a_changed_domain_set_is_published_within_one_poll(rig: RealRig) -> None:
    rig.after(0)
    rig.driver.create(SPEC)

    assert sum(rig.after(1) for _ in range(int(POLL_SECONDS))) == 1
    assert rig.node.metrics["cpu_total_instance_vcpus"] == 2
    assert sum(rig.after(1) for _ in range(20)) == 0


def test_b12_a_hypervisor_that_is_away_leaves_its_figures_out_and_is_named(rig: RealRig) -> None:
    rig.after(0)
    rig.driver.create(SPEC)
    rig.after(POLL_SECONDS)
    rig.driver.silent = True

    assert sum(rig.after(1) for _ in range(20)) == 0
    assert rig.after(PUBLISH_SECONDS) == 1
    assert "cpu_total_instance_vcpus" not in rig.node.metrics
    assert "went away" in rig.node.failed["domains"]
    rig.driver.silent = False
    rig.after(PUBLISH_SECONDS)
    assert rig.node.metrics["cpu_total_instance_vcpus"] == 2


def test_a_failing_write_probe_puts_the_node_in_error_and_three_good_ones_bring_it_back(rig: RealRig) -> None:
    rig.after(0)
    away = rig.blobs.rename(rig.blobs.with_name("away"))
    rig.after(PROBE_SECONDS)
    assert rig.node.state is NodeState.ERROR

    away.rename(rig.blobs)
    states = []
    for _ in range(3):
        rig.after(PROBE_SECONDS)
        states.append(rig.node.state)
    assert states == [NodeState.ERROR, NodeState.ERROR, NodeState.ACTIVE]
    changed = [event for event in events.listing(rig.db, "node", "n1") if event.message == "node state changed"]
    assert [event.payload["to"] for event in changed] == ["active", "error", "active"]


def test_a_node_that_is_not_registered_is_published_as_soon_as_it_is(db: Database, tmp_path: Path) -> None:
    rig = RealRig(db, tmp_path)
    assert rig.after(0) == 0
    nodes.register(db, NodeIn(name="n1", declared={"backend": "simulated"}))

    assert sum(rig.after(1) for _ in range(int(POLL_SECONDS) + 1)) == 1


def test_simulated_nodes_are_published_all_at_once_and_later_spread(db: Database, tmp_path: Path) -> None:
    described = nodes_from(
        [{"name": f"s{number}", "cpu_threads": 8, "memory_mb": 16384, "disk_gb": 500} for number in range(12)]
    )
    drivers = SimulatedDrivers(tmp_path / "domains", described=described)
    for node in described[:10]:
        nodes.register(db, NodeIn(name=node.name, declared={"backend": "simulated"}))
    clock = Clock()
    measurer = SimulatedNodes(SimulatedFleet(described, lambda node: drivers(node.name)), drivers)
    resources = Resources(db, lambda: load(db), measurer, monotonic=clock)

    assert resources.turn() == 10
    busiest = 0
    for _ in range(130):
        clock.now += 1
        busiest = max(busiest, resources.turn())
    assert busiest <= 5
    drivers("s3").create(SPEC)
    clock.now += POLL_SECONDS
    assert resources.turn() >= 1
    found = nodes.get(db, "s3")
    assert found is not None
    assert found.metrics["cpu_total_instance_vcpus"] == 2


def a_queue(db: Database, node: str, waiting: int) -> None:
    node_id = node_names.ids(db)[node]
    for _ in range(waiting):
        new = str(uuid.uuid4())
        db.unit(lambda conn, new=new: operations.insert(conn, new, OperationKind.CREATE, new, "ns", node_id))  # type: ignore[misc]


def test_a_node_that_more_than_twenty_operations_wait_for_is_shed(db: Database, tmp_path: Path) -> None:
    described = nodes_from([{"name": name, "cpu_threads": 8, "memory_mb": 16384, "disk_gb": 500} for name in "abc"])
    drivers = SimulatedDrivers(tmp_path / "domains", described=described)
    for node in described:
        nodes.register(db, NodeIn(name=node.name, declared={"backend": "simulated"}))
    measurer = SimulatedNodes(SimulatedFleet(described, lambda node: drivers(node.name)), drivers)
    a_queue(db, "a", 21)
    a_queue(db, "b", 20)
    assert Resources(db, lambda: load(db), measurer).turn() == 3

    [page] = snapshots.everything(db)
    seen = Snapshot.from_records(page.records, load(db), page.now_us)
    request = parse_placement_request({"cpus": 1, "memory_mb": 64, "disk_gb": 1, "reason": "create"})
    decision = decide(request, seen, 0, explain=True)

    assert decision.counts["queue_state"] == {"queue_too_long": 1}
    [stage] = [stage for stage in decision.stages if stage.name == "queue_state"]
    assert stage.dropped["a"]["node_queue_waiting"] == 21
    assert sorted(seen.name(int(at)) for at in decision.ranked_indices) == ["b", "c"]


def test_a_queue_that_cannot_be_counted_is_left_out_and_named(rig: RealRig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.after(0)
    assert rig.node.metrics["queue_waiting"] == 0

    def away(*_args: object) -> dict[int, int]:
        raise DatabaseUnavailable("the ledger went away")

    monkeypatch.setattr(operations, "waiting", away)
    assert rig.after(PUBLISH_SECONDS) == 1
    assert "queue_waiting" not in rig.node.metrics
    assert "went away" in rig.node.failed["queue"]


def test_a_sample_carries_the_age_of_its_measurement(rig: RealRig) -> None:
    machine_clock = ThisMachine().monotonic()
    rig.clock.now = machine_clock + 40
    rig.resources.publish(["n1"])

    assert rig.node.sample_age_seconds is not None
    assert 39 < float(rig.node.sample_age_seconds) < 60
