"""Deleting an instance: its state says so at once, an operation does the work, the charge goes back with the proof."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection

from fleet.ledger import events, instances, operations
from fleet.model.errors import Conflict, NotFound
from fleet.model.lifecycle import InstanceState, OperationKind
from fleet.queue.jobs import WakeUp
from fleet.services.context import Context

DELETABLE = frozenset({InstanceState.CREATING, InstanceState.RUNNING, InstanceState.STOPPED, InstanceState.ERROR})


@dataclass(frozen=True, slots=True)
class Deleting:
    """An accepted delete. A repeated one answers the operation that is under way."""

    uuid: str
    operation_id: str
    state: str = InstanceState.DELETING


def delete_instance(ctx: Context, uuid: str, namespace: str | None) -> Deleting:
    """Start deleting an instance; `namespace` None is an operator, who may delete any.

    Raises:
        NotFound: no such instance, or another namespace's, or deleted already.
        Conflict: its state forbids it.
    """
    found = instances.get(ctx.database, uuid)
    if found is None or found.state is InstanceState.DELETED or namespace not in {None, found.namespace}:
        raise NotFound("no such instance")
    operation_id = ctx.new_uuid()

    def work(conn: Connection) -> tuple[str, int] | None:
        if not instances.move_state(conn, uuid, DELETABLE, InstanceState.DELETING):
            return None
        # Read after the state was taken: a redirect that commits first has moved the instance, none can follow.
        row = instances.get_in(conn, uuid)
        assert row is not None, "its row was just changed"
        assert row.node_id is not None, "an instance that is not deleted has a node"
        operations.insert(conn, operation_id, OperationKind.DELETE, uuid, row.namespace, row.node_id)
        events.record(conn, "instance", uuid, "instance delete requested", {"operation": operation_id})
        ctx.fault("api_before_delete_commit")
        return operation_id, row.node_id

    started = ctx.database.unit(work)
    if started is None:
        return _under_way(ctx, uuid)
    ctx.fault("api_after_delete_commit_before_wake")
    ctx.wake(WakeUp(operation_id, started[1]))
    return Deleting(uuid, operation_id)


def _under_way(ctx: Context, uuid: str) -> Deleting:
    """Answer a repeated delete with the operation that carries the first one."""
    for operation in operations.listing(ctx.database, 20, instance=uuid):
        if operation.kind is OperationKind.DELETE:
            return Deleting(uuid, operation.uuid)
    found = instances.get(ctx.database, uuid)
    state = "deleted" if found is None else str(found.state)
    if state == InstanceState.DELETED:
        raise NotFound("no such instance")
    msg = f"instance {uuid} is {state}; it cannot be deleted now"
    raise Conflict(msg, state=state)
