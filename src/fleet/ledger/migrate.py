"""Migrations: the only way a schema changes. A fresh schema and a migrated one are the same (tested)."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from fleet.ledger.database import Database, Sql
from fleet.model.errors import DatabaseUnavailable

MIGRATIONS = Path(__file__).parent / "migrations"
TURNS_MAX = 60
FILE_TRIES_MAX = 600
FILE_PAUSE_SECONDS = 0.05
# A named lock: there is no table yet that could be locked, and nothing but the order of two migrations rests on it.
# Each wait is shorter than a session waits for an answer.
TAKE_TURN = "SELECT GET_LOCK(CONCAT('fleet-migrate-', MD5(DATABASE())), 2)"
# Where somebody lost it; the reconciler's next look fills it with the truth.
CLUSTER_ROW = Sql(
    "INSERT {ignore} INTO cluster_capacity (id, updated_at) VALUES (1, {now}) {conflict}",
    mysql_ignore="IGNORE",
    sqlite_conflict="ON CONFLICT DO NOTHING",
)
END_TURN = "SELECT RELEASE_LOCK(CONCAT('fleet-migrate-', MD5(DATABASE())))"


def _config(db: Database) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["database"] = db
    return config


def migrate(db: Database) -> None:
    """Bring the schema to its newest form, with the one row that every ledger has.

    Safe to run again, and from several processes at once: they take turns.

    Raises:
        DatabaseUnavailable: another migration went on for longer than this one could wait.
    """
    with _turn(db):
        command.upgrade(_config(db), "head")
        db.unit(CLUSTER_ROW.run)


@contextmanager
def _turn(db: Database) -> Iterator[None]:
    """Wait until no other process migrates."""
    if db.is_sqlite:
        with _file_turn(db.url.database):
            yield
        return
    with db.read() as conn:
        if not any(conn.exec_driver_sql(TAKE_TURN).scalar_one() for _ in range(TURNS_MAX)):
            raise DatabaseUnavailable("another process is migrating this database; try again when it has ended")
        try:
            yield
        finally:
            conn.exec_driver_sql(END_TURN)


@contextmanager
def _file_turn(database: str | None) -> Iterator[None]:
    """Hold a lock file beside the database: two processes that find no tables must not both make them.

    The database's own lock is no turn: what is to be done is read before it is taken. The system frees this one with
    the process.
    """
    if not database or database == ":memory:":
        yield
        return
    with open(f"{database}.migrating", "w", encoding="ascii", opener=_private) as held:  # for the mode
        for _ in range(FILE_TRIES_MAX):
            try:
                fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(FILE_PAUSE_SECONDS)
        else:
            raise DatabaseUnavailable("another process is migrating this database; try again when it has ended")
        yield


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def current(db: Database) -> str | None:
    """Return the schema's revision; None for an empty database."""
    with db.read() as conn:
        return MigrationContext.configure(conn).get_current_revision()


def head() -> str | None:
    """Return the newest revision that this code knows."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return ScriptDirectory.from_config(config).get_current_head()
