"""How long a unit of work goes on trying, and what its failure says about the change."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import NoReturn

import pymysql
import pytest
from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, OperationalError

from fleet.ledger.database import UNIT_SECONDS_MAX, Database, Sql
from fleet.ledger.migrate import migrate
from fleet.model.errors import DatabaseUnavailable

ANSWER_SECONDS = 5.0


def test_a_server_that_hangs_is_not_asked_again_once_the_callers_patience_is_used_up(sqlite_url: str) -> None:
    began: list[float] = []
    now = 0.0
    database = Database(sqlite_url, sleep=lambda _seconds: None, monotonic=lambda: now)

    def work(_conn: Connection) -> NoReturn:
        nonlocal now
        began.append(now)
        now += ANSWER_SECONDS
        raise OperationalError("UPDATE", None, pymysql.err.OperationalError(2013, "timed out"))

    with pytest.raises(DatabaseUnavailable, match="nothing was decided"):
        database.unit(work)
    database.close()

    assert began == [0.0, ANSWER_SECONDS]
    assert max(began) <= UNIT_SECONDS_MAX


@pytest.mark.parametrize("wrong", ["stranger@", "root:wrong@", "root@"])
def test_a_server_that_does_not_let_us_in_is_unavailable(mariadb_ledger_url: str, wrong: str) -> None:
    url = mariadb_ledger_url.replace("root@", wrong)
    database = Database(url + "_not_there" if wrong == "root@" else url)

    with pytest.raises(DatabaseUnavailable, match=r"1045|1049"), database.read():
        pass
    database.close()


def test_a_broken_constraint_is_no_reason_to_try_later(db: Database) -> None:
    second = Sql("INSERT INTO cluster_capacity (id, updated_at) VALUES (2, {now})")

    with pytest.raises(DBAPIError, match="singleton"):
        db.unit(second.run)


def test_a_database_file_is_its_owners_only(tmp_path: Path) -> None:
    """Also the files beside it, for as long as they are there."""
    before = os.umask(0o022)
    database = Database(f"sqlite:///{tmp_path / 'ledger.db'}")
    try:
        migrate(database)
        modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    finally:
        os.umask(before)
        database.close()

    assert modes == dict.fromkeys(("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.migrating"), 0o600)
