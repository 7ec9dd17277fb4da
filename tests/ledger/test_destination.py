"""Where a migration or an evacuation goes: never where it comes from; under its rules, unless a node is named."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fleet.ledger import moves
from fleet.ledger.database import Database
from fleet.ledger.samples import set_scheduling
from fleet.model.errors import Conflict, NotFound
from fleet.model.request import Reason
from fleet.model.resources import Amounts
from fleet.services.context import Context
from fleet.services.delete import delete_instance
from fleet.services.destination import choose_destination
from fleet.services.place import Refusal
from fleet.services.replacing import Chosen
from tests.ledger import fleet_of, placing, replacing, ruling
from tests.ledger.placing import refused
from tests.ledger.replacing import chosen, holds, running
from tests.ledger.ruling import apart

ROUNDS = 10


@pytest.fixture
def ctx(db: Database) -> Context:
    return placing.context(db)


def test_a_migration_never_stays_where_it_is(db: Database, ctx: Context) -> None:
    a = placing.node(db, ctx, "a", cpu_load_1=0.0)
    b = placing.node(db, ctx, "b", cpu_load_1=500.0)
    made = running(ctx, {"cpus": 2})
    assert made.node == "a"

    placed = chosen(choose_destination(ctx, made.uuid))
    assert (placed.node, placed.moves) == ("b", True)
    size = Amounts(2, 64, 0, 1)
    assert holds(db, made.uuid) == {"primary": (a, size), "incoming": (b, size)}
    assert fleet_of.unclaimed(db) == (2, 64, 0)
    row = replacing.assert_replays(ctx, placed.decision_id)
    assert (row.reason, row.node_id, row.request["instance"]) == ("migrate", b, made.uuid)
    assert replacing.event_of(db, made.uuid, "instance move begun")["previous_node"] == "a"
    replacing.arrived(db, made.uuid)
    fleet_of.assert_exact(db)


def test_with_no_other_node_a_migration_is_refused_and_changes_nothing(db: Database, ctx: Context) -> None:
    a = placing.node(db, ctx, "a")
    made = running(ctx, {})

    refusal = refused(choose_destination(ctx, made.uuid))
    assert (refusal.code, refusal.counts) == ("no_schedulable_nodes", {"scheduling_state": {"migration_source": 1}})
    replacing.assert_replays(ctx, refusal.decision_id)
    assert holds(db, made.uuid) == {"primary": (a, Amounts(1, 64, 0, 1))}
    assert replacing.event_of(db, made.uuid, "schedule failed, no eligible node")["reason"] == "migrate"
    fleet_of.assert_exact(db)


def test_an_instance_leaves_a_node_that_is_gone(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a")
    made = running(ctx, {"placement": {"node": "a"}})
    b = placing.node(db, ctx, "b")
    fleet_of.publish(db, "a", config=ctx.configuration(), cpus=1000, healthy=False)

    placed = chosen(choose_destination(ctx, made.uuid, reason=Reason.EVACUATE))
    assert (placed.node_id, replacing.assert_replays(ctx, placed.decision_id).reason) == (b, "evacuate")
    fleet_of.assert_exact(db)


def test_a_migration_keeps_rules_and_labels_and_a_named_destination_overrides_them(db: Database, ctx: Context) -> None:
    for name, tier in (("a", "x"), ("b", "x"), ("c", "y")):
        placing.node(db, ctx, name, {"tier": tier})
    body = {**apart("db"), "affinity": {"require_without_tag": ["noisy"]}, "placement": {"labels": {"tier": "x"}}}
    one, two = running(ctx, body), running(ctx, body)
    assert {one.node, two.node} == {"a", "b"}

    refusal = refused(choose_destination(ctx, one.uuid))
    assert (refusal.code, refusal.counts["labels"]) == ("affinity_unsatisfied", {"labels_missing": 1})
    for named in ("c", two.node):
        placed = chosen(choose_destination(ctx, one.uuid, node=named))
        assert placed.node == named
        begun = replacing.event_of(db, one.uuid, "instance move begun")
        assert begun["overridden"] == ["placement.labels", "placement_rules", "affinity"]
        row = replacing.assert_replays(ctx, placed.decision_id)
        assert "placement_rules" not in row.request
        assert moves.abort(db, one.uuid, "only a trial")
    assert len(fleet_of.events_of(db, moves.OVERRIDDEN)) == 2
    # The instance keeps what it was made with.
    assert refused(choose_destination(ctx, one.uuid)).code == "affinity_unsatisfied"
    fleet_of.assert_exact(db)


def test_a_named_destination_needs_room_and_a_fit_state(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a")
    made = running(ctx, {"cpus": 4})
    placing.node(db, ctx, "small", cpus=2)
    placing.node(db, ctx, "shut")
    placing.node(db, ctx, "free")
    set_scheduling(db, "shut", "cordoned")

    full = refused(choose_destination(ctx, made.uuid, node="small"))
    assert (full.code, full.stage) == ("out_of_capacity", "sufficient_idle_cpu")
    shut = refused(choose_destination(ctx, made.uuid, node="shut"))
    assert shut.code == "pin_ineligible"
    assert "cordoned" in shut.detail
    unknown = refused(choose_destination(ctx, made.uuid, node="nowhere"))
    assert unknown.code == "node_not_found"
    with pytest.raises(Conflict, match="on node a"):
        choose_destination(ctx, made.uuid, node="a")
    with pytest.raises(NotFound):
        choose_destination(ctx, "00000000-0000-0000-0000-000000000000", node="free")
    fleet_of.assert_exact(db)


def test_no_room_at_the_listed_destinations_marks_nothing_full(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a")
    made = running(ctx, {"cpus": 4})
    placing.node(db, ctx, "small", cpus=2)
    placing.node(db, ctx, "free")
    set_scheduling(db, "a", "draining")

    full = refused(choose_destination(ctx, made.uuid, destinations=["small"]))
    assert (full.code, full.stage) == ("out_of_capacity", "sufficient_idle_cpu")
    nowhere = refused(choose_destination(ctx, made.uuid, destinations=[]))
    assert nowhere.code == "no_schedulable_nodes"
    assert nowhere.counts == {"scheduling_state": {"migration_source": 1, "not_a_destination": 2}}
    stranger = refused(choose_destination(ctx, made.uuid, destinations=["free", "nowhere"]))
    assert stranger.code == "node_not_found"
    assert placing.created(ctx, {"cpus": 4}).node == "free"
    assert chosen(choose_destination(ctx, made.uuid, destinations=["small", "free", "a"])).node == "free"
    fleet_of.assert_exact(db)


def test_what_it_was_pinned_to_holds_no_move_back(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a")
    placing.node(db, ctx, "b")
    made = running(ctx, {"placement": {"node": "a"}})
    assert chosen(choose_destination(ctx, made.uuid)).node == "b"
    replacing.arrived(db, made.uuid)
    assert chosen(choose_destination(ctx, made.uuid)).node == "a"
    fleet_of.assert_exact(db)


def test_the_overhead_it_was_made_with_moves_with_it(db: Database) -> None:
    ctx = placing.context(db, instance_overhead_mb="64")
    placing.node(db, ctx, "a", memory_mb=1024)
    made = running(ctx, {"memory_mb": 256})
    ctx = placing.context(db, instance_overhead_mb="128")
    b = placing.node(db, ctx, "b", memory_mb=320)

    chosen(choose_destination(ctx, made.uuid))
    assert holds(db, made.uuid)["incoming"] == (b, Amounts(1, 320, 0, 1))
    fleet_of.assert_exact(db)


def two_of_a_group(db: Database, ctx: Context) -> list[str]:
    """Two that may not be together, each on a node of its own, and one free node."""
    for name in ("a", "b"):
        placing.node(db, ctx, name)
    made = [running(ctx, apart("db")).uuid for _ in range(2)]
    placing.node(db, ctx, "c")
    return made


def test_two_migrations_of_one_group_at_once_have_one_winner_on_the_only_node(
    maria: Database, mariadb_ledger_url: str
) -> None:
    made = two_of_a_group(maria, placing.context(maria))
    with ruling.racing(mariadb_ledger_url, 2) as racers:
        for _ in range(ROUNDS):
            outcomes = racers.run(lambda own, at: choose_destination(own, made[at]))

            assert [one.node for one in outcomes if isinstance(one, Chosen)] == ["c"]
            assert [one.code for one in outcomes if isinstance(one, Refusal)] == ["affinity_unsatisfied"]
            fleet_of.assert_exact(maria)
            assert [moves.abort(maria, one, "once more") for one in made].count(True) == 1


@pytest.mark.parametrize("naive", [False, True])
def test_a_migration_that_another_of_its_group_overtook_after_deciding_looks_again(
    db: Database, ctx: Context, monkeypatch: pytest.MonkeyPatch, *, naive: bool
) -> None:
    first, second = two_of_a_group(db, ctx)
    if naive:
        # The twin that judges no rule under the locks goes where the other one is.
        ruling.naively(monkeypatch)
    overtaking: list[Chosen | Refusal] = []

    def overtaken(point: str) -> None:
        if point == "place_after_decide" and not overtaking:
            overtaking.append(choose_destination(ctx, first))

    outcome = choose_destination(replace(ctx, fault=overtaken), second)
    assert chosen(overtaking[0]).node == "c"
    if naive:
        assert chosen(outcome).node == "c"
    else:
        assert refused(outcome).code == "affinity_unsatisfied"
    fleet_of.assert_exact(db)


def test_who_deletes_it_meanwhile_wins(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a")
    made = running(ctx, {})
    b = placing.node(db, ctx, "b")

    def overtaken(point: str) -> None:
        if point == "place_after_decide":
            delete_instance(ctx, made.uuid, None)

    with pytest.raises(Conflict, match="deleted"):
        choose_destination(replace(ctx, fault=overtaken), made.uuid)
    assert fleet_of.used(db, b) == (0, 0, 0, 0)
    fleet_of.assert_exact(db)


def test_who_begins_to_move_it_meanwhile_wins(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a")
    made = running(ctx, {})
    for name in ("b", "c"):
        placing.node(db, ctx, name)
    began: list[str] = []

    def overtaken(point: str) -> None:
        if point == "place_after_decide" and not began:
            began.append("")
            began.append(chosen(choose_destination(ctx, made.uuid, node="c")).node)

    with pytest.raises(Conflict, match="meanwhile"):
        choose_destination(replace(ctx, fault=overtaken), made.uuid, node="b")
    assert holds(db, made.uuid)["incoming"][0] == fleet_of.rows(db, "SELECT id FROM nodes WHERE name = 'c'")[0]["id"]
    fleet_of.assert_exact(db)
