"""What happened a while ago, and clocks that stand still: acts under a database clock that is moved, no stamp edited.

MariaDB takes the time of a session (`SET timestamp`); SQLite's comes from `strftime`, which is another function on the
connections that are used meanwhile. On both, a connection reads the moved clock once each time that it is taken.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any, Final

from sqlalchemy import Connection, event

from fleet.ledger.cluster import now_us
from fleet.ledger.database import Database

SECOND_US: Final = 1_000_000
TICK_US: Final = 1_000
"""The least by which two moments differ on both databases: SQLite's clock shows no more."""
READING: Final = "what this connection's clock shows"


@contextmanager
def ago(db: Database, seconds: float) -> Iterator[None]:
    """Whatever `db` writes within happened so many seconds ago; negative ones: it is still to come."""
    behind_us = round(seconds * SECOND_US)
    with _clock(db, "UNIX_TIMESTAMP(SYSDATE(6)) - %s", seconds, lambda: _host_us() - behind_us):
        yield


@contextmanager
def still(db: Database, at_us: int | None = None) -> Iterator[int]:
    """The clock of `db` stands within, at a moment or at what it shows now: an edge is met exactly. Says where."""
    stands = now_us(db) if at_us is None else at_us
    with _clock(db, "%s", Decimal(stands) / SECOND_US, lambda: stands):
        yield stands


def present(conn: Connection) -> None:
    """In the middle of its transaction the clock of a connection that was behind shows the present."""
    conn.info[READING] = _host_us()
    if conn.dialect.name != "sqlite":
        conn.exec_driver_sql("SET timestamp = DEFAULT")


@contextmanager
def _clock(db: Database, mariadb: str, given: float | Decimal, sqlite: Callable[[], int]) -> Iterator[None]:
    """Every connection that `db` takes within shows another time: what its server makes of that, or a reading."""
    engines = (db.engine, db._reads)

    def put_back(connection: Any, record: Any, _proxy: object) -> None:
        if db.is_sqlite:
            # One reading for both forms: across the turn of a second, two would make a stamp that never was.
            record.info[READING] = sqlite()
            connection.create_function("strftime", 2, lambda form, _now: _sqlite_time(form, record.info[READING]))
            return
        with connection.cursor() as cursor:
            cursor.execute(f"SET timestamp = {mariadb}", (given,))

    # Connections are fresh on both sides of it: a statement that SQLite prepared keeps the clock that it knows.
    db.close()
    for engine in engines:
        event.listen(engine, "checkout", put_back)
    try:
        yield
    finally:
        for engine in engines:
            event.remove(engine, "checkout", put_back)
        db.close()


def _host_us() -> int:
    return time.time_ns() // 1000


def _sqlite_time(form: str, reading_us: int) -> str:
    """The two forms that the ledger asks for: whole seconds since 1970, and seconds with milliseconds."""
    whole, rest_us = divmod(reading_us, SECOND_US)
    return str(whole) if form == "%s" else f"{whole % 60:02}.{rest_us // 1000:03}"
