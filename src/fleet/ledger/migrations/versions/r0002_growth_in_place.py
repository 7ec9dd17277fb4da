"""What a charge grew by where it is, and when: a node's sample from before that cannot include it."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column

revision = "r0002"
down_revision = "r0001"
branch_labels = None
depends_on = None

GROWN = ("grown_cpus", "grown_memory_mb", "grown_disk_gb")


def upgrade() -> None:
    """Add the columns; no charge has grown yet."""
    for name in GROWN:
        op.add_column("charges", Column(name, BigInteger, nullable=False, server_default="0"))
    op.add_column("charges", Column("grown_at", BigInteger, nullable=True))


def downgrade() -> None:
    """Drop the columns."""
    for name in (*GROWN, "grown_at"):
        op.drop_column("charges", name)
