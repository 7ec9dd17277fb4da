"""A key that is rotated keeps its former secret for a while. No key from before was ever rotated."""

from __future__ import annotations

from alembic import op
from sqlalchemy import BigInteger, Column, String

revision = "r0007"
down_revision = "r0006"
branch_labels = None
depends_on = None

TEXTS = {"selector": 16, "former_hash": 255}
MOMENTS = ("former_created_at", "former_ends_at")


def upgrade() -> None:
    """Add the columns; no key has a former secret yet."""
    for name, length in TEXTS.items():
        op.add_column("namespace_keys", Column(name, String(length), nullable=False, server_default=""))
    for name in MOMENTS:
        op.add_column("namespace_keys", Column(name, BigInteger, nullable=True))
    op.create_index("ix_namespace_keys_expires_at", "namespace_keys", ["expires_at"])


def downgrade() -> None:
    """Drop the columns: former secrets end at once."""
    op.drop_index("ix_namespace_keys_expires_at", "namespace_keys")
    for name in (*TEXTS, *MOMENTS):
        op.drop_column("namespace_keys", name)
