"""Alembic's environment: runs revisions on the connection of the `Database` it is given."""

from __future__ import annotations

from alembic import context

from fleet.ledger.database import Database
from fleet.ledger.schema import metadata


def run() -> None:
    """Run the revisions in one transaction where the backend can."""
    database: Database = context.config.attributes["database"]
    with database.engine.connect() as connection:
        context.configure(connection=connection, target_metadata=metadata, transaction_per_migration=True)
        with context.begin_transaction():
            context.run_migrations()
        connection.commit()


run()
