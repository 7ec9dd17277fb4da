"""A claim is granted, changed, deleted, folded and cascaded whole, once, or not at all, whatever happens meanwhile."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection
from sqlalchemy.exc import DBAPIError

from fleet.ledger import claim_grants, claims, cluster_config, leases, namespace_cleanup, namespaces
from fleet.ledger.claim_grants import Granted
from fleet.ledger.database import Database, Sql
from fleet.model.errors import ClaimDeleteFailed, DatabaseUnavailable
from tests.faults.cutting import Cut, Wire
from tests.faults.rig import Rig
from tests.faults.soak import LOST, Answer, Api, Client, StartApi, apis_of, wait_for
from tests.ledger import claiming, fleet_of
from tests.ledger.fleet_of import ask
from tests.ledger.holding import LOOK_SECONDS, WAITING, open_transaction
from tests.ledger.injecting import Fault, Injector, error, injector, lost  # noqa: F401  # a fixture
from tests.ledger.ledgers import maria, mariadb_ledger, mariadb_ledger_url  # noqa: F401  # fixtures
from tests.provision import MARIADB, required
from tests.servers import MariaDBServer, wait_until

RETRIED = (1020, 1213, 1205)
NO_TABLE = 1146
KEY = "the-first-try"
OPEN_TRANSACTIONS = Sql("""
    SELECT COUNT(*) FROM information_schema.innodb_trx t
    JOIN information_schema.processlist p ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE()
