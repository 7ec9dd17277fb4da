"""Stored decisions and the snapshots they were made on: what makes every decision replay.

Where the answer to a COMMIT is lost, what became of it is read back with a lock, which waits for one still under way: a
repeat meets no row of its own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, RowMapping

from fleet.ledger.database import Batch, Database, Sql

SUMMARY_MAX = 2000

INSERT_BASE = Sql("INSERT INTO decision_bases (id, parent, body, created_at) VALUES (:id, :parent, :body, {now})")
LOCK_BASE = Sql("SELECT id FROM decision_bases WHERE id = :id {for_update}")
BASE = Sql("SELECT parent, body FROM decision_bases WHERE id = :id")
INSERT = Sql("""
    INSERT INTO decisions (id, instance_uuid, namespace, reason, outcome, code, node_id, seed, base_id, changes,
                           neighbours, record, request, walk, summary, version, created_at)
    VALUES (:id, :instance_uuid, :namespace, :reason, :outcome, :code, :node_id, :seed, :base_id, :changes,
            :neighbours, :record, :request, :walk, :summary, :version, {now})
""")
COLUMNS = """
    d.id, d.instance_uuid, d.namespace, d.reason, d.outcome, d.code, d.node_id, n.name AS node, d.seed, d.base_id,
    d.changes, d.neighbours, d.record, d.request, d.walk, d.summary, d.version, d.created_at
"""
LOCK = Sql("SELECT id FROM decisions WHERE id = :id {for_update}")
GET = Sql(f"SELECT {COLUMNS} FROM decisions d LEFT JOIN nodes n ON n.id = d.node_id WHERE d.id = :id")
_IN_ORDER = f"""
    SELECT {COLUMNS} FROM decisions d LEFT JOIN nodes n ON n.id = d.node_id
    WHERE d.created_at >= :low AND d.created_at <= :high
"""
NEWEST = Sql(
    _IN_ORDER + " AND NOT (d.created_at = :at AND d.id > :id) ORDER BY d.created_at DESC, d.id DESC LIMIT :limit"
)
OLDEST = Sql(_IN_ORDER + " AND NOT (d.created_at = :at AND d.id < :id) ORDER BY d.created_at, d.id LIMIT :limit")
LIST = """
    SELECT d.id, d.instance_uuid, d.namespace, d.reason, d.outcome, d.code, n.name AS node, d.summary, d.created_at
    FROM decisions d LEFT JOIN nodes n ON n.id = d.node_id WHERE 1 = 1
"""
FILTERS = {
    "namespace": " AND d.namespace = :namespace",
    "instance": " AND d.instance_uuid = :instance",
    "outcome": " AND d.outcome = :outcome",
    "cursor": " AND (d.created_at < :at OR (d.created_at = :at AND d.id < :id))",
}
_STATEMENTS: dict[tuple[str, ...], Sql] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionRow:
    """A decision as it is stored. `changes` are the rows changed since the base; `walk` the tries that followed.

    `neighbours` are the instances that its rules and affinity could see; b"": it asked for nothing of the kind.
    """

    id: str
    instance_uuid: str | None
    namespace: str
    reason: str
    outcome: str
    code: str
    node_id: int | None
    seed: int
    base_id: str | None
    changes: bytes
    record: bytes
    request: Mapping[str, Any]
    walk: Sequence[Mapping[str, Any]]
    summary: str
    version: str
    neighbours: bytes = b""
    node: str | None = None
    created_at: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DecisionSummary:
    """A line of a listing; `created_at` in database microseconds."""

    id: str
    instance_uuid: str | None
    namespace: str
    reason: str
    outcome: str
    code: str
    node: str | None
    summary: str
    created_at: int


def insert(target: Connection | Batch, row: DecisionRow) -> None:
    """Store a decision in the transaction that admits on it (or, for a refusal, in one of its own)."""
    INSERT.into(
        target,
        id=row.id,
        instance_uuid=row.instance_uuid,
        namespace=row.namespace,
        reason=row.reason,
        outcome=row.outcome,
        code=row.code,
        node_id=row.node_id,
        seed=row.seed,
        base_id=row.base_id,
        changes=row.changes,
        neighbours=row.neighbours or None,
        record=row.record,
        request=json.dumps(row.request, separators=(",", ":")),
        walk=json.dumps(row.walk, separators=(",", ":")),
        summary=row.summary[:SUMMARY_MAX],
        version=row.version,
    )


def keep(db: Database, row: DecisionRow) -> None:
    """Store the decision of a refusal, which nothing else hangs on, under its fresh id."""

    def work(conn: Connection) -> bool:
        insert(conn, row)
        return True

    db.unit(work, on_lost=lambda: _is_stored(db, LOCK, row.id))


def insert_base(db: Database, base_id: str, parent: str | None, body: bytes) -> None:
    """Store a base (or a checkpoint, which holds what changed since its parent) under the caller's fresh id."""
    db.unit(
        lambda conn: INSERT_BASE.run(conn, id=base_id, parent=parent, body=body).rowcount,
        on_lost=lambda: 1 if _is_stored(db, LOCK_BASE, base_id) else None,
    )


