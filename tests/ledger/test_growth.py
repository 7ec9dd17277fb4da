"""Growth in place: judged by the increase alone, through the guard of every other growth; what is pending of it."""

from __future__ import annotations

from decimal import Decimal

import pytest

from fleet.ledger import charges, demand, leases, moves, samples
from fleet.ledger.cluster import now_us
from fleet.ledger.database import Database
from fleet.model.admission import Admitted, Refused, Stage
from fleet.model.cluster_config import ClusterConfig
from fleet.model.resources import Amounts
from tests.ledger import fleet_of, past
from tests.ledger.fleet_of import ask, grow
from tests.ledger.growing import over, pending, placed, to

CLAIMED = "claimed"


# --- what fits ---------------------------------------------------------------------------------------------------


def test_growth_is_judged_by_the_increase_alone_and_takes_no_slot(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=10, memory_mb=100, disk_gb=10, max_instances=1)
    instance = placed(db, node_id, cpus=6, memory_mb=60, disk_gb=6)

    assert isinstance(grow(db, to(node_id, instance, cpus=10, memory_mb=100, disk_gb=6)), Admitted)
    assert fleet_of.used(db, node_id) == (10, 100, 6, 1)
    assert fleet_of.unclaimed(db) == (10, 100, 6)
    assert [item.amounts for item in charges.of_instance(db, instance)] == [Amounts(10, 100, 6, 1)]
    fleet_of.assert_exact(db)

    before = fleet_of.row(db, node_id), fleet_of.cluster(db), charges.of_instance(db, instance)
    refused = grow(db, to(node_id, instance, cpus=11, memory_mb=100, disk_gb=11))
    assert over(refused) == (Stage.NODE, [("cpus", 10, 10, 1), ("disk_gb", 10, 6, 5)])
    assert (fleet_of.row(db, node_id), fleet_of.cluster(db), charges.of_instance(db, instance)) == before
    fleet_of.assert_exact(db)


def test_a_dimension_that_does_not_grow_refuses_nothing_where_the_node_is_over_its_limit(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=10, memory_mb=100, disk_gb=10, max_instances=2)
    instance = placed(db, node_id, cpus=4, memory_mb=40, disk_gb=8)
    placed(db, node_id, cpus=4, memory_mb=40, disk_gb=2)
    fleet_of.publish(db, "n", cpus=6, memory_mb=100, disk_gb=5)
    fleet_of.execute(db, "UPDATE scheduler_node_capacity SET limit_instances = 1")

    assert isinstance(grow(db, to(node_id, instance, cpus=4, memory_mb=60, disk_gb=8)), Admitted)
    assert isinstance(grow(db, to(node_id, instance, cpus=3, memory_mb=60, disk_gb=7)), Admitted)
    assert fleet_of.used(db, node_id) == (7, 100, 9, 2)
    refused = grow(db, to(node_id, instance, cpus=3, memory_mb=60, disk_gb=8))
    assert over(refused) == (Stage.NODE, [("disk_gb", 5, 9, 1)])
    fleet_of.assert_exact(db, over_limit=["n"])


def test_one_dimension_grows_while_another_shrinks(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=10, memory_mb=100, disk_gb=10)
    instance = placed(db, node_id, cpus=10, memory_mb=10, disk_gb=10)

    assert isinstance(grow(db, to(node_id, instance, cpus=2, memory_mb=100, disk_gb=4)), Admitted)
    assert fleet_of.used(db, node_id) == (2, 100, 4, 1)
    assert fleet_of.unclaimed(db) == (2, 100, 4)
    fleet_of.assert_exact(db)


def test_the_clusters_guard_judges_the_increase_alone(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=10)
    fleet_of.claim(db, limit=(4, 0, 0), namespace="other")
    instance = placed(db, node_id, cpus=5)

    assert over(grow(db, to(node_id, instance, cpus=7)))[0] is Stage.CLUSTER
    assert isinstance(grow(db, to(node_id, instance, cpus=6)), Admitted)
    # A promise beyond what is left: what does not grow is not asked.
    fleet_of.execute(db, "UPDATE cluster_capacity SET claimed_cpus = 8")
    fleet_of.execute(db, "UPDATE namespace_claims SET limit_cpus = 8")
    assert isinstance(grow(db, to(node_id, instance, cpus=6, memory_mb=20)), Admitted)
    assert over(grow(db, to(node_id, instance, cpus=7, memory_mb=20)))[0] is Stage.CLUSTER
    fleet_of.assert_exact(db)


