"""`/nodes`: registration, intent, samples. Admin only."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from starlette.responses import Response

from fleet.api.answers import LIMIT_DEFAULT, answer, iso, name_after, page
from fleet.api.bodies import StrictRoute
from fleet.api.dependencies import AdminDep, CursorQuery, LimitQuery, NamePath, NodeOrAdminDep, RetryKeyDep, ServicesDep
from fleet.api.routers.events import FilterDep, NewestFirstQuery, SchedulingQuery, events_page, scheduling_page
from fleet.api.schemas import EventAnswer, NodeAnswer, NodeTokenAnswer, Page, ScheduledAnswer, documented
from fleet.ledger import nodes as ledger_nodes
from fleet.ledger.gpus import HeldUnit
from fleet.ledger.nodes import NodeView
from fleet.model.errors import NotFound, NotSupported
from fleet.model.gpu_report import Unit
from fleet.model.node import Scheduling
from fleet.services import node_tokens, nodes
from fleet.services.gpus import InventoryBody
from fleet.services.nodes import NodeBody, NodeChange, SampleBody

router = APIRouter(prefix="/nodes", route_class=StrictRoute, tags=["nodes"])


def show(node: NodeView) -> dict[str, Any]:
    """A node as it is answered."""
    return {
        "name": node.name,
        "state": node.state,
        "scheduling": node.scheduling,
        "labels": node.labels,
        "region": node.region,
        "arch": node.arch,
        "backend": node.backend,
        "sleepy_pool": node.sleepy_pool,
        "max_instances": node.max_instances,
        **_gpus(node),
        "registered_at": iso(node.registered_at_us),
        "sample_at": iso(node.sample_at_us),
        "sample_age_seconds": node.sample_age_seconds,
        "metrics": node.metrics,
        "failed_collectors": node.failed,
        "capacity": _capacity(node),
    }


def _gpus(node: NodeView) -> dict[str, Any]:
    """A node's GPUs: how many there are and are held, and each card and slice with who holds it."""
    counts = node.gpus.counts()
    whole = counts.pop("")
    return {
        "gpu_kind": node.gpu_kind,
        "gpu_count": whole.total,
        "gpu_count_used": whole.used,
        "mig_profiles": {profile: pool.total for profile, pool in counts.items()},
        "mig_profiles_used": {profile: pool.used for profile, pool in counts.items()},
        "gpus": [_unit(one) for one in node.gpus.of(Unit.CARD)],
        "mig_instances": [_unit(one) for one in node.gpus.of(Unit.SLICE)],
    }


def _unit(one: HeldUnit) -> dict[str, Any]:
    told = one.reported
    own = {"model": told.model, "mig_capable": told.mig_capable, "mig_mode": told.mig_mode}
    if told.unit is Unit.SLICE:
        own = {"profile": told.profile, "kind": told.kind, "parent_gpu_uuid": told.parent_gpu_uuid}
    held = {"state": one.state, "missing": one.missing, "bound_to": one.bound_to}
    return {"uuid": one.uuid, **own, "memory_mb": told.memory_mb, **held, "details": told.details}


def _capacity(node: NodeView) -> dict[str, Any] | None:
    row = node.row
    if row is None:
        return None
    return {
        "limit": row.limits.as_dict(),
        "used": row.used.as_dict(),
        "pending_memory_mb": row.pending_memory_mb,
        "pending_disk_gb": row.pending_disk_gb,
        "expected_demand": row.expected_demand,
        "counted": row.counted,
    }


@router.get("", responses=documented(403, success=Page[NodeAnswer]), response_model=None)
def list_nodes(
    *, services: ServicesDep, caller: AdminDep, limit: LimitQuery = LIMIT_DEFAULT, cursor: CursorQuery = None
) -> Response:
    """Registered nodes by name, with their last sample and their ledger row."""
    found = ledger_nodes.listing(services.database, limit + 1, name_after(cursor))
    return page(found, limit, show, lambda node: node.name)


@router.post(
    "",
    status_code=201,
    responses={
        **documented(403, 409, 422, success=NodeAnswer, status=201, description="Registered"),
        200: {"model": NodeAnswer, "description": "It was registered before; the fields given are set"},
    },
    response_model=None,
)
def register_node(*, services: ServicesDep, caller: AdminDep, body: NodeBody, retry_key: RetryKeyDep) -> Response:
    """Register a node, or set the given fields of a registered one. It takes instances after its first sample."""
    node, fresh = nodes.register(services.database, body, retry_key, caller)
    return answer(show(node), 201 if fresh else 200, {"Location": f"/nodes/{node.name}"})


