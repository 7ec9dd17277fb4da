"""`verify-ledger` misses nothing and changes nothing: every counter of every row, and every row without its other half.

What is broken here is broken by hand: no path of the product leads there.
"""

from __future__ import annotations

from typing import Any

import pytest

from fleet.ledger import leases, moves, schema
from fleet.ledger.database import Database
from fleet.ledger.migrate import migrate
from fleet.ledger.reconcile import needs_pass, reconcile
from fleet.ledger.truth import CLAIM_COLUMNS, CLUSTER_COLUMNS, NODE_COLUMNS
from fleet.ledger.verify import verify
from fleet.model.admission import Admitted
from fleet.model.errors import BrokenPromise
from tests.ledger import claiming, fleet_of
from tests.ledger.fleet_of import PLAIN, ask

COUNTERS = [
    *(("scheduler_node_capacity", name) for name in NODE_COLUMNS),
    *(("namespace_claims", name) for name in CLAIM_COLUMNS),
    *(("cluster_capacity", name) for name in CLUSTER_COLUMNS),
    ("node_gpu_pools", "used"),
]


def everything(db: Database) -> list[tuple[str, list[Any]]]:
    return [(name, fleet_of.rows(db, f"SELECT * FROM {name}")) for name in schema.metadata.tables]


def listed(db: Database) -> list[tuple[str, str, Any, Any]]:
    """What verification finds; it must have changed nothing."""
    before = everything(db)
    found = verify(db).differences
    assert everything(db) == before
    return [(one.row, one.figure, one.stored, one.recomputed) for one in found]


def test_every_counter_that_is_wrong_by_one_is_listed(db: Database) -> None:
    node_id = fleet_of.register(db, "n", backend="simulated", gpu_count=2)
    fleet_of.publish(db, "n", cpus=64)
    fleet_of.claim(db, limit=(2, 20, 2), namespace="claimed")
    fleet_of.admitted(db, ask(node_id, cpus=4, namespace="claimed"))
    fleet_of.admitted(db, ask(node_id, cpus=4))
    assert listed(db) == []

    for table, name in COUNTERS:
        fleet_of.execute(db, f"UPDATE {table} SET {name} = {name} + 1")
        found = [(figure, stored - true) for _, figure, stored, true in listed(db)]
        assert (name if table != "node_gpu_pools" else "gpus_used", 1) in found, (table, name, found)
        fleet_of.execute(db, f"UPDATE {table} SET {name} = {name} - 1")
    assert listed(db) == []


def test_a_counter_that_the_schema_gains_is_compared_too() -> None:
    counted = {
        (table, column.name)
        for table in ("scheduler_node_capacity", "namespace_claims", "cluster_capacity", "node_gpu_pools")
        for column in schema.metadata.tables[table].columns
        if column.name.startswith(("used", "pending_", "sleepy_", "total_", "unlimited_", "claimed_", "unclaimed_"))
        or column.name.startswith(("overage_", "counted_"))
    }

    assert counted == set(COUNTERS)


def test_a_folded_claim_uses_nothing_and_a_pass_sets_that_right(db: Database) -> None:
    lease = leases.acquire(db, "reconciler", "test", 600)
    assert lease is not None
    node_id = fleet_of.node(db, "n", cpus=64)
    with claiming.long_ago(db):
        claim = fleet_of.claim(db, limit=(2, 20, 2), namespace="claimed")
        fleet_of.admitted(db, ask(node_id, cpus=5, namespace="claimed"))
    assert reconcile(db, lease, PLAIN).claims_expired == 1
    fleet_of.execute(db, "UPDATE namespace_claims SET used_cpus = 9")

    assert listed(db) == [(f"claim {claim}", "used_cpus", 9, 0)]
    [corrected] = reconcile(db, lease, PLAIN).corrections
    assert (corrected.row, corrected.figure, corrected.old, corrected.new) == (f"claim {claim}", "used_cpus", 9, 0)
    assert listed(db) == []


def moving(db: Database) -> tuple[str, int, int]:
    """An instance on its way from the first node to the second, larger than it was."""
    source, destination = fleet_of.node(db, "a", cpus=8), fleet_of.node(db, "b", cpus=8)
    instance = fleet_of.admitted(db, ask(source, cpus=1))
    fleet_of.settle(db, instance)
    wanted = ask(destination, cpus=3, instance_uuid=instance, held=ask(source, cpus=1).amounts)
    assert isinstance(moves.begin(db, wanted), Admitted)
    assert listed(db) == []
    return instance, source, destination


@pytest.mark.parametrize("lost", ["primary", "incoming"])
def test_half_a_move_is_listed(db: Database, lost: str) -> None:
    instance, source, destination = moving(db)
    fleet_of.execute(db, "DELETE FROM charges WHERE role = :role", role=lost)

    left = f"incoming on node {destination}" if lost == "primary" else f"primary on node {source}"
    assert (f"charge {instance}", "move", left, "its other charge is absent") in listed(db)


def test_a_charge_on_a_node_that_is_not_there_is_listed(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8)
    instance = fleet_of.admitted(db, ask(node_id))
    fleet_of.execute(db, "UPDATE nodes SET state = 'deleted'")
    assert listed(db) == [(f"charge {instance}", "node", f"primary on node {node_id}", "removed")]
    fleet_of.execute(db, "DELETE FROM nodes")

    assert listed(db) == [(f"charge {instance}", "node", f"primary on node {node_id}", "removed")]


def test_a_charge_without_an_instance_and_an_instance_without_its_charge_are_listed(db: Database) -> None:
    node_id, other = fleet_of.node(db, "a", cpus=8), fleet_of.node(db, "b", cpus=8)
    held, placed, elsewhere = (fleet_of.admitted(db, ask(node_id)) for _ in range(3))
    fleet_of.execute(db, "DELETE FROM instances WHERE uuid = :uuid", uuid=held)
    fleet_of.execute(db, "DELETE FROM charges WHERE instance_uuid = :uuid", uuid=placed)
    fleet_of.execute(db, "UPDATE instances SET node_id = :id WHERE uuid = :uuid", id=other, uuid=elsewhere)

    assert {
        (f"charge {held}", "instance", f"primary on node {node_id}", "absent"),
        (f"instance {placed}", "charge", "absent", f"node {node_id}"),
        (f"instance {elsewhere}", "node_id", str(other), f"charged to {node_id}"),
    } <= set(listed(db))


def test_without_the_clusters_row_nothing_is_called_true_and_what_is_said_to_help_does(db: Database) -> None:
    lease = leases.acquire(db, "reconciler", "test", 600)
    assert lease is not None
    fleet_of.admitted(db, ask(fleet_of.node(db, cpus=8), cpus=3))
    fleet_of.execute(db, "DELETE FROM cluster_capacity")
    try:
        for look in (verify, needs_pass):
            with pytest.raises(BrokenPromise, match="migrate-db"):
                look(db)
    finally:
        migrate(db)

    assert needs_pass(db)
    reconcile(db, lease, PLAIN)
    assert listed(db) == []
    assert fleet_of.unclaimed(db)[0] == 3
