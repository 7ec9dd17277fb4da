"""Instances as they are stored: reading views, and the one way their state moves.

Creation happens in admission's transaction, the end of a life in the one that releases its charge.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from sqlalchemy import Connection, RowMapping

from fleet.ledger import gpus
from fleet.ledger.database import Batch, Database, Sql
from fleet.model.lifecycle import LEGAL_INSTANCE, InstanceState
from fleet.model.request import InstanceRequest

ERROR_CHARACTERS_MAX = 2000
COLUMNS = """
    i.uuid, i.namespace, i.name, i.cpus, i.memory_mb, i.disk_gb, i.image, i.request, i.state, i.node_id,
    n.name AS node, i.placement_attempts, i.decision_id, i.error, i.created_at, i.updated_at
"""
GET = Sql(f"SELECT {COLUMNS} FROM instances i LEFT JOIN nodes n ON n.id = i.node_id WHERE i.uuid = :uuid")
CONDITIONS: Mapping[str, str] = {
    "namespace": "i.namespace = :namespace",
    "node": "n.name = :node",
    "state": "i.state = :state",
    "name": "i.name = :name",
    "live": "i.state <> 'deleted'",
    "cursor": "(i.created_at < :at OR (i.created_at = :at AND i.uuid < :uuid))",
}
# The namespace's row is held, shared, to the end of the transaction: no instance is born in one that is being deleted.
INSERT = Sql("""
    INSERT INTO instances (uuid, namespace, name, cpus, memory_mb, disk_gb, image, request, state, node_id,
                           placement_attempts, decision_id, created_at, updated_at)
    SELECT :uuid, name, :name, :cpus, :memory_mb, :disk_gb, :image, :request, 'creating', :node_id,
           1, :decision_id, {now}, {now}
    FROM namespaces WHERE name = :namespace AND deleted_at IS NULL {share}
""")
INSERT_TAG = Sql("INSERT INTO instance_tags (instance_uuid, tag, value) VALUES (:uuid, :tag, :value)")
REPLACED = Sql("""
    UPDATE instances SET node_id = :node_id, decision_id = :decision_id, placement_attempts = placement_attempts + 1,
        updated_at = {now}
    WHERE uuid = :uuid AND state = 'creating'
""")
RESIZED = Sql("""
    UPDATE instances SET cpus = :cpus, memory_mb = :memory_mb, disk_gb = :disk_gb, updated_at = {now} WHERE uuid = :uuid
""")
HOLD = Sql("SELECT state FROM instances WHERE uuid = :uuid {for_update}")
COUNTS = Sql("SELECT state, COUNT(*) AS instances FROM instances GROUP BY state")


@dataclass(frozen=True, slots=True, kw_only=True)
class InstanceView:
    """One instance; `request` is the body it was made from, times are database microseconds. `node` None: nowhere.

    `gpu_uuids` are the cards or slices that it holds on its node; none where that only counts them.
    """

    uuid: str
    namespace: str
    name: str
    cpus: int
    memory_mb: int
    disk_gb: int
    image: str
    request: Mapping[str, Any]
    state: InstanceState
    node_id: int | None
    node: str | None
    placement_attempts: int
    decision_id: str | None
    error: str | None
    created_at_us: int
    updated_at_us: int
    gpu_uuids: tuple[str, ...] = ()

    @property
    def tags(self) -> Mapping[str, str]:
        """The tags it was made with."""
        tags: Mapping[str, str] = self.request.get("tags") or {}
        return tags


@dataclass(frozen=True, slots=True)
class Position:
    """Where a listing by age goes on: after the row made at `at_us` with this uuid."""

    at_us: int
    uuid: str


def get(db: Database, uuid: str) -> InstanceView | None:
    """Return one instance, deleted ones too."""
    with db.read() as conn:
        return get_in(conn, uuid)


def get_in(conn: Connection, uuid: str) -> InstanceView | None:
    """Return one instance as the caller's transaction sees it."""
    found = _views(conn, GET.run(conn, uuid=uuid).mappings().all())
    return found[0] if found else None


def listing(
    db: Database,
    namespace: str | None,
    limit: int,
    cursor: Position | None = None,
    *,
    state: InstanceState | None = None,
    node: str | None = None,
    name: str | None = None,
) -> list[InstanceView]:
    """Return instances, youngest first; `namespace` None: of all. Deleted ones only when their state is asked for."""
    given: dict[str, Any] = {"namespace": namespace, "node": node, "state": state, "name": name, "cursor": cursor}
    used = tuple(key for key, value in given.items() if value is not None)
    statement = _statement(used if state is not None else (*used, "live"))
    binds: dict[str, Any] = {key: given[key] for key in used if key != "cursor"}
    if cursor is not None:
        binds |= {"at": cursor.at_us, "uuid": cursor.uuid}
    with db.read() as conn:
        return _views(conn, statement.run(conn, binds, limit=limit).mappings().all())


