"""`/admin`: the operator's views, the cluster's configuration, the ledger's proof. Admin only."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated, Literal

from fastapi import APIRouter, Path, Query
from pydantic import AfterValidator
from starlette.responses import Response

from fleet.api.admin_answers import (
    AuditEventAnswer,
    ClusterCapacityAnswer,
    ConfigAnswer,
    ConfigBody,
    ResourcesAnswer,
    key_name,
)
from fleet.api.answers import LIMIT_DEFAULT, answer, page, position
from fleet.api.bodies import StrictRoute
from fleet.api.claim_answers import ClaimAnswer
from fleet.api.dependencies import AdminDep, CursorQuery, LimitQuery, ServicesDep
from fleet.api.routers.claims import cursor_of
from fleet.api.routers.claims import show as show_claim
from fleet.api.routers.events import FilterDep, NewestFirstQuery, trail_page
from fleet.api.schemas import Anything, Page, documented
from fleet.ledger.verify import verify
from fleet.services import claims, cluster_config, views
from fleet.services.saved_snapshot import with_instances

router = APIRouter(prefix="/admin", route_class=StrictRoute, tags=["admin"])
ObjectType = Literal["instance", "node", "namespace", "claim", "cluster"]
KeyPath = Annotated[str, AfterValidator(key_name), Path(max_length=64)]


@router.get("/resources", responses=documented(403, success=ResourcesAnswer), response_model=None)
def resources(*, services: ServicesDep, caller: AdminDep) -> Response:
    """Room node by node, from the same arithmetic as placement and admission; the cluster; drift and the last pass."""
    return answer(views.resources(services.database, services.context.configuration()))


@router.get("/cluster-capacity", responses=documented(403, success=ClusterCapacityAnswer), response_model=None)
def cluster_capacity(*, services: ServicesDep, caller: AdminDep) -> Response:
    """The cluster's row, what is left of it, and what claims hold back; a total of null is unlimited."""
    return answer(views.cluster_capacity(services.database))


@router.get("/claims", responses=documented(403, success=Page[ClaimAnswer]), response_model=None)
def list_claims(
    *, services: ServicesDep, caller: AdminDep, limit: LimitQuery = LIMIT_DEFAULT, cursor: CursorQuery = None
) -> Response:
    """All namespaces' claims, youngest first: all that holds capacity back, deleted namespaces' too."""
    found = claims.listing(services.database, caller, None, limit + 1, position(cursor))
    return page(found, limit, show_claim, cursor_of)


@router.get("/snapshot", responses=documented(403, success=Anything), response_model=None)
def snapshot(*, services: ServicesDep, caller: AdminDep) -> Response:
    """Everything a decision may see, as `fleet decide` reads it."""
    ctx = services.context
    return answer(with_instances(ctx.database, ctx.snapshots.peek()).to_json())


@router.post("/ledger/verify", responses=documented(403, success=Anything), response_model=None)
def verify_ledger(*, services: ServicesDep, caller: AdminDep) -> Response:
    """Recompute every counter from the charges; list each difference and each node over its limit. Changes nothing."""
    return answer(asdict(verify(services.database)))


@router.get("/config", responses=documented(403, success=Page[ConfigAnswer]), response_model=None)
def list_config(*, services: ServicesDep, caller: AdminDep) -> Response:
    """Every cluster-wide key."""
    items = [cluster_config.shown(entry) for entry in cluster_config.listing(services.database)]
    return answer({"items": items, "next_cursor": None})


@router.get("/config/{key}", responses=documented(403, success=ConfigAnswer), response_model=None)
def show_config(*, services: ServicesDep, caller: AdminDep, key: KeyPath) -> Response:
    """One key; a node-local one is told where it belongs."""
    return answer(cluster_config.shown(cluster_config.get(services.database, key)))


@router.put("/config/{key}", responses=documented(403, success=ConfigAnswer), response_model=None)
def put_config(*, services: ServicesDep, caller: AdminDep, key: KeyPath, body: ConfigBody) -> Response:
    """Set one key. All processes follow within `SCHEDULER_CACHE_TIMEOUT` seconds, this one at once."""
    text = str(body.value).lower() if isinstance(body.value, bool) else str(body.value)
    entry = cluster_config.put(services.database, key, text, by=caller.by)
    services.context.configuration.forget()
    return answer(cluster_config.shown(entry))


@router.delete("/config/{key}", responses=documented(403, success=ConfigAnswer), response_model=None)
def reset_config(*, services: ServicesDep, caller: AdminDep, key: KeyPath) -> Response:
    """Let one key have its default again; the answer is the key as it is now."""
    entry = cluster_config.reset(services.database, key, by=caller.by)
    services.context.configuration.forget()
    return answer(cluster_config.shown(entry))


@router.get("/events", responses=documented(403, success=Page[AuditEventAnswer]), response_model=None)
def list_events(
    *,
    services: ServicesDep,
    caller: AdminDep,
    wanted: FilterDep,
    limit: LimitQuery = LIMIT_DEFAULT,
    cursor: CursorQuery = None,
    newest_first: NewestFirstQuery = True,
    object_type: Annotated[ObjectType | None, Query(description="only of such objects")] = None,
    object_id: Annotated[
        str | None, Query(min_length=1, max_length=63, description="only of this object: a node's name, a uuid, …")
    ] = None,
    by: Annotated[
        str | None,
        Query(
            min_length=1,
            max_length=255,
            description="only what this one did; `ci/`: any key of ci; `ctl:*`: beginning so",
        ),
    ] = None,
    acts: Annotated[bool, Query(description="only what somebody did")] = False,
) -> Response:
    """The audit trail of the whole cluster. A page may be short, or empty, and still name the next one."""
    asked = replace(wanted, object_type=object_type or "", object_id=object_id or "", by=by or "", has_by=acts)
    return trail_page(services.database, asked, limit, cursor, newest_first=newest_first)
