"""Whatever the driver raises, wherever: the whole unit is run again, no caller sees it, and everything exists once."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from pymysql.connections import Connection
from sqlalchemy import event

from fleet.ledger import database, decisions, leases, release, samples
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database
from fleet.ledger.reconcile import reconcile
from fleet.model.admission import AdmissionOutcome, Admitted, AlreadyPlaced, Busy, Refused
from fleet.model.errors import DatabaseUnavailable
from tests.ledger import fleet_of, placing
from tests.ledger.fleet_of import ask
from tests.ledger.holding import open_transaction
from tests.ledger.injecting import Injector, error, lost
from tests.servers import MariaDBServer, wait_until

RETRIED = [1020, 1213, 1205]
OPEN = """
    SELECT COUNT(*) AS n FROM information_schema.innodb_trx t JOIN information_schema.processlist p
        ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND p.id <> CONNECTION_ID()
"""


def assert_once(db: Database, wanted: NodeAsk, outcome: AdmissionOutcome) -> None:
    """The outcome says that the charge stands, and it stands once, with its instance."""
    assert isinstance(outcome, Admitted | AlreadyPlaced), outcome
    held = fleet_of.rows(db, "SELECT node_id FROM charges WHERE instance_uuid = :uuid", uuid=wanted.instance_uuid)
    assert held == [{"node_id": wanted.node_id}]
    fleet_of.assert_exact(db)


def _session_of(connection: Connection) -> int:
    return int(connection.thread_id())  # type: ignore[no-untyped-call]


def paid_by_claim(db: Database, node_id: int) -> NodeAsk:
    return ask(node_id, namespace="claimed")


def paid_by_cluster(db: Database, node_id: int) -> NodeAsk:
    return ask(node_id)


def placed_again(db: Database, node_id: int) -> NodeAsk:
    source = fleet_of.node(db, cpus=1)
    return ask(node_id, instance_uuid=fleet_of.admitted(db, ask(source)), source=source)


ASKS = [paid_by_cluster, paid_by_claim, placed_again]


def grown_at_the_claims_cost(db: Database, node_id: int) -> NodeAsk:
    instance = fleet_of.admitted(db, ask(node_id, cpus=2, disk_gb=2, namespace="claimed"))
    return ask(node_id, cpus=3, memory_mb=2, disk_gb=1, namespace="claimed", instance_uuid=instance)


def grown_at_the_clusters_cost(db: Database, node_id: int) -> NodeAsk:
    instance = fleet_of.admitted(db, ask(node_id, cpus=2, disk_gb=2))
    return ask(node_id, cpus=3, memory_mb=2, disk_gb=1, instance_uuid=instance)


GROWN = [grown_at_the_claims_cost, grown_at_the_clusters_cost]


def assert_grown(db: Database, wanted: NodeAsk) -> None:
    """The charge has its new size, once, and so has everything that counts it."""
    held = fleet_of.rows(
        db, "SELECT cpus, memory_mb, disk_gb FROM charges WHERE instance_uuid = :uuid", uuid=wanted.instance_uuid
    )
    assert held == [{"cpus": 3, "memory_mb": 2, "disk_gb": 1}]
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("number", RETRIED)
@pytest.mark.parametrize("make", ASKS)
def test_b14_an_admission_survives_a_conflict_at_every_step(
    maria: Database,
    injector: Injector,
    make: Callable[[Database, int], NodeAsk],
    number: int,
) -> None:
    node_id = fleet_of.node(maria, cpus=1000)
    fleet_of.claim(maria, limit=(4, 4, 4), namespace="claimed")
    first = make(maria, node_id)
    steps = injector.count(lambda: fleet_of.admit(maria, first))
    assert steps >= 3
    for step in range(steps):
        wanted = make(maria, node_id)
        with injector.at(step, error(number)):
            outcome = fleet_of.admit(maria, wanted)
        assert injector.struck
        if isinstance(outcome, Busy):
            # The one statement that never waits: there, 1205 says that the row is locked.
            assert (number, injector.steps[-1].startswith("SET STATEMENT")) == (1205, True)
            continue
        assert_once(maria, wanted, outcome)


@pytest.mark.parametrize("make", ASKS)
@pytest.mark.parametrize("after", [False, True])
def test_an_admission_whose_connection_breaks_at_any_step_is_read_back_by_its_key(
    maria: Database,
    injector: Injector,
    make: Callable[[Database, int], NodeAsk],
    *,
    after: bool,
) -> None:
    node_id = fleet_of.node(maria, cpus=1000)
    fleet_of.claim(maria, limit=(4, 4, 4), namespace="claimed")
    first = make(maria, node_id)
    for step in range(injector.count(lambda: fleet_of.admit(maria, first))):
        wanted = make(maria, node_id)
        with injector.at(step, lost(after=after)):
            outcome = fleet_of.admit(maria, wanted)
        assert injector.struck
        assert_once(maria, wanted, outcome)
        committed = after and injector.steps[step] == "commit"
        assert isinstance(outcome, AlreadyPlaced if committed else Admitted)


@pytest.mark.parametrize("number", RETRIED)
@pytest.mark.parametrize("make", GROWN)
def test_b14_growth_in_place_survives_a_conflict_at_every_step(
    maria: Database,
    injector: Injector,
    make: Callable[[Database, int], NodeAsk],
    number: int,
) -> None:
    node_id = fleet_of.node(maria, cpus=1000)
    fleet_of.claim(maria, limit=(4, 4, 4), namespace="claimed")
    first = make(maria, node_id)
    assert fleet_of.charged_to(maria)  # the reading connection is open
    reading = 1
    for step in range(reading, injector.count(lambda: fleet_of.grow(maria, first))):
        wanted = make(maria, node_id)
        with injector.at(step, error(number)):
            outcome = fleet_of.grow(maria, wanted)
        assert injector.struck
        if isinstance(outcome, Busy):
            assert (number, injector.steps[-1].startswith("SET STATEMENT")) == (1205, True)
            continue
        assert isinstance(outcome, Admitted)
        assert_grown(maria, wanted)


@pytest.mark.parametrize("make", GROWN)
@pytest.mark.parametrize("after", [False, True])
def test_growth_whose_connection_breaks_at_any_step_is_read_back_by_its_size(
    maria: Database,
    injector: Injector,
    make: Callable[[Database, int], NodeAsk],
    *,
    after: bool,
) -> None:
    node_id = fleet_of.node(maria, cpus=1000)
    fleet_of.claim(maria, limit=(4, 4, 4), namespace="claimed")
    first = make(maria, node_id)
    assert fleet_of.charged_to(maria)  # the reading connection is open
    reading = 1
    for step in range(reading, injector.count(lambda: fleet_of.grow(maria, first))):
        wanted = make(maria, node_id)
        with injector.at(step, lost(after=after)):
            outcome = fleet_of.grow(maria, wanted)
        assert injector.struck
        committed = after and injector.steps[step] == "commit"
        assert isinstance(outcome, AlreadyPlaced if committed else Admitted)
        assert_grown(maria, wanted)


def test_a_session_that_is_killed_at_any_step_leaves_one_charge(
    maria: Database,
    mariadb: MariaDBServer,
    injector: Injector,
) -> None:
    node_id = fleet_of.node(maria, cpus=1000)

    def kill(connection: Connection, proceed: Callable[[], Any]) -> Any:
        with mariadb.connect() as other, other.cursor() as cursor:
            cursor.execute(f"KILL {_session_of(connection)}")
        return proceed()

    for step in range(injector.count(lambda: fleet_of.admit(maria, ask(node_id)))):
        wanted = ask(node_id)
        with injector.at(step, kill):
            outcome = fleet_of.admit(maria, wanted)
        assert_once(maria, wanted, outcome)


def test_b15_the_last_slot_stays_one_slot_when_its_holders_session_dies_before_the_commit(
    maria: Database,
    mariadb: MariaDBServer,
    injector: Injector,
) -> None:
    node_id = fleet_of.node(maria, cpus=4)
    commit = injector.commit_step(lambda: fleet_of.admit(maria, ask(node_id)))
    fleet_of.admitted(maria, ask(node_id, cpus=2))
    winner = ask(node_id)

    def overtaken(connection: Connection, proceed: Callable[[], Any]) -> Any:
        with mariadb.connect() as other, other.cursor() as cursor:
            cursor.execute(f"KILL {_session_of(connection)}")
        wait_until(
            lambda: isinstance(fleet_of.admit(maria, winner), Admitted | AlreadyPlaced),
            seconds=30,
            what="the row is free",
        )
        return proceed()

    with injector.at(commit, overtaken):
        outcome = fleet_of.admit(maria, ask(node_id))

    assert isinstance(outcome, Refused)
    assert winner.instance_uuid in fleet_of.charged_to(maria)
    assert fleet_of.used(maria, node_id)[0] == 4
    fleet_of.assert_exact(maria)


def test_named_locks_are_never_used(maria: Database) -> None:
    node_id = fleet_of.node(maria, cpus=4)
    with open_transaction(maria) as conn:
        conn.exec_driver_sql(f"UPDATE scheduler_node_capacity SET used_cpus = used_cpus WHERE node_id = {node_id}")
        assert fleet_of.admit(maria, ask(node_id)) == Busy(node_id)
    assert isinstance(fleet_of.admit(maria, ask(node_id)), Admitted)


# --- every other unit --------------------------------------------------------------------------------------------


def deleting(db: Database, node_id: int) -> Callable[[], Any]:
    instance = fleet_of.admitted(db, ask(node_id, namespace="claimed"))
    return lambda: fleet_of.delete(db, instance)


def settling(db: Database, node_id: int) -> Callable[[], Any]:
    instance = fleet_of.admitted(db, ask(node_id))
    return lambda: fleet_of.settle(db, instance)


def publishing(db: Database, node_id: int) -> Callable[[], Any]:
    cpus = 1001 if fleet_of.row(db, node_id)["limit_cpus"] == 1000 else 1000
    return lambda: fleet_of.publish(db, "n", cpus=cpus)


def cordoning(db: Database, node_id: int) -> Callable[[], Any]:
    samples.set_scheduling(db, "n", "enabled")
    return lambda: samples.set_scheduling(db, "n", "cordoned")


def reconciling(db: Database, node_id: int) -> Callable[[], Any]:
    fleet_of.execute(
        db,
        "UPDATE scheduler_node_capacity SET used_cpus = used_cpus + 3, expected_demand = 5 WHERE node_id = :id",
        id=node_id,
    )
    fleet_of.execute(db, "UPDATE namespace_claims SET used_cpus = used_cpus + 1")
    lease = leases.acquire(db, "reconciler", "test", 600) or leases.Lease("reconciler", "test", 1)
    return lambda: reconcile(db, lease, fleet_of.PLAIN)


@pytest.mark.parametrize("number", [*RETRIED, 2013])
@pytest.mark.parametrize("make", [deleting, settling, publishing, cordoning, reconciling])
def test_every_unit_survives_a_conflict_at_every_step(
    maria: Database,
    injector: Injector,
    make: Callable[[Database, int], Callable[[], Any]],
    number: int,
) -> None:
    node_id = fleet_of.node(maria, "n", cpus=1000)
    fleet_of.claim(maria, limit=(4, 4, 4), namespace="claimed")
    step = 0
    while True:
        action = make(maria, node_id)
        with injector.at(step, lost(after=True) if number == 2013 else error(number)):
            try:
                action()
            except DatabaseUnavailable:
                # A plain read is not run again (nothing conflicts with it): its caller does that.
                assert make is reconciling
                action()
        fleet_of.assert_exact(maria)
        if not injector.struck:
            break
        step += 1
    assert step >= 4


# --- B17 ---------------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_b17_a_lock_wait_in_the_middle_of_a_create_undoes_all_of_it_and_the_create_succeeds_later(
    maria: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_WAIT_SECONDS", 1)
    node_id = fleet_of.node(maria, cpus=4)
    patient = Database(maria.url.render_as_string(hide_password=False))
    before = fleet_of.row(maria, node_id)["generation"]
    outcome: list[AdmissionOutcome] = []
    undone: list[object] = []
    event.listen(patient.engine, "rollback", undone.append)
    with open_transaction(maria) as conn:
        conn.exec_driver_sql("UPDATE cluster_capacity SET claimed_cpus = claimed_cpus WHERE id = 1")
        thread = threading.Thread(target=lambda: outcome.append(fleet_of.admit(patient, ask(node_id))))
        thread.start()
        # The unit gave up once and starts over: the first try's half is gone, the second waits.
        wait_until(lambda: len(undone) > 0, seconds=30, what="the first try is undone")
        assert fleet_of.row(maria, node_id)["generation"] == before
        assert fleet_of.charged_to(maria) == {}
    thread.join(60)
    patient.close()

    assert isinstance(outcome[0], Admitted)
    fleet_of.assert_exact(maria)


@pytest.mark.slow
def test_b17_a_lock_that_is_never_released_ends_in_unavailable_and_leaves_nothing(
    maria: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "LOCK_WAIT_SECONDS", 1)
    node_id = fleet_of.node(maria, cpus=4)
    patient = Database(maria.url.render_as_string(hide_password=False))
    with open_transaction(maria) as conn:
        conn.exec_driver_sql("UPDATE cluster_capacity SET claimed_cpus = claimed_cpus WHERE id = 1")
        with pytest.raises(DatabaseUnavailable, match="try again"):
            fleet_of.admit(patient, ask(node_id))
        assert fleet_of.rows(patient, OPEN)[0]["n"] == 1, "only the holder's transaction is open"
    patient.close()

    assert fleet_of.charged_to(maria) == {}
    assert fleet_of.used(maria, node_id) == (0, 0, 0, 0)
    fleet_of.assert_exact(maria)


def test_b17_an_error_of_the_callers_own_rows_rolls_everything_back(maria: Database) -> None:
    node_id = fleet_of.node(maria, cpus=4)

    def broken(_batch: object) -> None:
        raise LookupError("the caller's own")

    with pytest.raises(LookupError):
        database_admit(maria, ask(node_id), broken)
    assert fleet_of.rows(maria, OPEN)[0]["n"] == 0
    assert fleet_of.used(maria, node_id) == (0, 0, 0, 0)
    fleet_of.assert_exact(maria)


def database_admit(db: Database, wanted: NodeAsk, rows: Callable[[Any], None]) -> AdmissionOutcome:
    from fleet.ledger import admission

    return admission.admit(db, wanted, admission.Rows(new=rows))


def test_a_repeated_release_after_a_lost_commit_gives_back_once(
    maria: Database,
    injector: Injector,
) -> None:
    node_id = fleet_of.node(maria, cpus=8)
    stays, goes = fleet_of.admitted(maria, ask(node_id)), fleet_of.admitted(maria, ask(node_id))
    spare = fleet_of.admitted(maria, ask(node_id))
    commit = injector.commit_step(lambda: fleet_of.delete(maria, spare))
    with injector.at(commit, lost(after=True)):
        assert isinstance(fleet_of.delete(maria, goes), release.NothingToRelease)

    assert set(fleet_of.charged_to(maria)) == {stays}
    fleet_of.assert_exact(maria)


@pytest.mark.parametrize("after", [False, True])
def test_a_base_whose_commit_lost_its_answer_is_stored_once(
    maria: Database,
    injector: Injector,
    *,
    after: bool,
) -> None:
    fleet_of.node(maria, cpus=1)  # opens the connection
    commit = injector.commit_step(lambda: decisions.insert_base(maria, "first", None, b"x"))
    with injector.at(commit, lost(after=after)):
        decisions.insert_base(maria, "second", None, b"y")

    assert injector.struck
    assert decisions.base(maria, "second") == (b"y",)


@pytest.mark.parametrize("after", [False, True])
def test_a_refusal_whose_commit_lost_its_answer_is_answered_and_stored_once(
    maria: Database,
    injector: Injector,
    *,
    after: bool,
) -> None:
    ctx = placing.context(maria)
    placing.node(maria, ctx, "a", cpus=1)
    refusal = placing.refused(placing.create(ctx, {"cpus": 9}))
    row = decisions.get(maria, refusal.decision_id or "")
    assert row is not None
    first, second = (replace(row, id=str(uuid.uuid4())) for _ in range(2))
    commit = injector.commit_step(lambda: decisions.keep(maria, first))
    with injector.at(commit, lost(after=after)):
        decisions.keep(maria, second)

    assert injector.struck
    found = decisions.get(maria, second.id)
    assert found is not None
    assert (found.code, len(fleet_of.rows(maria, "SELECT id FROM decisions"))) == ("out_of_capacity", 3)
