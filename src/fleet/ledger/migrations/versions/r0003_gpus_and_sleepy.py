"""GPUs: the units that nodes tell one by one, the pools that are only counted, and what charges hold of them.

And the memory of instances that sleep when they are idle, by node. No charge from before holds a GPU or may sleep.
"""

from __future__ import annotations

from typing import Any

from alembic import op
from sqlalchemy import JSON, BigInteger, Boolean, Column, Integer, String

revision = "r0003"
down_revision = "r0002"
branch_labels = None
depends_on = None

TABLE_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}


def upgrade() -> None:
    """Add tables and columns; nothing is held yet."""
    op.create_table(
        "node_gpus",
        Column("uuid", String(128), primary_key=True),
        Column("node_id", BigInteger, nullable=False),
        Column("unit", String(8), nullable=False),
        Column("position", Integer, nullable=False),
        Column("model", String(255), nullable=False, server_default=""),
        Column("profile", String(16), nullable=False, server_default=""),
        Column("kind", String(128), nullable=False, server_default=""),
        Column("parent_gpu_uuid", String(128), nullable=False, server_default=""),
        Column("mig_capable", Boolean, nullable=False, server_default="0"),
        Column("mig_mode", Boolean, nullable=False, server_default="0"),
        Column("memory_mb", BigInteger, nullable=True),
        Column("details", JSON, nullable=False),
        Column("missing", Boolean, nullable=False, server_default="0"),
        Column("bound_to", String(36), nullable=True),
        Column("updated_at", BigInteger, nullable=False),
        **TABLE_OPTIONS,
    )
    for name in ("node_id", "bound_to", "updated_at"):
        op.create_index(f"ix_node_gpus_{name}", "node_gpus", [name])
    op.create_table(
        "node_gpu_pools",
        Column("node_id", BigInteger, primary_key=True, autoincrement=False),
        Column("profile", String(16), primary_key=True),
        Column("total", BigInteger, nullable=False, server_default="0"),
        Column("used", BigInteger, nullable=False, server_default="0"),
        Column("updated_at", BigInteger, nullable=False),
        **TABLE_OPTIONS,
    )
    op.create_index("ix_node_gpu_pools_updated_at", "node_gpu_pools", ["updated_at"])
    for name in ("gpus", "gpus_counted"):
        op.add_column("charges", Column(name, BigInteger, nullable=False, server_default="0"))
    op.add_column("charges", Column("gpu_kind", String(128), nullable=False, server_default=""))
    op.add_column("charges", Column("gpu_profile", String(16), nullable=False, server_default=""))
    op.add_column("charges", Column("sleepy", Boolean, nullable=False, server_default="0"))
    op.add_column("scheduler_node_capacity", Column("sleepy_memory_mb", BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop them."""
    op.drop_column("scheduler_node_capacity", "sleepy_memory_mb")
    for name in ("sleepy", "gpu_profile", "gpu_kind", "gpus_counted", "gpus"):
        op.drop_column("charges", name)
    op.drop_table("node_gpu_pools")
    op.drop_table("node_gpus")