""")
MESSAGES = {
    "grant": "db record created",
    "change": "namespace claim changed",
    "delete": "namespace claim deleted, capacity returned",
    "fold": "namespace claim expired, usage folded",
    "clean": "namespace claim deleted, capacity returned",
}


@dataclass(frozen=True, slots=True)
class Act:
    """One act on a claim: `do` does it, `done` says whether the ledger has it, `answer` is what a caller must get."""

    claim: str
    do: Callable[[Database], Any]
    done: Callable[[], bool]
    answered: Callable[[Any], bool]


def of_fresh_namespace(db: Database, node_id: int) -> str:
    """A namespace for which the cluster pays two instances."""
    [name] = claiming.new_namespaces(db, 1)
    for cpus in (1, 2):
        fleet_of.admitted(db, ask(node_id, cpus=cpus, namespace=name))
    return name


def grant(db: Database, node_id: int) -> Act:
    name, claim = of_fresh_namespace(db, node_id), str(uuid.uuid4())
    return Act(
        claim,
        lambda db: claiming.grant(db, name, 4, 100, claim=claim),
        lambda: claiming.active_of(db, name) == [claim] and fleet_of.claim_row(db, claim)["used_cpus"] == 3,
        lambda answer: isinstance(answer, Granted) and answer.uuid == claim,
    )


def change(db: Database, node_id: int) -> Act:
    name = of_fresh_namespace(db, node_id)
    claim = claiming.granted(db, name, 4, 100).uuid
    return Act(
        claim,
        lambda db: claim_grants.change(db, claim, {"cpus": 6, "memory_mb": 50}),
        lambda: [fleet_of.claim_row(db, claim)[name] for name in ("limit_cpus", "limit_memory_mb")] == [6, 50],
        lambda answer: isinstance(answer, Granted) and answer.limits.cpus == 6,
    )


def delete(db: Database, node_id: int) -> Act:
    name = of_fresh_namespace(db, node_id)
    claim = claiming.granted(db, name, 4, 100).uuid
    return Act(
        claim,
        lambda db: claim_grants.delete(db, claim, by="test"),
        lambda: claiming.active_of(db, name) == [],
        lambda answer: answer is not None and (answer.uuid, answer.used.cpus) == (claim, 3),
    )


ENDED: list[Granted] = []


def fold(db: Database, node_id: int) -> Act:
    claim = ENDED.pop().uuid
    return Act(
        claim,
        lambda db: db.unit(lambda conn: claims.fold_expired(conn, claim)),
        lambda: fleet_of.claim_row(db, claim)["folded"] == 1,
        lambda answer: isinstance(answer, bool),
    )


def clean(db: Database, node_id: int) -> Act:
    [name] = claiming.new_namespaces(db, 1)
    claim = claiming.granted(db, name, 4, 100).uuid
    assert namespaces.delete(db, name)
    lease = leases.acquire(db, "reconciler", "test", 600) or leases.Lease("reconciler", "test", 1)
    return Act(
        claim,
        lambda db: namespace_cleanup.clean(db, lease, 0),
        lambda: claiming.active_of(db, name) == [],
        lambda answer: isinstance(answer, int),
    )


ACTS = [grant, change, delete, fold, clean]
MANY = 40


@pytest.fixture
def node_id(maria: Database) -> int:  # noqa: F811
    ENDED.clear()
    return fleet_of.node(maria, cpus=100_000)


def some_ended(db: Database, node_id: int) -> None:
    """Claims past their end that nobody swept, with what they paid."""
    for _ in range(MANY):
        [name] = claiming.new_namespaces(db, 1)
        ENDED.append(claiming.granted(db, name, 4, 100, seconds=3))
        fleet_of.admitted(db, ask(node_id, cpus=1, namespace=name))
    claiming.until_past(db, *ENDED)


def told(db: Database, act: Act, what: str) -> int:
    """How often a timeline tells of the act: the claim's own, and its namespace's, where it has an entry."""
    found = fleet_of.events_of(db, MESSAGES[what])
    own = [event for event in found if (event["object_type"], event["object_id"]) == ("claim", act.claim)]
    theirs = [event for event in found if json.loads(event["payload"]).get("claim") == act.claim]
    return max(len(own), len([event for event in theirs if event["object_type"] == "namespace"]))


def assert_done_once(db: Database, act: Act, what: str) -> None:
    assert act.done()
    assert told(db, act, what) == 1
    fleet_of.assert_exact(db)


def steps_of(db: Database, injected: Injector, node_id: int, make: Callable[[Database, int], Act]) -> list[str]:
    make(db, node_id).do(db)  # opens the connections
    act = make(db, node_id)
    injected.count(lambda: act.do(db))
    assert_done_once(db, act, make.__name__)
    return list(injected.steps)


def kill(server: MariaDBServer) -> Fault:
    """The session dies before the statement is sent."""

    def fault(connection: Connection, proceed: Callable[[], Any]) -> Any:
        with server.connect() as other, other.cursor() as cursor:
            cursor.execute(f"KILL {int(connection.thread_id())}")  # type: ignore[no-untyped-call]
        return proceed()

    return fault


def no_table(connection: Connection, proceed: Callable[[], Any]) -> Any:
    """What no repetition mends."""
    raise pymysql.err.ProgrammingError(NO_TABLE, "injected: no such table")


@pytest.mark.parametrize("fault", [*RETRIED, "lost before", "lost after", "killed"])
@pytest.mark.parametrize("make", ACTS)
def test_whatever_strikes_at_any_statement_an_act_is_done_once_or_not_at_all_and_its_repeat_finds_out(
    maria: Database,  # noqa: F811
    mariadb: MariaDBServer,
    injector: Injector,  # noqa: F811
    node_id: int,
    make: Callable[[Database, int], Act],
    fault: int | str,
) -> None:
    if make is fold:
        some_ended(maria, node_id)
    faults = {"lost before": lost(after=False), "lost after": lost(after=True), "killed": kill(mariadb)}
    steps = steps_of(maria, injector, node_id, make)
    assert "commit" in steps
    for step in range(len(steps)):
        act = make(maria, node_id)
        with injector.at(step, faults[fault] if isinstance(fault, str) else error(fault)):
            try:
                answer = act.do(maria)
            except DatabaseUnavailable:
                # A plain read is not repeated: then nothing was begun.
                assert injector.steps[step].lstrip().startswith("SELECT"), injector.steps[step]
                assert not act.done()
                fleet_of.assert_exact(maria)
                answer = act.do(maria)
        assert injector.struck
        assert act.answered(answer), (injector.steps[step], answer)
        assert_done_once(maria, act, make.__name__)


@pytest.mark.parametrize("make", ACTS)
def test_what_no_repetition_mends_undoes_all_of_an_act(
    maria: Database,  # noqa: F811
    injector: Injector,  # noqa: F811
    node_id: int,
    make: Callable[[Database, int], Act],
) -> None:
    if make is fold:
        some_ended(maria, node_id)
    for step in range(len(steps_of(maria, injector, node_id, make))):
        act = make(maria, node_id)
        with injector.at(step, no_table), pytest.raises((DBAPIError, ClaimDeleteFailed)) as raised:
            act.do(maria)
        assert (raised.type is ClaimDeleteFailed) is (make is delete)
        assert not act.done()
        assert told(maria, act, make.__name__) == 0
        fleet_of.assert_exact(maria)
        assert act.answered(act.do(maria))
        assert_done_once(maria, act, make.__name__)


# --- a COMMIT whose answer is lost -------------------------------------------------------------------------------


def somebody_waits(db: Database) -> bool:
    time.sleep(LOOK_SECONDS)
    with db.read() as conn:
        return bool(WAITING.run(conn).scalar_one())


@pytest.mark.parametrize("when", ["before", "at once", "late"])
@pytest.mark.parametrize("make", [grant, change, delete])
def test_an_act_whose_commit_is_cut_off_is_answered_as_it_ended(
    maria: Database,  # noqa: F811
    mariadb_ledger_url: str,  # noqa: F811
    node_id: int,
    make: Callable[[Database, int], Act],
    when: str,
) -> None:
    with Wire(mariadb_ledger_url) as wire:
        cut_off = Database(wire.url)
        if when == "late":
            # The server is still busy with the COMMIT when its outcome is asked for: who asks waits for it.
            wire.meanwhile = lambda: wait_until(lambda: somebody_waits(maria), seconds=5, what="the outcome is asked")
        for _ in range(3):
            act = make(maria, node_id)
            wire.arm(Cut.BEFORE if when == "before" else Cut.AFTER)
            answer = act.do(cut_off)
            assert wire.cut.is_set()

            assert act.answered(answer), answer
            assert_done_once(maria, act, make.__name__)
        cut_off.close()


# --- the process that does it ------------------------------------------------------------------------------------


@pytest.fixture
def rig(tmp_path: Path, mariadb_url: str, redis_url: str) -> Iterator[Rig]:
    made = Rig(tmp_path, mariadb_url, redis_url)
    yield made
    made.close()


@pytest.fixture
def start_api(rig: Rig) -> Iterator[StartApi]:
    with apis_of(rig) as start:
        yield start


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
        wait_for(rig, lambda: somebody_waits(rig.db), seconds=20, what="the act has reached its last statement")
        for pid in [*dying.worker_pids(), dying.process.pid]:
            os.kill(pid, signal.SIGKILL)
        assert asking.answer().status == LOST
    wait_for(rig, lambda: nobody_is_inside(rig.db), seconds=20, what="no transaction is left open on the server")

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
    wait_for(rig, lambda: nobody_is_inside(rig.db), seconds=20, what="no transaction is left open on the server")

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
        wait_for(rig, lambda: somebody_waits(rig.db), seconds=20, what="the act has reached its last statement")
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
        HOLD_CLAIM.run(conn, uuid=uuids[2])
        dying = rig.start("reconciler")
        wait_for(
            rig,
            lambda: left(rig) == [*uuids[2:], stays] and somebody_waits(rig.db),
            seconds=60,
            what="two of five claims are gone, and the third is waited for",
        )
        dying.kill()
        dying.wait(10)
    wait_for(rig, lambda: nobody_is_inside(rig.db), seconds=20, what="no transaction is left open on the server")
    assert (left(rig), claiming.claimed_cpus(rig.db)) == ([*uuids[2:], stays], 3 * 2 + 3)
    assert rig.differences() == []

    rig.start("reconciler")
    wait_for(rig, lambda: left(rig) == [stays], seconds=90, what="the next reconciler ends the cascade")
    assert claiming.claimed_cpus(rig.db) == 3
    told = fleet_of.events_of(rig.db, MESSAGES["clean"])
    assert sorted(json.loads(event["payload"])["claim"] for event in told) == uuids
    assert rig.differences() == []


def left(rig: Rig) -> list[str]:
    found = {row["uuid"]: row["namespace"] for row in fleet_of.rows(rig.db, "SELECT * FROM namespace_claims")}
    return sorted((uuid for uuid in found), key=lambda uuid: (found[uuid] == "stays", uuid))
