"""Who did it is a column of the trail, with an index: what somebody did is found without looking through everything.

Rows from before are filled in by stretches of numbers, each a transaction of its own where the backend has to go on
serving. A migration that was ended halfway is done again from its beginning.
"""

from __future__ import annotations

from alembic import op
from sqlalchemy import Column, Connection, String, inspect, text

revision = "r0009"
down_revision = "r0008"
branch_labels = None
depends_on = None

STRETCH = 10_000
CHARACTERS = 255
NUMBERS = text("SELECT MIN(id) AS oldest, MAX(id) AS newest FROM events")
BY = {"mysql": "JSON_VALUE(payload, '$.by')", "sqlite": "json_extract(payload, '$.by')"}


def upgrade() -> None:
    """Add the column, fill it in, and add the index."""
    if "done_by" not in {column["name"] for column in inspect(op.get_bind()).get_columns("events")}:
        op.add_column("events", Column("done_by", String(CHARACTERS), nullable=True))
    _fill(op.get_bind())
    op.create_index("ix_events_done_by_id", "events", ["done_by", "id"])


def _fill(conn: Connection) -> None:
    is_sqlite = conn.dialect.name == "sqlite"
    by = BY["sqlite" if is_sqlite else "mysql"]
    known = conn.execute(NUMBERS).one()
    stretch = text(
        f"UPDATE events SET done_by = SUBSTR({by}, 1, {CHARACTERS}) "
        f"WHERE id >= :first AND id < :following AND {by} IS NOT NULL"
    )
    for first in range(known.oldest or 0, (known.newest or 0) + 1, STRETCH):
        conn.execute(stretch, {"first": first, "following": first + STRETCH})
        if not is_sqlite:
            # A changed table is committed at once there, so nothing is in the way of ending each part.
            conn.execute(text("COMMIT"))


def downgrade() -> None:
    """Drop them: who did it stands in the payload as well."""
    op.drop_index("ix_events_done_by_id", "events")
    op.drop_column("events", "done_by")
