"""The first schema, and the cluster's singleton row.

The tables are made from metadata frozen in `migrations/first_schema.py`: a later revision changes them with statements
of its own.
"""

from __future__ import annotations

from alembic import op

from fleet.ledger.migrations.first_schema import metadata

revision = "r0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create every table and the singleton."""
    bind = op.get_bind()
    metadata.create_all(bind)
    op.execute("INSERT INTO cluster_capacity (id, updated_at) VALUES (1, 0)")


def downgrade() -> None:
    """Drop every table."""
    metadata.drop_all(op.get_bind())
