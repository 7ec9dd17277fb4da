"""Private MariaDB and Redis servers: real ones, on loopback, in a folder of their own, gone afterwards.

Promise: a server that was started is stopped, also after a failure, Ctrl-C or SIGTERM; one whose starter was killed
outright is ended by the kernel. Nothing outside the server's folder is read or written. Every wait has a bound.
The tests, their child processes and the benchmarks all use these two classes.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import itertools
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Self

import pymysql
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.provision import MARIADB, REDIS, Program, required

HOST = "127.0.0.1"
PORTS_FROM = 20_000
EPHEMERAL_RANGE = Path("/proc/sys/net/ipv4/ip_local_port_range")
# Bounds for a hang: a busy machine with a slow disk takes its time.
START_SECONDS_MAX = 120.0
STOP_SECONDS_MAX = 60.0
STATEMENT_SECONDS_MAX = 120
POLL_SECONDS = 0.02
START_TRIES = 3
LOG_LINES_SHOWN = 15

MARIADB_OPTIONS = (
    "--innodb-flush-log-at-trx-commit=1",
    "--innodb-log-file-size=8M",
    "--innodb-undo-tablespaces=0",
    "--innodb-buffer-pool-size=64M",
    "--skip-name-resolve",
    "--skip-log-bin",
    "--character-set-server=utf8mb4",
    "--collation-server=utf8mb4_bin",
    "--max-connections=500",
)


class ServerFailedError(Exception):
    """The server did not start or stop; the message ends with the last lines of its log."""


_given: set[int] = set()
"""Ports that this process gave away already: who got one may not be listening yet, or be down for a while."""


def free_port() -> int:
    """A port that was free a moment ago; whoever uses it must be ready to try another.

    It is none that the kernel gives to outgoing connections: while a server is down, one of those might get its port,
    and a client that tries again and again might be connected to itself.
    """
    ports = range(PORTS_FROM, _first_ephemeral_port())
    start = secrets.randbelow(len(ports)) if ports else 0
    for port in itertools.chain(ports[start:], ports[:start]):
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def _first_ephemeral_port() -> int:
    """Where the kernel's own choice begins: 32768, unless this machine says something else."""
    with contextlib.suppress(OSError):
        return int(EPHEMERAL_RANGE.read_text().split()[0])
    return 32_768


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
        return True


def wait_until(done: Callable[[], bool], *, seconds: float, what: str) -> None:
    """Poll until it is so, or raise ``TimeoutError`` naming what was waited for."""
    deadline = time.monotonic() + seconds
    while not done():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{what}: not within {seconds:g} s")
        time.sleep(POLL_SECONDS)


