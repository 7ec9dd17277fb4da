"""`/auth/namespaces`: namespaces, their keys and their events."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi.concurrency import run_in_threadpool
from pydantic import BaseModel, ConfigDict, Field
from starlette.responses import Response

from fleet.api.answers import LIMIT_DEFAULT, answer, iso, name_after, page
from fleet.api.bodies import StrictRoute
from fleet.api.dependencies import (
    AdminDep,
    CallerDep,
    CursorQuery,
    LimitQuery,
    NamePath,
    RetryKeyDep,
    ServicesDep,
    revoking,
)
from fleet.api.routers.events import FilterDep, NewestFirstQuery, events_page
from fleet.api.schemas import (
    LIFETIME_SECONDS_MAX,
    EventAnswer,
    KeyAnswer,
    NamespaceAnswer,
    NewKeyAnswer,
    Page,
    documented,
)
from fleet.ledger.namespaces import KeyView, NamespaceView
from fleet.model.request import Name
from fleet.services import namespaces
from fleet.services.namespaces import Lifetime

router = APIRouter(prefix="/auth/namespaces", route_class=StrictRoute, tags=["namespaces"])
GRACE_SECONDS_MAX = 30 * 86_400


class NamespaceBody(BaseModel):
    """The body of `POST /auth/namespaces`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: Name


class KeyBody(BaseModel):
    """The body of `POST /auth/namespaces/{namespace}/keys`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    name: Name
    expires_in_seconds: Annotated[int, Field(ge=1, le=LIFETIME_SECONDS_MAX)] | None = None


class RotateBody(BaseModel):
    """The body of `POST …/keys/{name}/rotate`. Without `expires_in_seconds` it lives as long as it was made for."""

    model_config = ConfigDict(strict=True, extra="forbid")

    grace_seconds: Annotated[int, Field(ge=0, le=GRACE_SECONDS_MAX)] = 0
    expires_in_seconds: Annotated[int, Field(ge=1, le=LIFETIME_SECONDS_MAX)] | None = None

    def lifetime(self) -> Lifetime:
        """What was said of the new secret's life; null is for ever."""
        return Lifetime(self.expires_in_seconds, same="expires_in_seconds" not in self.model_fields_set)


def show(view: NamespaceView) -> dict[str, Any]:
    """A namespace as it is answered."""
    return {"name": view.name, "created_at": iso(view.created_at_us)}


def show_key(view: KeyView) -> dict[str, Any]:
    """A key as it is answered, without its secret."""
    return {
        "namespace": view.namespace,
        "name": view.name,
        "created_at": iso(view.created_at_us),
        "expires_at": iso(view.expires_at_us),
        "state": "expired" if view.expired else "active",
        "former_ends_at": iso(view.former_ends_at_us),
    }


@router.get("", responses=documented(success=Page[NamespaceAnswer]), response_model=None)
def list_namespaces(
    *, services: ServicesDep, caller: CallerDep, limit: LimitQuery = LIMIT_DEFAULT, cursor: CursorQuery = None
) -> Response:
    """The namespaces the caller may see: all for the admin, else the own one."""
    found = namespaces.listing(services.database, caller, limit + 1, name_after(cursor))
    return page(found, limit, show, lambda view: view.name)


@router.post(
    "", status_code=201, responses=documented(403, 409, 422, success=NamespaceAnswer, status=201), response_model=None
)
def create_namespace(
    *, services: ServicesDep, caller: AdminDep, body: NamespaceBody, retry_key: RetryKeyDep
) -> Response:
    """Make a namespace. Admin only."""
    made = namespaces.create(services.database, caller, body.name, retry_key)
    return answer(show(made), 201, {"Location": f"/auth/namespaces/{made.name}"})


@router.get("/{namespace}", responses=documented(404, success=NamespaceAnswer), response_model=None)
def show_namespace(*, services: ServicesDep, caller: CallerDep, namespace: NamePath) -> Response:
    """One namespace."""
    return answer(show(namespaces.get(services.database, caller, namespace)))