@pytest.mark.parametrize(
    ("scheduling", "ineligible"), [("cordoned", None), ("draining", "scheduling"), ("enabled", None)]
)
def test_a_cordoned_node_grows_what_it_holds_a_draining_one_does_not(
    db: Database, scheduling: str, ineligible: str | None
) -> None:
    node_id = fleet_of.node(db, "n", cpus=8)
    instance = placed(db, node_id)
    samples.set_scheduling(db, "n", scheduling)
    outcome = grow(db, to(node_id, instance, cpus=2))

    assert isinstance(outcome, Admitted if ineligible is None else Refused)
    assert getattr(outcome, "ineligible", None) == ineligible
    # Whatever is new stays away from it.
    assert isinstance(fleet_of.admit(db, ask(node_id)), Admitted) is (scheduling == "enabled")
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("what", ["error", "missing", "stale"])
def test_a_node_that_is_not_well_grows_nothing(db: Database, what: str) -> None:
    node_id = fleet_of.node(db, "n", cpus=8)
    instance = placed(db, node_id)
    if what == "error":
        fleet_of.publish(db, "n", cpus=8, healthy=False)
    elif what == "stale":
        fleet_of.publish(db, "n", cpus=8, age=120)
    else:
        fleet_of.publish(db, "n", cpus=8, age=120)
        assert samples.mark_missing(db, 120) == ["n"]
    outcome = grow(db, to(node_id, instance, cpus=2, sample_age_max_seconds=120))

    assert isinstance(outcome, Refused)
    assert outcome.ineligible == ("sample_age" if what == "stale" else "state")
    fleet_of.assert_exact(db)


# --- demand ------------------------------------------------------------------------------------------------------

PER_VCPU = Decimal("0.6")


def expected(db: Database, node_id: int) -> Decimal:
    return Decimal(str(fleet_of.row(db, node_id)["expected_demand"]))


def test_only_added_vcpus_are_expected_to_bring_load(db: Database, lease: leases.Lease) -> None:
    node_id = fleet_of.node(db, cpus=20)
    now = now_us(db)
    with past.still(db, now - 3600 * 1_000_000):
        instance = placed(db, node_id, cpus=4)

    with past.still(db, now - 150 * 1_000_000):
        assert isinstance(grow(db, to(node_id, instance, cpus=4, memory_mb=64), per_vcpu=PER_VCPU), Admitted)
        assert expected(db, node_id) == 0
        assert isinstance(grow(db, to(node_id, instance, cpus=7, memory_mb=64), per_vcpu=PER_VCPU), Admitted)
    assert expected(db, node_id) == Decimal("1.8")
    # The pass lets it decay from the time of the growth, not from that of the charge.
    config = ClusterConfig(scheduler_demand_per_vcpu=PER_VCPU, scheduler_demand_decay_seconds=300)
    with past.still(db, now):
        demand.refresh(db, lease, config)
    assert expected(db, node_id) == Decimal("0.9")
    assert isinstance(grow(db, to(node_id, instance, cpus=1, memory_mb=64), per_vcpu=PER_VCPU), Admitted)
    demand.refresh(db, lease, config)
    assert expected(db, node_id) == 0


def test_the_demand_clause_stands_where_vcpus_are_added_and_can_be_waived(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=20, cpu_load_1=30.0)
    instance = placed(db, node_id, cpus=4)
    strict = Decimal(1)
    refused = grow(db, to(node_id, instance, cpus=5, target_load=strict))

    assert isinstance(refused, Refused)
    assert refused.demand_only
    assert isinstance(grow(db, to(node_id, instance, cpus=4, memory_mb=64, target_load=strict)), Admitted)
    assert isinstance(grow(db, to(node_id, instance, cpus=3, memory_mb=64, target_load=strict)), Admitted)
    assert isinstance(grow(db, to(node_id, instance, cpus=5, target_load=Decimal(0))), Admitted)
    no_room = grow(db, to(node_id, instance, cpus=5, memory_mb=fleet_of.PLENTY * 2, target_load=strict))
    assert over(no_room) == (Stage.NODE, [("memory_mb", fleet_of.PLENTY, 1, 2 * fleet_of.PLENTY - 1)])
    fleet_of.assert_exact(db)


