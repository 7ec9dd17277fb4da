"""Races for the last GPU: one gets the unit, whoever asks; and a naive admission is caught handing it out twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from sqlalchemy import Connection

from fleet.ledger import gpus
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database, Sql
from fleet.ledger.verify import verify
from fleet.model.admission import AdmissionOutcome, Admitted, Refused, Stage
from fleet.model.gpu_inventory import choose
from tests.ledger import fleet_of, gpus_of, racing
from tests.ledger.gpus_of import ask, card, slice_of
from tests.ledger.racing import Pause, Processes, Threads

ASKING, ROUNDS = 5, 12
PARENT = card("GPU-parent", mig_mode=True)

CHARGE = Sql("""
    INSERT INTO charges (instance_uuid, role, node_id, namespace, cpus, memory_mb, disk_gb, instances, placed_at, gpus)
    VALUES (:instance_uuid, 'primary', :node_id, :namespace, :cpus, :memory_mb, :disk_gb, :instances, {now}, :gpus)
""")
BIND = Sql("UPDATE node_gpus SET bound_to = :instance_uuid WHERE uuid = :uuid")
USE = Sql("UPDATE node_gpu_pools SET used = :used WHERE node_id = :node_id AND profile = :profile")


def naive(db: Database, wanted: NodeAsk, pause: Pause) -> AdmissionOutcome:
    """Read what is free, pause, write what was chosen: the device counts as taken only once everything else is done."""
    with db.read() as conn:
        inventory = gpus.of_node(conn, wanted.node_id).inventory()
    uuids = choose(inventory, wanted.gpus)
    if uuids is None:
        return Refused(wanted.node_id, Stage.GPU)
    pause()

    def write(conn: Connection) -> AdmissionOutcome:
        binds = {"instance_uuid": wanted.instance_uuid, "node_id": wanted.node_id}
        CHARGE.run(conn, {**wanted.amounts.as_dict(), **binds}, namespace=wanted.namespace, gpus=wanted.gpus.count)
        for uuid in uuids:
            BIND.run(conn, binds, uuid=uuid)
        fleet_of.new_instance(conn, wanted)
        return Admitted(wanted.node_id, gpu_uuids=uuids)

    return db.unit(write)


@pytest.fixture
def threads(db_url: str) -> Iterator[racing.Crew]:
    with Threads(db_url, ASKING) as racers:
        yield racers


@pytest.fixture(scope="module")
def processes(mariadb_ledger: str) -> Iterator[racing.Crew]:
    """Started once: processes take seconds to start."""
    with Processes(mariadb_ledger, ASKING) as racers:
        yield racers


Shapes = Mapping[str, tuple[Mapping[str, Any], Mapping[str, Any]]]
UNITS: Shapes = {
    "card": ({"gpus": [card("GPU-1")]}, {"kind": "a100"}),
    "slice": ({"gpus": [PARENT], "mig_instances": [slice_of(PARENT, "MIG-1")]}, {"profile": "1g.10gb"}),
}
COUNTS: Shapes = {"cards": ({"gpu_count": 1}, {}), "slices": ({"mig_profiles": {"1g.10gb": 1}}, {"profile": "1g.10gb"})}


def race_for_one_unit(db: Database, crew: racing.Crew, unit: str) -> None:
    inventory, asked = UNITS[unit]
    node_id = gpus_of.node(db, **inventory)
    for _ in range(ROUNDS):
        wanted = [ask(node_id, **asked) for _ in range(ASKING)]
        answers = crew.run(racing.until_decided, [(racing.guarded, one) for one in wanted])
        won = [(one, answer) for one, answer in zip(wanted, answers, strict=True) if isinstance(answer, Admitted)]
        refused = [answer for answer in answers if isinstance(answer, Refused)]

        assert (len(won), len(refused)) == (1, ASKING - 1), answers
        assert {answer.failing_stage for answer in refused} == {Stage.GPU}
        (winner, admitted) = won[0]
        assert gpus_of.bound(db) == dict.fromkeys(admitted.gpu_uuids, winner.instance_uuid)
        assert len(admitted.gpu_uuids) == 1
        fleet_of.assert_exact(db)
        fleet_of.delete(db, winner.instance_uuid)
        assert gpus_of.bound(db) == {}


@pytest.mark.parametrize("unit", UNITS)
def test_b45_of_five_that_ask_at_once_for_one_free_unit_one_gets_its_uuid(
    db: Database, threads: racing.Crew, unit: str
) -> None:
    race_for_one_unit(db, threads, unit)


@pytest.mark.slow
@pytest.mark.parametrize("unit", UNITS)
def test_b45_of_five_processes_that_ask_at_once_one_gets_the_unit(
    maria: Database, processes: racing.Crew, unit: str
) -> None:
    race_for_one_unit(maria, processes, unit)


@pytest.mark.parametrize("unit", COUNTS)
def test_b45_of_five_that_ask_at_once_for_one_counted_unit_one_gets_it(
    db: Database, threads: racing.Crew, unit: str
) -> None:
    declared, asked = COUNTS[unit]
    node_id = gpus_of.node(db, **declared)
    for _ in range(ROUNDS):
        wanted = [ask(node_id, **asked) for _ in range(ASKING)]
        answers = threads.run(racing.until_decided, [(racing.guarded, one) for one in wanted])
        won = [one for one, answer in zip(wanted, answers, strict=True) if isinstance(answer, Admitted)]
        assert len(won) == 1, answers
        assert gpus_of.pool(db, node_id, asked.get("profile", "")) == (1, 1)
        fleet_of.assert_exact(db)
        fleet_of.delete(db, won[0].instance_uuid)


@pytest.mark.parametrize("unit", UNITS)
def test_b45_catches_a_naive_admission(maria: Database, mariadb_ledger_url: str, unit: str) -> None:
    inventory, asked = UNITS[unit]
    node_id = gpus_of.node(maria, **inventory)
    with Threads(mariadb_ledger_url, ASKING) as racers:
        answers = racers.run(racing.once, [(naive, ask(node_id, **asked)) for _ in range(ASKING)])

    assert sum(isinstance(answer, Admitted) for answer in answers) == ASKING
    assert sum(item.figure.startswith("gpus bound to") for item in verify(maria).differences) == ASKING - 1


def test_refreshes_of_two_nodes_that_report_one_card_at_once_leave_it_with_one(
    maria: Database, mariadb_ledger_url: str
) -> None:
    with Threads(mariadb_ledger_url, 2) as racers:
        for round_ in range(ROUNDS):
            names = [f"twin-{round_}-{side}" for side in "ab"]
            nodes = [gpus_of.node(maria, name) for name in names]
            cards = [f"GPU-{round_}-{at}" for at in range(4)]
            orders = [(name, cards if name.endswith("a") else cards[::-1]) for name in names]
            answers = racers.run(report, orders)

            assert answers == [None, None]
            owners = [uuid for node_id in nodes for uuid in gpus_of.states(maria, node_id)]
            assert sorted(owners) == cards


def report(db: Database, _pause: Pause, name: str, uuids: list[str]) -> None:
    fleet_of.publish(db, name, cpus=1000, gpus=[card(uuid) for uuid in uuids])
