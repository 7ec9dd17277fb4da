"""The first schema, and the cluster's singleton row.

The tables are made from the metadata of the first release, frozen by `first_schema`: a later revision changes them
with statements of its own.
"""

from __future__ import annotations

from alembic import op

from fleet.ledger.schema import metadata

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
