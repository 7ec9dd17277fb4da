"""`/decisions`: what was decided, with every reason, for as long as it is kept."""

from __future__ import annotations

from typing import Annotated, Any, Literal
from uuid import UUID

from fastapi import APIRouter, Query
from starlette.responses import Response

from fleet.api.answers import LIMIT_DEFAULT, answer, iso, page, position
from fleet.api.bodies import StrictRoute
from fleet.api.dependencies import AdminDep, CallerDep, CursorQuery, LimitQuery, Services, ServicesDep, UuidPath
from fleet.api.routers.events import told_page
from fleet.api.schemas import Anything, DecisionAnswer, DecisionLine, Page, RenderedEvent, documented
from fleet.ledger import decisions as stored_decisions
from fleet.ledger.decisions import DecisionRow, DecisionSummary
from fleet.services import decisions, timeline

router = APIRouter(prefix="/decisions", route_class=StrictRoute, tags=["decisions"])
OutcomeQuery = Annotated[Literal["placed", "refused"] | None, Query(description="what became of it")]


def show_line(row: DecisionSummary | DecisionRow) -> dict[str, Any]:
    """A decision as a line of a list."""
    return {
        "id": row.id,
        "instance_uuid": row.instance_uuid,
        "namespace": row.namespace,
        "reason": row.reason,
        "outcome": row.outcome,
        "code": row.code,
        "node": row.node,
        "summary": row.summary,
        "created_at": iso(row.created_at),
    }


def show(services: Services, row: DecisionRow) -> dict[str, Any]:
    """A decision with what it recorded and the tries that followed it."""
    return {
        **show_line(row),
        "seed": row.seed,
        "version": row.version,
        "request": row.request,
        "walk": row.walk,
        "record": decisions.record(services.context, row),
    }


@router.get("", responses=documented(success=Page[DecisionLine]), response_model=None)
def list_decisions(
    *,
    services: ServicesDep,
    caller: CallerDep,
    limit: LimitQuery = LIMIT_DEFAULT,
    cursor: CursorQuery = None,
    instance: UUID | None = None,
    outcome: OutcomeQuery = None,
) -> Response:
    """Decisions, newest first."""
    found = stored_decisions.listing(
        services.database,
        limit=limit + 1,
        namespace=caller.scope,
        instance=None if instance is None else str(instance),
        outcome=outcome,
        cursor=position(cursor),
    )
    return page(found, limit, show_line, lambda row: f"{row.created_at}.{row.id}")


@router.get("/{uuid}", responses=documented(404, success=DecisionAnswer), response_model=None)
def show_decision(*, services: ServicesDep, caller: CallerDep, uuid: UuidPath) -> Response:
    """One decision: stages, reasons, ranking, seed, and the tries that followed."""
    return answer(show(services, decisions.get(services.context, str(uuid), caller.scope)))


@router.get("/{uuid}/events", responses=documented(404, success=Page[RenderedEvent]), response_model=None)
def decision_events(*, services: ServicesDep, caller: CallerDep, uuid: UuidPath) -> Response:
    """The schedule events of one decision, oldest first: each stage, the order, and the tries that followed."""
    row = decisions.get(services.context, str(uuid), caller.scope)
    return told_page(timeline.of_decision(services.context, row))


@router.get("/{uuid}/inputs", responses=documented(403, 404, success=Anything), response_model=None)
def decision_inputs(*, services: ServicesDep, caller: AdminDep, uuid: UuidPath) -> Response:
    """What one decision was made on, as `fleet decide` reads it: snapshot, request and seed."""
    ctx = services.context
    return answer(decisions.saved_inputs(ctx.database, decisions.get(ctx, str(uuid), None)))
