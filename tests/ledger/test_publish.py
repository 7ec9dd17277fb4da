"""Publishing: limits are born with a sample, totals move in the same transaction, unknown is never room."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from fleet.ledger import cluster, nodes, samples
from fleet.ledger.database import Database
from fleet.model.admission import Admitted, Refused
from fleet.model.cluster_config import ClusterConfig
from fleet.model.errors import Conflict, NodeNotFound
from fleet.model.figures import FIGURE_MAX
from tests.ledger import fleet_of, past
from tests.ledger.fleet_of import PLAIN, ask


def totals(db: Database) -> tuple[Any, ...]:
    found = cluster.view(db)
    return (*found.total.values(), found.counted_nodes)


# --- the limit row -----------------------------------------------------------------------------------------------


def test_b03_a_fresh_cluster_admits_no_more_than_the_first_sample_offers(db: Database) -> None:
    node_id = fleet_of.register(db, "n")
    before = fleet_of.admit(db, ask(node_id))
    assert isinstance(before, Refused)
    assert before.ineligible == "no_capacity_row"
    fleet_of.publish(db, "n", cpus=3)

    outcomes = [fleet_of.admit(db, ask(node_id)) for _ in range(7)]

    assert [isinstance(outcome, Admitted) for outcome in outcomes] == [True] * 3 + [False] * 4
    fleet_of.assert_exact(db)


def test_a_first_sample_counts_charges_that_came_before_it(db: Database) -> None:
    node_id = fleet_of.register(db, "n")
    fleet_of.admitted(db, ask(node_id, cpus=2, memory_mb=64, enforce=False))
    fleet_of.publish(db, "n", cpus=3)

    assert fleet_of.used(db, node_id)[:2] == (2, 64)
    assert fleet_of.row(db, node_id)["pending_memory_mb"] == 64
    fleet_of.assert_exact(db)


def test_a_sample_of_an_unknown_node_stores_nothing_of_its_batch(db: Database) -> None:
    node_id = fleet_of.node(db, "known", cpus=3)
    batch = [samples.SampleIn(name, fleet_of.figures(cpus=9)) for name in ("known", "stranger")]
    with pytest.raises(NodeNotFound, match="stranger"):
        samples.publish(db, batch, PLAIN)

    assert fleet_of.row(db, node_id)["limit_cpus"] == 3


def test_a_batch_that_names_a_node_twice_ends_with_the_last_sample(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=3)
    samples.publish(db, [samples.SampleIn("n", fleet_of.figures(cpus=cpus)) for cpus in (5, 7)], PLAIN)

    assert fleet_of.row(db, node_id)["limit_cpus"] == 7
    assert totals(db)[0] == 7
    fleet_of.assert_exact(db)


def test_an_unknown_figure_keeps_the_former_limit(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8, memory_mb=1024, disk_gb=100)
    fleet_of.publish(db, "n", cpus=9, memory_mb=2048, disk_gb=200, memory_max=None, failed={"memory": "unreadable"})

    found = fleet_of.row(db, node_id)
    assert (found["limit_cpus"], found["limit_memory_mb"], found["limit_disk_gb"]) == (9, 1024, 200)
    fleet_of.assert_exact(db)


def test_a_figure_that_was_never_known_offers_nothing(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8, memory_max=None)

    assert fleet_of.row(db, node_id)["limit_memory_mb"] == 0
    assert isinstance(fleet_of.admit(db, ask(node_id)), Refused)


def test_domains_that_nobody_could_count_do_not_raise_the_limit(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8, cpu_foreign_vcpus=3)
    assert fleet_of.row(db, node_id)["limit_cpus"] == 5
    fleet_of.publish(db, "n", cpus=8, failed={"domains": "libvirt does not answer"})

    assert fleet_of.row(db, node_id)["limit_cpus"] == 5


@pytest.mark.parametrize(
    ("collector", "offered"), [("domains", (0, 0, 0)), ("disk_foreign", (8, 1024, 0))], ids=["domains", "disk"]
)
def test_a_first_sample_offers_nothing_of_what_others_may_use(
    db: Database, collector: str, offered: tuple[int, int, int]
) -> None:
    room: dict[str, Any] = {"cpus": 8, "memory_mb": 1024, "disk_gb": 100}
    node_id = fleet_of.register(db, "n")

    def limits() -> tuple[int, int, int]:
        found = fleet_of.row(db, node_id)
        return found["limit_cpus"], found["limit_memory_mb"], found["limit_disk_gb"]

    for _ in range(2):
        fleet_of.publish(db, "n", **room, failed={collector: "no answer"})
        assert limits() == offered
    fleet_of.publish(db, "n", **room, cpu_foreign_vcpus=3, memory_foreign_mb=24, disk_foreign_gb=10)

    assert limits() == (5, 1000, 90)
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("load", ["busy", -1.0, 1e30, True, [1]])
def test_a_load_that_is_no_number_is_unknown(db: Database, load: object) -> None:
    node_id = fleet_of.node(db, "n", cpus=8)
    fleet_of.publish(db, "n", cpus=8, cpu_load_1=load)

    assert fleet_of.row(db, node_id)["cpu_load_1"] is None


def test_an_unlimited_cpu_ratio_makes_the_clusters_cpus_unlimited(db: Database) -> None:
    config = replace(PLAIN, cpu_overcommit_ratio=None)
    fleet_of.node(db, "small", cpus=2)
    node_id = fleet_of.node(db, "n", cpus=2, config=config)
    assert totals(db)[0] is None

    fleet_of.admitted(db, ask(node_id, cpus=500))
    fleet_of.publish(db, "n", cpus=2)

    assert totals(db)[0] == 4
    fleet_of.assert_exact(db, over_limit=["n"])


def test_b48_touching_a_nodes_record_leaves_its_offer_as_it_was(db: Database) -> None:
    config = replace(PLAIN, node_ram_reservation_gb=Decimal(6))
    name = "n"
    fleet_of.register(db, name)
    fleet_of.publish(db, name, cpus=8, memory_mb=32 * 1024, memory_reserved_mb=None, config=config)
    before = nodes.get(db, name)
    nodes.update(db, name, {"region": "north"})
    nodes.register(db, nodes.NodeIn(name=name, declared={"labels": {"tier": "gold"}}))
    touched = nodes.get(db, name)
    fleet_of.publish(db, name, cpus=8, memory_mb=32 * 1024, memory_reserved_mb=None, config=config)
    after = nodes.get(db, name)

    assert before is not None
    assert touched is not None
    assert after is not None
    assert before.row is not None
    assert before.row.limits.memory_mb == 26 * 1024
    assert before.row == touched.row
    assert after.row is not None
    assert after.row.limits == before.row.limits


def test_b52_six_terabytes_and_five_hundred_threads_are_exact(db: Database) -> None:
    memory, disk = 6 * 1024 * 1024, 200 * 1024
    config = replace(PLAIN, cpu_overcommit_ratio=Decimal("3.0"), ram_overcommit_ratio=Decimal("1.5"))
    node_id = fleet_of.node(db, "n", cpus=512, memory_mb=memory, disk_gb=disk, config=config)
    found = fleet_of.row(db, node_id)
    assert (found["limit_cpus"], found["limit_memory_mb"], found["limit_disk_gb"]) == (1536, memory * 3 // 2, disk)

    wanted = ask(node_id, cpus=300, memory_mb=2560 * 1024, disk_gb=disk)
    fleet_of.admitted(db, wanted)

    assert fleet_of.used(db, node_id) == (300, 2560 * 1024, disk, 1)
    assert fleet_of.unclaimed(db) == (300, 2560 * 1024, disk)
    fleet_of.assert_exact(db)


def test_b42_a_limit_that_falls_below_use_admits_nothing_and_forgets_nothing(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=64)
    fleet_of.node(db, "other", cpus=64)
    held = [fleet_of.admitted(db, ask(node_id, cpus=8)) for _ in range(5)]
    fleet_of.publish(db, "n", cpus=32)

    assert fleet_of.used(db, node_id)[0] == 40
    assert isinstance(fleet_of.admit(db, ask(node_id)), Refused)
    fleet_of.assert_exact(db, over_limit=["n"])
    fleet_of.delete(db, held.pop())
    assert isinstance(fleet_of.admit(db, ask(node_id)), Refused)
    fleet_of.delete(db, held.pop())
    assert isinstance(fleet_of.admit(db, ask(node_id, cpus=8)), Admitted)
    fleet_of.assert_exact(db)


def test_the_largest_figures_under_the_largest_ratios_still_add_up(db: Database) -> None:
    """A sum that leaves 64 bits would end the reconciler: one node's nonsense must not stop the cluster."""
    largest = ClusterConfig.from_mapping(
        dict.fromkeys(("CPU_OVERCOMMIT_RATIO", "RAM_OVERCOMMIT_RATIO", "DISK_OVERCOMMIT_RATIO"), "1000")
    )
    for _ in range(20):
        fleet_of.node(db, cpus=FIGURE_MAX, memory_mb=FIGURE_MAX, disk_gb=FIGURE_MAX, config=largest)

    assert totals(db) == (*[20 * 1000 * FIGURE_MAX] * 3, 20)
    fleet_of.assert_exact(db)


