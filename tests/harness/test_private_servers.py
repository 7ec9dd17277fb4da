"""The private servers are real: what a test does to them is what a crash, a hang and an operator do."""

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pymysql
import pytest
import redis
import sqlalchemy as sa

from tests.provision import MARIADB, REDIS, required
from tests.servers import MariaDBServer, RedisServer, wait_until

ROOT = Path(__file__).resolve().parents[2]


def value_of(server: MariaDBServer, statement: str) -> object:
    with server.connect() as connection, connection.cursor() as cursor:
        cursor.execute(statement)
        row = cursor.fetchone()
    assert row is not None
    return row[0]


def test_committed_rows_outlive_a_crash_and_an_orderly_restart(own_mariadb: MariaDBServer) -> None:
    name = own_mariadb.create_database()
    with own_mariadb.connect(name) as connection, connection.cursor() as cursor:
        cursor.execute("CREATE TABLE kept (amount INT)")
        cursor.execute("INSERT INTO kept VALUES (41)")
    port = own_mariadb.port

    own_mariadb.kill()
    own_mariadb.start()
    own_mariadb.restart()

    assert port == own_mariadb.port
    assert value_of(own_mariadb, f"SELECT amount FROM `{name}`.kept") == 41


def test_a_paused_server_answers_nobody_until_it_is_resumed(own_mariadb: MariaDBServer) -> None:
    own_mariadb.pause()
    with pytest.raises(pymysql.err.OperationalError):
        own_mariadb.connect(seconds=1)
    own_mariadb.resume()

    assert value_of(own_mariadb, "SELECT 1") == 1


def test_a_paused_server_can_still_be_stopped(own_mariadb: MariaDBServer) -> None:
    own_mariadb.pause()
    own_mariadb.stop()

    assert not own_mariadb.running


def test_the_server_flushes_every_commit_and_compares_names_exactly(mariadb: MariaDBServer) -> None:
    assert value_of(mariadb, "SELECT @@innodb_flush_log_at_trx_commit") == 1
    assert value_of(mariadb, "SELECT @@collation_server") == "utf8mb4_bin"
    assert value_of(mariadb, "SELECT @@bind_address") == "127.0.0.1"


def test_dropping_a_database_does_not_wait_for_an_open_transaction(mariadb: MariaDBServer) -> None:
    name = mariadb.create_database()
    with mariadb.connect(name) as setup, setup.cursor() as cursor:
        cursor.execute("CREATE TABLE held (amount INT)")
    holder = mariadb.connect(name)
    holder.begin()
    with holder.cursor() as cursor:
        cursor.execute("INSERT INTO held VALUES (1)")

    # A drop that waits for it is not answered in time.
    mariadb.drop_database(name)

    with pytest.raises(pymysql.err.Error), holder.cursor() as cursor:
        cursor.execute("SELECT 1")


def test_each_test_gets_an_empty_database_on_each_backend(ledger_url: str) -> None:
    engine = sa.create_engine(ledger_url)
    try:
        assert sa.inspect(engine).get_table_names() == []
    finally:
        engine.dispose()


def test_redis_keeps_what_it_accepts_or_refuses_it(own_redis: RedisServer) -> None:
    client = own_redis.connect()

    assert client.config_get("maxmemory-policy")["maxmemory-policy"] == "noeviction"
    client.close()


def test_a_crashed_redis_without_persistence_has_forgotten(own_redis: RedisServer) -> None:
    client = own_redis.connect()
    client.set("key", "value")

    own_redis.kill()
    with pytest.raises(redis.RedisError):
        own_redis.connect().ping()
    own_redis.start()

    assert client.get("key") is None
    client.close()


def test_the_shared_redis_is_empty_for_each_test(redis_url: str) -> None:
    client = redis.Redis.from_url(redis_url)

    assert client.dbsize() == 0
    client.set("left", "behind")
    client.close()


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """Where a process that is killed outright may leave its folders; pytest's own paths are too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="fleet-") as folder:
        yield Path(folder)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_servers_end_with_the_process_that_started_them(
    how: signal.Signals, tmp_path: Path, short_folder: Path
) -> None:
    required(MARIADB)
    required(REDIS)
    program = (
        "import signal, time\n"
        "from tests.servers import MariaDBServer, RedisServer\n"
        "signal.signal(signal.SIGTERM, signal.default_int_handler)\n"
        "with MariaDBServer() as one, RedisServer() as two:\n"
        f"    open({str(tmp_path / 'pids')!r}, 'w').write(f'{{one.pid}} {{two.pid}}\\n')\n"
        "    time.sleep(60)\n"
    )
    environment = {**os.environ, "TMPDIR": str(short_folder)}
    with subprocess.Popen(
        [sys.executable, "-c", program], cwd=ROOT, stderr=subprocess.DEVNULL, env=environment
    ) as starter:
        noted = tmp_path / "pids"
        wait_until(
            lambda: starter.poll() is not None or (noted.exists() and noted.read_text().endswith("\n")),
            seconds=120,
            what="both servers run",
        )
        assert noted.exists(), f"the starter ended with {starter.returncode}"
        starter.send_signal(how)
    pids = [int(word) for word in noted.read_text().split()]

    wait_until(lambda: not any(is_running(pid) for pid in pids), seconds=60, what="both servers end")


def is_running(pid: int) -> bool:
    """A process that nobody has waited for yet is as good as gone."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def test_a_server_that_cannot_start_says_what_its_log_says() -> None:
    server = MariaDBServer(options=["--no-such-option=1"])
    try:
        with pytest.raises(Exception, match="no-such-option"):
            server.start()
    finally:
        server.close()
    assert not os.path.lexists(server.folder)
