"""GPUs and sleep of an instance that is placed again: as they are where it is, the same again where it goes."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.ledger import charges, moves
from fleet.ledger.database import Database
from fleet.model.gpu_inventory import GpuAsk
from fleet.model.resources import Amounts
from fleet.services.context import Context
from fleet.services.destination import choose_destination
from fleet.services.fork import fork
from fleet.services.resize import resize
from tests.ledger import fleet_of, placing, replacing
from tests.ledger.gpus_of import bound, card
from tests.ledger.placing import refused
from tests.ledger.replacing import chosen, running
from tests.ledger.test_fork import body, made

ASKED = {"cpus": 2, "memory_mb": 64, "gpus": 1, "gpu_kind": "a100", "sleep_after_idle_seconds": 60}


@pytest.fixture
def ctx(db: Database) -> Context:
    return placing.context(db)


def node(db: Database, ctx: Context, name: str, *uuids: str, cpus: int = 8) -> int:
    node_id = fleet_of.register(db, name, backend="simulated")
    figures: dict[str, Any] = {"cpus": cpus, "cpu_max_per_instance": 64, "memory_mb": 4096}
    fleet_of.publish(db, name, config=ctx.configuration(), gpus=[card(uuid) for uuid in uuids], **figures)
    return node_id


def test_an_instance_that_grows_where_it_is_keeps_its_gpus(db: Database, ctx: Context) -> None:
    node(db, ctx, "a", "GPU-a")
    one = running(ctx, ASKED)

    assert chosen(resize(ctx, one.uuid, Amounts(4, 128, 0))).moves is False
    assert bound(db) == {"GPU-a": one.uuid}
    (charge,) = charges.of_instance(db, one.uuid)
    assert (charge.gpus, charge.sleepy) == (GpuAsk(1, "a100", ""), True)
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("how", ["resize", "migrate"])
@pytest.mark.parametrize("ends", ["settle", "abort"])
def test_one_that_moves_holds_gpus_on_both_nodes_until_the_move_ends(
    db: Database, ctx: Context, how: str, ends: str
) -> None:
    a = node(db, ctx, "a", "GPU-a", cpus=2)
    one = running(ctx, ASKED)
    b = node(db, ctx, "b", "GPU-b")

    placed = chosen(resize(ctx, one.uuid, Amounts(4, 32, 0)) if how == "resize" else choose_destination(ctx, one.uuid))
    assert (placed.node, placed.moves) == ("b", True)
    assert bound(db) == {"GPU-a": one.uuid, "GPU-b": one.uuid}
    replacing.assert_replays(ctx, placed.decision_id)
    fleet_of.assert_exact(db)
    if ends == "settle":
        replacing.arrived(db, one.uuid)
    else:
        assert moves.abort(db, one.uuid, "given up")
    assert bound(db) == ({"GPU-b": one.uuid} if ends == "settle" else {"GPU-a": one.uuid})
    asleep = [fleet_of.row(db, node_id)["sleepy_memory_mb"] for node_id in (a, b)]
    assert asleep == ([0, 32 if how == "resize" else 64] if ends == "settle" else [64, 0])
    fleet_of.assert_exact(db)


def test_without_a_free_gpu_there_is_nowhere_to_go(db: Database, ctx: Context) -> None:
    node(db, ctx, "a", "GPU-a")
    node(db, ctx, "b", "GPU-b")
    ones = [running(ctx, ASKED) for _ in range(2)]

    refusal = refused(choose_destination(ctx, ones[0].uuid))
    assert (refusal.code, refusal.stage) == ("out_of_capacity", "gpu")
    assert set(bound(db)) == {"GPU-a", "GPU-b"}
    fleet_of.assert_exact(db)


def test_a_fork_gets_a_gpu_of_its_own_or_none(db: Database, ctx: Context) -> None:
    node(db, ctx, "a", "GPU-1", "GPU-2")
    one = running(ctx, ASKED)

    forked = made(fork(ctx, one.uuid, body(gpus=1, gpu_kind="a100")))
    assert sorted(bound(db).values()) == sorted([one.uuid, forked.uuid])
    refusal = refused(fork(ctx, one.uuid, body(gpus=1, gpu_kind="a100")))
    assert (refusal.code, refusal.extra["failing_stage"]) == ("out_of_capacity", "gpu")
    fleet_of.assert_exact(db)
