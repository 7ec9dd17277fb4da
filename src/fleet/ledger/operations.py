"""Operations: durable records of work to do on a node. The row is the truth, the queue only wakes it.

A worker takes an operation by a guarded update that counts `lease_number` up; every later write of that worker repeats
the number, so one that lost its lease (frozen, cut off, thought dead) can write nothing. Expiry and due times are the
database's clock, never a worker's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection, Row

from fleet.ledger import events, instances
from fleet.ledger.database import Batch, Database, Sql, SqlOfLists
from fleet.model.errors import Conflict, NotFound
from fleet.model.lifecycle import InstanceState, OperationKind, OperationState

MICROSECONDS: Final = 1_000_000
ERROR_CHARACTERS_MAX: Final = 2000
ATTEMPTS_MAX: Final = 5

_COLUMNS = (
    "o.uuid, o.kind, o.state, o.instance_uuid, o.namespace, o.node_id, n.name AS node, o.step, o.attempts,"
    " o.attempts_max, o.lease_owner, o.lease_number, o.lease_expires_at, o.next_attempt_at, o.error,"
    " o.created_at, o.updated_at, o.finished_at"
)
_FROM = f"SELECT {_COLUMNS} FROM operations o LEFT JOIN nodes n ON n.id = o.node_id"


@dataclass(frozen=True, slots=True, kw_only=True)
class OperationView:
    """An operation as it is stored; every `*_at` is database microseconds, UTC. `node` None: it is gone."""

    uuid: str
    kind: OperationKind
    state: OperationState
    instance_uuid: str
    namespace: str
    node_id: int
    node: str | None
    step: str
    attempts: int
    attempts_max: int
    lease_owner: str | None
    lease_number: int
    lease_expires_at: int | None
    next_attempt_at: int
    error: str | None
    created_at: int
    updated_at: int
    finished_at: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeasedOperation:
    """An operation in the hands of one worker. `number` is the fence: each write under it repeats it.

    `step` is how far an earlier attempt had come, `attempts` counts this one.
    """

    uuid: str
    kind: OperationKind
    instance_uuid: str
    namespace: str
    node_id: int
    node: str | None
    step: str
    attempts: int
    attempts_max: int
    owner: str
    number: int


_INSERT = Sql(
    """INSERT INTO operations (uuid, kind, state, instance_uuid, namespace, node_id, attempts_max, next_attempt_at,
    created_at, updated_at) VALUES (:uuid, :kind, 'pending', :instance, :namespace, :node_id, :attempts_max,
    {now} + :delay, {now}, {now})"""
)
_DUE = "((state = 'pending' AND next_attempt_at <= {now}) OR (state = 'running' AND lease_expires_at < {now}))"
_LEASE = Sql(
    f"""UPDATE operations SET state = 'running', attempts = attempts + 1, lease_number = lease_number + 1,
    lease_owner = :owner, lease_expires_at = {{now}} + :lease, updated_at = {{now}}
    WHERE uuid = :uuid AND {_DUE}"""
)
_MINE = "WHERE uuid = :uuid AND lease_number = :number AND state = 'running'"
_HEARTBEAT = Sql(f"UPDATE operations SET lease_expires_at = {{now}} + :lease {_MINE}")
_STEP = Sql(f"UPDATE operations SET step = :step, lease_expires_at = {{now}} + :lease, updated_at = {{now}} {_MINE}")
_FREE = "lease_owner = NULL, lease_expires_at = NULL, updated_at = {now}"
_FINISH = Sql(f"UPDATE operations SET state = 'done', error = NULL, finished_at = {{now}}, {_FREE} {_MINE}")
_POSTPONE = Sql(
    f"""UPDATE operations SET state = 'pending', error = :error, next_attempt_at = {{now}} + :delay,
    attempts = attempts - :uncounted, {_FREE} {_MINE}"""
)
_END = Sql(f"UPDATE operations SET state = :state, error = :error, finished_at = {{now}}, {_FREE} {_MINE}")
_REDIRECT = Sql(
    f"""UPDATE operations SET state = 'pending', node_id = :node_id, step = '', next_attempt_at = {{now}}, {_FREE}
    {_MINE}"""
)
_GET = Sql(f"{_FROM} WHERE o.uuid = :uuid")
_PENDING_DUE = Sql(
    f"""{_FROM} WHERE o.state = 'pending' AND o.next_attempt_at <= {{now}} - :grace AND o.uuid > :after
    ORDER BY o.uuid LIMIT :limit"""
)
_WAITING = SqlOfLists("""
    SELECT node_id, COUNT(*) AS waiting FROM operations
    WHERE node_id IN ({nodes}) AND state = 'pending' AND next_attempt_at <= {now} GROUP BY node_id
