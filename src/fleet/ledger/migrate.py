"""Migrations: the only way a schema changes. A fresh schema and a migrated one are the same (tested)."""

from __future__ import annotations

from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory

from fleet.ledger.database import Database

MIGRATIONS = Path(__file__).parent / "migrations"


def _config(db: Database) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    config.attributes["database"] = db
    return config


def migrate(db: Database) -> None:
    """Bring the schema to its newest form. Safe to run again, and safe to run from several processes one by one."""
    command.upgrade(_config(db), "head")


def current(db: Database) -> str | None:
    """Return the schema's revision; None for an empty database."""
    with db.read() as conn:
        return MigrationContext.configure(conn).get_current_revision()


def head() -> str | None:
    """Return the newest revision that this code knows."""
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS))
    return ScriptDirectory.from_config(config).get_current_head()
