"""`/operations`: durable work on nodes, and an operator's two levers on it."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from fleet.api.answers import LIMIT_DEFAULT, answer, iso, page, position
from fleet.api.bodies import StrictRoute
from fleet.api.dependencies import AdminDep, CallerDep, CursorQuery, LimitQuery, ServicesDep, UuidPath
from fleet.api.schemas import OperationAnswer, Page, documented
from fleet.ledger import operations
from fleet.ledger.operations import OperationView
from fleet.model.errors import NotFound
from fleet.model.lifecycle import OperationState
from fleet.model.request import Name
from fleet.queue.jobs import WakeUp

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
    caller: CallerDep,
    limit: LimitQuery = LIMIT_DEFAULT,
    cursor: CursorQuery = None,
    state: OperationState | None = None,
    instance: UUID | None = None,
    node: Annotated[Name | None, Query()] = None,
) -> Response:
    """Operations, newest first."""
    found = operations.listing(
        services.database,
        limit + 1,
        namespace=caller.scope,
        state=state,
        instance=None if instance is None else str(instance),
        node=node,
        before=position(cursor),
    )
    return page(found, limit, show, lambda view: f"{view.created_at}.{view.uuid}")


@router.get("/{uuid}", responses=documented(404, success=OperationAnswer), response_model=None)
def show_operation(*, services: ServicesDep, caller: CallerDep, uuid: UuidPath) -> Response:
    """One operation."""
    found = operations.get(services.database, str(uuid))
    if found is None or not (caller.is_admin or found.namespace == caller.namespace):
        raise NotFound("no such operation")
    return answer(show(found))


@router.post("/{uuid}/retry", responses=documented(403, 404, 409, success=OperationAnswer), response_model=None)
def retry_operation(*, services: ServicesDep, caller: AdminDep, uuid: UuidPath) -> Response:
    """Try a failed operation again, from its first attempt. Admin only."""
    again = operations.retry(services.database, str(uuid), by=caller.by)
    services.context.wake(WakeUp(again.uuid, again.node_id))
    return answer(show(again))


@router.post("/{uuid}/cancel", responses=documented(403, 404, 409, success=OperationAnswer), response_model=None)
def cancel_operation(*, services: ServicesDep, caller: AdminDep, uuid: UuidPath) -> Response:
    """End an operation that no worker holds. Admin only."""
    return answer(show(operations.cancel(services.database, str(uuid), by=caller.by)))
