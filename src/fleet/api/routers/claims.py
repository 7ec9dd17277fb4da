"""`/auth/namespaces/{namespace}/claims`: reservations of cluster capacity, one active at most. Admin only."""

from __future__ import annotations

from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import Response

from fleet.api.answers import LIMIT_DEFAULT, answer, iso, page, position
from fleet.api.bodies import StrictRoute
from fleet.api.claim_answers import ClaimAnswer, ClaimBody, ClaimFields
from fleet.api.dependencies import AdminDep, CursorQuery, LimitQuery, RetryKeyDep, ServicesDep
from fleet.api.routers.events import FilterDep, NewestFirstQuery, events_page
from fleet.api.schemas import SIZES, EventAnswer, Page, documented
from fleet.ledger.claim_views import ClaimView
from fleet.model.resources import Amounts
from fleet.services import claims

router = APIRouter(prefix="/auth/namespaces/{namespace}/claims", route_class=StrictRoute, tags=["claims"])
CREATED: Final = "created"


def show(claim: ClaimView) -> dict[str, Any]:
    """A claim as it is answered; one that is deleted has no row, so what there is to show is always created."""
    return {
        "uuid": claim.uuid,
        "namespace": claim.namespace,
        "state": CREATED,
        "coverage_state": claim.coverage_state,
        **{f"limit_{name}": getattr(claim.limits, name) for name in SIZES},
        **{f"used_{name}": getattr(claim.used, name) for name in SIZES},
        "expires_at": iso(claim.expires_at_us),
        "created_at": iso(claim.created_at_us),
        "updated_at": iso(claim.updated_at_us),
        "namespace_deleted_at": iso(claim.namespace_deleted_at_us),
    }


def cursor_of(claim: ClaimView) -> str:
    """What the next page of a list of claims begins after."""
    return f"{claim.created_at_us}.{claim.uuid}"


@router.get("", responses=documented(403, 404, success=Page[ClaimAnswer]), response_model=None)
def list_claims(
    *,
    services: ServicesDep,
    caller: AdminDep,
    namespace: str,
    limit: LimitQuery = LIMIT_DEFAULT,
    cursor: CursorQuery = None,
) -> Response:
    """A namespace's claims, expired ones too, youngest first; a deleted one's as long as they are there."""
    found = claims.listing(services.database, caller, namespace, limit + 1, position(cursor))
    return page(found, limit, show, cursor_of)


@router.post(
    "",
    status_code=201,
    responses=documented(403, 404, 409, 422, 507, success=ClaimAnswer, status=201, description="Promised"),
    response_model=None,
)
def create_claim(
    *, services: ServicesDep, caller: AdminDep, namespace: str, body: ClaimBody, retry_key: RetryKeyDep
) -> Response:
    """Reserve capacity for a namespace, for so many seconds; what it uses already is the claim's from then on."""
    made = claims.create(
        services.database,
        caller,
        namespace,
        Amounts(body.limit_cpus, body.limit_memory_mb, body.limit_disk_gb),
        body.expires_in_seconds,
        uuid=services.context.new_uuid(),
        retry_key=retry_key,
    )
    return answer(show(made), 201, {"Location": f"/auth/namespaces/{made.namespace}/claims/{made.uuid}"})


@router.get("/{uuid}", responses=documented(403, 404, success=ClaimAnswer), response_model=None)
def show_claim(*, services: ServicesDep, caller: AdminDep, namespace: str, uuid: str) -> Response:
    """One claim."""
    return answer(show(claims.get(services.database, caller, namespace, uuid)))


@router.put("/{uuid}", responses=documented(403, 404, 409, 507, success=ClaimAnswer), response_model=None)
def update_claim(*, services: ServicesDep, caller: AdminDep, namespace: str, uuid: str, body: ClaimFields) -> Response:
    """Grow, shrink or prolong a claim that has not expired: the fields given, zero among them."""
    changed = claims.update(services.database, caller, namespace, uuid, body.limits, body.seconds)
    return answer(show(changed))


@router.delete(
    "/{uuid}",
    responses=documented(403, 404, success=ClaimAnswer, description="Deleted: the claim as it was"),
    response_model=None,
)
def delete_claim(*, services: ServicesDep, caller: AdminDep, namespace: str, uuid: str) -> Response:
    """Give a claim up, at once, a deleted namespace's too; its capacity is the cluster's again."""
    return answer(show(claims.delete(services.database, caller, namespace, uuid)))


@router.get("/{uuid}/events", responses=documented(403, 404, success=Page[EventAnswer]), response_model=None)
def claim_events(
    *,
    services: ServicesDep,
    caller: AdminDep,
    namespace: str,
    uuid: str,
    wanted: FilterDep,
    limit: LimitQuery = LIMIT_DEFAULT,
    cursor: CursorQuery = None,
    newest_first: NewestFirstQuery = True,
) -> Response:
    """What happened to a claim; a deleted one's events are read as long as they are kept."""
    of = claims.events_of(services.database, caller, namespace, uuid)
    return events_page(services.database, "claim", of, limit, cursor, newest_first=newest_first, wanted=wanted)