def test_a_figure_beyond_the_largest_is_unknown(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=8, memory_mb=FIGURE_MAX + 1)

    assert fleet_of.row(db, node_id)["limit_memory_mb"] == 0


# --- sample time and pending -------------------------------------------------------------------------------------


def test_a_sample_is_stamped_by_the_database_less_its_age(db: Database) -> None:
    before = cluster.now_us(db)
    node_id = fleet_of.node(db, "n", cpus=8, age="7.5")
    stamped = fleet_of.row(db, node_id)["sample_at"]

    assert before <= stamped + 7_500_000 <= cluster.now_us(db)


@pytest.mark.parametrize(("offset_us", "pending"), [(-past.TICK_US, 512), (0, 512), (past.TICK_US, 0)])
def test_a_charge_as_old_as_the_sample_is_newer_than_it(db: Database, offset_us: int, pending: int) -> None:
    """The sample is taken `offset_us` after the charge settled; equal times count as newer."""
    node_id = fleet_of.node(db, "n", cpus=8)
    instance = fleet_of.admitted(db, ask(node_id, memory_mb=512))
    with past.still(db, cluster.now_us(db) + past.SECOND_US) as settled_at:
        assert fleet_of.settle(db, instance)
    with past.still(db, settled_at + offset_us):
        fleet_of.publish(db, "n", cpus=8)

    assert fleet_of.row(db, node_id)["sample_at"] == settled_at + offset_us
    assert fleet_of.row(db, node_id)["pending_memory_mb"] == pending
    fleet_of.assert_exact(db)
    fleet_of.delete(db, instance)
    assert fleet_of.row(db, node_id)["pending_memory_mb"] == 0


