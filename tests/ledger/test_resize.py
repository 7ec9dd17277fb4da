"""Resizing an instance: where it is when the increase fits, else elsewhere; and what is charged for it."""

from __future__ import annotations

import pytest

from fleet.ledger import instances, moves
from fleet.ledger.database import Database
from fleet.ledger.samples import set_scheduling
from fleet.model.errors import Conflict, InvalidRequest, NotFound
from fleet.model.resources import Amounts
from fleet.services import timeline
from fleet.services.context import Context
from fleet.services.replacing import subject
from fleet.services.resize import resize
from tests.ledger import fleet_of, placing, replacing
from tests.ledger.replacing import chosen, holds, running
from tests.ledger.ruling import apart


@pytest.fixture
def ctx(db: Database) -> Context:
    return placing.context(db)


def test_an_instance_grows_where_it_is_when_the_increase_fits(db: Database, ctx: Context) -> None:
    a = placing.node(db, ctx, "a", cpus=8)
    placing.node(db, ctx, "b", cpus=100)
    made = running(ctx, {"cpus": 4, "placement": {"labels": {}}, "strategy": "binpack"})
    assert made.node == "a"

    placed = chosen(resize(ctx, made.uuid, Amounts(8, 64, 0)))
    assert (placed.node, placed.moves) == ("a", False)
    assert holds(db, made.uuid) == {"primary": (a, Amounts(8, 64, 0, 1))}
    view = instances.get(db, made.uuid)
    assert view is not None
    assert (view.cpus, view.memory_mb) == (8, 64)
    row = replacing.assert_replays(ctx, placed.decision_id)
    assert (row.reason, row.outcome, row.node_id) == ("resize", "placed", a)
    assert fleet_of.unclaimed(db)[0] == 8
    fleet_of.assert_exact(db)


def test_a_resize_grows_on_its_cordoned_node_and_not_on_its_draining_one(db: Database, ctx: Context) -> None:
    ids = {name: placing.node(db, ctx, name) for name in ("a", "b")}
    made = running(ctx, {"placement": {"node": "a"}})
    set_scheduling(db, "a", "cordoned")
    assert chosen(resize(ctx, made.uuid, Amounts(2, 64, 0))).node == "a"

    set_scheduling(db, "a", "draining")
    refusal = placing.refused(resize(ctx, made.uuid, Amounts(3, 64, 0)))
    # It was pinned to where it is, so it goes nowhere else.
    assert refusal.code == "pin_ineligible"
    fleet_of.assert_exact(db)

    free = running(ctx, {})
    assert free.node == "b"
    set_scheduling(db, "b", "draining")
    set_scheduling(db, "a", "enabled")
    placed = chosen(resize(ctx, free.uuid, Amounts(2, 64, 0)))
    assert (placed.node_id, placed.moves) == (ids["a"], True)
    fleet_of.assert_exact(db)


def test_a_resize_moves_when_its_node_is_full_and_is_paid_from_then_on(db: Database, ctx: Context) -> None:
    a = placing.node(db, ctx, "a", cpus=4)
    b = placing.node(db, ctx, "b", cpus=8)
    made = running(ctx, {"cpus": 3, "memory_mb": 100, "placement": {"labels": {}}, "strategy": "binpack"})
    assert made.node == "a"

    placed = chosen(resize(ctx, made.uuid, Amounts(6, 80, 1)))
    assert (placed.node, placed.moves) == ("b", True)
    assert holds(db, made.uuid) == {"primary": (a, Amounts(3, 100, 0, 1)), "incoming": (b, Amounts(6, 80, 1, 1))}
    assert fleet_of.unclaimed(db) == (6, 100, 1)
    view = instances.get(db, made.uuid)
    assert view is not None
    assert (view.node, view.cpus) == ("a", 3)
    replacing.assert_replays(ctx, placed.decision_id)
    fleet_of.assert_exact(db)

    replacing.arrived(db, made.uuid)
    assert holds(db, made.uuid) == {"primary": (b, Amounts(6, 80, 1, 1))}
    assert fleet_of.unclaimed(db) == (6, 80, 1)
    fleet_of.assert_exact(db)


