"""What happened a while ago: acts that a test does under a database clock that is behind, so no stamp is ever edited.

MariaDB takes the time of a session (`SET timestamp`); SQLite's comes from `strftime`, which is another function on the
connections that are used meanwhile.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import event

from fleet.ledger.database import Database


@contextmanager
def ago(db: Database, seconds: float) -> Iterator[None]:
    """Whatever `db` writes within happened so many seconds ago; negative ones: it is still to come."""
    engines = (db.engine, db._reads)

    def put_back(connection: Any, _record: object, _proxy: object) -> None:
        if db.is_sqlite:
            connection.create_function("strftime", 2, lambda form, _now: _sqlite_time(form, seconds))
            return
        with connection.cursor() as cursor:
            cursor.execute("SET timestamp = UNIX_TIMESTAMP(SYSDATE(6)) - %s", (seconds,))

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


def _sqlite_time(form: str, seconds: float) -> str:
    """The two forms that the ledger asks for: whole seconds since 1970, and seconds with milliseconds."""
    whole, rest_us = divmod(time.time_ns() // 1000 - round(seconds * 1_000_000), 1_000_000)
    return str(whole) if form == "%s" else f"{whole % 60:02}.{rest_us // 1000:03}"
