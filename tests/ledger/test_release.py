"""Release: exactly what a charge says goes back, once, to whoever paid, and no counter goes below zero."""

from __future__ import annotations

from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from fleet.ledger import leases, moves
from fleet.ledger.database import Database
from fleet.ledger.reconcile import reconcile
from fleet.ledger.release import NothingToRelease, Released
from fleet.model.admission import Admitted, Refused
from fleet.model.resources import Amounts
from tests.ledger import claiming, fleet_of, racing
from tests.ledger.fleet_of import PLAIN, ask
from tests.ledger.racing import Threads


def test_b08_a_second_release_finds_nothing_and_says_so(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=8)
    stays = fleet_of.admitted(db, ask(node_id, cpus=2, memory_mb=10, disk_gb=1))
    goes = fleet_of.admitted(db, ask(node_id, cpus=3, memory_mb=20, disk_gb=2))

    first = fleet_of.delete(db, goes)
    assert isinstance(first, Released)
    assert [charge.amounts for charge in first.charges] == [Amounts(3, 20, 2, 1)]
    assert isinstance(fleet_of.delete(db, goes), NothingToRelease)
    assert isinstance(fleet_of.delete(db, "never-there"), NothingToRelease)

    assert fleet_of.used(db, node_id) == (2, 10, 1, 1)
    assert fleet_of.unclaimed(db) == (2, 10, 1)
    assert set(fleet_of.charged_to(db)) == {stays}
    fleet_of.assert_exact(db)


def release_it(db: Database, pause: racing.Pause, instance: str) -> str:
    return type(fleet_of.delete(db, instance)).__name__


@pytest.mark.slow
def test_b08_of_threads_that_release_one_instance_at_once_one_gives_it_back(
    maria: Database, mariadb_ledger_url: str
) -> None:
    node_id = fleet_of.node(maria, cpus=100)
    claim = fleet_of.claim(maria, limit=(50, 50, 50), namespace="claimed")
    with Threads(mariadb_ledger_url, 6) as racers:
        for round_ in range(20):
            namespace = "claimed" if round_ % 2 else fleet_of.NAMESPACE
            instance = fleet_of.admitted(maria, ask(node_id, namespace=namespace))
            answers = racers.run(release_it, [(instance,)] * racers.size)
            assert sorted(answers) == ["NothingToRelease"] * 5 + ["Released"]

    assert fleet_of.used(maria, node_id) == (0, 0, 0, 0)
    assert fleet_of.claim_row(maria, claim)["used_cpus"] == 0
    assert fleet_of.events_of(maria, "capacity counter clamped at zero") == []
    fleet_of.assert_exact(maria)


def test_b10_a_refusal_at_any_stage_leaves_no_trace(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8)
    claim = fleet_of.claim(db, limit=(4, 40, 4), namespace="claimed")
    over_node = ask(node_id, cpus=9, namespace="claimed")
    over_claim = ask(node_id, cpus=5, namespace="claimed", claim_hard=True)
    over_cluster = ask(node_id, cpus=5)
    before = (fleet_of.row(db, node_id), fleet_of.cluster(db), fleet_of.claim_row(db, claim))
    for _ in range(50):
        stages = [fleet_of.admit(db, wanted) for wanted in (over_node, over_claim, over_cluster)]
        assert [str(item.failing_stage) for item in stages if isinstance(item, Refused)] == ["node", "claim", "cluster"]
    assert (fleet_of.row(db, node_id), fleet_of.cluster(db), fleet_of.claim_row(db, claim)) == before
    assert fleet_of.charged_to(db) == {}

    whole = fleet_of.admit(db, ask(node_id, cpus=4, memory_mb=40, disk_gb=4, namespace="claimed", claim_hard=True))
    assert isinstance(whole, Admitted)
    fleet_of.assert_exact(db)


def test_b49_a_counter_that_holds_less_than_the_charge_is_floored_and_named(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8)
    instance = fleet_of.admitted(db, ask(node_id, cpus=1, memory_mb=1024))
    fleet_of.execute(db, "UPDATE scheduler_node_capacity SET used_memory_mb = 512")
    fleet_of.execute(db, "UPDATE cluster_capacity SET unclaimed_used_memory_mb = 1000")
    released = fleet_of.delete(db, instance)

    assert isinstance(released, Released)
    assert dict(released.clamped) == {f"node {node_id} used_memory_mb": 512, "cluster unclaimed_used_memory_mb": 24}
    assert fleet_of.used(db, node_id) == (0, 0, 0, 0)
    assert fleet_of.unclaimed(db) == (0, 0, 0)
    events = fleet_of.events_of(db, "capacity counter clamped at zero")
    assert [event["level"] for event in events] == ["warning"] * 2
    assert "used_memory_mb" in events[0]["payload"]
    assert "512" in events[0]["payload"]
    assert f"{node_id}" in events[0]["payload"]
    fleet_of.assert_exact(db)