def test_a_resize_that_moves_keeps_the_labels_it_was_made_with(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", {"tier": "one"}, cpus=2)
    placing.node(db, ctx, "b", {"tier": "two"})
    one = running(ctx, {"placement": {"labels": {"tier": "one"}}})

    refusal = placing.refused(resize(ctx, one.uuid, Amounts(3, 64, 0)))
    assert refusal.counts == {"labels": {"labels_missing": 1}, "sufficient_idle_cpu": {"over_limit_cpus": 1}}
    placing.node(db, ctx, "c", {"tier": "one"})
    assert chosen(resize(ctx, one.uuid, Amounts(3, 64, 0))).node == "c"


def test_its_own_rules_are_not_asked_where_it_is(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a")
    one = running(ctx, apart("db"))
    running(ctx, {"tags": {"role": "db"}})

    assert chosen(resize(ctx, one.uuid, Amounts(2, 64, 0))).moves is False


def test_a_rule_leaves_no_other_node_to_a_resize(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=2)
    one = running(ctx, apart("db"))
    placing.node(db, ctx, "b")
    assert running(ctx, apart("db")).node == "b"

    refusal = placing.refused(resize(ctx, one.uuid, Amounts(3, 64, 0)))
    assert (refusal.code, refusal.stage) == ("affinity_unsatisfied", "placement_rules")
    assert refusal.counts == {
        "sufficient_idle_cpu": {"over_limit_cpus": 1},
        "placement_rules": {"rules_not_satisfied": 1},
    }
    replacing.assert_replays(ctx, refusal.decision_id)
    placing.node(db, ctx, "c")
    assert chosen(resize(ctx, one.uuid, Amounts(3, 64, 0))).node == "c"
    fleet_of.assert_exact(db)


def test_what_only_shrinks_is_never_refused(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=4)
    made = running(ctx, {"cpus": 4, "memory_mb": 512})
    fleet_of.publish(db, "a", config=ctx.configuration(), cpus=2, memory_mb=64, cpu_load_1=99.0)

    placed = chosen(resize(ctx, made.uuid, Amounts(3, 256, 0)))
    assert (placed.node, placed.moves, placed.waived) == ("a", False, False)
    assert fleet_of.unclaimed(db) == (3, 256, 0)
    fleet_of.assert_exact(db, over_limit={"a"})


def test_the_size_it_has_already_decides_nothing(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a")
    made = running(ctx, {"cpus": 4})
    before = len(fleet_of.rows(db, "SELECT id FROM decisions"))

    placed = chosen(resize(ctx, made.uuid, Amounts(4, 64, 0)))
    assert (placed.node, placed.moves, placed.decision_id) == ("a", False, None)
    assert len(fleet_of.rows(db, "SELECT id FROM decisions")) == before


def test_the_overhead_that_it_was_made_with_stays(db: Database) -> None:
    ctx = placing.context(db, instance_overhead_mb="64")
    a = placing.node(db, ctx, "a", memory_mb=2048)
    made = running(ctx, {"memory_mb": 256})
    ctx = placing.context(db, instance_overhead_mb="1000")

    chosen(resize(ctx, made.uuid, Amounts(2, 512, 0)))
    assert holds(db, made.uuid) == {"primary": (a, Amounts(2, 576, 0, 1))}
    chosen(resize(ctx, made.uuid, Amounts(3, 512, 0)))
    assert holds(db, made.uuid) == {"primary": (a, Amounts(3, 576, 0, 1))}
    assert subject(ctx, made.uuid).overhead_mb == 64


def test_a_hard_claim_refuses_the_increase_and_says_so(db: Database) -> None:
    ctx = placing.context(db, claim_enforcement="hard")
    placing.node(db, ctx, "a")
    fleet_of.claim(db, limit=(4, 1024, 10))
    made = running(ctx, {"cpus": 3})

    refusal = placing.refused(resize(ctx, made.uuid, Amounts(5, 64, 0)))
    assert (refusal.code, refusal.extra["failing_stage"]) == ("claim_exceeded", "claim")
    assert chosen(resize(ctx, made.uuid, Amounts(4, 64, 0))).node == "a"
    fleet_of.assert_exact(db)


def test_demand_alone_never_fails_a_resize(db: Database) -> None:
    ctx = placing.context(db, scheduler_target_load="0.5")
    placing.node(db, ctx, "a", cpus=8, cpu_load_1=7.0)
    made = running(ctx, {"cpus": 2})

    placed = chosen(resize(ctx, made.uuid, Amounts(3, 64, 0)))
    assert (placed.node, placed.moves, placed.waived) == ("a", False, True)


def test_a_resize_tells_its_stages_in_the_instances_timeline(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=2)
    made = running(ctx, {})
    placing.node(db, ctx, "b")
    chosen(resize(ctx, made.uuid, Amounts(2, 64, 0)))
    chosen(resize(ctx, made.uuid, Amounts(3, 64, 0)))

    told = [one.event.message for one in timeline.of_instance(ctx, made.uuid, limit=500, newest_first=False).events]
    assert told.count("schedule at stage sufficient_idle_cpu") == 3
    assert told.index("instance resized where it is") < told.index("instance move begun")
    begun = replacing.event_of(db, made.uuid, "instance move begun")
    assert (begun["node"], begun["from_node"], begun["reason"], begun["cpus"]) == ("b", "a", "resize", 3)


def test_what_is_not_somewhere_for_good_is_not_resized(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=2)
    draft = placing.created(ctx, {})
    with pytest.raises(Conflict, match="creating"):
        resize(ctx, draft.uuid, Amounts(2, 64, 0))
    with pytest.raises(NotFound):
        resize(ctx, "00000000-0000-0000-0000-000000000000", Amounts(2, 64, 0))
    with pytest.raises(InvalidRequest, match="cpus must be 1"):
        resize(ctx, draft.uuid, Amounts(0, 64, 0))

    replacing.runs(ctx, draft.uuid)
    placing.node(db, ctx, "b")
    chosen(resize(ctx, draft.uuid, Amounts(3, 64, 0)))
    with pytest.raises(Conflict, match="moved"):
        resize(ctx, draft.uuid, Amounts(4, 64, 0))
    assert moves.abort(db, draft.uuid, "given up")
    fleet_of.assert_exact(db)
