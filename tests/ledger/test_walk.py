"""The walk over ranked nodes, on a real ledger: it goes on, it ends, and it says what is so when it has nothing."""

from __future__ import annotations

import json
import threading
from decimal import Decimal
from typing import Any

import pytest

from fleet.ledger import cluster_config, events, operations
from fleet.ledger.database import Database, Sql
from fleet.ledger.samples import set_scheduling
from fleet.services.create import Created
from fleet.services.place import Refusal
from fleet.services.redirect import redirect
from tests.ledger import fleet_of, racing, ruling
from tests.ledger.fleet_of import ask
from tests.ledger.placing import context, create, created, node, overtaken, refused, walk_of

WAIVED = "no candidate admitted and some refused on demand alone, waiving demand guard"
GIB = 1024
MADE_WITH = Sql("UPDATE instances SET request = :request WHERE uuid = :uuid")


@pytest.mark.parametrize(
    ("collector", "lacks", "stage", "reason"),
    [
        ("disk_foreign", (), "sufficient_free_disk", "unknown_disk_foreign_gb"),
        ("domains", ("cpu_total_instance_vcpus",), "sufficient_idle_cpu", "unknown_cpu_total_instance_vcpus"),
    ],
)
def test_what_nobody_measured_yet_is_called_unknown_and_not_full(
    db: Database, collector: str, lacks: tuple[str, ...], stage: str, reason: str
) -> None:
    ctx = context(db)
    node(db, ctx, "n", cpus=8, failed={collector: "no answer"}, **dict.fromkeys(lacks))
    outcome = refused(create(ctx))

    assert outcome.counts == {stage: {reason: 1}}


def test_b41_a_node_that_the_guard_refuses_is_passed_over_and_the_refusal_is_kept(db: Database) -> None:
    ctx = context(db)
    full = node(db, ctx, "x", cpus=4)
    other = node(db, ctx, "y", cpus=4, cpu_load_1=2.0)
    late = overtaken(ctx, lambda: fleet_of.admitted(db, ask(full, cpus=4)))
    outcome = created(late, cpus=2)

    assert outcome.node == "y"
    assert fleet_of.charged_to(db)[outcome.uuid] == other
    first = walk_of(db, outcome.decision_id)[0]
    assert (first["node"], first["outcome"], first["failing_stage"]) == ("x", "refused", "node")
    assert [item["dimension"] for item in first["dimensions"]] == ["cpus"]
    fleet_of.assert_exact(db)


def test_a_cordon_after_the_ranking_is_seen_by_the_claim(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "x", cpus=4)
    node(db, ctx, "y", cpus=4, cpu_load_1=2.0)

    assert created(overtaken(ctx, lambda: set_scheduling(db, "x", "cordoned"))).node == "y"


def test_out_of_capacity_is_said_when_every_candidate_was_filled_meanwhile(db: Database) -> None:
    ctx = context(db)
    ids = [node(db, ctx, name, cpus=4) for name in ("x", "y", "z")]

    def fill() -> None:
        for node_id in ids:
            fleet_of.admitted(db, ask(node_id, cpus=4))

    outcome = refused(create(overtaken(ctx, fill)))
    assert (outcome.code, outcome.transient) == ("out_of_capacity", True)
    fleet_of.assert_exact(db)


def test_b57_a_refusal_that_will_pass_is_transient_and_one_that_never_will_names_the_limit(
    db: Database,
) -> None:
    ctx = context(db)
    node(db, ctx, "small", cpus=4)
    node(db, ctx, "large", cpus=8)
    for _ in range(12):
        created(ctx)
    passing = refused(create(ctx))
    never = refused(create(ctx, cpus=9))

    assert (passing.code, passing.transient) == ("out_of_capacity", True)
    assert (never.code, never.transient) == ("out_of_capacity", False)
    assert "8" in never.detail
    assert "cpu" in never.detail.lower()


