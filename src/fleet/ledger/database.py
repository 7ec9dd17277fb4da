"""Connections, and the unit of work: one short transaction, retried whole, closed on every path.

Two pools: `read()` hands out autocommitting connections (no reader ever stays in an old snapshot), `unit()` runs a
write transaction under READ COMMITTED. Both set and verify their session at connect. A pool belongs to one process: it
is opened lazily, and a forked child forgets what it inherited.
"""

from __future__ import annotations

import os
import re
import secrets
import sqlite3
import threading
import time
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum
from functools import lru_cache
from typing import Any, TypeVar

import pymysql
from sqlalchemy import Connection, CursorResult, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, IntegrityError, OperationalError
from sqlalchemy.exc import TimeoutError as PoolTimeout

from fleet.ledger.afterwards import Left, carry_out, collect
from fleet.ledger.database_servers import LEAVE, Servers
from fleet.ledger.driver_words import in_words
from fleet.model.errors import BrokenPromise, DatabaseUnavailable

R = TypeVar("R")

UNIT_ATTEMPTS_MAX = 4
UNIT_BACKOFF_SECONDS = 0.005
# No attempt begins later than this: four time-outs in a row would outlast the caller's patience.
UNIT_SECONDS_MAX = 8.0
LOCK_WAIT_SECONDS = 2
SQLITE_WAIT_SECONDS = 5
POOL_WAIT_SECONDS = 5

DUPLICATE_ENTRY = 1062
LOCK_WAIT_TIMEOUT = 1205
STATEMENT_TIMEOUT = 1969
# 1213 deadlock, 1205 lock wait, 1020 record changed since read (newer MariaDB's snapshot isolation).
RETRIED = frozenset({1213, LOCK_WAIT_TIMEOUT, 1020})
# 2006 gone away, 2013 lost during query, 2014 out of sync, 2055 lost with a system error, 1053 shutting down,
# 1927 killed, 0 a closed socket.
LOST = frozenset({0, 2006, 2013, 2014, 2055, 1053, 1927})

_BIND = re.compile(r"(?<![:\w]):([a-z_][a-z0-9_]*)")
# Neither goes through a local time: where a clock is put back, an hour of those comes twice.
_NOW = {
    "mysql": "(UNIX_TIMESTAMP() * 1000000 + MICROSECOND(NOW(6)))",
    "sqlite": (
        "(CAST(strftime('%s', 'now') AS INTEGER) * 1000000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER) * 1000)"
    ),
}

# 1040 and 1203 too many connections, 1041 out of memory, those of a server that takes no writes; 1044, 1045, 1129, 1130
# and 1698 we are not let in, 1049 no such database: an operator's to mend, no fault of the program.
CANNOT_SERVE = frozenset({1040, 1041, 1203, 1044, 1045, 1129, 1130, 1698, 1049}) | LEAVE
# From 3000 on the server speaks again: 4025, a broken constraint, is no reason to try later.
CLIENT_ERRORS = range(2000, 3000)
COMMITTING = "raised by COMMIT"


class Trouble(Enum):
    """What an error of the driver means for the unit."""

    BUSY = "the statement's own time was over: the server is too busy, or a row stayed locked"
    RETRY = "run the whole unit again"
    LOST = "the answer was lost: the outcome is unknown"
    DUPLICATE = "a key exists already"
    UNAVAILABLE = "the database cannot be reached or does not answer"
    BUG = "anything else"


def error_number(error: DBAPIError) -> int:
    """Return the server's error number, or -1 where there is none."""
    args = getattr(error.orig, "args", ())
    return args[0] if args and isinstance(args[0], int) else -1


def trouble(error: Exception) -> Trouble:
    """Classify an error of the driver."""
    if isinstance(error, PoolTimeout):
        return Trouble.UNAVAILABLE
    if not isinstance(error, DBAPIError):
        return Trouble.BUG
    return _sqlite_trouble(error) if isinstance(error.orig, sqlite3.Error) else _mariadb_trouble(error)