def _is_stored(db: Database, lock: Sql, fresh_id: str) -> bool | None:
    """Read back after a lost answer whether the row is there, once nobody is making it; None: it is not."""
    return db.unit(lambda conn: lock.run(conn, id=fresh_id).first()) is not None or None


def base(db: Database, base_id: str) -> tuple[bytes, ...]:
    """Return the bodies of a base and of its checkpoint, oldest first; empty when it is not kept any more."""
    with db.read() as conn:
        row = BASE.run(conn, id=base_id).first()
        if row is None:
            return ()
        if row.parent is None:
            return (bytes(row.body),)
        parent = BASE.run(conn, id=row.parent).first()
        return () if parent is None else (bytes(parent.body), bytes(row.body))


def get(db: Database, decision_id: str) -> DecisionRow | None:
    """Return a stored decision."""
    with db.read() as conn:
        row = GET.run(conn, id=decision_id).mappings().first()
    return None if row is None else _row(row)


def in_order(
    db: Database,
    *,
    limit: int,
    newest_first: bool,
    at_least_us: int | None,
    at_most_us: int | None,
    cursor: tuple[int, str] | None = None,
) -> list[DecisionRow]:
    """Return whole decisions of a stretch of time by their time; from the one of `cursor` on, itself included."""
    low, high = at_least_us or 0, 2**62 if at_most_us is None else at_most_us
    at, uuid = cursor or (-1, "")
    if cursor is not None:
        low, high = (low, min(high, at)) if newest_first else (max(low, at), high)
    statement = NEWEST if newest_first else OLDEST
    with db.read() as conn:
        return [_row(row) for row in statement.run(conn, low=low, high=high, at=at, id=uuid, limit=limit).mappings()]


def _row(row: RowMapping) -> DecisionRow:
    values = dict(row)
    values["request"] = json.loads(values["request"])
    values["walk"] = json.loads(values["walk"])
    values |= {name: bytes(values[name] or b"") for name in ("changes", "neighbours", "record")}
    return DecisionRow(**values)


def listing(
    db: Database,
    *,
    limit: int,
    namespace: str | None = None,
    instance: str | None = None,
    outcome: str | None = None,
    cursor: tuple[int, str] | None = None,
) -> list[DecisionSummary]:
    """Return decisions, youngest first; `cursor` is the last one's `(created_at, id)`."""
    given = {"namespace": namespace, "instance": instance, "outcome": outcome, "cursor": cursor}
    used = tuple(name for name, value in given.items() if value is not None)
    statement = _STATEMENTS.get(used)
    if statement is None:
        conditions = "".join(FILTERS[name] for name in used)
        statement = Sql(LIST + conditions + " ORDER BY d.created_at DESC, d.id DESC LIMIT :limit")
        _STATEMENTS[used] = statement
    binds: dict[str, Any] = {name: given[name] for name in used if name != "cursor"}
    if cursor is not None:
        binds |= {"at": cursor[0], "id": cursor[1]}
    with db.read() as conn:
        return [DecisionSummary(**row) for row in statement.run(conn, binds, limit=limit).mappings()]
