"""`/auth/namespaces/{namespace}/claims`: reservations of cluster capacity. Admin only; not supported yet."""

from __future__ import annotations

from fastapi import APIRouter
from starlette.responses import Response

from fleet.api.bodies import StrictRoute
from fleet.api.dependencies import AdminDep, NamePath
from fleet.api.schemas import documented
from fleet.model.errors import NotSupported

router = APIRouter(prefix="/auth/namespaces", route_class=StrictRoute, tags=["namespaces"])


async def claims(*, caller: AdminDep, namespace: NamePath) -> Response:
    """Claims of capacity: not supported yet. Admin only."""
    raise NotSupported("claims are not supported yet")


for _method, _path in (
    *(("GET", "/{namespace}/claims"), ("POST", "/{namespace}/claims")),
    *((method, "/{namespace}/claims/{uuid}") for method in ("GET", "PUT", "DELETE")),
    ("GET", "/{namespace}/claims/{uuid}/events"),
):
    router.add_api_route(_path, claims, methods=[_method], responses=documented(403), response_model=None)
