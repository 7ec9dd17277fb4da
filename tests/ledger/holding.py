"""Interleavings on purpose: hold a transaction open on its own connection while another thread runs into it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Connection

from fleet.ledger.database import Database, Sql

STANDS_SECONDS_MAX = 60
ENDS_SECONDS_MAX = 120
# The server keeps innodb_trx for 0.1 s after the last look: who looks more often never sees it change.
LOOK_SECONDS = 0.15

WAITING = Sql("""
    SELECT COUNT(*) FROM information_schema.innodb_trx t JOIN information_schema.processlist p
        ON p.id = t.trx_mysql_thread_id
    WHERE p.db = DATABASE() AND t.trx_state = 'LOCK WAIT'
""")


@contextmanager
def open_transaction(db: Database) -> Iterator[Connection]:
    """A write transaction that commits at the end of the block."""
    with db.engine.connect() as conn:
        try:
            yield conn
            conn.commit()
        except BaseException:
            conn.rollback()
            raise


def waiting(db: Database) -> int:
    """How many transactions wait for a lock, looked at no more often than the server looks itself."""
    time.sleep(LOOK_SECONDS)
    with db.read() as conn:
        return int(WAITING.run(conn).scalar_one())


def somebody_waits(db: Database) -> bool:
    """Whether a transaction waits for a lock."""
    return waiting(db) > 0


class Other:
    """Another thread with a connection of its own; `result()` joins it and returns (or raises) its outcome."""

    def __init__(self, url: str, work: Callable[[Database], Any]) -> None:
        self._outcome: Any = None
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(url, work))
        self._thread.start()

    def _run(self, url: str, work: Callable[[Database], Any]) -> None:
        db = Database(url, pool_size=2)
        try:
            self._outcome = work(db)
        except BaseException as error:  # noqa: BLE001  # handed to whoever asks for the result
            self._error = error
        finally:
            db.close()

    def stands(self, db: Database) -> None:
        """Return once it waits for a lock, or is done."""

        deadline = time.monotonic() + STANDS_SECONDS_MAX
        while time.monotonic() < deadline:
            self._thread.join(LOOK_SECONDS)
            if not self._thread.is_alive():
                return
            with db.read() as conn:
                if WAITING.run(conn).scalar_one():
                    return
        raise TimeoutError(f"the other transaction neither waits nor ends within {STANDS_SECONDS_MAX} s")

    @property
    def ended(self) -> bool:
        """Whether it is done."""
        return not self._thread.is_alive()

    def result(self) -> Any:
        self._thread.join(ENDS_SECONDS_MAX)
        assert not self._thread.is_alive(), "the other transaction hangs"
        if self._error is not None:
            raise self._error
        return self._outcome
