"""Moves that change the size: the destination holds all of it at once, the payer pays what grows at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fleet.ledger import charges, leases, moves
from fleet.ledger.database import Database
from fleet.ledger.reconcile import reconcile
from fleet.ledger.release import NothingToRelease, Released
from fleet.model.admission import Admitted, AlreadyPlaced, Refused, Stage
from fleet.model.resources import Amounts
from tests.ledger import claiming, fleet_of, moving
from tests.ledger.fleet_of import PLAIN, ask
from tests.ledger.growing import over, placed
from tests.ledger.moving import begun, claimed, to

CLAIMED = "claimed"


def two_nodes(db: Database, **more: Any) -> tuple[int, int]:
    return fleet_of.node(db, cpus=40, **more), fleet_of.node(db, cpus=40, **more)


def nothing_is_left(db: Database, *node_ids: int) -> None:
    assert [fleet_of.used(db, node_id) for node_id in node_ids] == [(0, 0, 0, 0)] * len(node_ids)
    assert fleet_of.unclaimed(db) == (0, 0, 0)
    fleet_of.assert_exact(db)


def test_the_destination_is_charged_all_of_it_and_the_payer_what_grows(db: Database) -> None:
    here, there = two_nodes(db)
    instance = placed(db, here, cpus=2, memory_mb=100, disk_gb=8)
    wanted = to(db, there, instance, cpus=5, memory_mb=60, disk_gb=8)

    assert begun(db, wanted) == Admitted(there, payer=None)
    assert fleet_of.used(db, here) == (2, 100, 8, 1)
    assert fleet_of.used(db, there) == (5, 60, 8, 1)
    assert fleet_of.unclaimed(db) == (5, 100, 8)
    fleet_of.assert_exact(db)

    assert moving.settled(db, wanted)
    assert fleet_of.used(db, here) == (0, 0, 0, 0)
    assert fleet_of.used(db, there) == (5, 60, 8, 1)
    assert fleet_of.unclaimed(db) == (5, 60, 8)
    (charge,) = charges.of_instance(db, instance)
    assert (charge.amounts, charge.ahead) == (Amounts(5, 60, 8, 1), Amounts())
    fleet_of.assert_exact(db)
    assert not moving.settled(db, wanted)
    assert isinstance(fleet_of.delete(db, instance), Released)
    nothing_is_left(db, here, there)


def test_an_aborted_move_gives_back_the_growth_and_the_destination_once(db: Database) -> None:
    here, there = two_nodes(db)
    instance = placed(db, here, cpus=2, memory_mb=100, disk_gb=8)
    begun(db, to(db, there, instance, cpus=5, memory_mb=60, disk_gb=9))
    assert fleet_of.unclaimed(db) == (5, 100, 9)

    assert moves.abort(db, instance, "given up")
    assert not moves.abort(db, instance, "given up")
    assert fleet_of.used(db, there) == (0, 0, 0, 0)
    assert fleet_of.unclaimed(db) == (2, 100, 8)
    assert charges.of_instance(db, instance)[0].ahead == Amounts()
    fleet_of.assert_exact(db)


def test_a_release_in_mid_move_gives_back_everything_once(db: Database) -> None:
    here, there = two_nodes(db)
    instance = placed(db, here, cpus=2, memory_mb=100, disk_gb=8)
    begun(db, to(db, there, instance, cpus=5, memory_mb=60, disk_gb=9))

    assert isinstance(fleet_of.delete(db, instance), Released)
    assert isinstance(fleet_of.delete(db, instance), NothingToRelease)
    assert not moves.settle(db, instance)
    assert not moves.abort(db, instance, "late")
    nothing_is_left(db, here, there)
    assert fleet_of.events_of(db, "capacity counter clamped at zero") == []


def test_a_claim_pays_the_growth_and_gets_back_what_shrinks(db: Database) -> None:
    here, there = two_nodes(db)
    claim = fleet_of.claim(db, limit=(10, 200, 20), namespace=CLAIMED)
    instance = placed(db, here, cpus=4, memory_mb=100, namespace=CLAIMED)
    wanted = to(db, there, instance, cpus=8, memory_mb=40, namespace=CLAIMED, claim_hard=True)

    assert begun(db, wanted) == Admitted(there, payer=claim)
    assert claimed(db, claim) == (8, 100, 0)
    assert moving.settled(db, wanted)
    assert claimed(db, claim) == (8, 40, 0)
    assert charges.of_instance(db, instance)[0].payer == claim
    assert fleet_of.unclaimed(db) == (0, 0, 0)
    fleet_of.assert_exact(db)


def test_a_hard_claim_refuses_growth_that_it_does_not_hold_and_nothing_else(db: Database) -> None:
    here, there = two_nodes(db)
    claim = fleet_of.claim(db, limit=(4, 40, 4), namespace=CLAIMED)
    instance = placed(db, here, cpus=4, memory_mb=100, namespace=CLAIMED)
    hard: dict[str, Any] = {"namespace": CLAIMED, "claim_hard": True}

    assert over(moves.begin(db, to(db, there, instance, cpus=5, memory_mb=100, **hard))) == (
        Stage.CLAIM,
        [("cpus", 4, 4, 1)],
    )
    assert fleet_of.used(db, there) == (0, 0, 0, 0)
    assert claimed(db, claim) == (4, 100, 0)
    # What it overdraws already is not asked again, nor what shrinks.
    begun(db, to(db, there, instance, cpus=4, memory_mb=90, **hard))
    fleet_of.assert_exact(db)


def test_an_advisory_claim_is_overdrawn_by_growth_and_the_overage_goes_with_the_abort(db: Database) -> None:
    here, there = two_nodes(db)
    fleet_of.claim(db, limit=(4, 40, 4), namespace=CLAIMED)
    instance = placed(db, here, cpus=4, memory_mb=1, namespace=CLAIMED)

    outcome = begun(db, to(db, there, instance, cpus=7, memory_mb=1, namespace=CLAIMED))
    assert [(item.dimension, item.used, item.requested) for item in outcome.over_claim] == [("cpus", 4, 3)]
    assert fleet_of.cluster(db)["overage_cpus"] == 3
    assert moves.abort(db, instance, "given up")
    assert fleet_of.cluster(db)["overage_cpus"] == 0
    fleet_of.assert_exact(db)


def test_the_cluster_refuses_growth_that_it_has_promised_away(db: Database) -> None:
    here, there = two_nodes(db)
    fleet_of.claim(db, limit=(76, 0, 0), namespace=CLAIMED)
    instance = placed(db, here, cpus=3)

    assert over(moves.begin(db, to(db, there, instance, cpus=5))) == (Stage.CLUSTER, [("cpus", 4, 3, 2)])
    assert charges.of_instance(db, instance)[0].ahead == Amounts()
    begun(db, to(db, there, instance, cpus=4))
    assert fleet_of.unclaimed(db) == (4, 1, 0)
    fleet_of.assert_exact(db)


def test_the_destination_is_guarded_by_all_of_the_new_size(db: Database) -> None:
    here, there = two_nodes(db)
    instance = placed(db, here, cpus=30)
    placed(db, there, cpus=20)

    assert over(moves.begin(db, to(db, there, instance, cpus=21))) == (Stage.NODE, [("cpus", 40, 20, 21)])
    begun(db, to(db, there, instance, cpus=20))
    assert fleet_of.unclaimed(db) == (50, 2, 0)
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("ends", ["before", "between"])
@pytest.mark.parametrize("folded", [False, True])
@pytest.mark.parametrize("how", ["settle", "abort", "release"])
def test_a_claim_that_ends_about_a_growing_move_leaves_every_sum_exact(
    db: Database, lease: leases.Lease, ends: str, how: str, *, folded: bool
) -> None:
    here, there = two_nodes(db)
    instance = placed(db, here, cpus=3, memory_mb=50, namespace=CLAIMED)
    stays = placed(db, here, cpus=1, namespace=CLAIMED)
    wanted = to(db, there, instance, cpus=6, memory_mb=20, namespace=CLAIMED)
    with claiming.long_ago(db):
        # A claim that is granted takes both charges over.
        claim = claiming.granted(db, CLAIMED, 4, 100, 4).uuid
        assert claimed(db, claim) == (4, 51, 0)
        if ends == "between":
            assert begun(db, wanted).payer == claim
            fleet_of.assert_exact(db)
    if folded:
        assert reconcile(db, lease, PLAIN).claims_expired == 1
    if ends == "before":
        assert begun(db, wanted).payer is None
    fleet_of.assert_exact(db)
    ending: dict[str, Callable[[], object]] = {
        "settle": lambda: moving.settled(db, wanted),
        "abort": lambda: moves.abort(db, instance, "given up"),
        "release": lambda: fleet_of.delete(db, instance),
    }
    ending[how]()
    fleet_of.assert_exact(db)
    sizes = {"settle": (6, 20, 0), "abort": (3, 50, 0), "release": (0, 0, 0)}
    payers = (claimed(db, claim), fleet_of.unclaimed(db))
    assert tuple(map(sum, zip(*payers, strict=True))) == (sizes[how][0] + 1, sizes[how][1] + 1, 0)
    assert reconcile(db, lease, PLAIN).corrections == ()
    for one in (instance, stays):
        fleet_of.delete(db, one)
    reconcile(db, lease, PLAIN)
    nothing_is_left(db, here, there)


def test_a_claim_that_comes_in_mid_move_takes_over_the_growth_too(db: Database, lease: leases.Lease) -> None:
    here, there = two_nodes(db)
    instance = placed(db, here, cpus=3, memory_mb=50, namespace=CLAIMED)
    wanted = to(db, there, instance, cpus=6, memory_mb=20, namespace=CLAIMED)
    begun(db, wanted)
    claim = fleet_of.claim(db, limit=(9, 90, 9), namespace=CLAIMED)

    assert reconcile(db, lease, PLAIN).charges_rehomed == 1
    assert (claimed(db, claim), fleet_of.unclaimed(db)) == ((6, 50, 0), (0, 0, 0))
    fleet_of.assert_exact(db)
    assert moving.settled(db, wanted)
    assert (claimed(db, claim), fleet_of.unclaimed(db)) == ((6, 20, 0), (0, 0, 0))
    fleet_of.assert_exact(db)


def test_a_move_that_was_decided_for_another_size_does_not_begin(db: Database) -> None:
    here, there = two_nodes(db)
    instance = placed(db, here, cpus=2)
    decided = to(db, there, instance, cpus=6)
    assert isinstance(fleet_of.grow(db, ask(here, cpus=3, instance_uuid=instance)), Admitted)

    outcome = moves.begin(db, decided)
    assert isinstance(outcome, Refused)
    assert outcome.ineligible == "charge_changed"
    assert fleet_of.used(db, there) == (0, 0, 0, 0)
    fleet_of.assert_exact(db)


def test_a_growing_move_that_is_begun_twice_is_paid_once(db: Database) -> None:
    here, there = two_nodes(db)
    instance = placed(db, here, cpus=2)
    wanted = to(db, there, instance, cpus=6)
    begun(db, wanted)

    assert moves.begin(db, wanted) == AlreadyPlaced(there)
    assert fleet_of.unclaimed(db) == (6, 1, 0)
    refused = fleet_of.grow(db, ask(here, cpus=3, instance_uuid=instance))
    assert isinstance(refused, Refused)
    assert refused.ineligible == "charge_moving"
    fleet_of.assert_exact(db)


def test_a_move_changes_nothing_of_what_sleeps(db: Database) -> None:
    here, there = two_nodes(db)
    instance = placed(db, here, cpus=2, memory_mb=64, sleepy=True)
    wanted = to(db, there, instance, cpus=2, memory_mb=128, sleepy=True)
    begun(db, wanted)
    assert [fleet_of.row(db, node)["sleepy_memory_mb"] for node in (here, there)] == [64, 128]

    assert moving.settled(db, wanted)
    assert [fleet_of.row(db, node)["sleepy_memory_mb"] for node in (here, there)] == [0, 128]
    assert charges.of_instance(db, instance)[0].sleepy
    fleet_of.assert_exact(db)


def test_b05_a_pass_in_the_middle_of_growing_moves_keeps_both_nodes_charged(db: Database, lease: leases.Lease) -> None:
    here = fleet_of.node(db, cpus=100, memory_mb=64)
    there = fleet_of.node(db, cpus=100, memory_mb=40)
    placed(db, there, memory_mb=8)
    machines = [placed(db, here, memory_mb=6) for _ in range(4)]
    for instance in machines:
        begun(db, to(db, there, instance, memory_mb=8))

    assert reconcile(db, lease, PLAIN).corrections == ()
    assert (fleet_of.used(db, here)[1], fleet_of.used(db, there)[1]) == (24, 40)
    assert fleet_of.unclaimed(db)[1] == 40
    refused = fleet_of.admit(db, ask(there, memory_mb=1))
    assert isinstance(refused, Refused)
    fleet_of.assert_exact(db)


def test_b09_two_hundred_cycles_of_moves_that_grow_and_shrink_leave_no_trace(db: Database) -> None:
    here, there = two_nodes(db)
    claim = fleet_of.claim(db, limit=(30, 300, 30), namespace=CLAIMED)
    before = fleet_of.cluster(db)
    nodes = [here, there]
    for cycle in range(200):
        namespace = (CLAIMED, fleet_of.NAMESPACE)[cycle % 2]
        instance = placed(db, nodes[0], cpus=2 + cycle % 3, memory_mb=10, disk_gb=cycle % 4, namespace=namespace)
        for size in ((4, 5, 3), (1, 20, 0)):
            wanted = to(db, nodes[1], instance, cpus=size[0], memory_mb=size[1], disk_gb=size[2], namespace=namespace)
            begun(db, wanted)
            if cycle % 3:
                assert moving.settled(db, wanted)
                nodes.reverse()
            else:
                assert moves.abort(db, instance, "given up")
        assert isinstance(fleet_of.delete(db, instance), Released)

    assert claimed(db, claim) == (0, 0, 0)
    after = fleet_of.cluster(db)
    assert {**after, "updated_at": 0} == {**before, "updated_at": 0}
    nothing_is_left(db, here, there)
    assert fleet_of.events_of(db, "capacity counter clamped at zero") == []
