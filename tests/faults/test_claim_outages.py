"""Claims while processes and the database die: whole or not at all, and nobody is told that there is no claim."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from fleet.ledger import cluster_config, namespaces
from fleet.ledger.database import Database, Sql
from tests.faults.cutting import Cut, Wire
from tests.faults.rig import WAIT_SECONDS_MAX, Rig
from tests.faults.soak import LOST, Answer, Api, Client, StartApi, apis_of, wait_for
from tests.ledger import claiming, fleet_of
from tests.ledger.holding import LOOK_SECONDS, open_transaction, somebody_waits
from tests.provision import MARIADB, required
from tests.servers import MariaDBServer

KEY = "the-first-try"
OPEN_TRANSACTIONS = Sql("""
    SELECT COUNT(*) FROM information_schema.innodb_trx t
    JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE()
""")


LIMITS = {"limit_cpus": 4, "limit_memory_mb": 1024, "limit_disk_gb": 10, "expires_in_seconds": 3600}
CLAIMS = "/auth/namespaces/system/claims"
HOLD_CLUSTER = Sql("UPDATE cluster_capacity SET updated_at = updated_at WHERE id = 1")
HOLD_CLAIM = Sql("UPDATE namespace_claims SET updated_at = updated_at WHERE uuid = :uuid")
EVERYTHING = (
    "SELECT * FROM namespace_claims ORDER BY uuid",
    "SELECT * FROM cluster_capacity",
    "SELECT id, payer FROM charges ORDER BY id",
    "SELECT COUNT(*) AS keys_kept FROM idempotency_keys",
    "SELECT COUNT(*) AS told FROM events WHERE object_type IN ('namespace', 'claim')",
)


def everything(rig: Rig) -> list[list[dict[str, Any]]]:
    """All that an act on a claim may change."""
    return [fleet_of.rows(rig.db, statement) for statement in EVERYTHING]


class Asking:
    """A caller in a thread of its own, whose answer is looked at later."""

    def __init__(self, client: Client, *request: Any, **options: Any) -> None:
        self._answer: Answer | None = None
        self._thread = threading.Thread(target=self._ask, args=(client, request, options))
        self._thread.start()

    def _ask(self, client: Client, request: tuple[Any, ...], options: dict[str, Any]) -> None:
        self._answer = client.call(*request, **options)

    def answer(self) -> Answer:
        self._thread.join(60)
        assert self._answer is not None, "the caller hangs"
        return self._answer


def asked(rig: Rig, what: str) -> tuple[str, str, Any]:
    """The request of an act; a claim to change or delete is there already."""
    if what == "grant":
        return "POST", CLAIMS, LIMITS
    claim = claiming.granted(rig.db, "system", 2).uuid
    return (
        ("DELETE", f"{CLAIMS}/{claim}", None) if what == "delete" else ("PUT", f"{CLAIMS}/{claim}", {"limit_cpus": 6})
    )


DONE = {"grant": 201, "change": 200, "delete": 200}


@pytest.mark.parametrize("what", ["grant", "change", "delete"])
def test_an_api_killed_in_the_middle_of_an_act_leaves_nothing_of_it(rig: Rig, start_api: StartApi, what: str) -> None:
    rig.create()
    method, path, body = asked(rig, what)
    dying = start_api()
    client = dying.client()
    before = everything(rig)
    with open_transaction(rig.db) as conn:
        HOLD_CLUSTER.run(conn)
        asking = Asking(client, method, path, body, key=KEY)
        wait_for(rig, lambda: somebody_waits(rig.db), what="the act has reached its last statement")
        for pid in [*dying.worker_pids(), dying.process.pid]:
            os.kill(pid, signal.SIGKILL)
        assert asking.answer().status == LOST
    wait_for(rig, lambda: nobody_is_inside(rig.db), what="no transaction is left open on the server")

    assert everything(rig) == before
    answer = start_api().client().call(method, path, body, key=KEY)
    assert answer.status == DONE[what], answer
    assert rig.differences() == []


@pytest.mark.parametrize("what", ["grant", "change", "delete"])
def test_an_api_killed_while_its_act_commits_has_done_it_and_the_repeat_is_told_so(
    rig: Rig, start_api: StartApi, what: str
) -> None:
    rig.create()
    method, path, body = asked(rig, what)
    with Wire(rig.environment["FLEET_DATABASE_URL"]) as wire:
        dying = start_api(database_url=wire.url)
        client = dying.client()

        def kill() -> None:
            for pid in [*dying.worker_pids(), dying.process.pid]:
                os.kill(pid, signal.SIGKILL)

        wire.meanwhile = kill
        wire.arm(Cut.AFTER)
        assert client.call(method, path, body, key=KEY).status == LOST
        assert wire.cut.is_set()
    wait_for(rig, lambda: nobody_is_inside(rig.db), what="no transaction is left open on the server")

    held = claiming.active_of(rig.db, "system")
    answer = start_api().client().call(method, path, body, key=KEY)
    if what == "delete":
        assert (held, answer.status) == ([], 404), answer
    else:
        assert (answer.status, [answer.body["uuid"]]) == (DONE[what], held), answer
        assert answer.body["limit_cpus"] == {"grant": 4, "change": 6}[what]
    assert claiming.active_of(rig.db, "system") == held
    assert rig.differences() == []


def nobody_is_inside(db: Database) -> bool:
    time.sleep(LOOK_SECONDS)
    with db.read() as conn:
        return int(OPEN_TRANSACTIONS.run(conn).scalar_one()) == 0


@pytest.mark.slow
def test_a_delete_whose_rows_stay_locked_fails_by_name_and_the_claim_stands(rig: Rig, start_api: StartApi) -> None:
    method, path, _ = asked(rig, "delete")
    client = start_api().client()
    before = everything(rig)
    with open_transaction(rig.db) as conn:
        HOLD_CLUSTER.run(conn)
        answer = client.call(method, path)
        assert (answer.status, answer.code) == (500, "claim_delete_failed"), answer
        assert everything(rig) == before
    assert client.call("GET", path).status == 200
    assert client.call(method, path).status == 200
    assert rig.differences() == []


# --- the database goes away --------------------------------------------------------------------------------------


@pytest.fixture
def server() -> Iterator[MariaDBServer]:
    with MariaDBServer(required(MARIADB)) as started:
        yield started


@pytest.fixture
def breakable(tmp_path: Path, server: MariaDBServer, redis_url: str) -> Iterator[tuple[Rig, Api]]:
    made = Rig(tmp_path, server.url(server.create_database()), redis_url)
    with apis_of(made) as start:
        yield made, start()
    made.close()


@pytest.mark.parametrize("how", ["killed", pytest.param("hung", marks=pytest.mark.slow)])
def test_reads_and_acts_while_the_database_is_away_say_so_and_never_that_there_is_no_claim(
    breakable: tuple[Rig, Api], server: MariaDBServer, how: str
) -> None:
    rig, api = breakable
    client = api.client()
    made = client.call("POST", CLAIMS, LIMITS)
    assert made.status == 201, made
    one = f"{CLAIMS}/{made.body['uuid']}"
    before = everything(rig)
    rig.db.close()
    (server.kill if how == "killed" else server.pause)()
    answers = [
        client.call(*request)
        for request in (
            ("GET", CLAIMS),
            ("GET", one),
            ("GET", f"{one}/events"),
            ("PUT", one, {"limit_cpus": 5}),
            ("DELETE", one),
            ("POST", CLAIMS, LIMITS),
        )[: 6 if how == "killed" else 3]
    ]
    (server.start if how == "killed" else server.resume)()
    rig.db.close()

    assert {(answer.status, answer.code) for answer in answers} == {(503, "database_unavailable")}, answers
    assert {answer.retry_after for answer in answers} == {"1"}
    api.wait_until_ready()
    assert client.call("GET", CLAIMS).body["items"] == [made.body]
    assert everything(rig) == before


@pytest.mark.parametrize("what", ["grant", "change", "delete"])
def test_a_database_killed_in_the_middle_of_an_act_undoes_all_of_it(
    breakable: tuple[Rig, Api], server: MariaDBServer, what: str
) -> None:
    rig, api = breakable
    rig.create()
    method, path, body = asked(rig, what)
    client = api.client()
    before = everything(rig)
    with contextlib.suppress(DBAPIError), open_transaction(rig.db) as conn:
        HOLD_CLUSTER.run(conn)
        asking = Asking(client, method, path, body, key=KEY)
        wait_for(rig, lambda: somebody_waits(rig.db), what="the act has reached its last statement")
        server.kill()
    answer = asking.answer()
    server.start()
    rig.db.close()

    assert (answer.status, answer.code, answer.retry_after) == (503, "database_unavailable", "1"), answer
    assert everything(rig) == before
    api.wait_until_ready()
    again = client.call(method, path, body, key=KEY)
    assert again.status == DONE[what], again
    assert rig.differences() == []


# --- the cascade -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_cascade_whose_reconciler_is_killed_half_way_is_ended_by_the_next(rig: Rig) -> None:
    cluster_config.store(rig.db, "CLEANER_DELAY_SECONDS", "0")
    names = claiming.new_namespaces(rig.db, 5)
    uuids = sorted(claiming.granted(rig.db, name, 2, 64).uuid for name in names)
    for name in names:
        assert namespaces.delete(rig.db, name)
    stays = claiming.granted(rig.db, "stays", 3, 64).uuid
    with open_transaction(rig.db) as conn:
        # All that are left: it gives a locked one up after a while, and goes on to the next.
        for uuid in uuids[2:]:
            HOLD_CLAIM.run(conn, uuid=uuid)
        dying = rig.start("reconciler")
        wait_for(
            rig,
            lambda: left(rig) == [*uuids[2:], stays] and somebody_waits(rig.db),
            what="two of five claims are gone, and the third is waited for",
        )
        dying.kill()
        dying.wait(WAIT_SECONDS_MAX)
    wait_for(rig, lambda: nobody_is_inside(rig.db), what="no transaction is left open on the server")
    assert (left(rig), claiming.claimed_cpus(rig.db)) == ([*uuids[2:], stays], 3 * 2 + 3)
    assert rig.differences() == []

    rig.start("reconciler")
    wait_for(rig, lambda: left(rig) == [stays], what="the next reconciler ends the cascade")
    assert claiming.claimed_cpus(rig.db) == 3
    told = fleet_of.events_of(rig.db, "namespace claim deleted, capacity returned")
    for kind in ("claim", "namespace"):
        of_kind = [event for event in told if event["object_type"] == kind]
        assert sorted(json.loads(event["payload"])["claim"] for event in of_kind) == uuids
    assert rig.differences() == []


def left(rig: Rig) -> list[str]:
    found = {row["uuid"]: row["namespace"] for row in fleet_of.rows(rig.db, "SELECT * FROM namespace_claims")}
    return sorted((uuid for uuid in found), key=lambda uuid: (found[uuid] == "stays", uuid))