""")
_EXPIRED = Sql(
    f"""{_FROM} WHERE o.state = 'running' AND o.lease_expires_at < {{now}} AND o.uuid > :after
    ORDER BY o.uuid LIMIT :limit"""
)
_RETRY = Sql(
    f"""UPDATE operations SET state = 'pending', attempts = 0, next_attempt_at = {{now}}, finished_at = NULL, {_FREE}
    WHERE uuid = :uuid AND state = 'failed'"""
)
_LOCK = Sql("SELECT state, attempts, error, node_id FROM operations WHERE uuid = :uuid {for_update}")
_WITHOUT_LEASE = "(state = 'pending' OR (state = 'running' AND lease_expires_at < {now}))"
# The number counts up: whoever still believes to hold the lease is fenced off.
_CANCEL = Sql(
    f"""UPDATE operations SET state = 'cancelled', lease_number = lease_number + 1, error = :error,
    finished_at = {{now}}, {_FREE} WHERE uuid = :uuid AND {_WITHOUT_LEASE}"""
)
_OTHERS = Sql(
    f"""{_FROM} WHERE o.instance_uuid = :instance AND o.uuid <> :uuid AND o.state IN ('pending', 'running')
    ORDER BY o.created_at, o.uuid"""
)
_CHARGED = Sql("SELECT node_id FROM charges WHERE instance_uuid = :instance AND role = 'primary'")


def insert(
    target: Connection | Batch,
    uuid: str,
    kind: OperationKind,
    instance_uuid: str,
    namespace: str,
    node_id: int,
    *,
    attempts_max: int = ATTEMPTS_MAX,
    delay_seconds: float = 0,
) -> None:
    """Add a pending operation, in the transaction that admits or deletes what it is for."""
    _INSERT.into(
        target,
        uuid=uuid,
        kind=str(kind),
        instance=instance_uuid,
        namespace=namespace,
        node_id=node_id,
        attempts_max=attempts_max,
        delay=_microseconds(delay_seconds),
    )


def lease(db: Database, uuid: str, owner: str, seconds: float) -> LeasedOperation | None:
    """Take the operation for `seconds`; None when it is done, not due yet, or another worker's lease is alive.

    When the answer of the commit is lost, the lease stands without a holder and runs out by itself.
    """

    def take(conn: Connection) -> LeasedOperation | None:
        taken = _LEASE.run(conn, uuid=uuid, owner=owner, lease=_microseconds(seconds)).rowcount
        return _leased(_one(conn, uuid)) if taken else None

    return db.unit(take)


def heartbeat(db: Database, leased: LeasedOperation, seconds: float) -> bool:
    """Extend the lease; False when it is another's by now."""
    return db.unit(
        lambda conn: (
            _HEARTBEAT.run(conn, uuid=leased.uuid, number=leased.number, lease=_microseconds(seconds)).rowcount > 0
        )
    )


def step(db: Database, leased: LeasedOperation, name: str, seconds: float) -> bool:
    """Write down that the attempt reached `name`, and extend the lease; False when it is another's by now."""
    return db.unit(
        lambda conn: (
            _STEP.run(conn, uuid=leased.uuid, number=leased.number, step=name, lease=_microseconds(seconds)).rowcount
            > 0
        )
    )


def finish(conn: Connection, leased: LeasedOperation) -> bool:
    """Mark it done, in the transaction that settles its effect. False: the lease was lost, roll back."""
    return _FINISH.run(conn, uuid=leased.uuid, number=leased.number).rowcount > 0


def fail(
    db: Database, leased: LeasedOperation, error: str, retry_in_seconds: float | None, *, counted: bool = True
) -> bool:
    """End the attempt: due again in `retry_in_seconds`, or (None) failed for good. False: the lease was lost."""
    if retry_in_seconds is None:
        return db.unit(lambda conn: end(conn, leased, OperationState.FAILED, error))
    return db.unit(lambda conn: postpone(conn, leased, error, retry_in_seconds, counted=counted))


