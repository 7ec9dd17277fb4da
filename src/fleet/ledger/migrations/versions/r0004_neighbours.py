"""What rules are judged by: the labels of nodes one a row, a cursor on a namespace's instances, and who was seen."""

from __future__ import annotations

import json
from typing import Any

from alembic import op
from sqlalchemy import BigInteger, Column, Integer, LargeBinary, MetaData, String, Table, select
from sqlalchemy.dialects.mysql import LONGBLOB

revision = "r0004"
down_revision = "r0003"
branch_labels = None
depends_on = None

TABLE_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}
RowId = BigInteger().with_variant(Integer, "sqlite")
nodes = Table("nodes", MetaData(), Column("id", RowId), Column("labels", String))


def upgrade() -> None:
    """Add them; labels that were declared before are written out."""
    labels = op.create_table(
        "node_labels",
        Column("node_id", RowId, primary_key=True, autoincrement=False),
        Column("label", String(63), primary_key=True),
        Column("value", String(63), nullable=False),
        **TABLE_OPTIONS,
    )
    op.create_index("ix_node_labels_label_value", "node_labels", ["label", "value"])
    declared = op.get_bind().execute(select(nodes.c.id, nodes.c.labels)).all()
    pairs = [(row.id, label, value) for row in declared for label, value in json.loads(row.labels or "{}").items()]
    if pairs:
        names = ("node_id", "label", "value")
        op.bulk_insert(labels, [dict(zip(names, pair, strict=True)) for pair in pairs])
    op.create_index("ix_instances_namespace_updated_at", "instances", ["namespace", "updated_at"])
    op.create_index("ix_charges_namespace_node_id", "charges", ["namespace", "node_id"])
    op.drop_index("ix_charges_namespace", "charges")
    blob = LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")
    op.add_column("decisions", Column("neighbours", blob, nullable=True))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("decisions", "neighbours")
    op.create_index("ix_charges_namespace", "charges", ["namespace"])
    op.drop_index("ix_charges_namespace_node_id", "charges")
    op.drop_index("ix_instances_namespace_updated_at", "instances")
    op.drop_table("node_labels")