class Server:
    """One server process in its own temporary folder; a context manager that starts and ends it.

    ``kill`` is a crash (SIGKILL), ``pause`` a hang (SIGSTOP), ``stop`` an orderly end; after each, ``start`` brings the
    same data back on the same port.
    """

    name = "server"

    def __init__(self, program: Program, *, options: Sequence[str] = ()) -> None:
        self.program = program
        self.options = tuple(options)
        # A short path: a Unix socket's name may have 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix=f"fleet-{self.name}-"))
        self.port = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._paused = False
        _alive.add(self)

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise ServerFailedError(f"{self.name} is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether its process exists (a paused one does)."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start and return once it answers."""
        if self.running:
            return
        tries = START_TRIES if self.port == 0 else 1
        for attempt in range(1, tries + 1):
            chosen = self.port or free_port()
            try:
                self._start_on(chosen)
            except ServerFailedError:
                # Somebody else may have taken the port between the probe and the start.
                if attempt == tries:
                    raise
            else:
                self.port = chosen
                return

    def stop(self) -> None:
        """Ask it to end, and wait; a server that does not is killed and reported."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would: at once, with nothing written."""
        self._end(signal.SIGKILL)

    def restart(self) -> None:
        """Stop in order and start again with the same data and port."""
        self.stop()
        self.start()

    def pause(self) -> None:
        """Hang it: the process stays, its connections stay open, nothing answers."""
        os.kill(self.pid, signal.SIGSTOP)
        self._paused = True

    def resume(self) -> None:
        """Let a hung server go on."""
        os.kill(self.pid, signal.SIGCONT)
        self._paused = False

    def close(self) -> None:
        """End it and remove its folder; safe to call twice."""
        if self.running:
            # Its data goes away with it, so there is nothing to write in order.
            self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
        _alive.discard(self)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _command(self, port: int) -> list[str]:
        raise NotImplementedError

    def _answers(self, port: int) -> bool:
        raise NotImplementedError

    def _prepare(self) -> None:
        """Make the data folder when there is none yet."""

    @property
    def _log(self) -> Path:
        return self.folder / "server.log"

    def _start_on(self, port: int) -> None:
        self._prepare()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*_dies_with_us(), *self._command(port)],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.folder,
                env=self.program.environment(),
                # Ctrl-C is for the tests, which then end the server in order.
                start_new_session=True,
            )
        self._paused = False
        try:
            wait_until(
                lambda: not self.running or self._answers(port), seconds=START_SECONDS_MAX, what=f"{self.name} answers"
            )
        except BaseException as error:
            self.kill()
            if isinstance(error, TimeoutError):
                raise ServerFailedError(f"{error}\n{self._last_words()}") from error
            raise
        if not self.running:
            raise ServerFailedError(f"{self.name} ended while starting\n{self._last_words()}")

    def _end(self, how: signal.Signals) -> None:
        if self._process is None or not self.running:
            return
        self._process.send_signal(how)
        if self._paused:
            self.resume()
        try:
            self._process.wait(STOP_SECONDS_MAX)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(STOP_SECONDS_MAX)
            raise ServerFailedError(
                f"{self.name} did not end within {STOP_SECONDS_MAX:g} s of {how.name}\n{self._last_words()}"
            ) from None

    def _last_words(self) -> str:
        with contextlib.suppress(OSError):
            return "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:])
        return "(no log)"


class MariaDBServer(Server):
    """A MariaDB server with empty data, user root without a password, utf8mb4_bin, every commit flushed."""

    name = "mariadb"

    def __init__(self, program: Program | None = None, *, options: Sequence[str] = ()) -> None:
        super().__init__(program or required(MARIADB), options=options)

    def url(self, database: str) -> str:
        """What ``DATABASE_URL`` takes."""
        return f"mysql+pymysql://root@{HOST}:{self.port}/{database}"

    def connect(self, database: str | None = None, *, seconds: int = 10) -> pymysql.connections.Connection:
        """A plain connection of its own, with bounded waits and autocommit."""
        return pymysql.connect(
            host=HOST,
            port=self.port,
            user="root",
            database=database,
            autocommit=True,
            connect_timeout=seconds,
            read_timeout=seconds,
            write_timeout=seconds,
        )

    def create_database(self, name: str | None = None) -> str:
        """Make a database, and answer its name."""
        chosen = name or f"fleet_{secrets.token_hex(4)}"
        with self.connect(seconds=STATEMENT_SECONDS_MAX) as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE DATABASE `{chosen}`")
        return chosen

    def drop_database(self, name: str) -> None:
        """Remove a database, and first every connection that is still in it: one may hold a lock that would block."""
        with self.connect(seconds=STATEMENT_SECONDS_MAX) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT id FROM information_schema.processlist WHERE db = %s", (name,))
            for (connection_id,) in cursor.fetchall():
                # It may have gone by itself in between.
                with contextlib.suppress(pymysql.err.OperationalError):
                    cursor.execute(f"KILL {int(connection_id)}")
            cursor.execute(f"DROP DATABASE IF EXISTS `{name}`")

    @property
    def data(self) -> Path:
        """The data folder."""
        return self.folder / "data"

    def _prepare(self) -> None:
        if not self.data.exists():
            shutil.copytree(_mariadb_template(self.program), self.data)

    def _command(self, port: int) -> list[str]:
        return [
            str(self.program.path),
            "--no-defaults",
            *_as_root_if_root(),
            f"--basedir={self.program.folder}",
            f"--lc-messages-dir={self.program.folder / 'share/mysql'}",
            f"--datadir={self.data}",
            f"--tmpdir={self.folder}",
            f"--socket={self.folder / 'socket'}",
            f"--pid-file={self.folder / 'pid'}",
            f"--bind-address={HOST}",
            f"--port={port}",
            *MARIADB_OPTIONS,
            *self.options,
        ]

    def _answers(self, port: int) -> bool:
        try:
            with (
                pymysql.connect(host=HOST, port=port, user="root", connect_timeout=2, read_timeout=2) as connection,
                connection.cursor() as cursor,
            ):
                cursor.execute("SELECT @@datadir")
                row = cursor.fetchone()
        except (pymysql.err.Error, OSError):
            return False
        # Another server may sit on the port.
        return row is not None and Path(row[0]) == self.data


