"""The database's time between two questions: the machines' wall clocks may differ, and tokens must end for all alike.

Asked at most every `REFRESH_SECONDS`; in between, this process's monotonic clock carries the answer on.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from fleet.ledger import cluster
from fleet.ledger.database import Database
from fleet.model.errors import DatabaseUnavailable

REFRESH_SECONDS: Final = 60.0


class DatabaseClock:
    """Call it for the time in seconds since 1970; it must have been refreshed once before."""

    def __init__(self, database: Database, elapsed: Callable[[], float]) -> None:
        """Ask nothing yet."""
        self._database = database
        self._elapsed = elapsed
        self._lock = threading.Lock()
        self._ahead: float | None = None
        self._asked_at = float("-inf")

    def __call__(self) -> float:
        """Return the time; never waits."""
        assert self._ahead is not None, "the clock is refreshed before it is read"
        return self._elapsed() + self._ahead

    def refresh(self) -> None:
        """Ask the database when the last answer is old.

        Raises:
            DatabaseUnavailable: it never answered. Later, the last answer is carried on while it is away.
        """
        if self._elapsed() - self._asked_at < REFRESH_SECONDS:
            return
        with self._lock:
            at = self._elapsed()
            if at - self._asked_at < REFRESH_SECONDS:
                return
            try:
                self._ahead = cluster.now_us(self._database) / 1_000_000 - at
            except DatabaseUnavailable:
                if self._ahead is None:
                    raise
            self._asked_at = at
