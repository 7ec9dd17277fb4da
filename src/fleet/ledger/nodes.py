"""Nodes as they are registered, and the views that readers get: node, last sample and ledger row in one.

Registering touches what an operator declares and nothing else: never a charge, the scheduling intent or a sample's age.
State, scheduling and samples are written where the ledger row is locked first. So are labels: an admission that judges
rules by them holds that row, and sees each group of nodes as it is until it commits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, Row, RowMapping
from sqlalchemy.exc import IntegrityError

from fleet.ledger import events, gpu_refresh, gpus, idempotency, node_rows
from fleet.ledger.database import Database, Sql, decimal_of
from fleet.ledger.gpus import NodeGpus
from fleet.ledger.idempotency import Keyed
from fleet.model.errors import InvalidRequest
from fleet.model.labels import LABELS_MAX
from fleet.model.node import NodeState, Scheduling
from fleet.model.resources import Amounts, Limits

COLUMNS = ("labels", "region", "arch", "backend", "sleepy_pool", "max_instances", "gpu_kind")
DECLARED = (*COLUMNS, "gpu_count", "mig_profiles")
"""What registration declares; everything else about a node is measured or an operator's later word."""

DEFAULTS: Mapping[str, Any] = {
    "labels": {},
    "region": "",
    "arch": "",
    "backend": "",
    "sleepy_pool": False,
    "max_instances": None,
    "gpu_kind": "",
}

