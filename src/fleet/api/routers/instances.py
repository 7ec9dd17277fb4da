"""`/instances` and `/placements/explain`: what the product is for."""

from __future__ import annotations

from typing import Annotated, Any
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from fleet.api.answers import LIMIT_DEFAULT, answer, iso, page, position
from fleet.api.bodies import StrictRoute
from fleet.api.dependencies import CallerDep, CursorQuery, LimitQuery, RetryKeyDep, Services, ServicesDep, UuidPath
from fleet.api.problems import problem
from fleet.api.routers.events import FilterDep, NewestFirstQuery, timeline_page
from fleet.api.schemas import (
    AcceptedAnswer,
    CreatedAnswer,
    DecisionAnswer,
    ExplainAgainBody,
    ExplainBody,
    InstanceAnswer,
    Page,
    TimelineAnswer,
    documented,
)
from fleet.api.why_answer import WhyAnswer
from fleet.ledger import instances
from fleet.ledger.instances import InstanceView, Position
from fleet.model.errors import NotFound, NotSupported
from fleet.model.lifecycle import InstanceState
from fleet.model.request import InstanceRequest, Name, Reason
from fleet.services import namespaces, remedies
from fleet.services.authentication import Caller
from fleet.services.create import create_instance
from fleet.services.delete import delete_instance
from fleet.services.explain import explain, explain_again
from fleet.services.place import Refusal
from fleet.services.supported import refuse_unsupported
from fleet.services.why import why

router = APIRouter(route_class=StrictRoute, tags=["instances"])
NO_INSTANCE = "no such instance"
NODES_SHOWN_MAX = 1000


def show(view: InstanceView) -> dict[str, Any]:
    """An instance as it is answered."""
    return {
        "uuid": view.uuid,
        "name": view.name,
        "namespace": view.namespace,
        "state": view.state,
        "node": view.node,
        "cpus": view.cpus,
        "memory_mb": view.memory_mb,
        "disk_gb": view.disk_gb,
        "image": view.image,
        "tags": view.tags,
        "metadata": _metadata(view),
        "gpus": view.request.get("gpus", 0),
        "gpu_kind": view.request.get("gpu_kind", ""),
        "gpu_profile": view.request.get("gpu_profile", ""),
        "gpu_uuids": list(view.gpu_uuids),
        "placement_attempts": view.placement_attempts,
        "decision_id": view.decision_id,
        "error": view.error,
        "created_at": iso(view.created_at_us),
        "updated_at": iso(view.updated_at_us),
    }


def _metadata(view: InstanceView) -> dict[str, Any]:
    """The metadata as given; tag affinity stands in it wherever it was given."""
    given = dict(view.request.get("metadata") or {})
    affinity = view.request.get("affinity")
    return given if affinity is None else {**given, "affinity": affinity}


def refused(services: Services, refusal: Refusal) -> Response:
    """A placement's no: its code, its sentence, how many nodes each stage dropped for which reason, what would help."""
    ctx, find = services.context, refusal.remedies
    found = None if find is None else ctx.allowance.spend(ctx.elapsed, find)
    extra = {
        "stage": refusal.stage or None,
        "transient": refusal.transient,
        "counts": refusal.counts,
        "decision_id": refusal.decision_id,
        **refusal.extra,
        "remedies": None if found is None else remedies.forms(found),
    }
    return problem(refusal.code, refusal.detail, **extra)


def target_namespace(services: Services, caller: Caller, named: str | None) -> str:
    """The namespace a body is for: the own one, or, for the admin, any that exists."""
    if named is None or named == caller.namespace:
        return caller.namespace
    return namespaces.get(services.database, caller, named).name


@router.post(
    "/instances",
    status_code=201,
    responses=documented(404, 409, 422, 507, success=CreatedAnswer, status=201, description="Admitted"),
    response_model=None,
)
def create(*, services: ServicesDep, caller: CallerDep, body: InstanceRequest, retry_key: RetryKeyDep) -> Response:
    """Choose a node, charge it, and let its worker make the instance."""
    namespace = target_namespace(services, caller, body.namespace)
    refuse_unsupported(body)
    made = create_instance(services.context, namespace, body, retry_key)
    if isinstance(made, Refusal):
        return refused(services, made)
    content = {
        "uuid": made.uuid,
        "node": made.node,
        "decision_id": made.decision_id,
        "operation_id": made.operation_id,
        "state": made.state,
    }
    return answer(content, 201, {"Location": f"/instances/{made.uuid}"})


