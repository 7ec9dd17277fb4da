"""The tables of the ledger, for MariaDB (InnoDB, utf8mb4_bin) and SQLite alike.

Conventions: every `*_at` is the *database's* time, UTC, as whole microseconds since 1970 in a BIGINT (one form on both
backends, no time zone and no daylight saving can touch it); amounts are BIGINT in the units their names say; reals are
DECIMAL(20,3). Enumerations are stored by their values, uuids in their dashed form. NULL in a limit means unlimited.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    Computed,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    String,
    Table,
    Text,
    UniqueConstraint,
)
from sqlalchemy.dialects.mysql import LONGBLOB

NAMING = {
    "ix": "ix_%(table_name)s_%(column_0_N_name)s",
    "uq": "uq_%(table_name)s_%(column_0_N_name)s",
    "ck": "ck_%(table_name)s_%(constraint_name)s",
    "pk": "pk_%(table_name)s",
}
TABLE_OPTIONS: dict[str, Any] = {"mysql_engine": "InnoDB", "mysql_charset": "utf8mb4", "mysql_collate": "utf8mb4_bin"}

metadata = MetaData(naming_convention=NAMING)

# SQLite makes a rowid alias (and so numbers rows by itself) of INTEGER primary keys only.
RowId = BigInteger().with_variant(Integer, "sqlite")
Amount = BigInteger
Real = Numeric(20, 3, asdecimal=True)
Moment = BigInteger
Blob = LargeBinary().with_variant(LONGBLOB(), "mysql", "mariadb")
Uuid = String(36)
Name = String(63)
GpuUuid = String(128)
Profile = String(16)
Kind = String(128)


def _amounts(prefix: str, *, nullable: bool = False, instances: bool = True) -> list[Column[int]]:
    names = ["cpus", "memory_mb", "disk_gb", *(["instances"] if instances else [])]
    default = None if nullable else "0"
    return [Column(f"{prefix}{name}", Amount, nullable=nullable, server_default=default) for name in names]


nodes = Table(
    "nodes",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("name", Name, nullable=False, unique=True),
    Column("labels", JSON, nullable=False),
    Column("region", String(63), nullable=False, server_default=""),
    Column("arch", String(16), nullable=False, server_default=""),
    Column("backend", String(16), nullable=False, server_default=""),
    Column("sleepy_pool", Boolean, nullable=False, server_default="0"),
    Column("max_instances", Amount, nullable=True),
    Column("gpu_kind", String(128), nullable=False, server_default=""),
    Column("state", String(16), nullable=False, server_default="created"),
    Column("scheduling", String(16), nullable=False, server_default="enabled"),
    # Good write probes since the last bad one: three bring a node in error back.
    Column("good_probes", Integer, nullable=False, server_default="0"),
    Column("token_hash", String(255), nullable=False, server_default=""),
    Column("registered_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False, index=True),
    **TABLE_OPTIONS,
)

# The pairs of `nodes.labels`, one a row: whoever holds a node's row finds the other nodes of its group at once.
node_labels = Table(
    "node_labels",
    metadata,
    Column("node_id", RowId, primary_key=True, autoincrement=False),
    Column("label", String(63), primary_key=True),
    Column("value", String(63), nullable=False),
    Index(None, "label", "value"),
    **TABLE_OPTIONS,
)

node_metrics = Table(
    "node_metrics",
    metadata,
    Column("node_id", RowId, primary_key=True, autoincrement=False),
    Column("metrics", JSON, nullable=False),
    Column("failed", JSON, nullable=False),
    # Typed projections of the figures operators query most; `metrics` is the whole truth.
    Column("is_hypervisor", Boolean, nullable=True),
    Column("cpu_load_1", Real, nullable=True),
    Column("cpu_schedulable", Amount, nullable=True),
    Column("memory_max", Amount, nullable=True),
    Column("memory_available", Amount, nullable=True),
    Column("disk_total_gb", Amount, nullable=True),
    Column("disk_free_gb", Amount, nullable=True),
    Column("sample_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False, index=True),
    **TABLE_OPTIONS,
)

scheduler_node_capacity = Table(
    "scheduler_node_capacity",
    metadata,
    Column("node_id", RowId, primary_key=True, autoincrement=False),
    *_amounts("limit_", nullable=True),
    *_amounts("used_"),
    # Charges that the sample cannot include yet: kept here by every writer, so that no decision has to sum charges.
    Column("pending_memory_mb", Amount, nullable=False, server_default="0"),
    Column("pending_disk_gb", Amount, nullable=False, server_default="0"),
    # The memory of charges whose instance sleeps when it is idle, incoming moves among them: what may wake up here.
    Column("sleepy_memory_mb", Amount, nullable=False, server_default="0"),
    Column("expected_demand", Real, nullable=False, server_default="0"),
    Column("cpu_load_1", Real, nullable=True),
    Column("cpu_schedulable", Amount, nullable=True),
    Column("state", String(16), nullable=False),
    Column("scheduling", String(16), nullable=False),
    Column("counted", Boolean, nullable=False, server_default="0"),
    Column("sample_at", Moment, nullable=False),
    Column("generation", BigInteger, nullable=False, server_default="0"),
    Column("updated_at", Moment, nullable=False, index=True),
    **TABLE_OPTIONS,
)

node_gpus = Table(
    "node_gpus",
    metadata,
    # A card or a slice of one. The key is the unit's own uuid: it exists once in the fleet, not once a node.
    Column("uuid", GpuUuid, primary_key=True),
    Column("node_id", BigInteger, nullable=False, index=True),
    Column("unit", String(8), nullable=False),
    Column("position", Integer, nullable=False),
    Column("model", String(255), nullable=False, server_default=""),
    Column("profile", Profile, nullable=False, server_default=""),
    Column("kind", Kind, nullable=False, server_default=""),
    Column("parent_gpu_uuid", GpuUuid, nullable=False, server_default=""),
    Column("mig_capable", Boolean, nullable=False, server_default="0"),
    Column("mig_mode", Boolean, nullable=False, server_default="0"),
    Column("memory_mb", Amount, nullable=True),
    Column("details", JSON, nullable=False),
    # The node does not report it any more: never free, whoever it is bound to.
    Column("missing", Boolean, nullable=False, server_default="0"),
    Column("bound_to", Uuid, nullable=True, index=True),
    Column("updated_at", Moment, nullable=False, index=True),
    **TABLE_OPTIONS,
)

node_gpu_pools = Table(
    "node_gpu_pools",
    metadata,
    Column("node_id", BigInteger, primary_key=True, autoincrement=False),
    # Slices of this MIG profile, or, where it is empty, whole cards: counted, where a node does not tell them apart.
    Column("profile", Profile, primary_key=True),
    Column("total", Amount, nullable=False, server_default="0"),
    Column("used", Amount, nullable=False, server_default="0"),
    Column("updated_at", Moment, nullable=False, index=True),
    **TABLE_OPTIONS,
)

namespace_claims = Table(
    "namespace_claims",
    metadata,
    Column("uuid", Uuid, primary_key=True),
    Column("namespace", Name, nullable=False, index=True),
    *_amounts("limit_", instances=False),
    *_amounts("used_", instances=False),
    Column("coverage_state", String(16), nullable=False, server_default="active"),
    # A folded claim has given its usage back to the unclaimed side; charges keep naming it.
    Column("folded", Boolean, nullable=False, server_default="0"),
    Column("expires_at", Moment, nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    # NULLs are never equal: so at most one *active* claim a namespace, by the schema and not by a probe.
    Column(
        "active_namespace",
        Name,
        Computed("CASE WHEN coverage_state = 'active' THEN namespace ELSE NULL END", persisted=True),
        nullable=True,
    ),
    UniqueConstraint("active_namespace"),
    **TABLE_OPTIONS,
)

cluster_capacity = Table(
    "cluster_capacity",
    metadata,
    Column("id", Integer, primary_key=True, autoincrement=False),
    *_amounts("total_", instances=False),
    # How many counted nodes have no limit in a dimension: above zero, the dimension is unlimited for the cluster.
    *_amounts("unlimited_", instances=False),
    *_amounts("claimed_", instances=False),
    *_amounts("unclaimed_used_", instances=False),
    *_amounts("overage_", instances=False),
    Column("counted_nodes", BigInteger, nullable=False, server_default="0"),
    Column("updated_at", Moment, nullable=False),
    CheckConstraint("id = 1", name="singleton"),
    **TABLE_OPTIONS,
)

namespaces = Table(
    "namespaces",
    metadata,
    Column("name", Name, primary_key=True),
    Column("created_at", Moment, nullable=False),
    Column("deleted_at", Moment, nullable=True),
    **TABLE_OPTIONS,
)

namespace_keys = Table(
    "namespace_keys",
    metadata,
    Column("namespace", Name, primary_key=True),
    Column("name", Name, primary_key=True),
    Column("key_hash", String(255), nullable=False),
    Column("created_at", Moment, nullable=False),
    Column("expires_at", Moment, nullable=True, index=True),
    # A rotated key's former secret is good until `former_ends_at`; `selector` is of the new one, and tells them apart.
    Column("selector", String(16), nullable=False, server_default=""),
    Column("former_hash", String(255), nullable=False, server_default=""),
    Column("former_created_at", Moment, nullable=True),
    Column("former_ends_at", Moment, nullable=True),
    **TABLE_OPTIONS,
)

instances = Table(
    "instances",
    metadata,
    Column("uuid", Uuid, primary_key=True),
    Column("namespace", Name, nullable=False),
    Column("name", Name, nullable=False),
    *_amounts("", instances=False),
    Column("image", String(1000), nullable=False, server_default=""),
    Column("request", JSON, nullable=False),
    Column("state", String(16), nullable=False),
    Column("node_id", BigInteger, nullable=True),
    Column("placement_attempts", Integer, nullable=False, server_default="1"),
    Column("decision_id", Uuid, nullable=True),
    Column("error", Text, nullable=True),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Index(None, "namespace", "created_at"),
    # The cursor of who watches the instances of a namespace: every change of where one is moves the stamp.
    Index(None, "namespace", "updated_at"),
    Index(None, "node_id"),
    Index(None, "state", "updated_at"),
    **TABLE_OPTIONS,
)

instance_tags = Table(
    "instance_tags",
    metadata,
    Column("instance_uuid", Uuid, primary_key=True),
    Column("tag", String(128), primary_key=True),
    Column("value", String(1000), nullable=False, server_default=""),
    **TABLE_OPTIONS,
)

charges = Table(
    "charges",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("instance_uuid", Uuid, nullable=False),
    Column("role", String(16), nullable=False),
    Column("node_id", BigInteger, nullable=False),
    Column("namespace", Name, nullable=False),
    # The claim that pays; NULL: the cluster's unclaimed side. Nobody pays an incoming charge: the primary one is paid
    # for, and what a move adds is in its `ahead_*`.
    Column("payer", Uuid, nullable=True),
    *_amounts(""),
    Column("placed_at", Moment, nullable=False),
    # NULL: a draft. Else when the node proved the domain, so a sample older than this cannot include it.
    Column("settled_at", Moment, nullable=True),
    # What the charge grew by where it is, and when it last did: a sample older than that cannot include it.
    *_amounts("grown_", instances=False),
    Column("grown_at", Moment, nullable=True),
    # What its payer pays beyond what it holds: the growth of a move under way, until that settles or aborts.
    *_amounts("ahead_", instances=False),
    # What was asked for; `gpus_counted` of them are in a pool's count, the others are bound by their uuids.
    Column("gpus", Amount, nullable=False, server_default="0"),
    Column("gpus_counted", Amount, nullable=False, server_default="0"),
    Column("gpu_kind", Kind, nullable=False, server_default=""),
    Column("gpu_profile", Profile, nullable=False, server_default=""),
    Column("sleepy", Boolean, nullable=False, server_default="0"),
    UniqueConstraint("instance_uuid", "role"),
    Index(None, "node_id", "placed_at"),
    Index(None, "payer"),
    Index(None, "namespace", "node_id"),
    **TABLE_OPTIONS,
)

decision_bases = Table(
    "decision_bases",
    metadata,
    Column("id", Uuid, primary_key=True),
    # A checkpoint holds only the rows changed since its parent, a full base has none.
    Column("parent", Uuid, nullable=True),
    Column("body", Blob, nullable=False),
    Column("created_at", Moment, nullable=False, index=True),
    **TABLE_OPTIONS,
)

decisions = Table(
    "decisions",
    metadata,
    Column("id", Uuid, primary_key=True),
    Column("instance_uuid", Uuid, nullable=True, index=True),
    Column("namespace", Name, nullable=False),
    Column("reason", String(16), nullable=False),
    Column("outcome", String(16), nullable=False),
    Column("code", String(32), nullable=False, server_default=""),
    Column("node_id", BigInteger, nullable=True),
    Column("seed", BigInteger, nullable=False),
    Column("base_id", Uuid, nullable=True),
    Column("changes", Blob, nullable=False),
    # The instances that its rules and affinity could see; NULL: it asked for nothing of the kind.
    Column("neighbours", Blob, nullable=True),
    Column("record", Blob, nullable=False),
    Column("request", JSON, nullable=False),
    Column("walk", JSON, nullable=False),
    Column("summary", String(2000), nullable=False),
    Column("version", String(32), nullable=False),
    Column("created_at", Moment, nullable=False),
    Index(None, "namespace", "created_at"),
    Index(None, "created_at"),
    **TABLE_OPTIONS,
)

events = Table(
    "events",
    metadata,
    Column("id", RowId, primary_key=True, autoincrement=True),
    Column("object_type", String(16), nullable=False),
    Column("object_id", String(63), nullable=False),
    Column("at", Moment, nullable=False, index=True),
    Column("level", String(8), nullable=False, server_default="info"),
    Column("message", String(255), nullable=False),
    Column("payload", JSON, nullable=False),
    # Who did it, as the payload's `by` says; NULL: nobody, it happened.
    Column("done_by", String(255), nullable=True),
    Index(None, "object_type", "object_id", "id"),
    Index(None, "done_by", "id"),
    **TABLE_OPTIONS,
)

# How many events of each message retention deleted: what is counted from events is counted for ever.
forgotten_events = Table(
    "forgotten_events",
    metadata,
    Column("message", String(255), primary_key=True),
    Column("events", BigInteger, nullable=False),
    **TABLE_OPTIONS,
)

operations = Table(
    "operations",
    metadata,
    Column("uuid", Uuid, primary_key=True),
    Column("kind", String(16), nullable=False),
    Column("state", String(16), nullable=False),
    Column("instance_uuid", Uuid, nullable=False, index=True),
    Column("namespace", Name, nullable=False),
    Column("node_id", BigInteger, nullable=False),
    Column("step", String(32), nullable=False, server_default=""),
    Column("attempts", Integer, nullable=False, server_default="0"),
    Column("attempts_max", Integer, nullable=False, server_default="5"),
    Column("lease_owner", String(128), nullable=True),
    # Counts up with every lease: a worker that lost its lease cannot write under its old number.
    Column("lease_number", BigInteger, nullable=False, server_default="0"),
    Column("lease_expires_at", Moment, nullable=True),
    Column("next_attempt_at", Moment, nullable=False),
    Column("error", Text, nullable=True),
    Column("created_at", Moment, nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("finished_at", Moment, nullable=True),
    Index(None, "state", "next_attempt_at"),
    Index(None, "node_id", "state"),
    Index(None, "namespace", "created_at"),
    **TABLE_OPTIONS,
)

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    Column("namespace", Name, primary_key=True),
    Column("idempotency_key", String(255), primary_key=True),
    Column("digest", String(64), nullable=False),
    Column("status", Integer, nullable=False),
    Column("answer", JSON, nullable=False),
    Column("created_at", Moment, nullable=False, index=True),
    **TABLE_OPTIONS,
)

config = Table(
    "config",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("value", String(1000), nullable=False),
    Column("updated_at", Moment, nullable=False),
    Column("updated_by", String(255), nullable=False, server_default=""),
    **TABLE_OPTIONS,
)

leases = Table(
    "leases",
    metadata,
    Column("name", String(64), primary_key=True),
    Column("holder", String(128), nullable=False, server_default=""),
    # The fencing number: counts up with every change of holder.
    Column("number", BigInteger, nullable=False, server_default="0"),
    Column("expires_at", Moment, nullable=False, server_default="0"),
    **TABLE_OPTIONS,
)