@router.delete("/{namespace}", status_code=204, responses=documented(403, 404, 409), response_model=None)
async def delete_namespace(*, services: ServicesDep, caller: AdminDep, namespace: NamePath) -> Response:
    """Delete a namespace that holds no instance; when this answers, its keys and tokens work nowhere. Admin only."""
    async with revoking(services, namespace):
        await run_in_threadpool(namespaces.delete, services.database, caller, namespace)
    return Response(status_code=204)


@router.get("/{namespace}/keys", responses=documented(404, success=Page[KeyAnswer]), response_model=None)
def list_keys(
    *,
    services: ServicesDep,
    caller: CallerDep,
    namespace: NamePath,
    limit: LimitQuery = LIMIT_DEFAULT,
    cursor: CursorQuery = None,
) -> Response:
    """A namespace's keys, without their secrets."""
    found = namespaces.keys(services.database, caller, namespace, limit + 1, name_after(cursor))
    return page(found, limit, show_key, lambda view: view.name)


@router.post(
    "/{namespace}/keys",
    status_code=201,
    responses=documented(404, 409, 422, success=NewKeyAnswer, status=201),
    response_model=None,
)
def create_key(
    *, services: ServicesDep, caller: CallerDep, namespace: NamePath, body: KeyBody, retry_key: RetryKeyDep
) -> Response:
    """Make a key; its secret is in this answer and nowhere else."""
    made = namespaces.create_key(
        services.database,
        caller,
        namespace,
        body.name,
        lifetime_seconds=body.expires_in_seconds,
        retry_key=retry_key,
        secret=services.secret,
    )
    return answer({**show_key(made.view), "key": made.key}, 201, {"Cache-Control": "no-store"})


@router.delete("/{namespace}/keys/{name}", status_code=204, responses=documented(404, 409), response_model=None)
async def delete_key(*, services: ServicesDep, caller: CallerDep, namespace: NamePath, name: NamePath) -> Response:
    """Delete a key; when this answers, neither it nor a token it bought works anywhere."""
    async with revoking(services, namespace):
        await run_in_threadpool(namespaces.delete_key, services.database, caller, namespace, name)
    return Response(status_code=204)


@router.post(
    "/{namespace}/keys/{name}/rotate",
    status_code=201,
    responses=documented(404, 409, 422, success=NewKeyAnswer, status=201),
    response_model=None,
)
async def rotate_key(
    *,
    services: ServicesDep,
    caller: CallerDep,
    namespace: NamePath,
    name: NamePath,
    body: RotateBody,
    retry_key: RetryKeyDep,
) -> Response:
    """Give a key a new secret; without a grace, when this answers, the former one and its tokens work nowhere."""
    rotate = partial(
        namespaces.rotate_key,
        services.database,
        caller,
        namespace,
        name,
        grace_seconds=body.grace_seconds,
        lifetime=body.lifetime(),
        retry_key=retry_key,
        secret=services.secret,
    )
    async with revoking(services, namespace) if body.grace_seconds == 0 else nullcontext():
        made = await run_in_threadpool(rotate)
    return answer({**show_key(made.view), "key": made.key}, 201, {"Cache-Control": "no-store"})


@router.get("/{namespace}/events", responses=documented(404, success=Page[EventAnswer]), response_model=None)
def namespace_events(
    *,
    services: ServicesDep,
    caller: CallerDep,
    namespace: NamePath,
    wanted: FilterDep,
    limit: LimitQuery = LIMIT_DEFAULT,
    cursor: CursorQuery = None,
    newest_first: NewestFirstQuery = True,
) -> Response:
    """What happened to a namespace; the admin may look at a deleted one's too."""
    namespaces.require_events(services.database, caller, namespace)
    return events_page(
        services.database, "namespace", namespace, limit, cursor, newest_first=newest_first, wanted=wanted
    )
