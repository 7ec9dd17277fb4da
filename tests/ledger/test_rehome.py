"""A charge that the cluster pays although its namespace's claim is active goes to the claim at the next pass."""

from __future__ import annotations

from fleet.ledger import leases, reconcile
from fleet.ledger.database import Database
from fleet.model.cluster_config import ClusterConfig
from tests.ledger import fleet_of


def _pass(db: Database) -> reconcile.PassReport:
    lease = leases.acquire(db, "reconciler", "here", 60)
    assert lease is not None
    try:
        return reconcile.reconcile(db, lease, ClusterConfig())
    finally:
        leases.drop(db, lease)


def test_charges_from_before_the_claim_are_rehomed_with_their_amounts(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=64)
    for _ in range(3):
        fleet_of.admitted(db, fleet_of.ask(node_id, cpus=2, memory_mb=100, disk_gb=1))
    claim = fleet_of.claim(db, limit=(4, 1000, 10))

    report = _pass(db)

    assert report.charges_rehomed == 3
    assert report.corrections == ()
    assert fleet_of.unclaimed(db) == (0, 0, 0)
    assert fleet_of.claim_row(db, claim)["used_cpus"] == 6
    # Two more than the claim's limit: the cluster's row knows that it is overdrawn.
    assert fleet_of.cluster(db)["overage_cpus"] == 2
    fleet_of.assert_exact(db)
    assert _pass(db).charges_rehomed == 0


def test_a_release_after_rehoming_credits_the_claim(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=64)
    instance = fleet_of.admitted(db, fleet_of.ask(node_id, cpus=2))
    claim = fleet_of.claim(db, limit=(4, 1000, 10))
    _pass(db)

    fleet_of.delete(db, instance)

    assert fleet_of.claim_row(db, claim)["used_cpus"] == 0
    assert fleet_of.unclaimed(db) == (0, 0, 0)
    fleet_of.assert_exact(db)