def postpone(conn: Connection, leased: LeasedOperation, error: str, seconds: float, *, counted: bool = True) -> bool:
    """End the attempt; the operation is due again in `seconds`. False: the lease was lost.

    `counted` False gives the attempt back: nothing was tried, the operation only waits for something.
    """
    binds = {"uuid": leased.uuid, "number": leased.number, "error": error[:ERROR_CHARACTERS_MAX]}
    return _POSTPONE.run(conn, binds, delay=_microseconds(seconds), uncounted=0 if counted else 1).rowcount > 0


def end(conn: Connection, leased: LeasedOperation, state: OperationState, error: str) -> bool:
    """End it as failed or cancelled, in the transaction that says so of its instance. False: the lease was lost."""
    binds = {"uuid": leased.uuid, "number": leased.number, "state": str(state), "error": error[:ERROR_CHARACTERS_MAX]}
    return _END.run(conn, binds).rowcount > 0


def redirect(conn: Connection, leased: LeasedOperation, node_id: int) -> bool:
    """Hand it to another node's worker, in the transaction that moves its charge. False: the lease was lost."""
    return _REDIRECT.run(conn, uuid=leased.uuid, number=leased.number, node_id=node_id).rowcount > 0


def due(db: Database, limit: int, *, after: str = "", grace_seconds: float = 0) -> list[OperationView]:
    """What nobody is working on although it is due, by uuid from `after` on: at most `limit`.

    Work that has been due for less than `grace_seconds` is left out: its own wake-up is on the way.
    """
    binds = {"after": after, "limit": limit, "grace": _microseconds(grace_seconds)}
    with db.read() as conn:
        found = [_view(row) for sql in (_PENDING_DUE, _EXPIRED) for row in sql.run(conn, binds).mappings()]
    return sorted(found, key=lambda operation: operation.uuid)[:limit]


def waiting(db: Database, node_ids: Collection[int]) -> dict[int, int]:
    """How many operations of each of these nodes are due and in no worker's hands."""
    counts = dict.fromkeys(node_ids, 0)
    if not counts:
        return counts
    with db.read() as conn:
        return counts | {int(row.node_id): int(row.waiting) for row in _WAITING.run(conn, {"nodes": node_ids})}


def get(db: Database, uuid: str) -> OperationView | None:
    """The operation as it is stored, or None."""
    with db.read() as conn:
        row = _GET.run(conn, uuid=uuid).mappings().first()
    return None if row is None else _view(row)


def unfinished_others(conn: Connection, leased: LeasedOperation) -> list[OperationView]:
    """Other operations on the same instance that have not ended, oldest first."""
    rows = _OTHERS.run(conn, instance=leased.instance_uuid, uuid=leased.uuid).mappings()
    return [_view(row) for row in rows]


def charged_node(conn: Connection, instance_uuid: str) -> int | None:
    """The node that holds the instance's own charge; None when it holds none (any more)."""
    row = _CHARGED.run(conn, instance=instance_uuid).first()
    return None if row is None else int(row.node_id)


def listing(
    db: Database,
    limit: int,
    *,
    namespace: str | None = None,
    state: OperationState | None = None,
    instance: str | None = None,
    node: str | None = None,
    before: tuple[int, str] | None = None,
) -> list[OperationView]:
    """Operations, newest first. `before` is the `(created_at, uuid)` of the last one seen."""
    wanted: dict[str, Any] = {"namespace": namespace, "state": state and str(state), "instance_uuid": instance}
    clauses = [f"o.{name} = :{name}" for name, value in wanted.items() if value is not None]
    binds: dict[str, Any] = {name: value for name, value in wanted.items() if value is not None}
    if node is not None:
        clauses.append("n.name = :node")
        binds["node"] = node
    if before is not None:
        clauses.append("(o.created_at < :at OR (o.created_at = :at AND o.uuid < :last))")
        binds |= {"at": before[0], "last": before[1]}
    where = f"WHERE {' AND '.join(clauses)}" if clauses else ""
    sql = Sql(f"{_FROM} {where} ORDER BY o.created_at DESC, o.uuid DESC LIMIT :limit")
    with db.read() as conn:
        return [_view(row) for row in sql.run(conn, binds, limit=limit).mappings()]


