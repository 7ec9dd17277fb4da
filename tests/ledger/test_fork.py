"""Forks: on their source's node and nowhere else, past every stage, and charged like anything else."""

from __future__ import annotations

import json

import pytest

from fleet.ledger import instances, operations
from fleet.ledger.database import Database
from fleet.ledger.samples import set_scheduling
from fleet.model.errors import Conflict, InvalidRequest
from fleet.model.request import InstanceRequest, Reason
from fleet.services import timeline
from fleet.services.context import Context
from fleet.services.create import Created
from fleet.services.destination import choose_destination
from fleet.services.fork import FORCED, fork
from fleet.services.idempotency import RetryKey
from tests.ledger import fleet_of, placing, replacing, ruling
from tests.ledger.placing import refused
from tests.ledger.replacing import running
from tests.ledger.ruling import apart


@pytest.fixture
def ctx(db: Database) -> Context:
    return placing.context(db)


def body(**more: object) -> InstanceRequest:
    return InstanceRequest.model_validate({"cpus": 1, "memory_mb": 64, "name": "copy", **more})


def made(outcome: object) -> Created:
    assert isinstance(outcome, Created), outcome
    return outcome


def test_a_fork_goes_to_its_sources_node_whatever_the_stages_would_say(db: Database, ctx: Context) -> None:
    a = placing.node(db, ctx, "a", cpu_load_1=900.0)
    source = running(ctx, apart("db"))
    placing.node(db, ctx, "b", {"tier": "gold"})

    forked = made(fork(ctx, source.uuid, body(**apart("db"), placement={"labels": {"tier": "gold"}})))
    assert forked.node == "a"
    view = instances.get(db, forked.uuid)
    assert view is not None
    assert (view.node, view.name, view.state, view.namespace) == ("a", "copy", "creating", fleet_of.NAMESPACE)
    assert fleet_of.used(db, a) == (2, 128, 0, 2)
    assert fleet_of.unclaimed(db) == (2, 128, 0)
    operation = operations.get(db, forked.operation_id)
    assert operation is not None
    assert (operation.node_id, operation.instance_uuid) == (a, forked.uuid)
    row = replacing.assert_replays(ctx, forked.decision_id)
    assert (row.reason, row.outcome, row.request["instance"]) == ("fork", "placed", source.uuid)
    assert row.summary == "a holds what is forked: a fork goes there, and no stage is asked"
    placed = replacing.event_of(db, forked.uuid, "instance placed")
    assert (placed["forked_from"], placed["enforce"]) == (source.uuid, True)
    told = [one.event.message for one in timeline.of_instance(ctx, forked.uuid, limit=50, newest_first=False).events]
    assert told[:3] == ["started scheduling", "schedule inputs", "schedule forced candidates"]
    assert not [message for message in told if message.startswith("schedule at stage")]
    fleet_of.assert_exact(db)

    # What it was made with holds when it moves.
    replacing.runs(ctx, forked.uuid)
    assert replacing.chosen(choose_destination(ctx, forked.uuid)).node == "b"


def test_a_fork_that_does_not_fit_is_refused_and_one_that_is_forced_is_recorded(db: Database, ctx: Context) -> None:
    a = placing.node(db, ctx, "a", cpus=2)
    source = running(ctx, {"cpus": 2})
    placing.node(db, ctx, "b")

    refusal = refused(fork(ctx, source.uuid, body()))
    assert (refusal.code, refusal.stage) == ("out_of_capacity", "capacity_guard")
    assert refusal.extra["dimensions"] == {"cpus": 1}
    assert replacing.assert_replays(ctx, refusal.decision_id).outcome == "refused"
    assert fleet_of.used(db, a) == (2, 64, 0, 1)
    fleet_of.assert_exact(db)

    forced = made(fork(ctx, source.uuid, body(), force=True))
    assert forced.node == "a"
    (event,) = fleet_of.events_of(db, FORCED)
    assert (event["object_id"], event["level"]) == (forced.uuid, "warning")
    assert json.loads(event["payload"])["forked_from"] == source.uuid
    assert replacing.event_of(db, forced.uuid, "instance placed")["enforce"] is False
    assert fleet_of.used(db, a) == (3, 128, 0, 2)
    assert fleet_of.unclaimed(db) == (3, 128, 0)
    fleet_of.assert_exact(db, over_limit={"a"})


@pytest.mark.parametrize("scheduling", ["cordoned", "draining"])
def test_a_fork_on_a_node_that_takes_nothing_is_told_so_and_may_be_forced(
    db: Database, ctx: Context, scheduling: str
) -> None:
    placing.node(db, ctx, "a")
    source = running(ctx, {})
    set_scheduling(db, "a", scheduling)

    refusal = refused(fork(ctx, source.uuid, body()))
    assert refusal.code == "pin_ineligible"
    assert refusal.detail.startswith("node a is not eligible")
    assert scheduling in refusal.detail
    assert made(fork(ctx, source.uuid, body(), force=True)).node == "a"
    fleet_of.assert_exact(db)


def test_a_hard_claim_holds_for_forks(db: Database) -> None:
    ctx = placing.context(db, claim_enforcement="hard")
    placing.node(db, ctx, "a")
    fleet_of.claim(db, limit=(1, 1024, 10))
    source = running(ctx, {})

    assert refused(fork(ctx, source.uuid, body())).code == "claim_exceeded"
    made(fork(ctx, source.uuid, body(), force=True))
    assert fleet_of.cluster(db)["overage_cpus"] == 1
    fleet_of.assert_exact(db)


def test_a_retry_of_a_fork_gets_the_first_answer(db: Database, ctx: Context) -> None:
    a = placing.node(db, ctx, "a")
    source = running(ctx, {})
    key = RetryKey(namespace=fleet_of.NAMESPACE, key="k", digest="d")

    first = made(fork(ctx, source.uuid, body(), retry_key=key))
    assert fork(ctx, source.uuid, body(), retry_key=key) == first
    assert fleet_of.used(db, a)[3] == 2


def test_only_what_is_somewhere_for_good_is_forked(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a")
    draft = placing.created(ctx, {})
    with pytest.raises(Conflict, match="creating"):
        fork(ctx, draft.uuid, body())
    replacing.runs(ctx, draft.uuid)
    placing.node(db, ctx, "b")
    replacing.chosen(choose_destination(ctx, draft.uuid, reason=Reason.MIGRATE))
    with pytest.raises(Conflict, match="moved"):
        fork(ctx, draft.uuid, body())
    with pytest.raises(InvalidRequest, match="cannot be forced"):
        fork(ctx, draft.uuid, body(gpus=1), force=True)


def test_forks_at_once_never_pass_the_limit(maria: Database, mariadb_ledger_url: str) -> None:
    ctx = placing.context(maria)
    a = placing.node(maria, ctx, "a", cpus=4)
    source = running(ctx, {})
    with ruling.racing(mariadb_ledger_url, 6) as racers:
        outcomes = racers.run(lambda own, _at: fork(own, source.uuid, body()))

    placed = [one for one in outcomes if isinstance(one, Created)]
    assert len(placed) <= 3
    assert {one.code for one in outcomes if not isinstance(one, Created)} <= {"out_of_capacity", "placement_busy"}
    assert fleet_of.used(maria, a)[0] == 1 + len(placed)
    fleet_of.assert_exact(maria)