def test_b49_a_claims_counter_that_holds_less_is_floored_and_named_too(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8)
    claim = fleet_of.claim(db, limit=(4, 4096, 4), namespace="claimed")
    instance = fleet_of.admitted(db, ask(node_id, memory_mb=1024, namespace="claimed"))
    fleet_of.execute(db, "UPDATE namespace_claims SET used_memory_mb = 512")
    released = fleet_of.delete(db, instance)

    assert isinstance(released, Released)
    assert dict(released.clamped) == {f"claim {claim} used_memory_mb": 512}
    assert fleet_of.claim_row(db, claim)["used_memory_mb"] == 0
    fleet_of.assert_exact(db)


def test_b49_a_clamped_counter_of_an_uncounted_node_keeps_the_totals_true(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8, is_hypervisor=False)
    instance = fleet_of.admitted(db, ask(node_id, cpus=4, enforce=False))
    fleet_of.execute(db, "UPDATE scheduler_node_capacity SET used_cpus = 1")
    fleet_of.execute(db, "UPDATE cluster_capacity SET total_cpus = 1")
    fleet_of.delete(db, instance)

    assert fleet_of.cluster(db)["total_cpus"] == 0
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("folded", [False, True])
def test_a_release_after_the_claims_end_credits_the_side_that_holds_the_amount(db: Database, *, folded: bool) -> None:
    node_id = fleet_of.node(db, "n", cpus=8)
    with claiming.long_ago(db):
        claim = fleet_of.claim(db, limit=(2, 40, 4), namespace="claimed")
        goes = fleet_of.admitted(db, ask(node_id, cpus=3, namespace="claimed"))
        fleet_of.admitted(db, ask(node_id, cpus=1, namespace="claimed"))
    assert fleet_of.cluster(db)["overage_cpus"] == 2
    if folded:
        lease = leases.acquire(db, "reconciler", "test", 60)
        assert lease is not None
        assert reconcile(db, lease, PLAIN).claims_expired == 1
        assert fleet_of.unclaimed(db)[0] == 4
    fleet_of.delete(db, goes)

    held = (fleet_of.claim_row(db, claim)["used_cpus"], fleet_of.unclaimed(db)[0])
    assert held == ((0, 1) if folded else (1, 0))
    assert fleet_of.cluster(db)["overage_cpus"] == 0
    fleet_of.assert_exact(db)


def test_expected_demand_stays_after_a_release(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=8)
    fleet_of.delete(db, fleet_of.admitted(db, ask(node_id, demand=Decimal("0.6"))))
    assert Decimal(str(fleet_of.row(db, node_id)["expected_demand"])) == Decimal("0.6")


# --- moves -------------------------------------------------------------------------------------------------------


def moving(db: Database) -> tuple[int, int, str, Any]:
    here, there = fleet_of.node(db, "here", cpus=8), fleet_of.node(db, "there", cpus=8)
    instance = fleet_of.admitted(db, ask(here, cpus=2, memory_mb=64))
    fleet_of.settle(db, instance)
    wanted = ask(there, cpus=2, memory_mb=64, instance_uuid=instance)
    assert isinstance(moves.begin(db, wanted), Admitted)
    return here, there, instance, wanted


def test_a_moving_instance_is_charged_on_both_nodes_and_paid_once(db: Database) -> None:
    here, there, _, _ = moving(db)

    assert fleet_of.used(db, here) == fleet_of.used(db, there) == (2, 64, 0, 1)
    assert fleet_of.unclaimed(db) == (2, 64, 0)
    fleet_of.assert_exact(db)