# --- pending -----------------------------------------------------------------------------------------------------


def test_growth_since_the_sample_is_pending_and_a_later_sample_includes_it(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8)
    instance = placed(db, node_id, memory_mb=1000, disk_gb=10)
    fleet_of.tick(db)
    fleet_of.publish(db, "n", cpus=8)
    assert pending(db, node_id) == (0, 0)

    assert isinstance(grow(db, to(node_id, instance, memory_mb=1500, disk_gb=12)), Admitted)
    assert pending(db, node_id) == (500, 2)
    fleet_of.assert_exact(db)
    # Measured before the growth, arrived after it.
    fleet_of.publish(db, "n", cpus=8, age=60)
    fleet_of.assert_exact(db)
    fleet_of.tick(db)
    fleet_of.publish(db, "n", cpus=8)
    assert pending(db, node_id) == (0, 0)

    # What the sample includes is not pending a second time.
    assert isinstance(grow(db, to(node_id, instance, memory_mb=1700, disk_gb=12)), Admitted)
    assert pending(db, node_id) == (200, 0)
    fleet_of.assert_exact(db)


@pytest.mark.parametrize(("offset_us", "still_pending"), [(-past.TICK_US, 500), (0, 500), (past.TICK_US, 0)])
def test_growth_at_the_very_moment_of_the_sample_counts_as_newer(
    db: Database, offset_us: int, still_pending: int
) -> None:
    """The next sample is taken `offset_us` after it grew, and long after it settled."""
    node_id = fleet_of.node(db, "n", cpus=8)
    instance = placed(db, node_id, memory_mb=1000)
    with past.still(db, now_us(db) + past.SECOND_US) as grown_at:
        assert isinstance(grow(db, to(node_id, instance, memory_mb=1500)), Admitted)
    with past.still(db, grown_at + offset_us):
        fleet_of.publish(db, "n", cpus=8)

    assert fleet_of.row(db, node_id)["sample_at"] == grown_at + offset_us
    assert pending(db, node_id) == (still_pending, 0)
    fleet_of.assert_exact(db)


def test_what_shrinks_is_taken_from_what_grew_and_never_makes_pending_negative(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8)
    instance = placed(db, node_id, memory_mb=1000, disk_gb=10)
    fleet_of.tick(db)
    fleet_of.publish(db, "n", cpus=8)
    for memory, disk, left in [(1500, 14, (500, 4)), (1300, 14, (300, 4)), (900, 12, (0, 2)), (950, 5, (50, 0))]:
        assert isinstance(grow(db, to(node_id, instance, memory_mb=memory, disk_gb=disk)), Admitted)
        assert pending(db, node_id) == left
        fleet_of.assert_exact(db)


def test_a_draft_that_grows_is_pending_as_a_whole_until_a_sample_includes_it(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8)
    instance = placed(db, node_id, memory_mb=1000, settled=False)
    assert isinstance(grow(db, to(node_id, instance, memory_mb=1500)), Admitted)
    assert pending(db, node_id) == (1500, 0)
    assert isinstance(grow(db, to(node_id, instance, memory_mb=1200)), Admitted)
    assert pending(db, node_id) == (1200, 0)
    fleet_of.settle(db, instance)
    fleet_of.assert_exact(db)
    fleet_of.tick(db)
    fleet_of.publish(db, "n", cpus=8)
    assert pending(db, node_id) == (0, 0)
    fleet_of.assert_exact(db)


# --- exceptions --------------------------------------------------------------------------------------------------


