"""The ledger against a plain model: whatever is done in whatever order, its counters are what a dictionary says.

Instances are drawn by their position, never by their random uuid: an example must run the same way twice.

Runs on SQLite, a fresh file an example: what is proven here is arithmetic, not contention. Its clock is the machine's.
"""

from __future__ import annotations

import shutil
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from fleet.ledger import leases, moves, samples
from fleet.ledger.database import Database
from fleet.ledger.migrate import migrate
from fleet.ledger.reconcile import reconcile
from fleet.ledger.release import NothingToRelease, Released
from fleet.ledger.verify import verify
from fleet.model.admission import Admitted, AlreadyPlaced, Refused, Stage
from fleet.model.resources import Amounts
from tests.ledger import fleet_of
from tests.ledger.fleet_of import PLAIN, ask
from tests.property.clock import Clock

Three = tuple[int, int, int]
NAMES = ("a", "b", "c")
NAMESPACES = ("free", "claimed")
ROOM = st.integers(0, 20)
SIZE = st.integers(0, 4)
# Every statement is flushed: in memory, an example takes milliseconds.
FAST = Path("/dev/shm") if Path("/dev/shm").is_dir() else None


@dataclass
class Node:
    node_id: int
    limit: Three
    slots: int | None
    scheduling: str = "enabled"
    state: str = "active"
    hypervisor: bool = True

    @property
    def counted(self) -> bool:
        return self.hypervisor and self.state == "active"


@dataclass
class Held:
    size: Three
    namespace: str
    node: str
    payer: str | None
    settled: bool = False
    incoming: str | None = None
    target: Three = (0, 0, 0)

    @property
    def paid(self) -> Three:
        """What its payer pays: what it holds, or, while it moves, the larger of that and what it will hold."""
        return self.size if self.incoming is None else triple(map(max, zip(self.size, self.target, strict=True)))


@dataclass
class Model:
    nodes: dict[str, Node] = field(default_factory=dict)
    held: dict[str, Held] = field(default_factory=dict)
    claim: str | None = None
    claim_limit: Three = (0, 0, 0)

    def used(self, name: str) -> Three:
        return total(
            [item.size for item in self.held.values() if item.node == name]
            + [item.target for item in self.held.values() if item.incoming == name]
        )

    def slots(self, name: str) -> int:
        return sum((item.node == name) + (item.incoming == name) for item in self.held.values())

    def paid_by(self, payer: str | None) -> Three:
        folded_into_cluster = payer is None
        return total(
            item.paid
            for item in self.held.values()
            if item.payer == payer or (folded_into_cluster and item.payer != self.claim)
        )

    def rehome(self) -> None:
        """What a pass does: charges of the claimed namespace that the cluster pays go to the claim."""
        for item in self.held.values():
            if self.claim is not None and item.namespace == "claimed":
                item.payer = self.claim

    @property
    def overage(self) -> Three:
        if self.claim is None:
            return (0, 0, 0)
        used = self.paid_by(self.claim)
        return triple(max(0, have - limit) for have, limit in zip(used, self.claim_limit, strict=True))

    @property
    def totals(self) -> Three:
        return total(node.limit if node.counted else self.used(name) for name, node in self.nodes.items())

    def room_on(self, name: str, size: Three) -> bool:
        node = self.nodes[name]
        fits = all(h + s <= li for h, s, li in zip(self.used(name), size, node.limit, strict=True))
        slot = node.slots is None or self.slots(name) + 1 <= node.slots
        return fits and slot and node.counted and node.scheduling == "enabled"

    def room_in_cluster(self, size: Three, *, grows: bool = False) -> bool:
        promised = self.claim_limit if self.claim else (0, 0, 0)
        figures = zip(self.paid_by(None), self.overage, size, self.totals, promised, strict=True)
        return all(
            (grows and asked <= 0) or used + over + asked <= all_ - claimed
            for used, over, asked, all_, claimed in figures
        )

    def expected_growth(self, item: Held, target: Three, *, hard: bool) -> Stage | None:
        """The stage that must refuse to bring a charge to `target` where it is, or None."""
        node = self.nodes[item.node]
        added = triple(wanted - have for wanted, have in zip(target, item.size, strict=True))
        if not node.counted or node.scheduling == "draining" or over(self.used(item.node), added, node.limit):
            return Stage.NODE
        return self.expected_of_payer(item, added, hard=hard)

    def expected_move(self, item: Held, name: str, target: Three, *, hard: bool) -> Stage | None:
        """The stage that must refuse a move there in another size, or None."""
        if not self.room_on(name, target):
            return Stage.NODE
        added = triple(wanted - have for wanted, have in zip(target, item.size, strict=True))
        return self.expected_of_payer(item, added, hard=hard)

    def expected_of_payer(self, item: Held, added: Three, *, hard: bool) -> Stage | None:
        if max(added) <= 0:
            return None
        if item.payer is not None and item.payer == self.claim:
            used = self.paid_by(self.claim)
            return Stage.CLAIM if hard and over(used, added, self.claim_limit) else None
        return None if self.room_in_cluster(added, grows=True) else Stage.CLUSTER

    def expected(self, name: str, size: Three, namespace: str, *, hard: bool) -> Stage | None:
        """The stage that must refuse, or None."""
        if not self.room_on(name, size):
            return Stage.NODE
        if self.claim and namespace == "claimed":
            used = self.paid_by(self.claim)
            over = any(h + s > li for h, s, li in zip(used, size, self.claim_limit, strict=True))
            return Stage.CLAIM if hard and over else None
        return None if self.room_in_cluster(size) else Stage.CLUSTER


