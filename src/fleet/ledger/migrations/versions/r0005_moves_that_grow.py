"""What a payer pays beyond what its charge holds: the growth of a move under way. No move from before grows."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column

revision = "r0005"
down_revision = "r0004"
branch_labels = None
depends_on = None

AHEAD = ("ahead_cpus", "ahead_memory_mb", "ahead_disk_gb")


def upgrade() -> None:
    """Add the columns; nobody pays ahead yet."""
    for name in AHEAD:
        op.add_column("charges", Column(name, BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop the columns."""
    for name in AHEAD:
        op.drop_column("charges", name)
