"""A clock for a SQLite ledger that the test moves: what is to end ends by it, and no stamp in a row is ever edited.

`strftime`, from which the ledger has its time there, is another function on each of its connections.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from sqlalchemy import event

from fleet.ledger.database import Database

COMMIT_US = 1_000


class Clock:
    """The time of the database, for all its connections from now on: it moves with each commit, and by `forward`."""

    def __init__(self, db: Database) -> None:
        self.at_us = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000_000
        for engine in (db.engine, db._reads):
            event.listen(engine, "connect", self._set_up)
        event.listen(db.engine, "commit", lambda _conn: self.forward(COMMIT_US))

    def _set_up(self, connection: Any, _record: object) -> None:
        connection.create_function("strftime", 2, self._strftime)

    def _strftime(self, form: str, when: str) -> str:
        """The two forms that the ledger asks for: whole seconds since 1970, and seconds with milliseconds."""
        assert (form in {"%s", "%f"}, when) == (True, "now"), (form, when)
        seconds, rest_us = divmod(self.at_us, 1_000_000)
        return str(seconds) if form == "%s" else f"{seconds % 60:02}.{rest_us // 1000:03}"

    def forward(self, by_us: int) -> None:
        """Let time go by."""
        self.at_us += by_us
