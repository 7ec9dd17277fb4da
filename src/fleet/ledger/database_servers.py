"""The servers that `DATABASE_URL` lists: a process uses one of them, and the next when that one is lost.

The list is an order, not a pool: writes go to one server at a time, the first that answers and takes writes. A process
stays with it until it is lost; a connection that was opened to another one before is not used again. Two servers that
are written to at once are not supported, so a process that is not on the first of its list says so.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Final

import pymysql
from pymysql.constants import CLIENT
from sqlalchemy import Connection, Engine, event
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import DisconnectionError

from fleet.telemetry import get_logger

READ_ONLY: Final = 1290
# 1290 read-only (a replica, or a former primary), 1047 a node that is not part of its cluster: the next may do.
LEAVE: Final = frozenset({READ_ONLY, 1047})
SERVER: Final = "fleet_server"

CONNECT_TIMEOUT_SECONDS: Final = 2
ANSWER_TIMEOUT_SECONDS: Final = 5
PORT: Final = 3306

_AUTHORITY = re.compile(r"(?P<before>[^:]+://(?:[^@]*@)?)(?P<addresses>[^/?#]*)(?P<after>.*)", re.DOTALL)
_log = get_logger(__name__)


def urls_of(text: str) -> list[URL]:
    """The URL of each server that the text lists; one of SQLite lists none but itself."""
    found = _AUTHORITY.fullmatch(text)
    if found is None or not text.startswith("mysql"):
        return [make_url(text)]
    urls = [make_url(f"{found['before']}{address}{found['after']}") for address in found["addresses"].split(",")]
    return [url if "charset" in url.query else url.update_query_dict({"charset": "utf8mb4"}) for url in urls]


def _arguments_of(url: URL) -> dict[str, Any]:
    return {
        "connect_timeout": CONNECT_TIMEOUT_SECONDS,
        "read_timeout": ANSWER_TIMEOUT_SECONDS,
        "write_timeout": ANSWER_TIMEOUT_SECONDS,
        # FOUND_ROWS counts rows matched, not rows changed; SQLAlchemy's own flag is replaced by this one, not added to.
        "client_flag": CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS,
        # On this machine: PyMySQL builds a TLS context for each connection, 18 ms of CPU, also without TLS.
        "ssl_disabled": url.host in {None, "127.0.0.1", "::1"} or "unix_socket" in url.query,
    }


class Servers:
    """Which of the servers of a `DATABASE_URL` a process uses."""

    def __init__(self, text: str) -> None:
        """Begin with the first of the list."""
        self._urls = urls_of(text)
        self._at = 0
        self._guard = threading.Lock()

    @property
    def first(self) -> URL:
        """The first of the list."""
        return self._urls[0]

    @property
    def arguments(self) -> dict[str, Any]:
        """The driver's arguments for the first."""
        return _arguments_of(self.first)

    def serve(self, engine: Engine) -> None:
        """Let the engine open its connections here; a list of one server needs nothing of it."""
        if len(self._urls) > 1:
            event.listen(engine, "do_connect", self._connect)
            event.listen(engine, "checkout", self._check)

    def leave(self, error: Exception, conn: Connection) -> None:
        """Try the next server from now on, if the error says that the one of `conn` takes no writes (any more)."""
        reason = getattr(error, "orig", None)
        number = reason.args[0] if isinstance(reason, pymysql.err.Error) and reason.args else None
        if number not in LEAVE or len(self._urls) == 1 or conn.invalidated:
            return
        at = conn.info.get(SERVER, self._at)
        # Several threads may hear it of one server: only the first of them moves on.
        if at == self._at:
            self._use((at + 1) % len(self._urls), str(reason))

    def _connect(self, dialect: Any, record: Any, arguments: Sequence[Any], options: Mapping[str, Any]) -> Any:
        """Open a connection to the present server, or to the next one that takes writes."""
        began, error = self._at, None
        for at in [*range(began, len(self._urls)), *range(began)]:
            url = self._urls[at]
            address = {"host": url.host, "port": url.port or PORT}
            try:
                connection = dialect.connect(*arguments, **{**options, **_arguments_of(url), **address})
                _must_take_writes(connection)
            except pymysql.err.OperationalError as refused:
                error = refused
                continue
            self._use(at, str(error))
            record.info[SERVER] = at
            return connection
        assert error is not None, "a list has servers"
        raise error

    def _check(self, _connection: Any, record: Any, _proxy: Any) -> None:
        if record.info.get(SERVER) != self._at:
            raise DisconnectionError("opened to a server that is not used any more")

    def _use(self, at: int, why: str) -> None:
        with self._guard:
            if at == self._at:
                return
            former, self._at = self._at, at
        told = {"server": _named(self._urls[at]), "former": _named(self._urls[former]), "reason": why}
        _log.warning("database.server_changed", first_of_the_list=at == 0, **told)


def _must_take_writes(connection: Any) -> None:
    with connection.cursor() as cursor:
        cursor.execute("SELECT @@global.read_only")
        if not cursor.fetchone()[0]:
            return
    connection.close()
    raise pymysql.err.OperationalError(READ_ONLY, "the server is read-only")


def _named(url: URL) -> str:
    return f"{url.host}:{url.port or PORT}"