def test_pending_holds_drafts_and_what_settled_after_the_sample(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8)
    draft = fleet_of.admitted(db, ask(node_id, memory_mb=100))
    settled = fleet_of.admitted(db, ask(node_id, memory_mb=20))
    fleet_of.settle(db, settled)
    assert fleet_of.row(db, node_id)["pending_memory_mb"] == 120
    fleet_of.publish(db, "n", cpus=8, age=3600)
    assert fleet_of.row(db, node_id)["pending_memory_mb"] == 120
    fleet_of.tick(db)
    fleet_of.publish(db, "n", cpus=8)
    assert fleet_of.row(db, node_id)["pending_memory_mb"] == 100
    fleet_of.assert_exact(db)

    fleet_of.settle(db, draft)
    fleet_of.tick(db)
    fleet_of.publish(db, "n", cpus=8)
    assert fleet_of.row(db, node_id)["pending_memory_mb"] == 0
    fleet_of.assert_exact(db)


@pytest.mark.parametrize(("age", "admits"), [("119.999", True), (120, False), (121, False)])
def test_a_sample_of_exactly_the_greatest_age_is_refused(db: Database, age: int | str, *, admits: bool) -> None:
    with past.still(db):
        node_id = fleet_of.node(db, "n", cpus=8, age=age)
        outcome = fleet_of.admit(db, ask(node_id, sample_age_max_seconds=120))

    assert isinstance(outcome, Admitted) is admits
    if isinstance(outcome, Refused):
        assert outcome.ineligible == "sample_age"


