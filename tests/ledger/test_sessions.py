"""Sessions: their settings are set and verified, nothing is left open, and no two threads or processes share one."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from pymysql.cursors import Cursor
from sqlalchemy import Connection

from fleet.ledger.database import Database, Sql
from fleet.ledger.verify import verify
from fleet.model.admission import Admitted
from fleet.model.errors import BrokenPromise
from tests.ledger import fleet_of, racing
from tests.ledger.fleet_of import ask
from tests.ledger.racing import Threads
from tests.servers import MariaDBServer

SETTINGS = "SELECT @@tx_isolation AS isolation, @@time_zone AS zone, @@innodb_lock_wait_timeout AS wait"
OPEN = Sql("""
    SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p
        ON p.id = t.trx_mysql_thread_id WHERE p.db = DATABASE() AND p.id <> CONNECTION_ID()
""")


def open_transactions(db: Database) -> int:
    with db.read() as conn:
        return int(OPEN.run(conn).scalar_one())


def test_every_session_is_read_committed_and_utc(maria: Database) -> None:
    wanted = {"isolation": "READ-COMMITTED", "zone": "+00:00", "wait": 2}

    assert fleet_of.rows(maria, SETTINGS) == [wanted]
    assert dict(maria.unit(lambda conn: conn.exec_driver_sql(SETTINGS).mappings().one())) == wanted


@pytest.mark.parametrize("unheard", ["ISOLATION LEVEL READ COMMITTED", "SET SESSION time_zone"])
def test_a_session_that_does_not_take_its_settings_is_refused(
    mariadb_ledger_url: str, monkeypatch: pytest.MonkeyPatch, unheard: str
) -> None:
    execute = Cursor.execute

    def deaf(cursor: Cursor, query: Any, args: Any = None) -> int:
        return 0 if unheard in str(query) else execute(cursor, query, args)

    monkeypatch.setattr(Cursor, "execute", deaf)
    db = Database(mariadb_ledger_url)
    with monkeypatch.context() as other:
        other.setenv("TZ", "Asia/Tokyo")
        with pytest.raises(BrokenPromise, match="the guard needs"), db.read() as conn:
            conn.exec_driver_sql("SELECT 1")
    db.close()


def test_rows_matched_are_counted_not_rows_changed(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=4)
    same = "UPDATE scheduler_node_capacity SET used_cpus = used_cpus WHERE node_id = :node_id"

    assert fleet_of.execute(db, same, node_id=node_id) == 1
    assert fleet_of.execute(db, same, node_id=node_id + 1) == 0


def test_b13_a_long_lived_reader_sees_every_commit_at_its_next_read(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=9)
    with db.read() as conn:
        for expected in range(3):
            assert fleet_of.NODE_ROW.run(conn, node_id=node_id).mappings().one()["used_cpus"] == expected
            fleet_of.admitted(db, ask(node_id))


def test_b13_no_transaction_is_left_open_by_a_read_a_unit_or_a_failure(maria: Database) -> None:
    node_id = fleet_of.node(maria, cpus=1)

    def fails(conn: Connection) -> None:
        fleet_of.NODE_ROW.run(conn, node_id=node_id).all()
        raise LookupError

    actions: list[Callable[[], object]] = [
        lambda: fleet_of.row(maria, node_id),
        lambda: fleet_of.admit(maria, ask(node_id)),
        lambda: fleet_of.admit(maria, ask(node_id)),
        lambda: verify(maria),
        lambda: maria.unit(fails),
    ]
    for action in actions:
        with suppress(LookupError):
            action()
        assert open_transactions(maria) == 0


def work_mixed(db: Database, node_id: int, rounds: int) -> list[str]:
    """Ask for what only this thread knows the answer of; return every answer that was meant for somebody else."""
    wrong = []
    for _ in range(rounds):
        wanted = ask(node_id)
        outcome = racing.until_decided(db, lambda: None, racing.guarded, wanted)
        held = fleet_of.rows(db, "SELECT instance_uuid FROM charges WHERE instance_uuid = :u", u=wanted.instance_uuid)
        if not isinstance(outcome, Admitted) or held != [{"instance_uuid": wanted.instance_uuid}]:
            wrong.append(f"{outcome} {held}")
        fleet_of.delete(db, wanted.instance_uuid)
    return wrong


@pytest.mark.slow
def test_b18_sixteen_threads_on_one_database_and_forked_children_never_get_anothers_answer(
    maria: Database, mariadb_ledger_url: str
) -> None:
    node_ids = [fleet_of.node(maria, cpus=1000) for _ in range(8)]
    children = [forking(mariadb_ledger_url, node_id) for node_id in node_ids[:2]]
    answers: list[list[str]] = []

    def mixed(index: int) -> None:
        answers.append(work_mixed(maria, node_ids[index % len(node_ids)], 8))

    threads = [threading.Thread(target=mixed, args=(index,)) for index in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)

    assert answers == [[]] * 16
    for child in children:
        out, err = child.communicate(timeout=60)
        assert (child.returncode, out.strip(), err) == (0, "ok", "")
    assert fleet_of.charged_to(maria) == {}
    fleet_of.assert_exact(maria)


def forking(url: str, node_id: int) -> subprocess.Popen[str]:
    """A process that uses its `Database`, then forks children that use the same object, as a job worker would."""
    return subprocess.Popen(
        [sys.executable, "-m", "tests.ledger.forking", url, str(node_id)],
        cwd=Path(__file__).parents[2],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": "src"},
    )


@pytest.fixture
def snapshot_isolation(mariadb: MariaDBServer) -> Iterator[str]:
    """Newer servers' default, switched on for new sessions where the server knows it."""
    with mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SHOW GLOBAL VARIABLES LIKE 'innodb_snapshot_isolation'")
        found = cursor.fetchone()
        if found is None:
            cursor.execute("SELECT VERSION()")
            version = (cursor.fetchone() or ("?",))[0]
            pytest.skip(f"MariaDB {version} has no innodb_snapshot_isolation")
        cursor.execute("SET GLOBAL innodb_snapshot_isolation = ON")
        yield "ON"
        cursor.execute(f"SET GLOBAL innodb_snapshot_isolation = {found[1]}")


@pytest.mark.slow
def test_b14_with_snapshot_isolation_on_no_conflict_reaches_a_caller(
    snapshot_isolation: str, mariadb_ledger_url: str
) -> None:
    db = Database(mariadb_ledger_url)
    assert fleet_of.rows(db, "SELECT @@innodb_snapshot_isolation AS v") == [{"v": 1}]
    node_id = fleet_of.node(db, cpus=30)
    with Threads(mariadb_ledger_url, 12) as racers:
        for _ in range(3):
            orders = [(racing.guarded, [[ask(node_id)] for _ in range(5)]) for _ in range(racers.size)]
            answers = racers.run(racing.walk, orders)
            assert [answer for answer in answers if isinstance(answer, str)] == []
            admitted = sum(isinstance(one, Admitted) for answer in answers for create in answer for one in create)
            assert admitted == 30
            for instance in fleet_of.charged_to(db):
                fleet_of.delete(db, instance)
    fleet_of.assert_exact(db)
    db.close()