@pytest.mark.parametrize(("end", "place"), [("settle", 1), ("abort", 0)])
def test_a_move_ends_on_one_node_and_its_repetition_finds_nothing(db: Database, end: str, place: int) -> None:
    here, there, instance, wanted = moving(db)
    ends: dict[str, Callable[[], bool]] = {
        "settle": lambda: moves.settle(db, instance, rows=lambda conn: fleet_of.moved_instance(conn, wanted)),
        "abort": lambda: moves.abort(db, instance, "no"),
    }
    assert ends[end]()
    assert not ends["settle"]()
    assert not ends["abort"]()

    expected = [(0, 0, 0, 0), (0, 0, 0, 0)]
    expected[place] = (2, 64, 0, 1)
    assert [fleet_of.used(db, here), fleet_of.used(db, there)] == expected
    assert fleet_of.unclaimed(db) == (2, 64, 0)
    fleet_of.assert_exact(db)


def test_b05_a_pass_in_the_middle_of_four_moves_changes_nothing_and_both_nodes_stay_charged(db: Database) -> None:
    there = fleet_of.node(db, "b", cpus=100, memory_mb=40)
    here = fleet_of.node(db, "a", cpus=100, memory_mb=40)
    fleet_of.admitted(db, ask(there, memory_mb=8))
    movers = [fleet_of.admitted(db, ask(here, memory_mb=8)) for _ in range(4)]
    for instance in movers:
        fleet_of.settle(db, instance)
        assert isinstance(moves.begin(db, ask(there, memory_mb=8, instance_uuid=instance)), Admitted)
    lease = leases.acquire(db, "reconciler", "test", 60)
    assert lease is not None

    assert reconcile(db, lease, PLAIN).corrections == ()
    assert (fleet_of.used(db, there)[1], fleet_of.used(db, here)[1]) == (40, 32)
    assert isinstance(fleet_of.admit(db, ask(there, memory_mb=8)), Refused)


def test_a_release_in_the_middle_of_a_move_gives_both_nodes_back(db: Database) -> None:
    here, there, instance, _ = moving(db)
    fleet_of.delete(db, instance)

    assert fleet_of.used(db, here) == fleet_of.used(db, there) == (0, 0, 0, 0)
    assert fleet_of.unclaimed(db) == (0, 0, 0)
    fleet_of.assert_exact(db)


def test_a_move_of_an_instance_that_was_released_holds_nothing(db: Database) -> None:
    here, there = fleet_of.node(db, "here", cpus=8), fleet_of.node(db, "there", cpus=8)
    instance = fleet_of.admitted(db, ask(here))
    fleet_of.delete(db, instance)
    outcome = moves.begin(db, ask(there, instance_uuid=instance))

    assert not isinstance(outcome, Admitted)
    assert fleet_of.used(db, there) == (0, 0, 0, 0)
    fleet_of.assert_exact(db)


def test_b09_two_hundred_cycles_without_a_pass_end_where_they_began(db: Database) -> None:
    nodes = [fleet_of.node(db, name, cpus=8, memory_mb=1000, disk_gb=100) for name in ("a", "b")]
    claim = fleet_of.claim(db, limit=(4, 400, 40), namespace="claimed")
    before = [fleet_of.used(db, node) for node in nodes], fleet_of.unclaimed(db), fleet_of.claim_row(db, claim)
    for cycle in range(200 if db.is_sqlite else 40):
        namespace = "claimed" if cycle % 2 else fleet_of.NAMESPACE
        here, there = nodes if cycle % 4 < 2 else reversed(nodes)
        instance = fleet_of.admitted(db, ask(here, cpus=3, memory_mb=30, disk_gb=3, namespace=namespace))
        again: dict[str, Any] = {
            "cpus": 3,
            "memory_mb": 30,
            "disk_gb": 3,
            "namespace": namespace,
            "instance_uuid": instance,
        }
        assert isinstance(fleet_of.admit(db, ask(there, source=here, **again)), Admitted)
        fleet_of.settle(db, instance)
        back = ask(here, **again)
        assert isinstance(moves.begin(db, back), Admitted)
        assert moves.settle(db, instance, rows=lambda conn, back=back: fleet_of.moved_instance(conn, back))  # type: ignore[misc]
        assert isinstance(fleet_of.admit(db, ask(here, cpus=9, namespace=namespace)), Refused)
        fleet_of.delete(db, instance)

    after = [fleet_of.used(db, node) for node in nodes], fleet_of.unclaimed(db), fleet_of.claim_row(db, claim)
    assert (before[0], before[1]) == (after[0], after[1])
    assert {**before[2], "updated_at": 0} == {**after[2], "updated_at": 0}
    fleet_of.assert_exact(db)