def test_forced_growth_records_what_is_so_and_keeps_the_totals_of_an_uncounted_node_true(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=4, is_hypervisor=False)
    instance = fleet_of.admitted(db, ask(node_id, cpus=4, disk_gb=5, enforce=False))

    assert isinstance(grow(db, to(node_id, instance, cpus=9, disk_gb=3, enforce=False)), Admitted)
    assert fleet_of.used(db, node_id) == (9, 1, 3, 1)
    assert (fleet_of.cluster(db)["total_cpus"], fleet_of.cluster(db)["total_disk_gb"]) == (9, 3)
    fleet_of.assert_exact(db, over_limit=["n"])


def test_a_node_without_a_row_grows_only_where_unsized_nodes_are_admitted(db: Database) -> None:
    node_id = fleet_of.register(db, "n")
    fleet_of.node(db, cpus=1)
    instance = fleet_of.admitted(db, ask(node_id, admit_unsized=True))

    assert isinstance(grow(db, to(node_id, instance, cpus=2)), Refused)
    outcome = grow(db, to(node_id, instance, cpus=3, memory_mb=4, admit_unsized=True))
    assert outcome == Admitted(node_id, unguarded=True)
    assert isinstance(grow(db, to(node_id, instance, cpus=2, memory_mb=5, admit_unsized=True)), Admitted)
    fleet_of.publish(db, "n", cpus=8)
    assert fleet_of.used(db, node_id) == (2, 5, 0, 1)
    assert fleet_of.unclaimed(db) == (2, 5, 0)
    fleet_of.assert_exact(db)


def test_b49_a_counter_that_holds_less_than_what_shrinks_is_floored_and_named(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8)
    instance = placed(db, node_id, memory_mb=1024)
    fleet_of.execute(db, "UPDATE scheduler_node_capacity SET used_memory_mb = 512")
    fleet_of.execute(db, "UPDATE cluster_capacity SET unclaimed_used_memory_mb = 600")

    assert isinstance(grow(db, to(node_id, instance, memory_mb=24)), Admitted)
    assert (fleet_of.used(db, node_id)[1], fleet_of.unclaimed(db)[1]) == (0, 0)
    assert len(fleet_of.events_of(db, "capacity counter clamped at zero")) == 2


def test_b09_two_hundred_cycles_with_growth_and_shrink_end_where_they_began(db: Database) -> None:
    here, there = (fleet_of.node(db, name, cpus=8, memory_mb=1000, disk_gb=100) for name in ("a", "b"))
    claim = fleet_of.claim(db, limit=(4, 400, 40), namespace=CLAIMED)
    before = [fleet_of.used(db, here), fleet_of.used(db, there)], fleet_of.unclaimed(db), fleet_of.cluster(db)
    claim_before = fleet_of.claim_row(db, claim)
    for cycle in range(200 if db.is_sqlite else 40):
        namespace = CLAIMED if cycle % 2 else fleet_of.NAMESPACE
        instance = placed(db, here, cpus=2, memory_mb=30, disk_gb=3, namespace=namespace, settled=cycle % 4 < 2)
        for size in ({"cpus": 4, "memory_mb": 60, "disk_gb": 9}, {"cpus": 3, "memory_mb": 90, "disk_gb": 2}):
            assert isinstance(grow(db, to(here, instance, namespace=namespace, **size)), Admitted)
        assert isinstance(grow(db, to(here, instance, cpus=9, memory_mb=90, namespace=namespace)), Refused)
        fleet_of.settle(db, instance)
        away = to(there, instance, cpus=3, memory_mb=90, disk_gb=2, namespace=namespace)
        assert isinstance(moves.begin(db, away), Admitted)
        assert moves.settle(db, instance, rows=lambda conn, away=away: fleet_of.moved_instance(conn, away))  # type: ignore[misc]
        assert isinstance(grow(db, to(there, instance, cpus=5, memory_mb=40, namespace=namespace)), Admitted)
        fleet_of.delete(db, instance)

    after = [fleet_of.used(db, here), fleet_of.used(db, there)], fleet_of.unclaimed(db), fleet_of.cluster(db)
    assert {**before[2], "updated_at": 0} == {**after[2], "updated_at": 0}
    assert before[:2] == after[:2]
    assert {**claim_before, "updated_at": 0} == {**fleet_of.claim_row(db, claim), "updated_at": 0}
    assert [pending(db, node) for node in (here, there)] == [(0, 0), (0, 0)]
    fleet_of.assert_exact(db)
