"""The reconciler's loop: one leads, passes come when due and are remembered, nodes go missing, work is woken."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import fakeredis
import pytest

from fleet.ledger import events, leases, nodes, operations, passes, retention, samples
from fleet.ledger.cluster_config import load
from fleet.ledger.database import Database, Sql
from fleet.ledger.nodes import NodeIn
from fleet.ledger.reconcile import needs_pass
from fleet.ledger.samples import SampleIn
from fleet.model.errors import QueueUnavailable
from fleet.model.lifecycle import OperationKind
from fleet.model.node import NodeState
from fleet.queue.connection import connect
from fleet.queue.jobs import Inbox, WakeUps
from fleet.services.leadership import Leadership
from fleet.services.reconciler import Reconciler
from fleet.services.sweep import sweep_once
from tests.faults.rig import METRICS
from tests.ledger import past
from tests.servers import wait_until

DRIFT = Sql("UPDATE scheduler_node_capacity SET used_cpus = used_cpus + 3")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def db(db_url: str) -> Iterator[Database]:
    database = Database(db_url)
    nodes.register(database, NodeIn(name="n1", declared={"backend": "simulated"}))
    publish(database)
    yield database
    database.close()


@pytest.fixture
def client() -> fakeredis.FakeStrictRedis:
    return fakeredis.FakeStrictRedis()


def publish(db: Database, age_seconds: int | str = 0) -> None:
    sample = SampleIn(node_name="n1", metrics=METRICS, age_seconds=Decimal(age_seconds), healthy=True)
    samples.publish(db, [sample], load(db))


def candidate(
    db: Database,
    client: fakeredis.FakeStrictRedis,
    who: str | Leadership,
    clock: Clock | None = None,
    **config: Any,
) -> Reconciler:
    leadership = Leadership(db, who) if isinstance(who, str) else who
    return Reconciler(db, WakeUps(client), lambda: replace(load(db), **config), leadership, monotonic=clock or Clock())


def end(db: Database, leadership: Leadership) -> None:
    """Let a leader's lease last no longer."""
    assert leadership.lease is not None
    assert leases.renew(db, leadership.lease, 0)


def age(db: Database) -> float:
    last = passes.last(db)
    return -1 if last is None else last.age_seconds


def messages(db: Database) -> list[str]:
    return [event.message for event in events.listing(db, "cluster", "reconciler", newest_first=False)]


def state_of(db: Database) -> NodeState:
    node = nodes.get(db, "n1")
    assert node is not None
    return node.state


def test_one_candidate_leads_and_the_other_takes_over_when_the_lease_runs_out(
    db: Database, client: fakeredis.FakeStrictRedis
) -> None:
    leader = Leadership(db, "first")
    first, second = candidate(db, client, leader), candidate(db, client, "second")

    assert first.run_pass("test") is not None
    assert second.run_pass("test") is None
    end(db, leader)
    assert second.run_pass("test") is not None
    assert first.run_pass("test") is None


def test_a_leader_that_resigns_leaves_no_gap(db: Database) -> None:
    first, second = Leadership(db, "first"), Leadership(db, "second")
    assert first.stand() is not None
    assert second.stand() is None
    first.resign()

    lease = second.stand()
    assert lease is not None
    assert lease.number == 2


def test_only_the_leader_does_anything(db: Database, client: fakeredis.FakeStrictRedis) -> None:
    leader = Leadership(db, "leader")
    assert leader.stand() is not None
    publish(db, age_seconds=500)
    candidate(db, client, "other").turn()

    assert (messages(db), state_of(db)) == ([], NodeState.ACTIVE)


def test_a_pass_is_due_by_the_interval_and_not_doubled_by_a_restart(
    db: Database, client: fakeredis.FakeStrictRedis
) -> None:
    clock = Clock()
    one, restarted = Leadership(db, "one"), Leadership(db, "restarted")
    reconciler = candidate(db, client, one, clock)
    for _ in range(20):
        reconciler.turn()
        clock.now += 1
    assert messages(db) == [passes.ENDED]

    end(db, one)
    candidate(db, client, restarted).turn()
    assert messages(db) == [passes.ENDED]

    end(db, restarted)
    wait_until(lambda: age(db) >= 1, seconds=10, what="the pass was a second ago")
    candidate(db, client, "later", reconcile_interval_seconds=1).turn()
    assert messages(db) == [passes.ENDED] * 2


