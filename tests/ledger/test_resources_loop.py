"""The resources daemon's loop: when a node is published, and what its sample says when something fails."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from fleet.hypervisor.contract import DomainSpec, Fault, HypervisorError
from fleet.hypervisor.simulated import SimulatedHypervisor
from fleet.ledger import events, gpus, node_names, nodes, operations, snapshots
from fleet.ledger.cluster_config import load
from fleet.ledger.database import Database
from fleet.ledger.nodes import NodeIn, NodeView
from fleet.measure import (
    GpuReading,
    MachineGpus,
    Paths,
    Reservations,
    SimulatedFleet,
    ThisMachine,
    nodes_from,
)
from fleet.measure.gpus import READ_SECONDS
from fleet.model.domain import Domain
from fleet.model.errors import DatabaseUnavailable
from fleet.model.gpu_report import ReportedUnit, Unit
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
    def __init__(
        self, db: Database, folder: Path, gpus: Callable[[], GpuReading | None] | None = None, file: Path | None = None
    ) -> None:
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
            gpus=None if gpus is None else MachineGpus(gpus, file=file, monotonic=self.clock),
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


class GpuDriver:
    """A driver whose cards are exchanged while the daemon runs."""

    def __init__(self, *uuids: str) -> None:
        self.tells: GpuReading | Exception = GpuReading(gpus=tuple(ReportedUnit(uuid=one) for one in uuids))

    def __call__(self) -> GpuReading:
        if isinstance(self.tells, Exception):
            raise self.tells
        return self.tells


def units_of(db: Database) -> list[tuple[str, str, bool]]:
    """What the ledger knows: uuid, profile, whether it is missing."""
    with db.read() as conn:
        known = gpus.of_node(conn, node_names.ids(db)["n1"]).units
    return [(one.reported.uuid, one.reported.profile, one.missing) for one in known]


def test_gpus_that_change_are_published_within_one_reading(db: Database, tmp_path: Path) -> None:
    nodes.register(db, NodeIn(name="n1", declared={"backend": "simulated"}))
    driver = GpuDriver("GPU-1", "GPU-2")
    rig = RealRig(db, tmp_path, driver)
    rig.after(0)
    assert units_of(db) == [("GPU-1", "", False), ("GPU-2", "", False)]

    card = ReportedUnit(uuid="GPU-1", mig_capable=True, mig_mode=True)
    part = ReportedUnit(uuid="MIG-1", unit=Unit.SLICE, profile="1g.5gb", parent_gpu_uuid="GPU-1")
    driver.tells = GpuReading(gpus=(card,), mig_instances=(part,))
    published = [second for second in range(1, 31) if rig.after(1)]

    assert len(published) == 1
    assert published[0] <= READ_SECONDS + POLL_SECONDS
    assert sorted(units_of(db)) == [("GPU-1", "", False), ("GPU-2", "", True), ("MIG-1", "1g.5gb", False)]


def test_a_gpu_driver_that_fails_leaves_the_known_gpus_and_is_named(db: Database, tmp_path: Path) -> None:
    nodes.register(db, NodeIn(name="n1", declared={"backend": "simulated"}))
    driver = GpuDriver("GPU-1")
    rig = RealRig(db, tmp_path, driver)
    rig.after(0)
    driver.tells = TimeoutError("the driver gave no answer within 20 s")

    assert sum(rig.after(1) for _ in range(30)) == 0
    assert rig.after(PUBLISH_SECONDS) == 1
    assert rig.node.failed["gpus"] == "TimeoutError: the driver gave no answer within 20 s"
    assert units_of(db) == [("GPU-1", "", False)]
    driver.tells = GpuReading()
    rig.after(PUBLISH_SECONDS)
    assert units_of(db) == [("GPU-1", "", True)]


def test_a_contradiction_is_logged_once_and_counted(db: Database, tmp_path: Path) -> None:
    nodes.register(db, NodeIn(name="n1", declared={"backend": "simulated"}))
    file = tmp_path / "gpus.yml"
    file.write_text("gpus: [{uuid: GPU-1}]")
    rig = RealRig(db, tmp_path, GpuDriver("GPU-1", "GPU-2"), file)
    with capture_logs() as logs:
        rig.after(0)
        rig.after(PUBLISH_SECONDS)

    assert [entry["reason"] for entry in logs if entry["event"] == "gpus.contradicted"] == [
        "card GPU-2 is there and not declared"
    ]
    assert rig.node.metrics["gpu_contradictions"] == 1
    assert units_of(db) == [("GPU-1", "", False)]
