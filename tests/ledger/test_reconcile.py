"""Reconciliation: real drift is repaired and told, everything that happens meanwhile survives."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from fleet.ledger import demand, leases
from fleet.ledger.cluster import now_us
from fleet.ledger.database import Database
from fleet.ledger.leases import Lease, LeaseLost
from fleet.ledger.reconcile import needs_pass, reconcile
from fleet.ledger.verify import verify
from fleet.model.admission import Admitted
from fleet.model.cluster_config import ClusterConfig
from tests.ledger import claiming, fleet_of, past
from tests.ledger.fleet_of import PLAIN, ask
from tests.servers import wait_until

CORRECTED = "capacity counter corrected"
DRIFT = "UPDATE scheduler_node_capacity SET used_cpus = used_cpus + 3 WHERE node_id = :node_id"


def end(db: Database, lease: Lease) -> None:
    """Let the lease last no longer."""
    assert leases.renew(db, lease, 0)


# --- B06, B07 ----------------------------------------------------------------------------------------------------


def create(db: Database, node_id: int) -> None:
    fleet_of.admitted(db, ask(node_id, cpus=2))


def create_on_claim(db: Database, node_id: int) -> None:
    fleet_of.admitted(db, ask(node_id, cpus=2, namespace="claimed"))


def delete(db: Database, node_id: int) -> None:
    instance = fleet_of.rows(db, "SELECT MAX(instance_uuid) AS one FROM charges WHERE payer IS NULL")[0]["one"]
    fleet_of.delete(db, instance)


def publish(db: Database, node_id: int) -> None:
    fleet_of.publish(db, "n", cpus=70)


@pytest.mark.parametrize("meanwhile", [create, create_on_claim, delete, publish])
@pytest.mark.parametrize("drift", [True, False])
def test_b06_what_commits_between_the_read_and_the_write_of_a_pass_survives(
    db: Database, lease: Lease, meanwhile: Callable[[Database, int], None], *, drift: bool
) -> None:
    node_id = fleet_of.node(db, "n", cpus=64)
    fleet_of.claim(db, limit=(8, 80, 8), namespace="claimed")
    for _ in range(3):
        fleet_of.admitted(db, ask(node_id, cpus=4))
    fleet_of.admitted(db, ask(node_id, cpus=4, namespace="claimed"))
    if drift:
        fleet_of.execute(db, DRIFT, node_id=node_id)
        fleet_of.execute(db, "UPDATE namespace_claims SET used_cpus = used_cpus + 1")
    report = reconcile(db, lease, PLAIN, between=lambda: meanwhile(db, node_id))

    assert bool(report.corrections) is drift
    charged = fleet_of.rows(db, "SELECT SUM(cpus) AS total FROM charges")[0]["total"]
    assert fleet_of.used(db, node_id)[0] == charged
    fleet_of.assert_exact(db)


def test_b07_the_first_pass_repairs_and_tells_the_second_has_nothing_to_do(db: Database, lease: Lease) -> None:
    node_id = fleet_of.node(db, "n", cpus=64)
    fleet_of.admitted(db, ask(node_id, cpus=9))
    fleet_of.execute(db, DRIFT, node_id=node_id)

    first = reconcile(db, lease, PLAIN)
    second = reconcile(db, lease, PLAIN)

    assert [(item.figure, item.old, item.new, item.difference) for item in first.corrections] == [
        ("used_cpus", 12, 9, -3)
    ]
    assert (first.nodes, second.nodes) == (1, 1)
    assert second.corrections == ()
    (event,) = fleet_of.events_of(db, CORRECTED)
    payload = json.loads(event["payload"])
    assert (event["object_type"], event["object_id"], event["level"]) == ("node", "n", "warning")
    assert {name: payload[name] for name in ("figure", "old", "new", "difference")} == {
        "figure": "used_cpus",
        "old": 12,
        "new": 9,
        "difference": -3,
    }


def test_every_figure_of_every_row_is_repaired(db: Database, lease: Lease) -> None:
    node_id = fleet_of.node(db, "n", cpus=64)
    fleet_of.node(db, "uncounted", cpus=64, is_hypervisor=False)
    fleet_of.claim(db, limit=(2, 20, 2), namespace="claimed")
    fleet_of.admitted(db, ask(node_id, cpus=4, namespace="claimed"))
    fleet_of.admitted(db, ask(node_id, cpus=4))
    broken = {
        "scheduler_node_capacity": ["used_cpus", "used_memory_mb", "used_disk_gb", "used_instances",
                                    "pending_memory_mb", "pending_disk_gb"],
        "namespace_claims": ["used_cpus", "used_memory_mb", "used_disk_gb"],
        "cluster_capacity": [f"{part}_{name}" for part in ("total", "unlimited", "claimed", "unclaimed_used", "overage")
                             for name in ("cpus", "memory_mb", "disk_gb")] + ["counted_nodes"],
    }  # fmt: skip
    for table, columns in broken.items():
        fleet_of.execute(db, f"UPDATE {table} SET " + ", ".join(f"{name} = {name} + 7" for name in columns))
    assert len(verify(db).differences) > 20
    report = reconcile(db, lease, PLAIN)

    fleet_of.assert_exact(db)
    assert len({(item.row, item.figure) for item in report.corrections}) == len(report.corrections)
    assert reconcile(db, lease, PLAIN).corrections == ()


def test_a_corrected_claim_leaves_the_clusters_overage_right(db: Database, lease: Lease) -> None:
    node_id = fleet_of.node(db, "n", cpus=64)
    fleet_of.claim(db, limit=(2, 20, 2), namespace="claimed")
    fleet_of.admitted(db, ask(node_id, cpus=4, namespace="claimed"))
    fleet_of.execute(db, "UPDATE namespace_claims SET used_cpus = 9")
    report = reconcile(db, lease, PLAIN)

    assert [(item.figure, item.difference) for item in report.corrections if item.row != "cluster"] == [
        ("used_cpus", -5)
    ]
    fleet_of.assert_exact(db)


# --- the lease ---------------------------------------------------------------------------------------------------


def test_a_pass_whose_lease_went_to_another_writes_nothing_more(db: Database, lease: Lease) -> None:
    node_id = fleet_of.node(db, "n", cpus=64)
    fleet_of.execute(db, DRIFT, node_id=node_id)

    def second_holder() -> None:
        end(db, lease)
        assert leases.acquire(db, "reconciler", "second", 60) is not None

    with pytest.raises(LeaseLost):
        reconcile(db, lease, PLAIN, between=second_holder)

    assert fleet_of.used(db, node_id)[0] == 3
    assert fleet_of.events_of(db, CORRECTED) == []


def test_an_expired_lease_writes_nothing_even_when_nobody_took_it(db: Database, lease: Lease) -> None:
    node_id = fleet_of.node(db, "n", cpus=64)
    fleet_of.execute(db, DRIFT, node_id=node_id)
    with pytest.raises(LeaseLost):
        reconcile(db, lease, PLAIN, between=lambda: end(db, lease))


def test_a_lease_goes_to_one_holder_and_each_change_has_a_higher_number(db: Database, lease: Lease) -> None:
    assert leases.acquire(db, "reconciler", "other", 60) is None
    assert leases.acquire(db, "reconciler", "test", 60) is None
    assert leases.renew(db, lease, 60)
    leases.drop(db, lease)
    taken = leases.acquire(db, "reconciler", "other", 60)

    assert taken is not None
    assert taken.number == lease.number + 1
    assert not leases.renew(db, lease, 60)
    leases.drop(db, lease)
    assert leases.renew(db, taken, 60)


# --- expected demand ---------------------------------------------------------------------------------------------

DECAYING = replace(PLAIN, scheduler_demand_per_vcpu=Decimal("2.5"), scheduler_demand_decay_seconds=600)


def expected(db: Database, node_id: int) -> Decimal:
    return Decimal(str(fleet_of.row(db, node_id)["expected_demand"]))


@pytest.mark.vectors
@pytest.mark.parametrize(
    ("age", "decay", "demand_of_four"),
    [(0, 600, 10.0), (100, 600, 8.333), (300, 600, 5.0), (600, 600, 0), (-5, 600, 10.0), (0, 0, 0)],
)
def test_shakenfist_v6_expected_demand_decays_linearly_with_the_age_of_a_charge(
    db: Database, lease: Lease, age: int, decay: int, demand_of_four: float
) -> None:
    node_id = fleet_of.node(db, cpus=8)
    now = now_us(db)
    with past.still(db, now - age * 1_000_000):
        fleet_of.admitted(db, ask(node_id, cpus=4))
    config = replace(DECAYING, scheduler_demand_decay_seconds=decay)
    with past.still(db, now):
        demand.refresh(db, lease, config)

    assert expected(db, node_id) == Decimal(str(demand_of_four))


def test_an_admission_between_read_and_write_of_the_refresh_keeps_its_demand(
    db: Database, lease: Lease, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_id = fleet_of.node(db, cpus=64)
    fleet_of.execute(db, "UPDATE scheduler_node_capacity SET expected_demand = 7")
    check = leases.check

    def overtaken(conn: Any, held: Lease) -> None:
        monkeypatch.undo()
        if not db.is_sqlite:
            # On SQLite the write transaction is open already; there, nothing can come between.
            fleet_of.admitted(db, ask(node_id, cpus=2, demand=Decimal("5.0")))
        check(conn, held)

    monkeypatch.setattr(leases, "check", overtaken)
    assert demand.refresh(db, lease, DECAYING) == 1

    assert expected(db, node_id) == (0 if db.is_sqlite else 5)


def test_expected_demand_is_refreshed_without_an_event_and_never_below_zero(db: Database, lease: Lease) -> None:
    nodes = [fleet_of.node(db, cpus=8) for _ in range(3)]
    with past.ago(db, 601):
        for node_id in nodes[:2]:
            fleet_of.admitted(db, ask(node_id, cpus=2, demand=Decimal("5.0")))
    fleet_of.execute(db, "UPDATE scheduler_node_capacity SET expected_demand = 3.3 WHERE node_id = :i", i=nodes[2])
    report = reconcile(db, lease, DECAYING)

    assert [expected(db, node_id) for node_id in nodes] == [0, 0, 0]
    assert report.demand_refreshed == 3
    assert report.corrections == ()


# --- counting nodes, expired claims ------------------------------------------------------------------------------


def test_a_pass_is_due_at_once_when_counting_nodes_or_limits_differ_from_the_totals(db: Database, lease: Lease) -> None:
    assert not needs_pass(db)
    node_id = fleet_of.node(db, "n", cpus=8)
    fleet_of.admitted(db, ask(node_id, cpus=3))
    assert not needs_pass(db)
    with past.still(db) as now:
        fleet_of.publish(db, "n", age="899.999", cpus=8)
        assert not needs_pass(db)
    with past.still(db, now + 1000):
        assert needs_pass(db), "the sample is 900 s old, and its node counts no more"
    wait_until(lambda: needs_pass(db), seconds=10, what="it is so by the clock that runs, too")
    reconcile(db, lease, PLAIN)
    assert not needs_pass(db)
    assert fleet_of.cluster(db)["counted_nodes"] == 0
    assert fleet_of.cluster(db)["total_cpus"] == 3
    (event,) = fleet_of.events_of(db, "node capacity counted changed")
    assert event["object_id"] == "n"
    fleet_of.assert_exact(db)

    fleet_of.execute(db, "UPDATE cluster_capacity SET total_cpus = 99")
    assert needs_pass(db)


def test_a_pass_with_a_zero_decay_and_no_nodes_does_nothing(db: Database, lease: Lease) -> None:
    report = reconcile(db, lease, ClusterConfig(scheduler_demand_decay_seconds=0))
    assert (report.nodes, report.corrections, report.claims_expired, report.demand_refreshed) == (0, (), 0, 0)


def test_an_expired_claim_is_folded_once_and_its_use_is_the_clusters(db: Database, lease: Lease) -> None:
    node_id = fleet_of.node(db, "n", cpus=64)
    with claiming.long_ago(db):
        claim = fleet_of.claim(db, limit=(2, 20, 2), namespace="claimed")
        instance = fleet_of.admitted(db, ask(node_id, cpus=5, memory_mb=7, namespace="claimed"))
        assert reconcile(db, lease, PLAIN).claims_expired == 0

    assert [reconcile(db, lease, PLAIN).claims_expired for _ in range(2)] == [1, 0]
    row, found = fleet_of.claim_row(db, claim), fleet_of.cluster(db)
    assert (row["coverage_state"], row["folded"], row["used_cpus"], row["active_namespace"]) == ("expired", 1, 0, None)
    assert (found["claimed_cpus"], found["unclaimed_used_cpus"], found["unclaimed_used_memory_mb"]) == (0, 5, 7)
    assert found["overage_cpus"] == 0
    charge = fleet_of.rows(db, "SELECT payer FROM charges WHERE instance_uuid = :uuid", uuid=instance)
    assert charge == [{"payer": claim}], "charges are not rewritten"
    fleet_of.assert_exact(db)


def test_a_charge_of_the_cluster_is_not_lost_when_a_claim_is_folded_meanwhile(db: Database, lease: Lease) -> None:
    node_id = fleet_of.node(db, "n", cpus=64)
    with claiming.long_ago(db):
        claim = fleet_of.claim(db, limit=(20, 20, 2), namespace="claimed")
        fleet_of.admitted(db, ask(node_id, cpus=5, namespace="claimed"))
    assert fleet_of.claim_row(db, claim)["used_cpus"] == 5
    outcome = fleet_of.admit(db, ask(node_id, cpus=1, namespace="claimed"))
    assert isinstance(outcome, Admitted)
    assert outcome.payer is None
    reconcile(db, lease, PLAIN)

    assert fleet_of.unclaimed(db)[0] == 6
    fleet_of.assert_exact(db)
