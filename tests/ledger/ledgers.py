"""The ledger's databases: migrated once for the run, empty for each test."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.ledger import leases
from fleet.ledger.database import Database
from fleet.ledger.leases import Lease
from fleet.ledger.migrate import migrate
from fleet.ledger.schema import metadata
from tests.servers import MariaDBServer, fresh_database

KEPT = frozenset({"cluster_capacity"})
AMOUNTS = [column.name for column in metadata.tables["cluster_capacity"].columns if column.name != "id"]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("template") / "ledger.db"
    database = Database(f"sqlite:///{path}")
    migrate(database)
    database.close()
    return path


@pytest.fixture(scope="session")
def mariadb_ledger(mariadb: MariaDBServer) -> Iterator[str]:
    with fresh_database(mariadb) as url:
        database = Database(url)
        migrate(database)
        database.close()
        yield url


@pytest.fixture
def sqlite_ledger_url(sqlite_template: Path, tmp_path: Path) -> str:
    path = tmp_path / "ledger.db"
    shutil.copyfile(sqlite_template, path)
    return f"sqlite:///{path}"


@pytest.fixture
def mariadb_ledger_url(mariadb_ledger: str) -> str:
    """A migrated, empty ledger on MariaDB."""
    empty(mariadb_ledger)
    return mariadb_ledger


def empty(url: str) -> None:
    """Leave nothing in a ledger but its row of the cluster."""
    database = Database(url)
    with database.engine.connect() as conn:
        for name in metadata.tables:
            if name not in KEPT:
                conn.exec_driver_sql(f"DELETE FROM {name}")
        conn.exec_driver_sql("UPDATE cluster_capacity SET " + ", ".join(f"{name} = 0" for name in AMOUNTS))
        conn.commit()
    database.close()


@pytest.fixture(params=["sqlite", "mariadb"])
def db_url(request: pytest.FixtureRequest) -> str:
    """A migrated, empty ledger, once on each backend."""
    return str(request.getfixturevalue(f"{request.param}_ledger_url"))


@pytest.fixture
def db(db_url: str) -> Iterator[Database]:
    database = Database(db_url)
    yield database
    database.close()


@pytest.fixture
def maria(mariadb_ledger_url: str) -> Iterator[Database]:
    """The ledger on MariaDB only: what SQLite's one writer cannot show."""
    database = Database(mariadb_ledger_url)
    yield database
    database.close()


@pytest.fixture
def lease(db: Database) -> Lease:
    """The reconciler's, held by the test."""
    taken = leases.acquire(db, "reconciler", "test", 600)
    assert taken is not None
    return taken
