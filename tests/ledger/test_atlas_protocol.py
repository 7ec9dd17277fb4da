"""Numbered vectors of the Atlas document's protocol: what a move holds, three attempts, and a walk that goes on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from fleet.ledger import moves
from fleet.ledger.database import Database
from fleet.model.admission import Admitted
from fleet.placement.walk import BACKOFF_SECONDS
from fleet.services import place
from fleet.services.context import Context
from tests.ledger import fleet_of, placing
from tests.ledger.fleet_of import ask
from tests.ledger.holding import open_transaction

pytestmark = pytest.mark.vectors

HOLD = "UPDATE scheduler_node_capacity SET generation = generation"


@pytest.mark.parametrize("ends", [moves.settle, lambda db, uuid: moves.abort(db, uuid, "the node refused")])
def test_atlas_v09_a_move_under_way_holds_its_destination_in_full_and_an_ended_one_holds_nothing_more(
    db: Database, ends: Callable[[Database, str], bool]
) -> None:
    """The document's ten statuses are four moments here: not chosen yet, under way, arrived, given up."""
    here, there = (fleet_of.node(db, name, cpus=8, memory_mb=8192, disk_gb=80) for name in ("a", "b"))
    uuid = fleet_of.admitted(db, ask(here, cpus=2, memory_mb=2048, disk_gb=20))
    fleet_of.settle(db, uuid)
    assert fleet_of.used(db, there)[:3] == (0, 0, 0)

    move = ask(there, cpus=2, memory_mb=2048, disk_gb=20, instance_uuid=uuid)
    assert isinstance(moves.begin(db, move), Admitted)
    assert [fleet_of.used(db, node_id)[:3] for node_id in (here, there)] == [(2, 2048, 20)] * 2

    assert ends(db, uuid)
    left = [fleet_of.used(db, node_id)[:3] for node_id in (here, there)]
    assert sorted(left) == [(0, 0, 0), (2, 2048, 20)]
    assert not ends(db, uuid)
    assert [fleet_of.used(db, node_id)[:3] for node_id in (here, there)] == left


class Watched:
    """A process whose views, pauses and draws are written down."""

    def __init__(self, ctx: Context, monkeypatch: pytest.MonkeyPatch) -> None:
        self.fresh: list[bool] = []
        self.pauses: list[float] = []
        self.most: list[float] = []
        view, uniform = ctx.snapshots.view, ctx.uniform

        def viewed(**asked: Any) -> Any:
            self.fresh.append(asked["fresh_since"] is not None)
            return view(**asked)

        def drawn(low: float, high: float) -> float:
            if isinstance(high, float):
                self.most.append(high)
            return uniform(low, high)

        monkeypatch.setattr(ctx.snapshots, "view", viewed)
        self.ctx = replace(ctx, sleep=self.pauses.append, uniform=drawn)


@pytest.fixture
def in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long this machine takes for a walk: it is not late."""
    monkeypatch.setattr(place, "DEADLINE_SECONDS", 60.0)


@pytest.mark.usefixtures("in_time")
def test_atlas_v22_three_attempts_on_locked_nodes_end_busy(maria: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = placing.context(maria)
    for name in ("a", "b", "c"):
        placing.node(maria, ctx, name)
    watched = Watched(ctx, monkeypatch)

    with open_transaction(maria) as conn:
        conn.exec_driver_sql(HOLD)
        outcome = placing.refused(placing.create(watched.ctx, {}))

    assert (outcome.code, outcome.transient) == ("placement_busy", True)
    # Three walks, and one look more: locks say nothing about room, so what is committed is told.
    assert watched.fresh == [False, True, True, True]
    assert watched.most == [BACKOFF_SECONDS, 2 * BACKOFF_SECONDS] == [0.02, 0.04]
    assert all(0 <= pause <= most for pause, most in zip(watched.pauses, watched.most, strict=True))
    assert fleet_of.charged_to(maria) == {}


@pytest.mark.usefixtures("in_time")
def test_atlas_v24_decided_that_refusals_on_capacity_do_not_end_the_walk(db: Database) -> None:
    """The document stops after sixteen and calls the pool full although the next node fits."""
    ctx = placing.context(db)
    full = [placing.node(db, ctx, f"full{at:02d}", cpus=4, cpu_load_1=0.0) for at in range(17)]
    last = placing.node(db, ctx, "last", cpus=4, cpu_load_1=2.0)
    late = placing.overtaken(ctx, lambda: [fleet_of.admitted(db, ask(node_id, cpus=4)) for node_id in full])
    made = placing.created(late, {"cpus": 2})

    tries = placing.walk_of(db, made.decision_id)
    assert fleet_of.charged_to(db)[made.uuid] == last
    assert [step["outcome"] for step in tries][:17] == ["refused"] * 17
    fleet_of.assert_exact(db)