def insert(
    target: Connection | Batch,
    uuid: str,
    namespace: str,
    request: InstanceRequest,
    *,
    body: Mapping[str, Any],
    node_id: int,
    decision_id: str,
) -> None:
    """Write a new instance in the transaction that admits it."""
    INSERT.into(
        target,
        uuid=uuid,
        namespace=namespace,
        name=request.name,
        cpus=request.cpus,
        memory_mb=request.memory_mb,
        disk_gb=request.disk_gb,
        image=request.image,
        request=json.dumps(body, separators=(",", ":")),
        node_id=node_id,
        decision_id=decision_id,
    )
    for tag, value in request.tags.items():
        INSERT_TAG.into(target, uuid=uuid, tag=tag, value=value)


def place_elsewhere(conn: Connection, uuid: str, node_id: int, decision_id: str) -> bool:
    """Note that an instance that is still being created was placed again; False when it is not any more."""
    return REPLACED.run(conn, uuid=uuid, node_id=node_id, decision_id=decision_id).rowcount == 1


def resize(conn: Connection, uuid: str, cpus: int, memory_mb: int, disk_gb: int) -> None:
    """Note the size of an instance in the transaction that gives its charge that size; amounts are without overhead."""
    RESIZED.run(conn, uuid=uuid, cpus=cpus, memory_mb=memory_mb, disk_gb=disk_gb)


def still(conn: Connection, uuid: str, states: Collection[InstanceState]) -> bool:
    """Hold the instance's row, and return whether it is in one of these states until the caller commits."""
    row = HOLD.run(conn, uuid=uuid).first()
    return row is not None and InstanceState(row.state) in states


def counts(db: Database) -> dict[str, int]:
    """Return how many instances there are in each state that occurs."""
    with db.read() as conn:
        return {row.state: int(row.instances) for row in COUNTS.run(conn)}


def move_state(
    conn: Connection,
    uuid: str,
    from_states: Collection[InstanceState],
    to_state: InstanceState,
    *,
    error: str | None = None,
) -> bool:
    """Move an instance along the table of states, inside the caller's transaction; False when it stands elsewhere.

    `error` is kept with the instance; None clears it.
    """
    illegal = [state.value for state in from_states if to_state not in LEGAL_INSTANCE[state]]
    assert not illegal, f"an instance never moves from {illegal} to {to_state}"
    statement = _move_statement(tuple(sorted(state.value for state in from_states)))
    text = None if error is None else error[:ERROR_CHARACTERS_MAX]
    return statement.run(conn, uuid=uuid, to_state=to_state.value, error=text).rowcount == 1


@cache
def _move_statement(states: tuple[str, ...]) -> Sql:
    allowed = ", ".join(f"'{state}'" for state in states)
    return Sql(
        "UPDATE instances SET state = :to_state, error = :error, updated_at = {now} "  # words of an enum
        f"WHERE uuid = :uuid AND state IN ({allowed})"
    )


@cache
def _statement(conditions: tuple[str, ...]) -> Sql:
    where = " AND ".join(CONDITIONS[name] for name in conditions)
    return Sql(
        f"SELECT {COLUMNS} FROM instances i LEFT JOIN nodes n ON n.id = i.node_id "  # constants
        f"WHERE {where} ORDER BY i.created_at DESC, i.uuid DESC LIMIT :limit"
    )


def _views(conn: Connection, rows: Sequence[RowMapping]) -> list[InstanceView]:
    """Return the instances of rows, with the GPUs of those that asked for any."""
    views = [_view(row) for row in rows]
    asking = {view.uuid: view.node_id for view in views if view.request.get("gpus") and view.node_id is not None}
    held = gpus.held_by_each(conn, asking)
    return [replace(view, gpu_uuids=held[view.uuid]) if view.uuid in held else view for view in views]


def _view(row: RowMapping) -> InstanceView:
    return InstanceView(
        uuid=row["uuid"],
        namespace=row["namespace"],
        name=row["name"],
        cpus=row["cpus"],
        memory_mb=row["memory_mb"],
        disk_gb=row["disk_gb"],
        image=row["image"],
        request=json.loads(row["request"]),
        state=InstanceState(row["state"]),
        node_id=row["node_id"],
        node=row["node"],
        placement_attempts=row["placement_attempts"],
        decision_id=row["decision_id"],
        error=row["error"],
        created_at_us=row["created_at"],
        updated_at_us=row["updated_at"],
    )