def test_b02_committed_memory_ranks_and_refuses_where_measured_memory_and_load_look_idle(db: Database) -> None:
    ctx = context(db, cpu_overcommit_ratio="100", ram_overcommit_ratio="1.25")
    figures: dict[str, Any] = {"cpus": 32, "memory_mb": 64 * GIB, "cpu_load_1": 0.2, "memory_available": 40 * GIB}
    crowded = node(db, ctx, "a", **figures)
    quiet_figures = {**figures, "cpu_load_1": 0.4, "memory_available": 60 * GIB}
    quiet = node(db, ctx, "b", **quiet_figures)
    for node_id, gib in ((crowded, 78), (quiet, 16)):
        fleet_of.settle(db, fleet_of.admitted(db, ask(node_id, memory_mb=gib * GIB)))
    fleet_of.publish(db, "a", config=ctx.configuration(), cpu_max_per_instance=1000, disk_gb=1000, **figures)
    fleet_of.publish(db, "b", config=ctx.configuration(), cpu_max_per_instance=1000, disk_gb=1000, **quiet_figures)
    threads_answers: list[Created | Refusal] = []
    threads = [
        threading.Thread(target=lambda: threads_answers.append(create(ctx, memory_mb=16 * GIB))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)

    assert [answer.node for answer in threads_answers if isinstance(answer, Created)] == ["b", "b", "b"]
    assert fleet_of.used(db, crowded)[1] == 78 * GIB
    fleet_of.assert_exact(db)


@pytest.mark.parametrize(("threads", "cpus"), [(1, 1), (2, 1), (2, 4), (4, 1), (4, 4)])
def test_b04_an_idle_node_of_any_size_admits_on_the_first_walk_without_a_waiver(
    db: Database, threads: int, cpus: int
) -> None:
    ctx = context(db, cpu_overcommit_ratio="3.0", scheduler_demand_per_vcpu="2.5")
    node_id = node(db, ctx, "n", cpus=threads)
    outcome = created(ctx, cpus=cpus)

    assert fleet_of.events_of(db, WAIVED) == []
    assert not any("demand_waived" in step for step in walk_of(db, outcome.decision_id))
    assert Decimal(str(fleet_of.row(db, node_id)["expected_demand"])) == cpus * Decimal("2.5")


@pytest.mark.vectors
def test_shakenfist_v22_the_seventeenth_is_admitted_by_the_waived_walk_with_an_event(db: Database) -> None:
    ctx = context(db, cpu_overcommit_ratio="3.0")
    node(db, ctx, "n", cpus=12)
    for _ in range(16):
        created(ctx)
    assert fleet_of.events_of(db, WAIVED) == []
    last = created(ctx)

    (event,) = fleet_of.events_of(db, WAIVED)
    assert event["object_id"] == last.uuid
    fleet_of.assert_exact(db)


def test_a_node_refused_on_demand_by_the_guard_alone_is_tried_again_waived(db: Database) -> None:
    ctx = context(db)
    node_id = node(db, ctx, "n", cpus=8)
    late = "UPDATE scheduler_node_capacity SET expected_demand = 100 WHERE node_id = :node_id"
    outcome = created(overtaken(ctx, lambda: fleet_of.execute(db, late, node_id=node_id)))

    assert walk_of(db, outcome.decision_id)[0]["outcome"] == "refused"
    assert len(fleet_of.events_of(db, WAIVED)) == 1


@pytest.mark.slow
def test_b53_sixty_creates_at_once_on_a_node_with_sixty_left_are_all_placed(maria: Database) -> None:
    ctx = context(maria, scheduler_target_load="0")
    node_id = node(maria, ctx, "n", cpus=60)
    answers: list[str] = []

    def until_placed() -> None:
        outcome = racing.until_known(lambda: ruling.until_answered(ctx, {}))
        answers.append("placed" if isinstance(outcome, Created) else f"{outcome.code}: {outcome.detail}")

    threads = [threading.Thread(target=until_placed) for _ in range(60)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert answers == ["placed"] * 60
    assert fleet_of.used(maria, node_id)[0] == 60
    fleet_of.assert_exact(maria)


def test_a_redirect_moves_what_was_charged_although_the_overhead_was_changed_since(db: Database) -> None:
    ctx = context(db, instance_overhead_mb="0")
    ids = {"x": node(db, ctx, "x", cpus=4), "y": node(db, ctx, "y", cpus=4)}
    first = created(ctx, memory_mb=100)
    cluster_config.store(db, "INSTANCE_OVERHEAD_MB", "64")
    ctx.configuration.forget()
    leased = operations.lease(db, first.operation_id, "worker", 60)
    assert leased is not None
    second = redirect(ctx, leased, "unfit")

    assert second == ({"x", "y"} - {first.node}).pop()
    assert fleet_of.used(db, ids[first.node]) == (0, 0, 0, 0)
    assert fleet_of.used(db, ids[second])[1] == 100
    fleet_of.assert_exact(db)


def test_an_instance_whose_strategy_is_gone_is_placed_again_by_the_clusters(db: Database) -> None:
    ctx = context(db)
    for name in ("x", "y"):
        node(db, ctx, name, cpus=4)
    first = created(ctx)
    made = {"uuid": first.uuid, "request": json.dumps({"cpus": 1, "memory_mb": 64, "strategy": "by-rack"})}
    db.unit(lambda conn: MADE_WITH.run(conn, made).rowcount)
    leased = operations.lease(db, first.operation_id, "worker", 60)
    assert leased is not None

    assert redirect(ctx, leased, "unfit") == ({"x", "y"} - {first.node}).pop()


def test_a_create_stays_where_it_is_when_the_clusters_strategy_is_not_installed(db: Database) -> None:
    ctx = context(db)
    for name in ("x", "y"):
        node(db, ctx, name, cpus=4)
    first = created(ctx)
    cluster_config.store(db, "PLACEMENT_STRATEGY", "by-rack")
    ctx.configuration.forget()
    leased = operations.lease(db, first.operation_id, "worker", 60)
    assert leased is not None

    assert redirect(ctx, leased, "unfit") is None
    told = events.listing(db, "instance", first.uuid, limit=1, newest_first=True)[0]
    assert (told.payload["code"], told.payload["reason"]) == ("strategy_unavailable", "unfit")
    assert "'by-rack' of PLACEMENT_STRATEGY is not installed" in told.payload["message"]