# --- state, scheduling, totals -----------------------------------------------------------------------------------


def test_a_failed_probe_is_an_error_and_three_good_ones_bring_the_node_back(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8, healthy=True)
    fleet_of.publish(db, "n", cpus=8, healthy=False)
    assert fleet_of.row(db, node_id)["state"] == "error"
    assert totals(db)[3] == 0
    refused = fleet_of.admit(db, ask(node_id))
    assert isinstance(refused, Refused)
    assert refused.ineligible == "state"

    states = []
    for healthy in (True, True, False, True, None, True, True):
        fleet_of.publish(db, "n", cpus=8, healthy=healthy)
        states.append(fleet_of.row(db, node_id)["state"])
        fleet_of.assert_exact(db)

    assert states == ["error"] * 6 + ["active"]
    assert totals(db) == (8, fleet_of.PLENTY, fleet_of.PLENTY, 1)
    changes = [event["object_id"] for event in fleet_of.events_of(db, "node state changed")]
    assert changes == ["n"] * 3, "created to active, active to error, error to active"


def test_a_publish_never_undoes_a_cordon_or_a_drain(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8)
    for scheduling in ("cordoned", "draining"):
        samples.set_scheduling(db, "n", scheduling)
        fleet_of.publish(db, "n", cpus=8)
        refused = fleet_of.admit(db, ask(node_id))
        assert isinstance(refused, Refused)
        assert (refused.ineligible, refused.scheduling) == ("scheduling", scheduling)
        assert totals(db)[3] == 1, "cordoned and draining nodes count"
    samples.set_scheduling(db, "n", "enabled")
    assert isinstance(fleet_of.admit(db, ask(node_id)), Admitted)


def test_a_cordon_before_the_first_sample_holds(db: Database) -> None:
    node_id = fleet_of.register(db, "n")
    samples.set_scheduling(db, "n", "cordoned")
    fleet_of.publish(db, "n", cpus=8)

    assert isinstance(fleet_of.admit(db, ask(node_id)), Refused)


def test_totals_are_true_after_every_step(db: Database) -> None:
    node_id = fleet_of.node(db, "a", cpus=8, memory_mb=100, disk_gb=10)
    assert totals(db) == (8, 100, 10, 1)
    fleet_of.node(db, "b", cpus=4, memory_mb=50, disk_gb=5)
    assert totals(db) == (12, 150, 15, 2)
    held = fleet_of.admitted(db, ask(node_id, cpus=3, memory_mb=30, disk_gb=3))
    steps: list[tuple[Callable[[], object], tuple[int, int, int, int]]] = [
        (lambda: fleet_of.publish(db, "a", cpus=6, memory_mb=90, disk_gb=9), (10, 140, 14, 2)),
        (lambda: fleet_of.publish(db, "a", cpus=6, memory_mb=90, disk_gb=9, is_hypervisor=False), (7, 80, 8, 1)),
        (lambda: fleet_of.publish(db, "a", cpus=6, memory_mb=90, disk_gb=9, age=900), (7, 80, 8, 1)),
        (lambda: fleet_of.publish(db, "a", cpus=6, memory_mb=90, disk_gb=9, age="899.9"), (10, 140, 14, 2)),
        (lambda: fleet_of.publish(db, "a", cpus=6, memory_mb=90, disk_gb=9, healthy=False), (7, 80, 8, 1)),
        (lambda: fleet_of.delete(db, held), (4, 50, 5, 1)),
        (lambda: samples.remove_node(db, "a"), (4, 50, 5, 1)),
    ]
    for step, expected in steps:
        step()
        assert totals(db) == expected
        fleet_of.assert_exact(db)


def test_a_charge_on_an_uncounted_node_moves_totals_with_its_use(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=8, memory_mb=100, disk_gb=10, is_hypervisor=False)
    assert totals(db) == (0, 0, 0, 0)
    assert isinstance(fleet_of.admit(db, ask(node_id)), Refused)
    held = fleet_of.admitted(db, ask(node_id, cpus=3, memory_mb=30, disk_gb=3, enforce=False))
    assert totals(db) == (3, 30, 3, 0)
    fleet_of.assert_exact(db)
    fleet_of.delete(db, held)
    assert totals(db) == (0, 0, 0, 0)
    fleet_of.assert_exact(db)