class RedisServer(Server):
    """A Redis (or Valkey) server, empty, without persistence unless the options turn it on."""

    name = "redis"

    def __init__(self, program: Program | None = None, *, options: Sequence[str] = ()) -> None:
        super().__init__(program or required(REDIS), options=options)

    def url(self, database: int = 0) -> str:
        """What ``REDIS_URL`` takes."""
        return f"redis://{HOST}:{self.port}/{database}"

    def connect(self, database: int = 0) -> redis.Redis:
        """A client of its own that reports the first failure instead of trying again; the caller closes it."""
        return redis.Redis(
            host=HOST,
            port=self.port,
            db=database,
            socket_timeout=10,
            socket_connect_timeout=10,
            retry=Retry(NoBackoff(), 0),
        )

    def flush(self) -> None:
        """Forget everything, as an accident would."""
        with contextlib.closing(self.connect()) as client:
            client.flushall()

    def _command(self, port: int) -> list[str]:
        return [
            str(self.program.path),
            *("--bind", HOST, "--port", str(port), "--dir", str(self.folder)),
            *("--daemonize", "no", "--save", "", "--appendonly", "no", "--maxmemory-policy", "noeviction"),
            *self.options,
        ]

    def _answers(self, port: int) -> bool:
        client = redis.Redis(
            host=HOST, port=port, socket_timeout=2, socket_connect_timeout=2, retry=Retry(NoBackoff(), 0)
        )
        try:
            # Another server may sit on the port.
            return bool(client.info("server")["process_id"] == self.pid)
        except (redis.RedisError, OSError):
            return False
        finally:
            client.close()


@functools.cache
def _mariadb_template(program: Program) -> Path:
    """A fresh data folder, made once a process; copying it takes milliseconds, making it half a second."""
    folder = Path(tempfile.mkdtemp(prefix="fleet-mariadb-template-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    installer = program.folder / "bin" / "mariadb-install-db"
    made = subprocess.run(
        [
            str(installer if installer.exists() else shutil.which("mariadb-install-db") or "mariadb-install-db"),
            "--no-defaults",
            *_as_root_if_root(),
            f"--basedir={program.folder}",
            f"--lc-messages-dir={program.folder / 'share/mysql'}",
            f"--datadir={folder / 'data'}",
            "--auth-root-authentication-method=normal",
            "--skip-test-db",
            # A minimal machine cannot look its own name up, and nothing here needs it.
            "--force",
            "--skip-name-resolve",
            *MARIADB_OPTIONS[1:4],
        ],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=START_SECONDS_MAX,
        env=program.environment(),
        cwd=folder,
        check=False,
    )
    if made.returncode != 0:
        raise ServerFailedError(f"mariadb-install-db ended with {made.returncode}\n{made.stdout}{made.stderr}")
    return folder / "data"


def _as_root_if_root() -> list[str]:
    return ["--user=root"] if os.geteuid() == 0 else []


def _dies_with_us() -> list[str]:
    """A prefix that lets the kernel end the server when this process is killed outright.

    The kernel watches the starting thread, not the process, so only the main thread may ask for it.
    """
    setpriv = shutil.which("setpriv")
    if setpriv is None or threading.current_thread() is not threading.main_thread():
        return []
    return [setpriv, "--pdeathsig", "KILL", "--"]


_alive: weakref.WeakSet[Server] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    for server in list(_alive):
        with contextlib.suppress(Exception):
            server.close()


@contextlib.contextmanager
def fresh_database(server: MariaDBServer) -> Iterator[str]:
    """The URL of an empty database in this server, removed afterwards."""
    name = server.create_database()
    try:
        yield server.url(name)
    finally:
        if server.running:
            server.drop_database(name)
