"""Who set a key of the cluster's configuration: events are forgotten after their retention, settings are not."""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, String

revision = "r0006"
down_revision = "r0005"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add the column; who set a key before is not known."""
    op.add_column("config", Column("updated_by", String(255), nullable=False, server_default=""))


def downgrade() -> None:
    """Drop the column."""
    op.drop_column("config", "updated_by")
