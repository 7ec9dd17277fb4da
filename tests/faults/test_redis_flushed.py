"""The queue's server forgets, goes away, is full or evicts: every accepted create is carried out all the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.ledger import events, instances
from fleet.model.lifecycle import InstanceState, OperationState
from fleet.queue import connection
from fleet.queue.connection import connect, eviction
from fleet.services.wake import record_eviction
from fleet.services.work import Outcome
from tests.faults.rig import WAIT_SECONDS_MAX, Rig
from tests.provision import REDIS, required
from tests.servers import RedisServer, wait_until

pytestmark = pytest.mark.slow

ACCEPTED = 30
HANGS_SECONDS = 20.0


@pytest.fixture
def rig(tmp_path: Path, mariadb_url: str, own_redis: RedisServer) -> Iterator[Rig]:
    made = Rig(tmp_path, mariadb_url, own_redis.url(), node_count=3, faults={"delays": {"create": 0.1}})
    yield made
    made.close()


def all_are_running(rig: Rig, count: int) -> bool:
    return instances.counts(rig.db) == {"running": count}


def test_all_accepted_work_is_done_although_redis_was_flushed_in_the_middle(rig: Rig, own_redis: RedisServer) -> None:
    created = [rig.create(f"i{number}", memory_mb=64) for number in range(ACCEPTED)]
    rig.start("reconciler")
    rig.start_worker()
    wait_until(lambda: instances.counts(rig.db).get("running", 0) > 0, seconds=WAIT_SECONDS_MAX, what="work has begun")
    own_redis.flush()

    wait_until(
        lambda: all_are_running(rig, ACCEPTED),
        seconds=WAIT_SECONDS_MAX,
        what=f"all {ACCEPTED} run, {instances.counts(rig.db)}\n{rig.logs()}",
    )
    assert [len(rig.homes(item.uuid)) for item in created] == [1] * ACCEPTED
    assert [len(rig.charges(item.uuid)) for item in created] == [1] * ACCEPTED
    assert rig.differences() == []


def test_creates_are_accepted_while_redis_is_away_and_done_when_it_is_back(rig: Rig, own_redis: RedisServer) -> None:
    rig.start("reconciler")
    rig.start_worker()
    own_redis.kill()
    created = [rig.accept(f"i{number}", memory_mb=64) for number in range(5)]

    own_redis.start()
    wait_until(
        lambda: all_are_running(rig, 5),
        seconds=WAIT_SECONDS_MAX,
        what=f"all run, {instances.counts(rig.db)}\n{rig.logs()}",
    )
    assert [len(rig.homes(item.uuid)) for item in created] == [1] * 5


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for an answer of Redis waits until it goes on."""
    monkeypatch.setattr(connection, "PRODUCER_SECONDS", HANGS_SECONDS)


@pytest.mark.usefixtures("patience")
def test_a_redis_that_hangs_holds_nobody_up(rig: Rig, own_redis: RedisServer) -> None:
    created = []
    own_redis.pause()
    for number in range(3):
        created.append(rig.accept(f"i{number}", memory_mb=64))
        assert not rig.context.flush_wake_ups(0), "the create was answered after its wake-up"
    own_redis.resume()

    assert rig.context.flush_wake_ups(WAIT_SECONDS_MAX)
    assert rig.sweep().due == len(created)


def test_b23_a_full_redis_refuses_the_wake_up_and_the_create_stands(rig: Rig) -> None:
    rig.client.config_set("maxmemory", 1)
    created = rig.create()
    assert rig.operation(created.operation_id).state is OperationState.PENDING
    rig.client.config_set("maxmemory", 0)

    assert rig.sweep().woken == 1
    assert rig.inbox().take(1) == created.operation_id
    assert rig.carry_out(created.operation_id) is Outcome.DONE
    assert rig.instance(created.uuid).state is InstanceState.RUNNING


def test_b23_a_redis_that_evicts_is_warned_about_loudly_at_start(tmp_path: Path, mariadb_url: str) -> None:
    with RedisServer(required(REDIS), options=("--maxmemory-policy", "allkeys-lru")) as evicting:
        rig = Rig(tmp_path, mariadb_url, evicting.url(), node_count=1)
        try:
            rig.start("reconciler")
            rig.start_worker()
            wait_until(
                lambda: len(events.listing(rig.db, "cluster", "queue")) >= 2,
                seconds=WAIT_SECONDS_MAX,
                what="both daemons warn",
            )
            warnings = events.listing(rig.db, "cluster", "queue")
            log = rig.logs()
        finally:
            rig.close()

    assert {(event.level, event.message) for event in warnings} == {("warning", "queue server evicts keys")}
    assert warnings[0].payload["policy"] == "allkeys-lru"
    assert '"queue.evicts"' in log


def test_b23_a_redis_that_keeps_what_it_has_is_no_news(rig: Rig, own_redis: RedisServer) -> None:
    found = eviction(connect(own_redis.url()))

    assert (found.policy, found.loses_jobs) == ("noeviction", False)
    assert record_eviction(rig.db, found) is False
    assert events.listing(rig.db, "cluster", "queue") == []