FIND = Sql("SELECT id FROM nodes WHERE name = :name")
LOCK = Sql("SELECT id, state FROM nodes WHERE name = :name {for_update}")
INSERT = Sql("""
    INSERT INTO nodes (name, labels, region, arch, backend, sleepy_pool, max_instances, gpu_kind, state, scheduling,
        registered_at, updated_at)
    VALUES (:name, :labels, :region, :arch, :backend, :sleepy_pool, :max_instances, :gpu_kind, 'created', 'enabled',
        {now}, {now})
""")
UPDATE = {name: Sql(f"UPDATE nodes SET {name} = :value, updated_at = {{now}} WHERE id = :id") for name in COLUMNS}
TOUCH = Sql("UPDATE nodes SET updated_at = {now} WHERE id = :id")
FORGET_LABELS = Sql("DELETE FROM node_labels WHERE node_id = :id")
KEEP_LABEL = Sql("INSERT INTO node_labels (node_id, label, value) VALUES (:id, :label, :value)")
# A removed node has no ledger row any more: registered again, it gets its limits with its first sample.
REVIVE = Sql("""
    UPDATE nodes SET state = 'created', scheduling = 'enabled', token_hash = '', registered_at = {now},
        updated_at = {now}
    WHERE id = :id AND state = 'deleted'
""")
_DECLARED_AND_MEASURED = """
    n.id, n.name, n.labels, n.region, n.arch, n.backend, n.sleepy_pool, n.max_instances, n.gpu_kind, n.state,
    n.scheduling, n.registered_at, m.metrics, m.failed, m.sample_at, {now} - m.sample_at AS sample_age_us
"""
VIEW = f"""
    SELECT {_DECLARED_AND_MEASURED},
        c.node_id AS sized, c.limit_cpus, c.limit_memory_mb, c.limit_disk_gb, c.limit_instances,
        c.used_cpus, c.used_memory_mb, c.used_disk_gb, c.used_instances, c.pending_memory_mb, c.pending_disk_gb,
        c.expected_demand, c.counted, c.sleepy_memory_mb
    FROM nodes n LEFT JOIN node_metrics m ON m.node_id = n.id LEFT JOIN scheduler_node_capacity c ON c.node_id = n.id
"""
# As above, without the ledger's counters: for when they cannot be read.
BARE_VIEW = f"""
    SELECT {_DECLARED_AND_MEASURED}, NULL AS sized
    FROM nodes n LEFT JOIN node_metrics m ON m.node_id = n.id
"""
GET = Sql(f"{VIEW} WHERE n.name = :name")
_PAGE = "WHERE n.state <> 'deleted' AND n.name > :after ORDER BY n.name LIMIT :limit"
LIST = Sql(f"{VIEW} {_PAGE}")
BARE_LIST = Sql(f"{BARE_VIEW} {_PAGE}")
COUNTS = Sql("SELECT state, scheduling, COUNT(*) AS nodes FROM nodes GROUP BY state, scheduling")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeIn:
    """A registration: the name, and of what may be declared only the fields that were given."""

    name: str
    declared: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerRow:
    """A node's ledger row as readers see it."""

    limits: Limits
    used: Amounts
    pending_memory_mb: int
    pending_disk_gb: int
    expected_demand: Decimal
    counted: bool
    sleepy_memory_mb: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node. `sample_at_us` None: no sample yet; `row` None: the ledger has not sized it."""

    node_id: int
    name: str
    labels: Mapping[str, str]
    region: str
    arch: str
    backend: str
    sleepy_pool: bool
    max_instances: int | None
    gpu_kind: str
    state: NodeState
    scheduling: Scheduling
    registered_at_us: int
    sample_at_us: int | None
    sample_age_seconds: Decimal | None
    metrics: Mapping[str, Any]
    failed: Mapping[str, str]
    row: LedgerRow | None
    gpus: NodeGpus = field(default_factory=NodeGpus)


def get(db: Database, name: str, *, deleted: bool = False) -> NodeView | None:
    """Return one node; a removed one only when `deleted` is asked for."""
    with db.read() as conn:
        found = _views(conn, GET.run(conn, name=name).mappings().all())
    if not found or (found[0].state is NodeState.DELETED and not deleted):
        return None
    return found[0]


def listing(db: Database, limit: int, after: str = "") -> list[NodeView]:
    """Return nodes that are not removed by name, from after `after` on."""
    with db.read() as conn:
        return _views(conn, LIST.run(conn, limit=limit, after=after).mappings().all())


def listing_bare(db: Database, limit: int, after: str = "") -> list[NodeView]:
    """Return nodes as `listing` does, without reading a counter: no node has a ledger row, and no GPU is known."""
    with db.read() as conn:
        rows = BARE_LIST.run(conn, limit=limit, after=after).mappings().all()
    return [_view(row, NodeGpus(kind=row["gpu_kind"])) for row in rows]


def counts(db: Database) -> dict[tuple[str, str], int]:
    """Return how many nodes there are by (state, scheduling)."""
    with db.read() as conn:
        return {(row.state, row.scheduling): int(row.nodes) for row in COUNTS.run(conn)}


def register(db: Database, node: NodeIn, keyed: Keyed | None = None, *, by: str = "") -> tuple[NodeView, bool]:
    """Register a node, or set the given fields of a registered one; the second value says whether it is new.

    `by` is who does it.

    Raises:
        InvalidRequest: GPUs on a node whose hypervisor serves none.
    """
    unknown = set(node.declared) - set(DECLARED)
    assert not unknown, f"registration cannot declare {sorted(unknown)}"

    def work(conn: Connection) -> tuple[NodeView, bool]:
        row = _locked(conn, node.name)
        fresh = row is None or row.state == NodeState.DELETED
        before = None if fresh else _declared(conn, node.name)
        if row is None:
            INSERT.run(conn, name=node.name, **_stored({**DEFAULTS, **node.declared}))
            node_id = int(FIND.run(conn, name=node.name).one().id)
            _keep_labels(conn, node_id, node.declared)
            _declare_gpus(conn, node_id, node.declared)
        else:
            REVIVE.run(conn, id=row.id)
            _set(conn, row.id, {**(DEFAULTS if fresh else {}), **node.declared})
        if before is None:
            events.record(conn, "node", node.name, "node registered", {"declared": dict(node.declared)}, by=by)
        else:
            _record_update(conn, node.name, before, by)
        (view,) = _views(conn, GET.run(conn, name=node.name).mappings().all())
        idempotency.keep(conn, keyed, {"name": node.name})
        return view, fresh

    try:
        return db.unit(work)
    except IntegrityError:
        # Two first registrations at once, or two requests with one key: the other one is there now.
        if keyed is not None and idempotency.find(db, keyed.namespace, keyed.key) is not None:
            raise
        return db.unit(work)


def update(
    db: Database,
    name: str,
    declared: Mapping[str, Any],
    *,
    label_changes: Mapping[str, str | None] | None = None,
    by: str = "",
) -> NodeView | None:
    """Set what is declared of a registered node; None when there is none. `by` is who does it.

    `label_changes` are made to the labels that the node has when it is locked: a value sets one, None takes it away.

    Raises:
        InvalidRequest: GPUs on a node whose hypervisor serves none, or more labels than a node may have.
    """

    def work(conn: Connection) -> bool:
        row = _locked(conn, name)
        if row is None or row.state == NodeState.DELETED:
            return False
        before = _declared(conn, name)
        changed = {"labels": _relabelled(before["labels"], label_changes)} if label_changes else {}
        _set(conn, row.id, {**declared, **changed})
        _record_update(conn, name, before, by)
        return True

    return get(db, name) if db.unit(work) else None


def _declared(conn: Connection, name: str) -> dict[str, Any]:
    """Return what is declared of a node, by field."""
    (view,) = _views(conn, GET.run(conn, name=name).mappings().all())
    counts = view.gpus.counts()
    declared = {field_name: getattr(view, field_name) for field_name in COLUMNS}
    declared["gpu_count"] = counts.pop("").total
    declared["mig_profiles"] = {profile: pool.total for profile, pool in counts.items()}
    return declared


def _relabelled(labels: Mapping[str, str], changes: Mapping[str, str | None]) -> dict[str, str]:
    """Return labels with some set and some taken away."""
    left = {key: value for key, value in {**labels, **changes}.items() if value is not None}
    if len(left) > LABELS_MAX:
        text = f"a node has at most {LABELS_MAX} labels; with these changes it would have {len(left)}"
        raise InvalidRequest(text, errors=[{"field": "label_changes", "message": text}])
    return left


def _record_update(conn: Connection, name: str, before: Mapping[str, Any], by: str) -> None:
    """Write the event of a change with both values of what changed; what was set to what it was is none."""
    after = _declared(conn, name)
    changed = [field_name for field_name, value in after.items() if value != before[field_name]]
    if changed:
        payload = {"old": {key: before[key] for key in changed}, "new": {key: after[key] for key in changed}}
        events.record(conn, "node", name, "node updated", payload, by=by)


def _locked(conn: Connection, name: str) -> Row[Any] | None:
    """Lock a node: its ledger row first, when it has one, then its own."""
    known = FIND.run(conn, name=name).first()
    if known is not None:
        node_rows.LOCK.run(conn, node_id=known.id).first()
    return LOCK.run(conn, name=name).first()


def _set(conn: Connection, node_id: int, declared: Mapping[str, Any]) -> None:
    for name, value in _stored(declared).items():
        UPDATE[name].run(conn, id=node_id, value=value)
    if "labels" in declared:
        FORGET_LABELS.run(conn, id=node_id)
        _keep_labels(conn, node_id, declared)
    _declare_gpus(conn, node_id, declared)


def _declare_gpus(conn: Connection, node_id: int, declared: Mapping[str, Any]) -> None:
    """Write what is counted of the node's GPUs; what it declares must suit those that it has."""
    counted = declared.keys() & {"gpu_count", "mig_profiles"}
    if counted:
        gpu_refresh.declare(conn, node_id, count=declared.get("gpu_count"), profiles=declared.get("mig_profiles"))
        TOUCH.run(conn, id=node_id)
    if counted or "backend" in declared:
        gpu_refresh.check_backend(conn, node_id)


