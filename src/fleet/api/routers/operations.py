"""`/operations`: durable work on nodes, and an operator's two levers on it."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from fleet.api.answers import LIMIT_DEFAULT, answer, iso, page, position
from fleet.api.bodies import StrictRoute
from fleet.api.dependencies import (
    NODES_ONLY,
    CallerOrNodeDep,
    CursorQuery,
    LimitQuery,
    NodeOrAdminDep,
    ServicesDep,
    UuidPath,
)
from fleet.api.schemas import OperationAnswer, Page, documented
from fleet.ledger import operations
from fleet.ledger.database import Database
from fleet.ledger.operations import OperationView
from fleet.model.errors import Forbidden, NotFound
from fleet.model.lifecycle import OperationState
from fleet.model.request import Name
from fleet.queue.jobs import WakeUp
from fleet.services.authentication import Caller

router = APIRouter(prefix="/operations", route_class=StrictRoute, tags=["operations"])


def show(view: OperationView) -> dict[str, Any]:
    """An operation as it is answered."""
    return {
        "uuid": view.uuid,
        "kind": view.kind,
        "state": view.state,
        "instance_uuid": view.instance_uuid,
        "namespace": view.namespace,
        "node": view.node,
        "step": view.step,
        "attempts": view.attempts,
        "attempts_max": view.attempts_max,
        "error": view.error,
        "created_at": iso(view.created_at),
        "updated_at": iso(view.updated_at),
        "finished_at": iso(view.finished_at),
    }


@router.get("", responses=documented(success=Page[OperationAnswer]), response_model=None)
def list_operations(
    *,
    services: ServicesDep,
    caller: CallerOrNodeDep,
    limit: LimitQuery = LIMIT_DEFAULT,
    cursor: CursorQuery = None,
    state: OperationState | None = None,
    instance: UUID | None = None,
    node: Annotated[Name | None, Query()] = None,
) -> Response:
    """Operations, newest first; a node's token lists that node's."""
    if caller.node and node not in {None, caller.node}:
        raise Forbidden(NODES_ONLY)
    found = operations.listing(
        services.database,
        limit + 1,
        namespace=None if caller.node else caller.scope,
        state=state,
        instance=None if instance is None else str(instance),
        node=caller.node or node,
        before=position(cursor),
    )
    return page(found, limit, show, lambda view: f"{view.created_at}.{view.uuid}")


@router.get("/{uuid}", responses=documented(404, success=OperationAnswer), response_model=None)
def show_operation(*, services: ServicesDep, caller: CallerOrNodeDep, uuid: UuidPath) -> Response:
    """One operation."""
    return answer(show(_seen(services.database, caller, uuid)))


@router.post("/{uuid}/retry", responses=documented(403, 404, 409, success=OperationAnswer), response_model=None)
def retry_operation(*, services: ServicesDep, caller: NodeOrAdminDep, uuid: UuidPath) -> Response:
    """Try a failed operation again, from its first attempt. Admin, or the node whose operation it is."""
    again = operations.retry(
        services.database, str(uuid), node_id=_own_node(services.database, caller, uuid), by=caller.by
    )
    services.context.wake(WakeUp(again.uuid, again.node_id))
    return answer(show(again))


@router.post("/{uuid}/cancel", responses=documented(403, 404, 409, success=OperationAnswer), response_model=None)
def cancel_operation(*, services: ServicesDep, caller: NodeOrAdminDep, uuid: UuidPath) -> Response:
    """End an operation that no worker holds. Admin, or the node whose operation it is."""
    own = _own_node(services.database, caller, uuid)
    return answer(show(operations.cancel(services.database, str(uuid), node_id=own, by=caller.by)))


def _seen(db: Database, caller: Caller, uuid: UUID) -> OperationView:
    """The operation, if the caller may see it: the admin all, a node its own, a namespace its own."""
    found = operations.get(db, str(uuid))
    if found is not None and caller.node:
        own = found.node == caller.node
    else:
        own = found is not None and (caller.is_admin or found.namespace == caller.namespace)
    if found is None or not own:
        raise NotFound("no such operation")
    return found


def _own_node(db: Database, caller: Caller, uuid: UUID) -> int | None:
    """The node that the operation must still be of when the caller is a node; None: the caller is the admin."""
    return _seen(db, caller, uuid).node_id if caller.node else None
