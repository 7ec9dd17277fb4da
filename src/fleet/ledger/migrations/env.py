"""Alembic's environment: runs revisions on the connection of the `Database` it is given."""

from __future__ import annotations

import pymysql
from alembic import context
from sqlalchemy import Connection

from fleet.ledger.database import Database
from fleet.ledger.schema import metadata


def run() -> None:
    """Run the revisions in one transaction where the backend can."""
    database: Database = context.config.attributes["database"]
    with database.engine.connect() as connection:
        _be_patient(connection)
        context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=True)
        with context.begin_transaction():
            context.run_migrations()
        connection.commit()


def _be_patient(connection: Connection) -> None:
    """Wait for each answer as long as it takes: changing a large table takes longer than any other statement may.

    Given up halfway, the server would go on, and nobody would know how far the schema is.
    """
    driver = connection.connection.driver_connection
    if isinstance(driver, pymysql.Connection):
        # Closed at the end: nothing else may wait so long. The driver has no other way to change it later.
        connection.detach()
        driver._read_timeout = None  # type: ignore[attr-defined]  # noqa: SLF001


run()
