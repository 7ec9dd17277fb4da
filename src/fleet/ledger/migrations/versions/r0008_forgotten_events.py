"""How many events of each message retention deleted. What it deleted before this was counted by nobody."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, String

from fleet.ledger.schema import TABLE_OPTIONS

revision = "r0008"
down_revision = "r0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the table, empty."""
    op.create_table(
        "forgotten_events",
        Column("message", String(255), primary_key=True),
        Column("events", BigInteger, nullable=False),
        **TABLE_OPTIONS,
    )


def downgrade() -> None:
    """Drop the table: counters begin anew with the events that are left."""
    op.drop_table("forgotten_events")
