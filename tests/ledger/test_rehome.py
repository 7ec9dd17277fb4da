"""A charge that the cluster pays although its namespace's claim is active goes to the claim at the next pass."""

from __future__ import annotations

import pytest

from fleet.ledger import leases, reconcile, rehome
from fleet.ledger.database import Database
from fleet.model.cluster_config import ClusterConfig
from tests.ledger import claiming, fleet_of
from tests.ledger.holding import Other, open_transaction


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


@pytest.mark.parametrize("former", ["folded", "gone"])
def test_charges_that_name_a_former_claim_are_rehomed_too(db: Database, former: str) -> None:
    node_id = fleet_of.node(db, cpus=64)
    with claiming.long_ago(db):
        ended = fleet_of.claim(db, limit=(4, 1000, 10))
        instance = fleet_of.admitted(db, fleet_of.ask(node_id, cpus=2))
    assert fleet_of.claim_row(db, ended)["used_cpus"] == 2
    assert _pass(db).claims_expired == 1
    assert fleet_of.unclaimed(db)[0] == 2
    if former == "gone":
        fleet_of.execute(db, "DELETE FROM namespace_claims")
    claim = fleet_of.claim(db, limit=(4, 1000, 10))

    report = _pass(db)

    assert (report.charges_rehomed, report.corrections) == (1, ())
    assert fleet_of.claim_row(db, claim)["used_cpus"] == 2
    assert fleet_of.unclaimed(db) == (0, 0, 0)
    fleet_of.assert_exact(db)
    fleet_of.delete(db, instance)
    assert fleet_of.claim_row(db, claim)["used_cpus"] == 0
    if former == "folded":
        assert fleet_of.claim_row(db, ended)["used_cpus"] == 0
    fleet_of.assert_exact(db)


def test_many_charges_are_rehomed_in_batches(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rehome, "BATCH", 2)
    node_id = fleet_of.node(db, cpus=64)
    for _ in range(5):
        fleet_of.admitted(db, fleet_of.ask(node_id, cpus=2))
    claim = fleet_of.claim(db, limit=(4, 1000, 10))

    assert _pass(db).charges_rehomed == 5
    assert fleet_of.claim_row(db, claim)["used_cpus"] == 10
    fleet_of.assert_exact(db)


def test_a_claim_that_ends_while_charges_are_rehomed_leaves_them_to_the_cluster(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_id = fleet_of.node(db, cpus=64)
    fleet_of.admitted(db, fleet_of.ask(node_id, cpus=2))
    with claiming.long_ago(db):
        claim = fleet_of.claim(db, limit=(4, 1000, 10))
        # The charges are locked, and the claim's row is not, when it ends.
        met = claiming.ending_before_it_pays(monkeypatch, db, claim)
        report = _pass(db)

    assert met == [claim]
    assert report.charges_rehomed == 0
    assert fleet_of.rows(db, "SELECT payer FROM charges") == [{"payer": None}]
    assert fleet_of.claim_row(db, claim)["used_cpus"] == 0
    fleet_of.assert_exact(db)


def test_rehoming_holds_no_claim_of_another_namespace(maria: Database, mariadb_ledger_url: str) -> None:
    node_id = fleet_of.node(maria, cpus=64)
    fleet_of.admitted(maria, fleet_of.ask(node_id, cpus=2))
    fleet_of.claim(maria, limit=(4, 1000, 10))
    other_claim = fleet_of.claim(maria, limit=(1, 1, 1), namespace="other")
    with open_transaction(maria) as conn:
        conn.exec_driver_sql(f"UPDATE namespace_claims SET used_cpus = 0 WHERE uuid = '{other_claim}'")
        report = Other(mariadb_ledger_url, _pass).result()

        assert report.charges_rehomed == 1
