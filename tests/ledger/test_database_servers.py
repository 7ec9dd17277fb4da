"""A list of servers in `DATABASE_URL`: one at a time, the first that takes writes, the next when it is lost."""

from __future__ import annotations

from collections.abc import Iterator

import pymysql
import pytest
import structlog
from sqlalchemy.exc import OperationalError

from fleet.ledger.database import Database, Trouble, trouble
from fleet.ledger.database_servers import urls_of
from fleet.model.errors import DatabaseUnavailable
from tests.servers import MariaDBServer, free_port

NAME = "listed"
MADE = "CREATE TABLE seen (one INT PRIMARY KEY) ENGINE=InnoDB"


@pytest.fixture
def second(mariadb: MariaDBServer) -> Iterator[MariaDBServer]:
    """The server of the whole run stands in for the second of a list."""
    mariadb.create_database(NAME)
    yield mariadb
    mariadb.drop_database(NAME)


def listing(*servers: MariaDBServer | int) -> Database:
    ports = [server if isinstance(server, int) else server.port for server in servers]
    return Database(f"mysql+pymysql://root@{','.join(f'127.0.0.1:{port}' for port in ports)}/{NAME}")


def port_of(db: Database) -> int:
    """The server that a write of this process goes to."""
    return int(db.unit(lambda conn: conn.exec_driver_sql("SELECT @@port").scalar_one()))


def read_port_of(db: Database) -> int:
    with db.read() as conn:
        return int(conn.exec_driver_sql("SELECT @@port").scalar_one())


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("mysql+pymysql://sf:p%40w@db1:3306,db2:3307/fleet", [("db1", 3306), ("db2", 3307)]),
        ("mysql+pymysql://sf@db1,db2,db3/fleet?charset=utf8mb4", [("db1", None), ("db2", None), ("db3", None)]),
        ("mysql+pymysql://sf@[::1]:3306,[::2]/fleet", [("::1", 3306), ("::2", None)]),
        ("mysql+pymysql://sf:p/w?x#1@db/fleet", [("db", None)]),
        ("mysql+pymysql:///fleet?unix_socket=/run/mysqld/mysqld.sock", [(None, None)]),
        ("sqlite:////srv/a,b/fleet.db", [(None, None)]),
    ],
)
def test_the_servers_of_a_url(text: str, servers: list[tuple[str | None, int | None]]) -> None:
    urls = urls_of(text)

    assert [(url.host, url.port) for url in urls] == servers
    assert {(url.username, url.password, url.database) for url in urls} == {
        (urls[0].username, urls[0].password, urls[0].database)
    }


def test_a_server_that_is_away_is_passed_over_and_told_once(second: MariaDBServer) -> None:
    db = listing(free_port(), second)
    with structlog.testing.capture_logs() as logs:
        assert [port_of(db), read_port_of(db), port_of(db)] == [second.port] * 3
    db.close()

    [told] = [line for line in logs if line["event"] == "database.server_changed"]
    assert (told["server"], told["first_of_the_list"]) == (f"127.0.0.1:{second.port}", False)


def test_the_first_of_the_list_is_used_while_it_answers_and_the_next_when_it_is_lost(
    own_mariadb: MariaDBServer, second: MariaDBServer
) -> None:
    own_mariadb.create_database(NAME)
    db = listing(own_mariadb, second)
    assert [port_of(db), read_port_of(db)] == [own_mariadb.port] * 2

    own_mariadb.kill()
    assert port_of(db) == second.port
    own_mariadb.start()
    # It stays where it is: two servers are never written to by one process.
    assert [read_port_of(db), port_of(db)] == [second.port] * 2
    db.close()


def test_a_server_that_takes_no_writes_is_left_at_once_and_with_all_connections(
    own_mariadb: MariaDBServer, second: MariaDBServer
) -> None:
    own_mariadb.create_database(NAME)
    for server in (own_mariadb, second):
        with server.connect(NAME) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE USER IF NOT EXISTS app@'%'")
            cursor.execute(f"GRANT ALL ON {NAME}.* TO app@'%'")
            cursor.execute(MADE)
    ports = f"127.0.0.1:{own_mariadb.port},127.0.0.1:{second.port}"
    db = Database(f"mysql+pymysql://app@{ports}/{NAME}")
    assert [port_of(db), read_port_of(db)] == [own_mariadb.port] * 2
    with own_mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL read_only = 1")

    def write() -> None:
        db.unit(lambda conn: conn.exec_driver_sql("INSERT INTO seen VALUES (1)"))

    with pytest.raises(DatabaseUnavailable, match="read-only"):
        write()
    write()

    assert [read_port_of(db), port_of(db)] == [second.port] * 2
    db.close()


def test_a_server_that_is_read_only_from_the_start_is_passed_over(
    own_mariadb: MariaDBServer, second: MariaDBServer
) -> None:
    own_mariadb.create_database(NAME)
    with own_mariadb.connect() as connection, connection.cursor() as cursor:
        cursor.execute("SET GLOBAL read_only = 1")
    db = listing(own_mariadb, second)

    assert [read_port_of(db), port_of(db)] == [second.port] * 2
    db.close()


def test_a_node_that_is_not_part_of_its_cluster_is_a_reason_to_try_later() -> None:
    alone = pymysql.err.OperationalError(1047, "WSREP has not yet prepared node for application use")

    assert trouble(OperationalError("SELECT 1", None, alone)) is Trouble.UNAVAILABLE


def test_a_list_of_which_nobody_answers_is_unavailable() -> None:
    db = listing(free_port(), free_port())
    with pytest.raises(DatabaseUnavailable, match="did not answer"):
        port_of(db)
    db.close()