def _keep_labels(conn: Connection, node_id: int, declared: Mapping[str, Any]) -> None:
    """Write the labels one a row beside their JSON: what finds the nodes that share one."""
    for label, value in declared.get("labels", {}).items():
        KEEP_LABEL.run(conn, id=node_id, label=label, value=value)


def _stored(declared: Mapping[str, Any]) -> dict[str, Any]:
    columns = {name: value for name, value in declared.items() if name in COLUMNS}
    return {name: json.dumps(value) if name == "labels" else value for name, value in columns.items()}


def _views(conn: Connection, rows: Sequence[RowMapping]) -> list[NodeView]:
    """Return the nodes of rows, with the GPUs of those that have any."""
    known = gpus.of_nodes(conn, [int(row["id"]) for row in rows])
    return [_view(row, known.get(row["id"]) or NodeGpus(kind=row["gpu_kind"])) for row in rows]


def _view(row: RowMapping, known_gpus: NodeGpus) -> NodeView:
    age = row["sample_age_us"]
    return NodeView(
        node_id=row["id"],
        name=row["name"],
        labels=json.loads(row["labels"]),
        region=row["region"],
        arch=row["arch"],
        backend=row["backend"],
        sleepy_pool=bool(row["sleepy_pool"]),
        max_instances=row["max_instances"],
        gpu_kind=row["gpu_kind"],
        state=NodeState(row["state"]),
        scheduling=Scheduling(row["scheduling"]),
        registered_at_us=row["registered_at"],
        sample_at_us=row["sample_at"],
        sample_age_seconds=None if age is None else (Decimal(age) / 1_000_000).quantize(Decimal("0.001")),
        metrics=json.loads(row["metrics"]) if row["metrics"] else {},
        failed=json.loads(row["failed"]) if row["failed"] else {},
        row=None if row["sized"] is None else _ledger_row(row),
        gpus=known_gpus,
    )


def _ledger_row(row: Any) -> LedgerRow:
    return LedgerRow(
        limits=Limits(row["limit_cpus"], row["limit_memory_mb"], row["limit_disk_gb"], row["limit_instances"]),
        used=Amounts(row["used_cpus"], row["used_memory_mb"], row["used_disk_gb"], row["used_instances"]),
        pending_memory_mb=row["pending_memory_mb"],
        pending_disk_gb=row["pending_disk_gb"],
        expected_demand=decimal_of(row["expected_demand"]) or Decimal(0),
        counted=bool(row["counted"]),
        sleepy_memory_mb=row["sleepy_memory_mb"],
    )