def _mariadb_trouble(error: DBAPIError) -> Trouble:
    number = error_number(error)
    known = {DUPLICATE_ENTRY: Trouble.DUPLICATE, STATEMENT_TIMEOUT: Trouble.BUSY}
    known |= dict.fromkeys(RETRIED, Trouble.RETRY) | dict.fromkeys(LOST, Trouble.LOST)
    if number in known:
        return known[number]
    if error.connection_invalidated:
        return Trouble.LOST
    cannot_serve = number in CANNOT_SERVE or number in CLIENT_ERRORS
    return Trouble.UNAVAILABLE if isinstance(error, OperationalError) and cannot_serve else Trouble.BUG


def _sqlite_trouble(error: DBAPIError) -> Trouble:
    if isinstance(error, IntegrityError):
        return Trouble.DUPLICATE if "UNIQUE" in str(error.orig) else Trouble.BUG
    return Trouble.UNAVAILABLE if isinstance(error, OperationalError) and _sqlite_waits(error) else Trouble.BUG


def _sqlite_waits(error: OperationalError) -> bool:
    return "locked" in str(error.orig) or "busy" in str(error.orig)


class Sql:
    """A statement written once: `:name` binds, `{now}` is the database's time, `{greatest}` its `max` of two."""

    def __init__(self, template: str, **only: str) -> None:
        """Keep the template; `only` gives parts that differ: `Sql("… {wait}", mysql_wait="FOR UPDATE")`."""
        self._texts = {name: _render(template, name, only) for name in _NOW}
        self._binds = frozenset(_BIND.findall(" ".join((template, *only.values()))))

    def text(self, dialect: str) -> str:
        """Return the statement in the dialect's own spelling."""
        return self._texts[dialect]

    def run(self, conn: Connection, params: Mapping[str, Any] | None = None, **binds: Any) -> CursorResult[Any]:
        """Execute on `conn`, past SQLAlchemy's compiler: the hot path pays for the statement only."""
        dialect = conn.dialect.name
        text = self._texts["mysql" if dialect == "mariadb" else dialect]
        return conn.exec_driver_sql(text, self._given(params, binds))

    def into(self, target: Connection | Batch, params: Mapping[str, Any] | None = None, **binds: Any) -> None:
        """Execute without looking at the answer: at once on a connection, together with others in a batch."""
        if isinstance(target, Batch):
            target.add(self, self._given(params, binds))
        else:
            self.run(target, params, **binds)

    def _given(self, params: Mapping[str, Any] | None, binds: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of what the statement names, and no others: the driver writes out all that it is given."""
        given = {**(params or {}), **binds}
        if len(given) <= len(self._binds):
            return given
        return {name: value for name, value in given.items() if name in self._binds}


LISTED_MAX = 64
"""Statements of a list keep as many lengths each, those asked for last."""


class SqlOfLists:
    """A statement with lists, written once: `uuid IN ({uuids})` becomes as many binds as values are given."""

    def __init__(self, template: str, **only: str) -> None:
        """Keep the template; `only` as in `Sql`."""
        self._of = lru_cache(LISTED_MAX)(lambda lengths: Sql(_with_binds(template, lengths), **only))

    def run(self, conn: Connection, lists: Mapping[str, Collection[int | str]], **binds: Any) -> CursorResult[Any]:
        """Execute with values for each list, at least one in each."""
        statement = self._of(tuple((name, len(values)) for name, values in lists.items()))
        listed = {f"{name}_{at}": value for name, values in lists.items() for at, value in enumerate(values)}
        return statement.run(conn, listed, **binds)


def _with_binds(template: str, lengths: tuple[tuple[str, int], ...]) -> str:
    for name, length in lengths:
        template = template.replace(f"{{{name}}}", ", ".join(f":{name}_{at}" for at in range(length)))
    return template


@dataclass(frozen=True, slots=True)
class Answer:
    """What one statement of a batch answered: rows matched, and the first row of a RETURNING clause."""

    matched: int
    row: tuple[Any, ...] | None


class Batch:
    """Statements of one transaction that are sent in one round trip: on a network, round trips are the cost.

    On SQLite, where there is no wire, they run one after the other. The first error ends the batch: it is raised, and
    the unit rolls back. The `multi-statement` ability of the wire is used here only, on statements whose values the
    driver has escaped.
    """

    def __init__(self, conn: Connection) -> None:
        """Collect for `conn`; nothing is sent yet."""
        self._conn = conn
        self._statements: list[tuple[Sql, Mapping[str, Any]]] = []

    @property
    def connection(self) -> Connection:
        """Return the connection of its transaction."""
        return self._conn

    def add(self, statement: Sql, params: Mapping[str, Any]) -> None:
        """Add a statement behind the others."""
        self._statements.append((statement, params))

    def send(self) -> list[Answer]:
        """Send everything and return the answers in order."""
        statements, self._statements = self._statements, []
        if not statements:
            return []
        if self._conn.dialect.name == "sqlite":
            return [_answer(statement.run(self._conn, params)) for statement, params in statements]
        return self._send_together(statements)

    def _send_together(self, statements: list[tuple[Sql, Mapping[str, Any]]]) -> list[Answer]:
        cursor = self._conn.connection.cursor()
        text = ";\n".join(cursor.mogrify(statement.text("mysql"), params) for statement, params in statements)
        answers: list[Answer] = []
        try:
            cursor.execute(text)
            answers.append(Answer(cursor.rowcount, cursor.fetchone() if cursor.description else None))
            while cursor.nextset():
                answers.append(Answer(cursor.rowcount, cursor.fetchone() if cursor.description else None))
        except pymysql.Error as error:
            raise DBAPIError.instance(
                statements[min(len(answers), len(statements) - 1)][0].text("mysql"),
                None,
                error,
                pymysql.Error,
                dialect=self._conn.dialect,
            ) from error
        finally:
            cursor.close()
        return answers


def _answer(result: CursorResult[Any]) -> Answer:
    return Answer(result.rowcount, tuple(result.one()) if result.returns_rows else None)


def _render(template: str, dialect: str, only: Mapping[str, str]) -> str:
    parts = {
        "now": _NOW[dialect],
        "greatest": "GREATEST" if dialect == "mysql" else "MAX",
        "for_update": "FOR UPDATE" if dialect == "mysql" else "",
        "share": "LOCK IN SHARE MODE" if dialect == "mysql" else "",
    }
    prefix = f"{dialect}_"
    names = {key.split("_", 1)[1] for key in only}
    parts.update({name: only.get(prefix + name, "") for name in names})
    text = " ".join(template.split()).format(**parts)
    if dialect == "mysql":
        text = _BIND.sub(r"%(\1)s", text.replace("%", "%%"))
    return text


def decimal_of(value: Any) -> Decimal | None:
    """Return a real column as an exact decimal of three places, whichever backend it came from."""
    return None if value is None else Decimal(str(value)).quantize(Decimal("0.001"))


class Database:
    """The ledger's database, MariaDB or SQLite, as one process uses it."""

    def __init__(
        self,
        url: str,
        *,
        pool_size: int = 8,
        sleep: Callable[[float], None] = time.sleep,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """Remember the URL; connections are opened when first needed."""
        self._servers = Servers(url)
        self.url = self._servers.first
        self.is_sqlite = self.url.get_backend_name() == "sqlite"
        self._sleep = sleep
        self._monotonic = monotonic
        self._writes = self._engine(pool_size, autocommit=False)
        self._reads = self._engine(pool_size, autocommit=True)
        # SQLite's own waiting is a polling back-off that starves late comers: a queue per process is fair.
        self._turn = threading.Lock()
        _databases.add(self)

    @property
    def engine(self) -> Engine:
        """Return the engine of write transactions (migrations and tests use it)."""
        return self._writes

    def close(self) -> None:
        """Close every idle connection."""
        self._writes.dispose()
        self._reads.dispose()

    def forget(self) -> None:
        """Drop every connection without a word to the server: they are the parent's, and this is its forked child."""
        self._writes.dispose(close=False)
        self._reads.dispose(close=False)
        self._turn = threading.Lock()

    def _engine(self, pool_size: int, *, autocommit: bool) -> Engine:
        if self.is_sqlite:
            engine = create_engine(self.url, connect_args={"timeout": SQLITE_WAIT_SECONDS, "check_same_thread": False})
            event.listen(engine, "do_connect", _make_private)
            event.listen(engine, "connect", _set_up_sqlite)
            if not autocommit:
                event.listen(engine, "begin", lambda conn: conn.exec_driver_sql("BEGIN IMMEDIATE"))
            return engine
        engine = create_engine(
            self.url,
            pool_size=pool_size,
            max_overflow=0,
            pool_timeout=POOL_WAIT_SECONDS,
            pool_recycle=1800,
            pool_reset_on_return=None,
            isolation_level="AUTOCOMMIT" if autocommit else None,
            connect_args=self._servers.arguments,
            skip_autocommit_rollback=True,
        )
        event.listen(engine, "connect", _set_up_mariadb)
        self._servers.serve(engine)
        return engine

    @contextmanager
    def read(self) -> Iterator[Connection]:
        """Hand out an autocommitting connection: each statement sees what is committed when it starts.

        Raises:
            DatabaseUnavailable: when the database cannot be reached or the answer is lost.
        """
        try:
            with self._reads.connect() as conn:
                try:
                    yield conn
                except DBAPIError as error:
                    self._servers.leave(error, conn)
                    raise
        except (DBAPIError, PoolTimeout) as error:
            if trouble(error) is Trouble.BUG:
                raise
            raise unavailable(error) from error

    def unit(self, work: Callable[[Connection], R], *, on_lost: Callable[[], R | None] | None = None) -> R:
        """Run `work` in one transaction and commit; run it again as a whole when the server says so.

        Deadlocks, lock waits and snapshot conflicts are retried at most `UNIT_ATTEMPTS_MAX` times with jitter, and no
        attempt begins after `UNIT_SECONDS_MAX`. When the answer is lost, `on_lost` reads back (by the unit's key) what
        became of it: a value is the answer, None means it did not happen. Without `on_lost` the unit must be safe to
        repeat.

        Raises:
            DatabaseUnavailable: when the attempts are used up or the database cannot be reached. It says so where a
                COMMIT may have been carried out.
        """
        last: Exception | None = None
        in_doubt = False
        in_doubt_left: list[Left] = []
        began = self._monotonic()
        for attempt in range(UNIT_ATTEMPTS_MAX):
            left: list[Left] = []
            if attempt and self._monotonic() - began > UNIT_SECONDS_MAX:
                break
            if attempt:
                self._sleep(UNIT_BACKOFF_SECONDS * 2**attempt * (0.5 + secrets.randbelow(1000) / 1000))
            try:
                if last is not None and on_lost is not None and trouble(last) is Trouble.LOST:
                    found = on_lost()
                    if found is not None:
                        carry_out(in_doubt_left)
                        return found
                    in_doubt, in_doubt_left = False, []
                result = self._once(work, left)
                carry_out(left)
                return result
            except DatabaseUnavailable as error:
                raise (unavailable(last, in_doubt=True) if in_doubt else error) from error
            except (DBAPIError, PoolTimeout) as error:
                if _commit_lost(error):
                    in_doubt, in_doubt_left = True, left
                if trouble(error) not in {Trouble.RETRY, Trouble.LOST}:
                    raise _final(error, in_doubt=in_doubt) from error
                last = error
        raise unavailable(last, in_doubt=in_doubt) from last

    def _once(self, work: Callable[[Connection], R], left: list[Left]) -> R:
        if self.is_sqlite:
            if not self._turn.acquire(timeout=SQLITE_WAIT_SECONDS):
                msg = f"the database file stayed locked for {SQLITE_WAIT_SECONDS} s; try again"
                raise DatabaseUnavailable(msg)
            try:
                return self._transaction(work, left)
            finally:
                self._turn.release()
        return self._transaction(work, left)

    def _transaction(self, work: Callable[[Connection], R], left: list[Left]) -> R:
        with self._writes.connect() as conn:
            committing = False
            try:
                collect(conn, left)
                result = work(conn)
                committing = True
                conn.commit()
            except BaseException as error:
                if committing:
                    error.add_note(COMMITTING)
                if isinstance(error, DBAPIError):
                    self._servers.leave(error, conn)
                _roll_back(conn, committing=committing)
                raise
            return result


_databases: weakref.WeakSet[Database] = weakref.WeakSet()


def _forget_inherited() -> None:
    """Two processes that speak on one connection read each other's answers."""
    for database in list(_databases):
        database.forget()


os.register_at_fork(after_in_child=_forget_inherited)


def _roll_back(conn: Connection, *, committing: bool) -> None:
    """Roll back, whatever stands of the connection: half a change must never be committed by the next user."""
    if conn.invalidated:
        return
    try:
        if committing:
            # To SQLAlchemy a transaction is over once COMMIT was tried: its own rollback would send nothing.
            conn.connection.rollback()
        conn.rollback()
    except Exception:  # noqa: BLE001  # the driver's own errors are not SQLAlchemy's
        conn.invalidate()


def _commit_lost(error: Exception) -> bool:
    return trouble(error) is Trouble.LOST and COMMITTING in getattr(error, "__notes__", ())


def _final(error: Exception, *, in_doubt: bool) -> Exception:
    return unavailable(error, in_doubt=in_doubt) if trouble(error) is Trouble.UNAVAILABLE else error


def unavailable(error: Exception | None, *, in_doubt: bool = False) -> DatabaseUnavailable:
    """Return the error a caller sees when nothing is known about the ledger; `in_doubt`: nor about the change."""
    why = str(getattr(error, "orig", None) or error).splitlines()[0][:200] if error else "no answer"
    outcome = (
        "whether the change was made is not known, ask again with the same Idempotency-Key"
        if in_doubt
        else "nothing was decided, try again"
    )
    away = "the ledger's database did not answer"
    words = f"{away} ({in_words(error)}); {outcome}"
    return DatabaseUnavailable(f"{away} ({why}); {outcome}", told=f"{away}; {outcome}", in_words=words)


def _set_up_mariadb(connection: Any, _record: object) -> None:
    wanted = {"tx_isolation": "READ-COMMITTED", "time_zone": "+00:00", "innodb_lock_wait_timeout": LOCK_WAIT_SECONDS}
    cursor = connection.cursor()
    cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
    cursor.execute(
        f"SET SESSION time_zone = '+00:00', innodb_lock_wait_timeout = {LOCK_WAIT_SECONDS}, "
        "sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION,ERROR_FOR_DIVISION_BY_ZERO'"
    )
    cursor.execute("SELECT @@tx_isolation, @@time_zone, @@innodb_lock_wait_timeout")
    found = dict(zip(wanted, cursor.fetchone(), strict=True))
    cursor.close()
    if found != wanted:
        msg = f"the database session has {found}, but the guard needs {wanted}"
        raise BrokenPromise(msg)


def _make_private(_dialect: object, _record: object, arguments: Sequence[Any], _options: object) -> None:
    """A file made now is its owner's only: it holds keys and perhaps what signs tokens. SQLite's other files follow."""
    path = str(arguments[0])
    if path.startswith((":memory:", "file:")):
        return
    # It is never opened here: closing it would drop the locks that this process's other connections hold on it. That it
    # is there already, or what is wrong with the path, is SQLite's to say.
    with suppress(OSError):
        os.mknod(path, 0o600)


def _set_up_sqlite(connection: Any, _record: object) -> None:
    connection.isolation_level = None
    cursor = connection.cursor()
    for pragma in ("journal_mode = WAL", "synchronous = FULL", f"busy_timeout = {SQLITE_WAIT_SECONDS * 1000}"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


sqlite3.register_adapter(Decimal, float)
