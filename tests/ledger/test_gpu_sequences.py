"""Whatever happens to instances and inventories, in any order and with any fault of the driver: GPUs equal charges."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from fleet.ledger import moves
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database
from fleet.model.admission import Admitted, AlreadyPlaced, Busy
from fleet.model.errors import DatabaseUnavailable
from fleet.model.gpu_report import ReportedUnit
from tests.ledger import fleet_of, gpus_of
from tests.ledger.gpus_of import A100, H100, ask, card, slice_of
from tests.ledger.injecting import Injector, error, lost

STEPS = 60
NUMBERS = [1213, 1205, 1020]


class Tenants:
    """A fleet of three GPU nodes and instances that come, move and go; what it does follows from a seed."""

    def __init__(self, db: Database, seed: int) -> None:
        self.db, self.draw = db, random.Random(seed)
        self.cards = {name: [card(f"{name}-{at}", (A100, H100)[at % 2]) for at in range(3)] for name in ("a", "b")}
        self.slices = {name: [slice_of(self.cards[name][0], f"{name}-s{at}") for at in range(3)] for name in ("a", "b")}
        self.nodes = {name: gpus_of.node(db, name, gpus=self.cards[name], mig_instances=[]) for name in self.cards}
        self.nodes["c"] = gpus_of.node(db, "c", gpu_count=3, gpu_kind="a100", mig_profiles={"1g.10gb": 3})
        self.asks: dict[str, NodeAsk] = {}

    def step(self) -> None:
        verbs: list[Callable[[], None]] = [self.create, self.create, self.create, self.delete, self.move, self.redirect]
        self.draw.choice([*verbs, self.settle, self.report])()

    def create(self) -> None:
        profile = self.draw.choice(["", "", "1g.10gb"])
        kind = self.draw.choice(["", "", "a100", "h100"])
        count = self.draw.choice([0, 1, 1, 2])
        more = {"sleepy": self.draw.random() < 0.3}
        wanted = ask(self._node(), count, kind if count else "", profile if count else "", **more)
        outcome = fleet_of.admit(self.db, wanted)
        if isinstance(outcome, Admitted | AlreadyPlaced):
            self.asks[wanted.instance_uuid] = wanted

    def delete(self) -> None:
        if (wanted := self._one()) is not None:
            fleet_of.delete(self.db, wanted.instance_uuid)
            del self.asks[wanted.instance_uuid]

    def settle(self) -> None:
        if (wanted := self._one()) is not None:
            fleet_of.settle(self.db, wanted.instance_uuid)

    def move(self) -> None:
        wanted = self._one()
        if wanted is None or (target := self._node()) == wanted.node_id:
            return
        to = self._to(wanted, target)
        if not isinstance(moves.begin(self.db, to), Admitted | AlreadyPlaced):
            return
        if self.draw.random() < 0.5:
            moves.abort(self.db, to.instance_uuid, "no")
        else:
            moves.settle(self.db, to.instance_uuid, rows=lambda conn: fleet_of.moved_instance(conn, to))
            self.asks[to.instance_uuid] = to

    def redirect(self) -> None:
        wanted = self._one()
        if wanted is None or (target := self._node()) == wanted.node_id:
            return
        to = self._to(wanted, target, source=wanted.node_id)
        if isinstance(fleet_of.admit(self.db, to), Admitted):
            self.asks[to.instance_uuid] = self._to(wanted, target)

    def report(self) -> None:
        """A node reports a part of its cards, whole or cut; once in a while the node that counted tells its cards."""
        name = self.draw.choice(["a", "b"])
        here = [one for one in self.cards[name] if self.draw.random() < 0.8]
        slices: list[ReportedUnit] = []
        if self.draw.random() < 0.4:
            here = [card(one.uuid, one.model, mig_mode=True) if at == 0 else one for at, one in enumerate(here)]
            slices = self.slices[name]
        fleet_of.publish(self.db, name, cpus=1000, gpus=here, mig_instances=slices)
        if self.draw.random() < 0.1:
            fleet_of.publish(self.db, "c", cpus=1000, gpus=[card(f"c-{at}") for at in range(4)])

    def _to(self, wanted: NodeAsk, target: int, **more: Any) -> NodeAsk:
        asked = wanted.gpus
        return ask(
            target,
            asked.count,
            asked.kind,
            asked.profile,
            instance_uuid=wanted.instance_uuid,
            sleepy=wanted.sleepy,
            **more,
        )

    def _node(self) -> int:
        return self.draw.choice(list(self.nodes.values()))

    def _one(self) -> NodeAsk | None:
        return self.draw.choice(list(self.asks.values())) if self.asks else None


def assert_held(db: Database) -> None:
    """Each charge holds what it asked for on its node, by uuid or counted; and nobody else holds anything."""
    fleet_of.assert_exact(db)
    held = fleet_of.rows(db, "SELECT instance_uuid, node_id, gpus, gpus_counted FROM charges WHERE gpus > 0")
    due = {(one["instance_uuid"], one["node_id"]): one["gpus"] - one["gpus_counted"] for one in held}
    found: dict[tuple[str, int], int] = dict.fromkeys(due, 0)
    for unit in fleet_of.rows(db, "SELECT uuid, node_id, bound_to FROM node_gpus WHERE bound_to IS NOT NULL"):
        found[unit["bound_to"], unit["node_id"]] = found.get((unit["bound_to"], unit["node_id"]), 0) + 1
    assert found == due
    sleepy = fleet_of.rows(db, "SELECT COALESCE(SUM(memory_mb), 0) AS mb FROM charges WHERE sleepy = 1")[0]["mb"]
    (counted,) = fleet_of.rows(db, "SELECT SUM(sleepy_memory_mb) AS mb FROM scheduler_node_capacity")
    assert counted["mb"] == sleepy


@pytest.mark.parametrize("seed", range(4))
def test_units_equal_charges_after_any_sequence(db: Database, seed: int) -> None:
    tenants = Tenants(db, seed)
    held_at_all = 0
    for _ in range(STEPS):
        tenants.step()
        assert_held(db)
        held_at_all += len(gpus_of.bound(db))
    assert held_at_all > STEPS / 3, "a sequence in which nobody holds anything proves nothing"


@pytest.mark.parametrize("seed", range(3))
def test_units_equal_charges_after_any_sequence_with_faults_of_the_driver(
    maria: Database,
    injector: Injector,
    seed: int,
) -> None:
    tenants, draw = Tenants(maria, 100 + seed), random.Random(seed)
    struck = 0
    for _ in range(STEPS):
        fault = draw.choice([lost(after=True), lost(after=False), *map(error, NUMBERS)])
        with injector.at(draw.randrange(9), fault):
            try:
                tenants.step()
            except DatabaseUnavailable:
                # Only a plain read is not run again: what it belongs to was not begun.
                assert not injector.steps[-1].startswith(("UPDATE", "INSERT", "DELETE"))
        struck += injector.struck
        assert_held(maria)
    assert struck > STEPS / 3


def test_who_asks_for_no_gpu_pays_for_none(maria: Database, injector: Injector) -> None:
    plain, cards = fleet_of.node(maria, cpus=8), gpus_of.node(maria, gpus=[card()])
    without = injector.count(lambda: fleet_of.admit(maria, fleet_of.ask(plain)))
    assert injector.count(lambda: fleet_of.admit(maria, fleet_of.ask(cards))) == without
    assert not any("gpu" in step for step in injector.steps)
    assert injector.count(lambda: fleet_of.admit(maria, ask(cards))) > without


def by_uuid(db: Database) -> Callable[[], Any]:
    node_id = gpus_of.node(db, gpus=[card(), card()])
    return lambda: fleet_of.admit(db, ask(node_id, 2))


def by_count(db: Database) -> Callable[[], Any]:
    node_id = gpus_of.node(db, gpu_count=2)
    return lambda: fleet_of.admit(db, ask(node_id, 2))


def redirected(db: Database) -> Callable[[], Any]:
    here, there = gpus_of.node(db, gpus=[card(), card()]), gpus_of.node(db, gpu_count=2)
    wanted = ask(here, 2)
    fleet_of.admitted(db, wanted)
    return lambda: fleet_of.admit(db, ask(there, 2, instance_uuid=wanted.instance_uuid, source=here))


def released(db: Database) -> Callable[[], Any]:
    node_id = gpus_of.node(db, gpus=[card(), card()])
    instance = fleet_of.admitted(db, ask(node_id, 2))
    return lambda: fleet_of.delete(db, instance)


def refreshed(db: Database) -> Callable[[], Any]:
    node_id = gpus_of.node(db, gpu_count=2)
    fleet_of.admitted(db, ask(node_id, 2))
    name = fleet_of.rows(db, "SELECT name FROM nodes WHERE id = :id", id=node_id)[0]["name"]
    cards = [card() for _ in range(3)]
    return lambda: fleet_of.publish(db, name, cpus=1000, gpus=cards)


@pytest.mark.parametrize("number", [*NUMBERS, 2013])
@pytest.mark.parametrize("make", [by_uuid, by_count, redirected, released, refreshed])
def test_gpus_survive_a_conflict_at_every_step(
    maria: Database,
    injector: Injector,
    make: Callable[[Database], Callable[[], Any]],
    number: int,
) -> None:
    step = 0
    while True:
        action = make(maria)
        with injector.at(step, lost(after=True) if number == 2013 else error(number)):
            outcome = action()
        if isinstance(outcome, Busy):
            assert number == 1205
        assert_held(maria)
        if not injector.struck:
            break
        step += 1
    assert step >= 6
