"""Who pays for growth in place: the recorded payer, or the cluster where its claim has ended."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.ledger import charges, leases
from fleet.ledger.database import Database
from fleet.ledger.reconcile import reconcile
from fleet.model.admission import Admitted, Stage
from tests.ledger import claiming, fleet_of
from tests.ledger.fleet_of import PLAIN, grow
from tests.ledger.growing import over, placed, to

CLAIMED = "claimed"


@pytest.mark.parametrize("mode", ["advisory", "hard"])
def test_a_claim_that_covers_pays_the_increase(db: Database, mode: str) -> None:
    node_id = fleet_of.node(db, cpus=20)
    claim = fleet_of.claim(db, limit=(4, 40, 4), namespace=CLAIMED)
    how: dict[str, Any] = {"namespace": CLAIMED, "claim_hard": mode == "hard"}
    instance = placed(db, node_id, cpus=2, memory_mb=10, **how)

    outcome = grow(db, to(node_id, instance, cpus=4, memory_mb=40, **how))
    assert outcome == Admitted(node_id, payer=claim)
    over_it = grow(db, to(node_id, instance, cpus=7, memory_mb=5, **how))
    if mode == "hard":
        assert over(over_it) == (Stage.CLAIM, [("cpus", 4, 4, 3)])
        assert fleet_of.claim_row(db, claim)["used_cpus"] == 4
    else:
        assert isinstance(over_it, Admitted)
        assert [(item.dimension, item.used, item.requested) for item in over_it.over_claim] == [("cpus", 4, 3)]
        assert fleet_of.cluster(db)["overage_cpus"] == 3
        assert len(fleet_of.events_of(db, "placement admitted over namespace capacity claim")) == 2
    assert fleet_of.unclaimed(db) == (0, 0, 0)
    fleet_of.assert_exact(db)
    fleet_of.delete(db, instance)
    assert fleet_of.claim_row(db, claim)["used_cpus"] == fleet_of.cluster(db)["overage_cpus"] == 0
    fleet_of.assert_exact(db)


def test_a_hard_claim_refuses_no_dimension_that_does_not_grow(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=20)
    claim = fleet_of.claim(db, limit=(4, 40, 4), namespace=CLAIMED)
    instance = placed(db, node_id, cpus=6, memory_mb=10, namespace=CLAIMED)
    hard: dict[str, Any] = {"namespace": CLAIMED, "claim_hard": True}

    assert isinstance(grow(db, to(node_id, instance, cpus=6, memory_mb=20, **hard)), Admitted)
    assert isinstance(grow(db, to(node_id, instance, cpus=5, memory_mb=30, **hard)), Admitted)
    row = fleet_of.claim_row(db, claim)
    assert (row["used_cpus"], row["used_memory_mb"], fleet_of.cluster(db)["overage_cpus"]) == (5, 30, 1)
    assert over(grow(db, to(node_id, instance, cpus=5, memory_mb=50, **hard))) == (
        Stage.CLAIM,
        [("memory_mb", 40, 30, 20)],
    )
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("folded", [False, True])
def test_growth_after_the_claims_end_makes_the_cluster_the_payer(
    db: Database, lease: leases.Lease, *, folded: bool
) -> None:
    node_id = fleet_of.node(db, cpus=20)
    with claiming.long_ago(db):
        claim = fleet_of.claim(db, limit=(4, 40, 4), namespace=CLAIMED)
        instance = placed(db, node_id, settled=False, cpus=6, memory_mb=10, namespace=CLAIMED)
        stays = placed(db, node_id, settled=False, cpus=1, namespace=CLAIMED)
    assert fleet_of.settle(db, instance)
    assert fleet_of.settle(db, stays)
    assert fleet_of.claim_row(db, claim)["used_cpus"] == 7
    if folded:
        assert reconcile(db, lease, PLAIN).claims_expired == 1

    outcome = grow(db, to(node_id, instance, cpus=8, memory_mb=5, namespace=CLAIMED, claim_hard=True))
    assert outcome == Admitted(node_id, payer=None)
    assert charges.of_instance(db, instance)[0].payer is None
    assert fleet_of.claim_row(db, claim)["used_cpus"] == (0 if folded else 1)
    assert fleet_of.unclaimed(db) == ((9, 6, 0) if folded else (8, 5, 0))
    assert fleet_of.cluster(db)["overage_cpus"] == 0
    fleet_of.assert_exact(db)
    reconcile(db, lease, PLAIN)
    fleet_of.delete(db, instance)
    fleet_of.delete(db, stays)
    assert fleet_of.unclaimed(db) == (0, 0, 0)
    fleet_of.assert_exact(db)


def test_a_shrink_after_the_claims_end_credits_the_side_that_holds_the_amount(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=20)
    with claiming.long_ago(db):
        claim = fleet_of.claim(db, limit=(4, 40, 4), namespace=CLAIMED)
        instance = placed(db, node_id, settled=False, cpus=6, namespace=CLAIMED)
    assert fleet_of.settle(db, instance)
    assert fleet_of.claim_row(db, claim)["used_cpus"] == 6

    assert isinstance(grow(db, to(node_id, instance, cpus=5, namespace=CLAIMED)), Admitted)
    assert (fleet_of.claim_row(db, claim)["used_cpus"], fleet_of.cluster(db)["overage_cpus"]) == (5, 1)
    assert fleet_of.unclaimed(db) == (0, 0, 0)
    fleet_of.assert_exact(db)


def test_the_recorded_payer_pays_until_a_pass_gives_the_charge_to_the_claim(db: Database, lease: leases.Lease) -> None:
    node_id = fleet_of.node(db, cpus=20)
    instance = placed(db, node_id, cpus=2, namespace=CLAIMED)
    claim = fleet_of.claim(db, limit=(8, 80, 8), namespace=CLAIMED)

    assert grow(db, to(node_id, instance, cpus=3, namespace=CLAIMED)) == Admitted(node_id, payer=None)
    assert fleet_of.unclaimed(db)[0] == 3
    fleet_of.assert_exact(db)
    assert reconcile(db, lease, PLAIN).charges_rehomed == 1
    assert grow(db, to(node_id, instance, cpus=4, namespace=CLAIMED)) == Admitted(node_id, payer=claim)
    assert (fleet_of.claim_row(db, claim)["used_cpus"], fleet_of.unclaimed(db)[0]) == (4, 0)
    fleet_of.assert_exact(db)