def over(used: Three, added: Three, limit: Three) -> bool:
    """Whether a dimension that grows would be over its limit; one that does not grow never is."""
    return any(more > 0 and have + more > most for have, more, most in zip(used, added, limit, strict=True))


def triple(values: Iterable[int]) -> Three:
    cpus, memory_mb, disk_gb = values
    return cpus, memory_mb, disk_gb


def total(sizes: Iterable[Three]) -> Three:
    found = [0, 0, 0]
    for size in sizes:
        found = [have + more for have, more in zip(found, size, strict=True)]
    return triple(found)


class LedgerMachine(RuleBasedStateMachine):
    """Rules are what the product does; invariants hold after each of them."""

    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="fleet-machine-", dir=FAST))
        path = self.folder / "ledger.db"
        shutil.copyfile(self.template, path)
        self.db = Database(f"sqlite:///{path}")
        self.clock = Clock(self.db)
        self.model = Model()
        lease = leases.acquire(self.db, "reconciler", "machine", 3600)
        assert lease is not None
        self.lease = lease

    def teardown(self) -> None:
        self.db.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    @initialize(
        limits=st.tuples(*[st.tuples(ROOM, ROOM, ROOM)] * 3),
        slots=st.none() | st.integers(0, 4),
        first=st.lists(st.tuples(st.sampled_from(NAMES), st.sampled_from(NAMESPACES), SIZE), min_size=2, max_size=6),
    )
    def register(
        self, limits: tuple[Three, Three, Three], slots: int | None, first: Sequence[tuple[str, str, int]]
    ) -> None:
        for name, limit in zip(NAMES, limits, strict=True):
            own = slots if name == "a" else None
            node_id = fleet_of.register(self.db, name, max_instances=own)
            self.model.nodes[name] = Node(node_id, limit, own)
            self._publish(name)
        self._fill(first)

    def _fill(self, first: Sequence[tuple[str, str, int]]) -> None:
        """Most examples begin with some instances, half of them settled."""
        for number, (name, namespace, size) in enumerate(first):
            self._admit(name, (size, size, size), namespace, hard=False)
            for instance, item in self.model.held.items():
                if number % 2 and not item.settled:
                    assert fleet_of.settle(self.db, instance)
                    item.settled = True

    def _publish(self, name: str, *, healthy: bool | None = None) -> None:
        node = self.model.nodes[name]
        cpus, memory_mb, disk_gb = node.limit
        # Every figure is shifted by one that is foreign, for a figure of zero reads as unknown.
        fleet_of.publish(
            self.db,
            name,
            cpus=cpus + 1,
            memory_mb=memory_mb + 1,
            disk_gb=disk_gb + 1,
            cpu_foreign_vcpus=1,
            memory_foreign_mb=1,
            disk_foreign_gb=1,
            is_hypervisor=node.hypervisor,
            healthy=healthy,
        )

    @rule(
        name=st.sampled_from(NAMES), limit=st.tuples(ROOM, ROOM, ROOM), hypervisor=st.booleans() | st.just(value=True)
    )
    def publish(self, name: str, limit: Three, *, hypervisor: bool) -> None:
        self.model.nodes[name].limit, self.model.nodes[name].hypervisor = limit, hypervisor
        self._publish(name)

    @rule(name=st.sampled_from(NAMES))
    def break_and_repair(self, name: str) -> None:
        if self.model.nodes[name].state == "active":
            self.model.nodes[name].state = "error"
            self._publish(name, healthy=False)
            return
        for _ in range(3):
            self._publish(name, healthy=True)
        self.model.nodes[name].state = "active"

    @rule(name=st.sampled_from(NAMES), scheduling=st.sampled_from(["enabled", "enabled", "cordoned", "draining"]))
    def schedule(self, name: str, scheduling: str) -> None:
        samples.set_scheduling(self.db, name, scheduling)
        self.model.nodes[name].scheduling = scheduling

    @rule(
        name=st.sampled_from(NAMES),
        size=st.tuples(SIZE, SIZE, SIZE),
        namespace=st.sampled_from(NAMESPACES),
        hard=st.booleans(),
    )
    def admit(self, name: str, size: Three, namespace: str, *, hard: bool) -> None:
        self._admit(name, size, namespace, hard=hard)

    def _admit(self, name: str, size: Three, namespace: str, *, hard: bool) -> None:
        cpus, memory_mb, disk_gb = size
        expected = self.model.expected(name, size, namespace, hard=hard)
        wanted = ask(
            self.model.nodes[name].node_id,
            cpus=cpus,
            memory_mb=memory_mb,
            disk_gb=disk_gb,
            namespace=namespace,
            claim_hard=hard,
        )
        outcome = fleet_of.admit(self.db, wanted)
        if expected is not None:
            assert isinstance(outcome, Refused), (outcome, expected)
            assert outcome.failing_stage is expected
            return
        assert isinstance(outcome, Admitted), outcome
        payer = self.model.claim if namespace == "claimed" else None
        assert outcome.payer == payer
        self.model.held[wanted.instance_uuid] = Held(size, namespace, name, payer)

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        instance = data.draw(st.sampled_from(list(self.model.held)))
        assert isinstance(fleet_of.delete(self.db, instance), Released)
        assert isinstance(fleet_of.delete(self.db, instance), NothingToRelease)
        del self.model.held[instance]

    @precondition(lambda self: self.model.held)
    @rule(data=st.data())
    def settle(self, data: st.DataObject) -> None:
        instance = data.draw(st.sampled_from(list(self.model.held)))
        item = self.model.held[instance]
        assert fleet_of.settle(self.db, instance) is not item.settled
        item.settled = True

    @precondition(lambda self: self.model.held)
    @rule(data=st.data(), size=st.tuples(SIZE, SIZE, SIZE), hard=st.booleans())
    def grow_or_shrink(self, data: st.DataObject, size: Three, *, hard: bool) -> None:
        instance = data.draw(st.sampled_from(list(self.model.held)))
        item = self.model.held[instance]
        cpus, memory_mb, disk_gb = size
        wanted = ask(
            self.model.nodes[item.node].node_id,
            cpus=cpus,
            memory_mb=memory_mb,
            disk_gb=disk_gb,
            namespace=item.namespace,
            instance_uuid=instance,
            claim_hard=hard,
        )
        expected = self.model.expected_growth(item, size, hard=hard)
        outcome = fleet_of.grow(self.db, wanted)
        if size == item.size:
            assert isinstance(outcome, AlreadyPlaced), outcome
            return
        if item.incoming is not None:
            assert isinstance(outcome, Refused), outcome
            assert outcome.ineligible == "charge_moving"
            return
        if expected is not None:
            assert isinstance(outcome, Refused), (outcome, expected)
            assert outcome.failing_stage is expected
            return
        assert isinstance(outcome, Admitted), outcome
        self._grew(item, size)
        item.size = size
        assert outcome.payer == item.payer

    def _grew(self, item: Held, size: Three) -> None:
        if any(wanted > have for wanted, have in zip(size, item.size, strict=True)) and item.payer != self.model.claim:
            # Its claim has ended: whatever grows is the cluster's.
            item.payer = None

    @precondition(lambda self: any(item.incoming is None for item in self.model.held.values()))
    @rule(data=st.data(), size=st.none() | st.tuples(SIZE, SIZE, SIZE), hard=st.booleans())
    def move(self, data: st.DataObject, size: Three | None, *, hard: bool) -> None:
        """A draft is placed again at once; a settled instance begins to move, in its own size or another."""
        still = [instance for instance, item in self.model.held.items() if item.incoming is None]
        instance = data.draw(st.sampled_from(still))
        item = self.model.held[instance]
        target = data.draw(st.sampled_from([name for name in NAMES if name != item.node]))
        if size is not None and item.settled:
            self._move_to(target, instance, size, hard=hard)
            return
        cpus, memory_mb, disk_gb = item.size
        wanted = ask(
            self.model.nodes[target].node_id,
            cpus=cpus,
            memory_mb=memory_mb,
            disk_gb=disk_gb,
            namespace=item.namespace,
            instance_uuid=instance,
            source=None if item.settled else self.model.nodes[item.node].node_id,
        )
        fits = self.model.room_on(target, item.size)
        outcome = moves.begin(self.db, wanted) if item.settled else fleet_of.admit(self.db, wanted)
        assert isinstance(outcome, Admitted) is fits, outcome
        if fits and item.settled:
            item.incoming, item.target = target, item.size
        elif fits:
            item.node = target

    def _move_to(self, target: str, instance: str, size: Three, *, hard: bool) -> None:
        item = self.model.held[instance]
        wanted = ask(
            self.model.nodes[target].node_id,
            cpus=size[0],
            memory_mb=size[1],
            disk_gb=size[2],
            namespace=item.namespace,
            instance_uuid=instance,
            held=Amounts(*item.size, 1),
            claim_hard=hard,
        )
        expected = self.model.expected_move(item, target, size, hard=hard)
        outcome = moves.begin(self.db, wanted)
        if expected is not None:
            assert isinstance(outcome, Refused), (outcome, expected)
            assert outcome.failing_stage is expected
            return
        assert isinstance(outcome, Admitted), outcome
        self._grew(item, size)
        item.incoming, item.target = target, size

    @precondition(lambda self: any(item.incoming for item in self.model.held.values()))
    @rule(data=st.data(), arrives=st.booleans())
    def end_move(self, data: st.DataObject, *, arrives: bool) -> None:
        moving = [instance for instance, item in self.model.held.items() if item.incoming]
        instance = data.draw(st.sampled_from(moving))
        item = self.model.held[instance]
        assert item.incoming is not None
        if arrives:
            there = ask(self.model.nodes[item.incoming].node_id, instance_uuid=instance)
            assert moves.settle(self.db, instance, rows=lambda conn: fleet_of.moved_instance(conn, there))
            item.node, item.size = item.incoming, item.target
        else:
            assert moves.abort(self.db, instance, "given up")
        item.incoming = None

    @precondition(lambda self: self.model.claim is None)
    @rule(limit=st.tuples(SIZE, SIZE, SIZE))
    def promise(self, limit: Three) -> None:
        self.model.claim = fleet_of.claim(self.db, limit=limit, namespace="claimed", seconds=1)
        self.model.claim_limit = limit

    @precondition(lambda self: self.model.claim is not None)
    @rule()
    def expire(self) -> None:
        """The end of the claim, for time goes by, and the pass that folds it."""
        self.clock.forward(1_000_000)
        assert reconcile(self.db, self.lease, PLAIN).claims_expired == 1
        self.model.claim = None

    @rule()
    def reconcile(self) -> None:
        assert reconcile(self.db, self.lease, PLAIN).corrections == ()
        self.model.rehome()

    @rule(name=st.sampled_from(NAMES), by=st.integers(1, 5))
    def drift(self, name: str, by: int) -> None:
        """An accident, and the pass that repairs it."""
        node_id = self.model.nodes[name].node_id
        fleet_of.execute(
            self.db,
            "UPDATE scheduler_node_capacity SET used_cpus = used_cpus + :by WHERE node_id = :i",
            by=by,
            i=node_id,
        )
        report = reconcile(self.db, self.lease, PLAIN)
        self.model.rehome()
        assert ("used_cpus", -by) in [(item.figure, item.difference) for item in report.corrections]

    @invariant()
    def counters_are_what_the_model_says(self) -> None:
        for name, node in self.model.nodes.items():
            found = fleet_of.used(self.db, node.node_id)
            assert found == (*self.model.used(name), self.model.slots(name)), name
        assert fleet_of.unclaimed(self.db) == self.model.paid_by(None)
        cluster = fleet_of.cluster(self.db)
        names = ("cpus", "memory_mb", "disk_gb")
        assert tuple(cluster[f"total_{name}"] for name in names) == self.model.totals
        assert tuple(cluster[f"overage_{name}"] for name in names) == self.model.overage
        if self.model.claim:
            row = fleet_of.claim_row(self.db, self.model.claim)
            assert tuple(row[f"used_{name}"] for name in names) == self.model.paid_by(self.model.claim)

    @invariant()
    def the_verification_finds_nothing(self) -> None:
        assert verify(self.db).differences == ()

    @invariant()
    def instances_are_where_the_model_says(self) -> None:
        charged: dict[str, set[int]] = defaultdict(set)
        for row in fleet_of.rows(self.db, "SELECT instance_uuid, node_id FROM charges"):
            charged[row["instance_uuid"]].add(row["node_id"])
        nodes = self.model.nodes
        assert charged == {
            instance: {nodes[name].node_id for name in (item.node, item.incoming) if name}
            for instance, item in self.model.held.items()
        }


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_ledger_is_what_a_plain_model_says(tmp_path: Path) -> None:
    template = tmp_path / f"{uuid.uuid4()}.db"
    database = Database(f"sqlite:///{template}")
    migrate(database)
    database.close()
    LedgerMachine.template = template
    # Drawn afresh each time, unlike the laws: what failed is printed, and kept to be tried first.
    afresh = settings(settings.get_profile("default"), deadline=None, suppress_health_check=list(HealthCheck))
    many = settings(afresh, max_examples=150, stateful_step_count=30, print_blob=True)
    run_state_machine_as_test(LedgerMachine, settings=many)
