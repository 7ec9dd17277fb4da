"""Stored decisions replay: on the snapshot, the neighbours and the seed that are kept, bit for bit."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

from fleet.ledger import decisions as stored
from fleet.ledger import moves, nodes
from fleet.ledger.database import Database
from fleet.model.admission import Admitted
from fleet.model.request import PlacementRequest, Reason
from fleet.placement.pipeline import decide
from fleet.placement.record import encode_decision
from fleet.services import decisions
from fleet.services.context import Context
from fleet.services.create import Created
from fleet.services.delete import delete_instance
from fleet.services.replaying import replay_last
from tests.ledger import fleet_of, placing
from tests.ledger.ruling import apart
from tests.ledger.test_rules_placed import move_of

DECISIONS, NODES, ROLES = 1000, 12, 6


def racked(db: Database, ctx: Context) -> None:
    for at in range(NODES):
        labels = {"rack": f"r{at // 4}", "type": ("fast", "large")[at % 2]}
        placing.node(db, ctx, f"n{at:02}", labels if at else {}, cpu_load_1=at / 10)


def body(draws: random.Random) -> dict[str, Any]:
    """Something to ask for: of its neighbours, of labels, or of nothing."""
    role, other = (f"r{draws.randrange(ROLES)}" for _ in range(2))
    has = {"resource": "virtual_machine", "operator": "has", "tags": {"role": other}}
    fast = {"resource": "metal_server", "operator": "has", "tags": {"type": "fast"}}
    choices: list[dict[str, Any]] = [
        {},
        {"tags": {"role": role}},
        apart(role),
        apart(role, within="rack"),
        {"tags": {"role": role}, "placement_rules": [{"any_of": [{**has, "within": "rack"}, fast]}]},
        {"tags": ["quiet"], "affinity": {"prefer_with_tag": [f"role={role}"], "prefer_without_tag": ["role"]}},
        {"affinity": {"require_with_tag": [f"role={role}"], "require_without_tag": [f"role={other}"]}},
        {"metadata": {"affinity": {f"role={role}": 3}}},
        {"placement": {"labels": {"type": "large"}}},
        {"placement": {"node": f"n{draws.randrange(NODES + 1):02}"}, **apart(role)},
    ]
    return draws.choice(choices)


@pytest.mark.slow
def test_a_thousand_recorded_decisions_replay_bit_for_bit(maria: Database) -> None:
    ctx, draws = placing.context(maria), random.Random(20)
    racked(maria, ctx)
    live: list[str] = []
    for at in range(DECISIONS):
        outcome = placing.create(ctx, body(draws))
        if isinstance(outcome, Created):
            live.append(outcome.uuid)
        if len(live) > 40:
            delete_instance(ctx, live.pop(draws.randrange(len(live))), None)
        if at % 250 == 249:
            nodes.update(maria, f"n{at // 250:02}", {"labels": {"rack": "r9"}})
    rows = [stored.get(maria, row["id"]) for row in fleet_of.rows(maria, "SELECT id FROM decisions")]

    assert len(rows) == DECISIONS
    assert {row.outcome for row in rows if row} == {"placed", "refused"}
    assert sum(bool(row.neighbours) for row in rows if row) > DECISIONS // 2
    differ = [row.id for row in rows if row and encode_decision(decisions.replay(ctx.database, row)) != row.record]
    assert differ == []


def test_whoever_follows_a_replay_is_told_how_many_decisions_there_are(db: Database) -> None:
    ctx = placing.context(db)
    racked(db, ctx)
    for _ in range(3):
        placing.created(ctx, {})
    totals: list[int] = []
    judged: list[str] = []

    def begun(total: int) -> Callable[[], None]:
        totals.append(total)
        return lambda: judged.append("one")

    assert replay_last(db, 1000, progress=begun).same == 3
    assert replay_last(db, 2, progress=begun).same == 2
    assert (totals, len(judged)) == ([3, 2], 5)


def test_a_request_that_asks_nothing_of_its_neighbours_reads_and_stores_none(db: Database) -> None:
    ctx = placing.context(db)
    racked(db, ctx)
    made = placing.created(ctx, {"tags": {"role": "db"}, "placement": {"labels": {"rack": "r1"}}})

    assert fleet_of.rows(db, "SELECT neighbours FROM decisions WHERE id = :id", id=made.decision_id) == [
        {"neighbours": None}
    ]
    assert not ctx.neighbours._known


def test_only_the_instances_that_are_asked_about_are_seen_with_the_tags_that_are_asked_about(db: Database) -> None:
    ctx = placing.context(db)
    racked(db, ctx)
    db_one = placing.created(ctx, {"tags": {"role": "db", "note": "long"}})
    placing.created(ctx, {"tags": {"role": "web"}})
    made = placing.created(ctx, apart("db"))
    row = stored.get(db, made.decision_id)
    assert row is not None

    seen = decisions.saved_snapshot(ctx.database, row).frame.instances
    assert {uuid: dict(one.tags) for uuid, one in seen.items()} == {db_one.uuid: {"role": "db"}}


def test_a_migration_starts_from_what_its_instance_holds_and_does_not_see_itself(db: Database) -> None:
    ctx = placing.context(db)
    racked(db, ctx)
    made = placing.created(ctx, {**apart("db"), "cpus": 3})
    request = PlacementRequest.model_validate(
        {
            "cpus": 3,
            "memory_mb": 64,
            "namespace": fleet_of.NAMESPACE,
            **apart("db"),
            "reason": Reason.MIGRATE,
            "instance": made.uuid,
        }
    )
    view = ctx.neighbours.around(ctx.snapshots.view(), request, fresh_since=ctx.elapsed())
    decision = decide(request, view.snapshot, 5)

    assert view.snapshot.frame.instances[made.uuid].amounts.cpus == 3
    assert made.node not in decision.ranked
    assert len(decision.ranked) == NODES - 1
    assert decision.counts["scheduling_state"] == {"migration_source": 1}


def test_a_namespace_is_followed_as_its_instances_move(db: Database) -> None:
    ctx = placing.context(db)
    racked(db, ctx)
    made = placing.created(ctx, apart("db"))
    request = PlacementRequest.model_validate(
        {"cpus": 1, "memory_mb": 64, "namespace": fleet_of.NAMESPACE, **apart("db")}
    )

    def seen() -> list[tuple[str | None, str | None]]:
        found = ctx.neighbours.seen(ctx.snapshots.view().snapshot.frame, request)
        assert found is not None
        return [(one.node, one.incoming_node) for one in found.values()]

    to = next(name for name in ("n01", "n02") if name != made.node)
    (row,) = fleet_of.rows(db, "SELECT id FROM nodes WHERE name = :name", name=to)
    assert seen() == [(made.node, None)]
    assert isinstance(moves.begin(db, move_of(db, made, row["id"], apart("db"))), Admitted)
    assert seen() == [(made.node, to)]
    assert moves.abort(db, made.uuid, "test")
    assert seen() == [(made.node, None)]
    assert isinstance(moves.begin(db, move_of(db, made, row["id"], apart("db"))), Admitted)
    assert moves.settle(db, made.uuid)
    assert seen() == [(to, None)]
    delete_instance(ctx, made.uuid, None)
    assert seen() == []
