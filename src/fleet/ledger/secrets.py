"""Secrets that all API processes share: made once by whoever comes first, then read.

They lie in the table of configuration under names no configuration key can have, so no listing ever shows them.
"""

from __future__ import annotations

from sqlalchemy import Connection

from fleet.ledger.database import Database, Sql
from fleet.model.errors import BrokenPromise

READ = Sql("SELECT value FROM config WHERE name = :name")
OFFER = Sql(
    """{verb} INTO config (name, value, updated_at) VALUES (:name, :value, {now})""",
    mysql_verb="INSERT IGNORE",
    sqlite_verb="INSERT OR IGNORE",
)
PREFIX = "secret."


def shared(db: Database, name: str, offered: str) -> str:
    """Return the secret called `name`; `offered` becomes it when there is none yet."""

    def work(conn: Connection) -> str:
        OFFER.run(conn, name=PREFIX + name, value=offered)
        found = READ.run(conn, name=PREFIX + name).scalar()
        if found is None:
            raise BrokenPromise(f"the secret {name} was neither there nor stored")
        return str(found)

    with db.read() as conn:
        found = READ.run(conn, name=PREFIX + name).scalar()
    return str(found) if found is not None else db.unit(work)