@router.get("/instances", responses=documented(success=Page[InstanceAnswer]), response_model=None)
def list_instances(
    *,
    services: ServicesDep,
    caller: CallerDep,
    limit: LimitQuery = LIMIT_DEFAULT,
    cursor: CursorQuery = None,
    state: InstanceState | None = None,
    node: Annotated[Name | None, Query()] = None,
    name: Annotated[Name | None, Query()] = None,
    namespace: Annotated[Name | None, Query()] = None,
) -> Response:
    """Instances, youngest first; deleted ones only with `state=deleted`."""
    scope = caller.scope
    if namespace is not None:
        scope = namespaces.get(services.database, caller, namespace).name
    at = position(cursor)
    found = instances.listing(
        services.database,
        scope,
        limit + 1,
        None if at is None else Position(*at),
        state=state,
        node=node,
        name=name,
    )
    return page(found, limit, show, lambda view: f"{view.created_at_us}.{view.uuid}")


@router.get("/instances/{uuid}", responses=documented(404, success=InstanceAnswer), response_model=None)
def show_instance(*, services: ServicesDep, caller: CallerDep, uuid: UuidPath) -> Response:
    """One instance."""
    return answer(show(_visible(services, caller, uuid)))


@router.delete(
    "/instances/{uuid}",
    status_code=202,
    responses=documented(404, 409, success=AcceptedAnswer, status=202, description="Accepted"),
    response_model=None,
)
def delete(*, services: ServicesDep, caller: CallerDep, uuid: UuidPath) -> Response:
    """Delete an instance: its node's worker does it, then its room is free again."""
    _visible(services, caller, uuid)
    accepted = delete_instance(services.context, str(uuid), caller.scope)
    content = {"uuid": accepted.uuid, "state": accepted.state, "operation_id": accepted.operation_id}
    return answer(content, 202, {"Location": f"/operations/{accepted.operation_id}"})


@router.get("/instances/{uuid}/events", responses=documented(404, success=Page[TimelineAnswer]), response_model=None)
def instance_events(
    *,
    services: ServicesDep,
    caller: CallerDep,
    uuid: UuidPath,
    wanted: FilterDep,
    limit: LimitQuery = LIMIT_DEFAULT,
    cursor: CursorQuery = None,
    newest_first: NewestFirstQuery = True,
) -> Response:
    """What happened to an instance, each stage of its placings included."""
    _visible(services, caller, uuid)
    return timeline_page(services.context, str(uuid), limit, cursor, newest_first=newest_first, wanted=wanted)


@router.get("/instances/{uuid}/why", responses=documented(404, success=WhyAnswer), response_model=None)
def instance_why(
    *,
    services: ServicesDep,
    caller: CallerDep,
    uuid: UuidPath,
    expected: Annotated[Name | None, Query(description="the node that it was expected on")] = None,
) -> Response:
    """Was affinity ignored, or was there no choice? The answer in sentences, and what it is made of."""
    return answer(why(services.context, _visible(services, caller, uuid), expected).as_dict())


@router.post("/instances/{uuid}/start", responses=documented(404), response_model=None)
@router.post("/instances/{uuid}/stop", responses=documented(404), response_model=None)
@router.post("/instances/{uuid}/migrate", responses=documented(404), response_model=None)
@router.post("/instances/{uuid}/resize", responses=documented(404), response_model=None)
@router.post("/instances/{uuid}/fork", responses=documented(404), response_model=None)
def later(*, services: ServicesDep, caller: CallerDep, uuid: UuidPath) -> Response:
    """Not supported yet."""
    _visible(services, caller, uuid)
    raise NotSupported("starting, stopping, migrating, resizing and forking are not supported yet")


@router.post(
    "/placements/explain",
    responses=documented(404, 409, success=DecisionAnswer),
    response_model=None,
)
def explain_placement(*, services: ServicesDep, caller: CallerDep, body: ExplainBody) -> Response:
    """Where a new instance, or one that is resized or moved, would go and why; and why not elsewhere.

    Nothing is changed; a refusal is an answer too.
    """
    if isinstance(body, ExplainAgainBody):
        view = _visible(services, caller, UUID(body.instance))
        found = explain_again(
            services.context,
            view.uuid,
            Reason(body.reason),
            target=body.target,
            node=body.node,
            destinations=body.destinations,
        )
        return answer(found.as_dict(NODES_SHOWN_MAX))
    namespace = target_namespace(services, caller, body.namespace)
    refuse_unsupported(body)
    return answer(explain(services.context, namespace, body).as_dict(NODES_SHOWN_MAX))


def _visible(services: Services, caller: Caller, uuid: UUID) -> InstanceView:
    found = instances.get(services.database, str(uuid))
    if found is None or not (caller.is_admin or found.namespace == caller.namespace):
        raise NotFound(NO_INSTANCE)
    return found
