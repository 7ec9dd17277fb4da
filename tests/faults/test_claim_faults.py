"""A claim is granted, changed, deleted, folded and cascaded whole, once, or not at all, whatever happens meanwhile."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection
from sqlalchemy.exc import DBAPIError

from fleet.ledger import claim_grants, claim_views, claims, leases, namespace_cleanup, namespaces
from fleet.ledger.claim_grants import Granted
from fleet.ledger.database import Database
from fleet.ledger.namespace_cleanup import Cleaned
from fleet.ledger.verify import verify
from fleet.model.errors import ClaimDeleteFailed, DatabaseUnavailable
from tests.faults.cutting import Cut, Wire
from tests.ledger import claiming, fleet_of
from tests.ledger.fleet_of import ask
from tests.ledger.holding import somebody_waits
from tests.ledger.injecting import Fault, Injector, error, lost
from tests.servers import MariaDBServer, wait_until

RETRIED = (1020, 1213, 1205)
NO_TABLE = 1146
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
        lambda answer: isinstance(answer, Cleaned) and answer.stuck == (),
    )


ACTS = [grant, change, delete, fold, clean]
MANY = 40


@pytest.fixture
def node_id(maria: Database) -> int:
    ENDED.clear()
    return fleet_of.node(maria, cpus=100_000)


def some_ended(db: Database, node_id: int) -> None:
    """Claims past their end that nobody swept, with what they paid."""
    with claiming.long_ago(db):
        for _ in range(MANY):
            [name] = claiming.new_namespaces(db, 1)
            ENDED.append(claiming.granted(db, name, 4, 100))
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
    maria: Database,
    mariadb: MariaDBServer,
    injector: Injector,
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


def refused(act: Act) -> Callable[[Database], Any]:
    """The act, raising also what is told of a claim that could not be cleaned."""

    def do(db: Database) -> Any:
        answer = act.do(db)
        if isinstance(answer, Cleaned):
            assert (answer.gone, [stuck.uuid for stuck in answer.stuck]) == (0, [act.claim])
            raise answer.stuck[0].error
        return answer

    return do


@pytest.mark.parametrize("make", ACTS)
def test_what_no_repetition_mends_undoes_all_of_an_act(
    maria: Database,
    injector: Injector,
    node_id: int,
    make: Callable[[Database, int], Act],
) -> None:
    if make is fold:
        some_ended(maria, node_id)
    for step in range(len(steps_of(maria, injector, node_id, make))):
        act = make(maria, node_id)
        with injector.at(step, no_table), pytest.raises((DBAPIError, ClaimDeleteFailed)) as raised:
            refused(act)(maria)
        assert (raised.type is ClaimDeleteFailed) is (make is delete)
        assert not act.done()
        assert told(maria, act, make.__name__) == 0
        fleet_of.assert_exact(maria)
        assert act.answered(act.do(maria))
        assert_done_once(maria, act, make.__name__)


# --- a COMMIT whose answer is lost -------------------------------------------------------------------------------


@pytest.mark.parametrize("when", ["before", "at once", "late"])
@pytest.mark.parametrize("make", [grant, change, delete])
def test_an_act_whose_commit_is_cut_off_is_answered_as_it_ended(
    maria: Database,
    mariadb_ledger_url: str,
    node_id: int,
    make: Callable[[Database, int], Act],
    when: str,
) -> None:
    with Wire(mariadb_ledger_url) as wire:
        cut_off = Database(wire.url)
        if when == "late":
            # The server is still busy with the COMMIT when its outcome is asked for: who asks waits for it.
            wire.meanwhile = lambda: wait_until(lambda: somebody_waits(maria), seconds=30, what="the outcome is asked")
        for _ in range(3):
            act = make(maria, node_id)
            wire.arm(Cut.BEFORE if when == "before" else Cut.AFTER)
            answer = act.do(cut_off)
            assert wire.cut.is_set()

            assert act.answered(answer), answer
            assert_done_once(maria, act, make.__name__)
        cut_off.close()


# --- looking -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fault", ["lost before", "lost after", "killed"])
@pytest.mark.parametrize("look", [verify, lambda db: claim_views.listing(db, "tenant", 10)])
def test_a_look_whose_session_is_lost_says_that_nothing_is_known(
    maria: Database,
    mariadb: MariaDBServer,
    injector: Injector,
    node_id: int,
    look: Callable[[Database], Any],
    fault: str,
) -> None:
    claiming.granted(maria, "tenant", 4, 100)
    faults = {"lost before": lost(after=False), "lost after": lost(after=True), "killed": kill(mariadb)}
    expected = look(maria)
    for step in range(injector.count(lambda: look(maria))):
        with injector.at(step, faults[fault]), pytest.raises(DatabaseUnavailable):
            look(maria)
        assert look(maria) == expected
