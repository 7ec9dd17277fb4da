"""A MariaDB that is killed, hangs, comes late or loses its answers: "try again" or success, and never half a change."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from fleet.ledger.database import Sql
from tests.faults.cutting import Cut, Wire
from tests.faults.rig import Rig
from tests.faults.soak import (
    Answer,
    Api,
    Client,
    Soak,
    StartApi,
    assert_books_are_true,
    assert_only_honest_answers,
    wait_for,
    wait_until_all_is_done,
)
from tests.provision import MARIADB, required
from tests.servers import HOST, MariaDBServer

# Newer servers turn this on by default: with it, a row changed since the snapshot is error 1020. Older ones lack it.
OPTIONS = ("--loose-innodb-snapshot-isolation=ON",)
DOWN_SECONDS = 3.0
HANGS_SECONDS = 10.0
# A request that meets a dead server gets its answer at once; one that meets a hanging one after the driver's time-out.
REFUSED_SECONDS_MAX = 5.0
SLOWER_MAX = 10
"""So many times what a request takes on this machine when all is well may be added to that."""
BROKEN = ('"api.failed"', '"operation.broke"', '"daemon.broke"', "Traceback")
KEY = "the-first-try"
NEWEST_SAMPLES = Sql("SELECT MIN(sample_at) FROM scheduler_node_capacity")


@pytest.fixture
def server() -> Iterator[MariaDBServer]:
    with MariaDBServer(required(MARIADB), options=OPTIONS) as started:
        yield started


@pytest.fixture
def rig(tmp_path: Path, server: MariaDBServer, redis_url: str) -> Iterator[Rig]:
    made = Rig(tmp_path, server.url(server.create_database()), redis_url, node_count=3)
    yield made
    made.close()


def start_daemons(rig: Rig) -> list[Any]:
    return [rig.start("resources", "--simulated", str(rig.described_file)), rig.start("reconciler"), rig.start_worker()]


def oldest_sample(rig: Rig) -> int:
    with rig.db.read() as conn:
        return int(NEWEST_SAMPLES.run(conn).scalar_one())


def assert_all_is_well_after(rig: Rig, soak: Soak, daemons: list[Any]) -> None:
    assert_only_honest_answers(soak, lost=False)
    assert soak.count(503) > 0, "no caller met the outage, so nothing was proved"
    assert [daemon.poll() for daemon in daemons] == [None] * len(daemons), rig.logs()
    rig.db.close()
    wait_until_all_is_done(rig)
    created = set().union(*(told.created for told in soak.told))
    deleted = set().union(*(told.deleted for told in soak.told))
    assert_books_are_true(rig, created, deleted)
    log = "".join(path.read_text(errors="replace") for path in rig.folder.glob("*.log"))
    assert [line for line in log.splitlines() if any(word in line for word in BROKEN)] == []


@pytest.mark.slow
def test_mariadb_killed_and_restarted_in_a_soak_loses_nothing_and_work_goes_on(
    rig: Rig, server: MariaDBServer, start_api: StartApi
) -> None:
    daemons = start_daemons(rig)
    api = start_api(workers=2)
    workers = api.worker_pids()
    with Soak(api) as soak:
        soak.goes_on()
        server.kill()
        wait_for(rig, lambda: soak.count(503) > 10, what="callers are told to try again")
        assert (api.status("/healthz"), api.status("/readyz")) == (200, 503)
        time.sleep(DOWN_SECONDS)
        server.start()
        rig.db.close()
        before = oldest_sample(rig)
        soak.goes_on(more=40)
        server.kill()
        server.start()
        rig.db.close()
        soak.goes_on(more=40)
        wait_for(rig, lambda: oldest_sample(rig) > before, what="all nodes are measured again")

    assert api.worker_pids() == workers
    assert_all_is_well_after(rig, soak, [api.process, *daemons])


@pytest.mark.slow
def test_mariadb_that_hangs_for_ten_seconds_in_a_soak_is_survived(
    rig: Rig, server: MariaDBServer, start_api: StartApi
) -> None:
    daemons = start_daemons(rig)
    api = start_api(workers=2)
    workers = api.worker_pids()
    with Soak(api) as soak:
        soak.goes_on()
        server.pause()
        hangs_until = time.monotonic() + HANGS_SECONDS
        assert api.status("/healthz") == 200
        time.sleep(max(0.0, hangs_until - time.monotonic()))
        server.resume()
        soak.goes_on(more=40)

    assert api.worker_pids() == workers
    assert_all_is_well_after(rig, soak, [api.process, *daemons])


def test_a_request_that_meets_a_dead_server_is_answered_at_once_and_readiness_says_no(
    rig: Rig, server: MariaDBServer, start_api: StartApi
) -> None:
    api = start_api()
    client = api.client()
    first = client.create("i")
    server.kill()
    answers = [client.create("j", key=KEY), client.delete(first.body["uuid"]), client.call("GET", "/nodes")]
    answers.append(api.get("/readyz"))

    assert [refused(answer) for answer in answers] == [(503, "database_unavailable", "1")] * 4
    assert max(answer.seconds for answer in answers) < REFUSED_SECONDS_MAX + SLOWER_MAX * first.seconds
    assert api.status("/healthz") == 200
    server.start()
    api.wait_until_ready()


def refused(answer: Answer) -> tuple[int, str, str | None]:
    return answer.status, answer.code, answer.retry_after


def awaited(rig: Rig) -> list[float]:
    """The pauses an sf-api that waits for its database has told of."""
    text = "".join(path.read_text(errors="replace") for path in rig.folder.glob("api-*.log"))
    said = [json.loads(line) for line in text.splitlines() if '"service.awaited"' in line]
    assert {item["service"] for item in said} <= {"the database"}
    return [item["pause_seconds"] for item in said]


def test_an_api_that_starts_before_its_database_waits_says_so_and_then_serves(
    rig: Rig, server: MariaDBServer, start_api: StartApi
) -> None:
    server.kill()
    api: Api = start_api(wait=False)
    wait_for(rig, lambda: len(awaited(rig)) >= 3, what="sf-api has told three times that it waits")
    pauses = awaited(rig)
    assert pauses[:3] == [0.5, 1.0, 2.0]
    assert api.status("/healthz") == 200
    assert refused(api.get("/readyz")) == (503, "database_unavailable", "1")
    assert refused(Client(api.port).create("i", key=KEY)) == (503, "database_unavailable", "1")
    with socket.create_connection((HOST, api.port)) as silent:
        silent.sendall(b"POST /instances HTTP/1.1\r\nContent-Length: 100\r\n\r\n")
        server.start()
        api.wait_until_ready()

    assert api.client().create("i").status == 201


@pytest.mark.parametrize("where", list(Cut))
def test_a_create_and_a_delete_whose_commits_are_cut_off_are_done_once_and_the_caller_is_told(
    rig: Rig, start_api: StartApi, where: Cut
) -> None:
    with Wire(rig.environment["FLEET_DATABASE_URL"]) as wire:
        client = start_api(database_url=wire.url).client()
        warm = client.create("warm").body["uuid"]
        wire.arm(where)
        created = client.create("i", key=KEY)
        assert wire.cut.is_set()
        assert created.status == 201, created
        repeated = client.create("i", key=KEY)
        wire.arm(where)
        deleted = client.delete(warm)
        assert wire.cut.is_set()
        assert deleted.status == 202, deleted

    assert (repeated.status, repeated.body) == (201, created.body)
    assert rig.carry_out(created.body["operation_id"]) == "done"
    assert rig.carry_out(deleted.body["operation_id"]) == "done"
    assert_books_are_true(rig, {warm, created.body["uuid"]}, {warm})


@pytest.mark.parametrize("where", list(Cut))
def test_a_create_in_doubt_is_said_to_be_in_doubt_and_its_retry_finds_out(
    rig: Rig, start_api: StartApi, where: Cut
) -> None:
    with Wire(rig.environment["FLEET_DATABASE_URL"]) as wire:
        client = start_api(database_url=wire.url).client()
        warm = client.create("warm")
        wire.arm(where, for_good=True)
        doubtful = client.create("i", key=KEY)
        assert wire.cut.is_set()
        sure = client.create("j")

    assert refused(doubtful) == refused(sure) == (503, "database_unavailable", "1")
    assert "not known" in doubtful.body["detail"]
    assert "nothing was decided" in sure.body["detail"]
    made = start_api().client().create("i", key=KEY)
    assert made.status == 201, made
    rig.carry_out(warm.body["operation_id"])
    assert rig.carry_out(made.body["operation_id"]) == "done"
    assert_books_are_true(rig, {warm.body["uuid"], made.body["uuid"]}, set())