def test_a_pass_runs_at_once_when_a_counting_node_no_longer_counts(
    db: Database, client: fakeredis.FakeStrictRedis
) -> None:
    clock = Clock()
    reconciler = candidate(db, client, "one", clock)
    reconciler.turn()
    publish(db, age_seconds=899)
    wait_until(lambda: needs_pass(db), seconds=10, what="the sample is 900 s old, and its node counts no more")
    clock.now += 3
    reconciler.turn()

    ended = events.listing(db, "cluster", "reconciler")
    assert [event.payload["why"] for event in ended] == ["nodes_changed", "interval"]


def test_b07_a_pass_says_what_it_set_right_and_the_next_one_finds_nothing(
    db: Database, client: fakeredis.FakeStrictRedis
) -> None:
    reconciler = candidate(db, client, "one")
    db.unit(lambda conn: DRIFT.run(conn).rowcount)
    first, second = reconciler.run_pass("test"), reconciler.run_pass("test")

    assert first is not None
    assert second is not None
    assert [(item.figure, item.difference) for item in first.corrections if item.row.startswith("node")] == [
        ("used_cpus", -3)
    ]
    assert second.corrections == ()
    assert [event.payload["corrections"] for event in events.listing(db, "cluster", "reconciler")][-1] >= 1


def test_a_node_whose_sample_is_too_old_goes_missing_and_a_publish_brings_it_back(
    db: Database, client: fakeredis.FakeStrictRedis
) -> None:
    reconciler = candidate(db, client, "one")
    with past.still(db):
        publish(db, age_seconds="119.999")
        assert reconciler.mark_missing() == []
        publish(db, age_seconds=120)

        assert reconciler.mark_missing() == ["n1"]
    assert state_of(db) is NodeState.MISSING
    publish(db)
    assert state_of(db) is NodeState.ACTIVE


def test_the_sweeper_wakes_what_nobody_holds_once(db: Database, client: fakeredis.FakeStrictRedis) -> None:
    added = [str(uuid.uuid4()) for _ in range(3)]
    for operation in added:
        db.unit(lambda conn, op=operation: operations.insert(conn, op, OperationKind.CREATE, op, "ns", 7))  # type: ignore[misc]
    assert operations.lease(db, added[0], "a worker", 60) is not None

    swept = sweep_once(db, WakeUps(client), grace_seconds=0)
    assert (swept.due, swept.woken) == (2, 2)
    assert sweep_once(db, WakeUps(client), grace_seconds=0).woken == 0
    inbox = Inbox(client)
    inbox.serve([7, 8])
    assert {inbox.take(1), inbox.take(1)} == set(added[1:])


def test_the_ledger_is_kept_true_while_the_queue_is_away(db: Database, client: fakeredis.FakeStrictRedis) -> None:
    db.unit(lambda conn: operations.insert(conn, "o", OperationKind.CREATE, "i", "ns", 7))
    absent = connect("redis://127.0.0.1:1/0")
    clock = Clock()

    def check() -> None:
        raise QueueUnavailable("away")

    reconciler = Reconciler(
        db, WakeUps(absent), lambda: load(db), Leadership(db, "one"), at_start=check, monotonic=clock
    )
    db.unit(lambda conn: DRIFT.run(conn).rowcount)
    clock.now = 10
    reconciler.turn()

    assert messages(db) == [passes.ENDED]
    with db.read() as conn:
        assert operations.charged_node(conn, "i") is None


def test_the_last_pass_is_remembered_with_its_age_and_length(db: Database, client: fakeredis.FakeStrictRedis) -> None:
    assert passes.last(db) is None
    before = time.monotonic()
    candidate(db, client, "one").run_pass("test")
    wait_until(lambda: age(db) >= 0.5, seconds=10, what="the pass was a while ago")
    last = passes.last(db)

    assert last is not None
    assert 0.5 <= last.age_seconds <= time.monotonic() - before
    assert last.duration_seconds is not None
    assert json.dumps(last.duration_seconds)


def test_a_backlog_of_old_events_is_worked_off_within_the_minute(
    db: Database, client: fakeredis.FakeStrictRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)
    monkeypatch.setattr(retention, "BATCHES_MAX", 1)
    for _ in range(7):
        db.unit(lambda conn: events.record(conn, "instance", "old", "happened", {}))
    db.unit(lambda conn: Sql("UPDATE events SET at = 1 WHERE object_id = 'old'").run(conn).rowcount)
    clock = Clock()
    reconciler = candidate(db, client, "one", clock)

    left = []
    for _ in range(5):
        reconciler.turn()
        left.append(len(events.listing(db, "instance", "old")))
        clock.now += 6

    assert left == [5, 3, 1, 0, 0]