def test_an_active_node_whose_sample_ages_is_missing_and_still_counts(db: Database) -> None:
    now = cluster.now_us(db)
    with past.still(db, now - 120_000_000):
        node_id = fleet_of.node(db, "n", cpus=8)
    with past.still(db, now - 119_999_000):
        fleet_of.node(db, "fresh", cpus=8)
    with past.still(db, now):
        assert samples.mark_missing(db, 120) == ["n"]
        assert samples.mark_missing(db, 120) == []

    assert totals(db)[3] == 2
    refused = fleet_of.admit(db, ask(node_id))
    assert isinstance(refused, Refused)
    assert refused.state == "missing"
    fleet_of.publish(db, "n", cpus=8)
    assert isinstance(fleet_of.admit(db, ask(node_id)), Admitted)
    fleet_of.assert_exact(db)


def test_b60_a_removed_node_leaves_the_totals_and_admits_nothing(db: Database) -> None:
    ids = [fleet_of.node(db, f"n{number}", cpus=10, memory_mb=100, disk_gb=10) for number in range(5)]
    held = fleet_of.admitted(db, ask(ids[0]))
    with pytest.raises(Conflict, match=held):
        samples.remove_node(db, "n0")
    fleet_of.delete(db, held)
    samples.remove_node(db, "n0")

    assert totals(db) == (40, 400, 40, 4)
    refused = fleet_of.admit(db, ask(ids[0]))
    assert isinstance(refused, Refused)
    assert refused.ineligible == "no_capacity_row"
    assert isinstance(fleet_of.admit(db, ask(ids[0], admit_unsized=True)), Refused)
    with pytest.raises(NodeNotFound):
        fleet_of.publish(db, "n0", cpus=10)
    samples.set_scheduling(db, "n1", "cordoned")
    assert totals(db)[3] == 4
    fleet_of.assert_exact(db)


def test_a_removed_node_that_is_registered_again_starts_anew(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=10)
    samples.set_scheduling(db, "n", "cordoned")
    samples.remove_node(db, "n")
    assert fleet_of.register(db, "n") == node_id
    assert totals(db)[3] == 0
    fleet_of.publish(db, "n", cpus=4)

    assert totals(db)[0] == 4
    assert isinstance(fleet_of.admit(db, ask(node_id)), Admitted)
    fleet_of.assert_exact(db)


def test_b35_a_clamped_reservation_is_told_once_a_change(db: Database) -> None:
    fleet_of.register(db, "n")
    clamped: dict[str, Any] = {"cpus": 1, "cpu_schedulable_clamped": True}
    both = {**clamped, "memory_reserved_mb_clamped": True}
    told = []
    for figures in (clamped, clamped, both, both, {"cpus": 4}, clamped):
        fleet_of.publish(db, "n", **figures)
        told.append(len(fleet_of.events_of(db, "reservation clamped")))

    assert told == [1, 1, 2, 2, 2, 3]
    event = fleet_of.events_of(db, "reservation clamped")[0]
    assert (event["object_id"], event["level"]) == ("n", "warning")
    assert "cpu_schedulable" in str(event["payload"])
    later = fleet_of.events_of(db, "reservation clamped")[1]
    assert "memory_reserved_mb" in str(later["payload"])
    assert "null" not in str(later["payload"])


def test_a_sample_that_is_too_old_on_arrival_leaves_a_missing_node_missing(db: Database) -> None:
    node_id = fleet_of.node(db, "late", cpus=4)
    samples.mark_missing(db, 0)

    fleet_of.publish(db, "late", cpus=4, age=120)
    late = fleet_of.row(db, node_id)["state"]
    fleet_of.publish(db, "late", cpus=4, age=119)

    assert (late, fleet_of.row(db, node_id)["state"]) == ("missing", "active")
    fleet_of.assert_exact(db)