def retry(db: Database, uuid: str, *, node_id: int | None = None, by: str = "") -> OperationView:
    """Let a failed operation be tried again from its first attempt; `by` is who does it.

    `node_id`: only while it is that node's.

    Raises:
        NotFound: no such operation.
        Conflict: it has not failed; the sentence says what it is.
    """
    found = _known(db, uuid)

    began: list[str] = []

    def work(conn: Connection) -> bool:
        before = _locked(conn, uuid, node_id)
        if not _RETRY.run(conn, uuid=uuid).rowcount:
            return False
        old = {"state": before.state, "attempts": before.attempts, "error": before.error}
        new = {"state": str(OperationState.PENDING), "attempts": 0}
        _record_act(conn, found, "operation retried", {"old": old, "new": new}, by)
        began[:] = [uuid]
        return True

    if not db.unit(work, on_lost=lambda: _ended_as(db, uuid, began, lambda state: state != OperationState.FAILED)):
        raise Conflict(f"only a failed operation can be tried again; this one is {_known(db, uuid).state}")
    return _known(db, uuid)


def cancel(
    db: Database,
    uuid: str,
    reason: str = "cancelled by an operator",
    *,
    node_id: int | None = None,
    by: str = "",
) -> OperationView:
    """End an operation that no worker holds. The instance of a create ends in error and keeps its charge until deleted.

    `by` is who does it. `node_id`: only while it is that node's.

    Raises:
        NotFound: no such operation.
        Conflict: a worker holds it, or it has ended, or it is a delete (the instance would hold its room for ever).
    """
    found = _known(db, uuid)
    if found.kind is OperationKind.DELETE:
        raise Conflict("a delete cannot be cancelled: its instance would stay in state deleting for ever")

    began: list[str] = []

    def work(conn: Connection) -> bool:
        if found.kind is OperationKind.CREATE:
            instances.move_state(conn, found.instance_uuid, {InstanceState.CREATING}, InstanceState.ERROR, error=reason)
        before = _locked(conn, uuid, node_id)
        if not cancel_unheld(conn, uuid, reason):
            raise Conflict(f"only an operation that no worker holds can be cancelled; this one is {before.state}")
        old = {"state": before.state, "attempts": before.attempts}
        changed = {"old": old, "new": {"state": str(OperationState.CANCELLED)}, "reason": reason}
        _record_act(conn, found, "operation cancelled", changed, by)
        began[:] = [uuid]
        return True

    db.unit(work, on_lost=lambda: _ended_as(db, uuid, began, lambda state: state == OperationState.CANCELLED))
    return _known(db, uuid)


def _ended_as(db: Database, uuid: str, began: list[str], wanted: Callable[[str], bool]) -> bool | None:
    """After a lost answer, once nobody is changing it: whether an act that was written was carried out as well."""
    row = db.unit(lambda conn: _LOCK.run(conn, uuid=uuid).first()) if began else None
    return True if row is not None and wanted(row.state) else None


def _locked(conn: Connection, uuid: str, node_id: int | None) -> Row[Any]:
    row = _LOCK.run(conn, uuid=uuid).first()
    if row is None or node_id not in (None, row.node_id):
        raise NotFound(f"no operation {uuid}")
    return row


def _record_act(conn: Connection, found: OperationView, message: str, changed: Mapping[str, Any], by: str) -> None:
    """Write what somebody did to an operation on its instance's timeline."""
    payload = {"operation": found.uuid, "kind": str(found.kind), "node": found.node, **changed}
    events.record(conn, "instance", found.instance_uuid, message, payload, by=by)


def cancel_unheld(conn: Connection, uuid: str, reason: str) -> bool:
    """End the operation unless a worker holds it; a worker that lost its lease is fenced off."""
    return _CANCEL.run(conn, uuid=uuid, error=reason[:ERROR_CHARACTERS_MAX]).rowcount > 0


def _known(db: Database, uuid: str) -> OperationView:
    found = get(db, uuid)
    if found is None:
        raise NotFound(f"no operation {uuid}")
    return found


def _one(conn: Connection, uuid: str) -> OperationView:
    return _view(_GET.run(conn, uuid=uuid).mappings().one())


def _leased(row: OperationView) -> LeasedOperation:
    return LeasedOperation(
        uuid=row.uuid,
        kind=row.kind,
        instance_uuid=row.instance_uuid,
        namespace=row.namespace,
        node_id=row.node_id,
        node=row.node,
        step=row.step,
        attempts=row.attempts,
        attempts_max=row.attempts_max,
        owner=row.lease_owner or "",
        number=row.lease_number,
    )


def _view(row: Any) -> OperationView:
    values = dict(row)
    return OperationView(
        **{**values, "kind": OperationKind(values["kind"]), "state": OperationState(values["state"])},
    )


def _microseconds(seconds: float) -> int:
    return round(seconds * MICROSECONDS)