@router.get("/{name}", responses=documented(403, 404, success=NodeAnswer), response_model=None)
def show_node(*, services: ServicesDep, caller: AdminDep, name: NamePath) -> Response:
    """One node."""
    return answer(show(nodes.get(services.database, name)))


@router.put("/{name}", responses=documented(403, 404, success=NodeAnswer), response_model=None)
def update_node(*, services: ServicesDep, caller: AdminDep, name: NamePath, body: NodeChange) -> Response:
    """Set the given fields; a changed `max_instances` holds from the node's next sample on."""
    return answer(show(nodes.update(services.database, name, body, caller)))


@router.delete("/{name}", status_code=204, responses=documented(403, 404, 409), response_model=None)
def remove_node(*, services: ServicesDep, caller: AdminDep, name: NamePath) -> Response:
    """Remove a node that holds no instance."""
    nodes.remove(services.database, name, caller)
    return Response(status_code=204)


@router.get(
    "/{name}/events",
    responses=documented(403, 404, success=Page[EventAnswer] | Page[ScheduledAnswer]),
    response_model=None,
)
def node_events(
    *,
    services: ServicesDep,
    caller: AdminDep,
    name: NamePath,
    wanted: FilterDep,
    limit: LimitQuery = LIMIT_DEFAULT,
    cursor: CursorQuery = None,
    newest_first: NewestFirstQuery = True,
    scheduling: SchedulingQuery = False,
) -> Response:
    """What happened to a node, a removed one too; with `scheduling`, what decisions did with it."""
    if ledger_nodes.get(services.database, name, deleted=True) is None:
        raise NotFound(nodes.NO_NODE)
    if scheduling:
        return scheduling_page(services.context, name, limit, cursor, newest_first=newest_first, wanted=wanted)
    return events_page(services.database, "node", name, limit, cursor, newest_first=newest_first, wanted=wanted)


@router.put("/{name}/gpus", responses=documented(403, 404, 409, success=NodeAnswer), response_model=None)
def declare_gpus(*, services: ServicesDep, caller: AdminDep, name: NamePath, body: InventoryBody) -> Response:
    """Declare a node's cards and slices, by uuid: those listed replace those known, who holds them stays."""
    return answer(show(nodes.declare_gpus(services.database, name, body, caller)))


@router.put("/{name}/metrics", responses=documented(403, 404, 409, success=NodeAnswer), response_model=None)
def publish_sample(*, services: ServicesDep, caller: NodeOrAdminDep, name: NamePath, body: SampleBody) -> Response:
    """Publish a node's sample: its limits, load and state follow, as if its own daemon had measured it.

    Admin, or that node's token.
    """
    with node_tokens.discreet(caller):
        return answer(show(nodes.publish(services.database, name, body, services.context.configuration())))


@router.post(
    "/{name}/token",
    status_code=201,
    responses=documented(403, 404, 422, success=NodeTokenAnswer, status=201),
    response_model=None,
)
def make_token(*, services: ServicesDep, caller: AdminDep, name: NamePath, retry_key: RetryKeyDep) -> Response:
    """Make a node's token, told in this answer and nowhere else; its former one ends with that."""
    made = node_tokens.create(services.database, caller, name, retry_key, secret=services.secret)
    shown = {"node": made.view.node, "created_at": iso(made.view.created_at_us), "token": made.token}
    return answer(shown, 201, {"Cache-Control": "no-store"})


@router.delete("/{name}/token", status_code=204, responses=documented(403, 404), response_model=None)
def revoke_token(*, services: ServicesDep, caller: AdminDep, name: NamePath) -> Response:
    """End a node's token, without a new one."""
    node_tokens.revoke(services.database, caller, name)
    return Response(status_code=204)


@router.post("/{name}/cordon", responses=documented(403, 404, success=NodeAnswer), response_model=None)
def cordon_node(*, services: ServicesDep, caller: AdminDep, name: NamePath) -> Response:
    """Take no new instance from now on; what runs there stays."""
    return answer(show(nodes.schedule(services.database, name, Scheduling.CORDONED, caller)))


@router.post("/{name}/uncordon", responses=documented(403, 404, success=NodeAnswer), response_model=None)
def uncordon_node(*, services: ServicesDep, caller: AdminDep, name: NamePath) -> Response:
    """Take new instances again."""
    return answer(show(nodes.schedule(services.database, name, Scheduling.ENABLED, caller)))


@router.post("/{name}/drain", responses=documented(403), response_model=None)
@router.post("/{name}/undrain", responses=documented(403), response_model=None)
@router.post("/{name}/evacuate", responses=documented(403), response_model=None)
async def later(*, caller: AdminDep, name: NamePath) -> Response:
    """Not supported yet."""
    raise NotSupported("draining and evacuating are not supported yet")
