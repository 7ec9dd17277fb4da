"""`/healthz`, `/readyz`, `/metrics`: for supervisors and Prometheus, without a caller's token."""

from __future__ import annotations

from fastapi import APIRouter, Depends
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_PLAIN_0_0_4
from starlette.responses import Response

from fleet.api.answers import answer
from fleet.api.bodies import StrictRoute
from fleet.api.dependencies import ServicesDep, scraper
from fleet.api.metrics import FleetCollector, process_figures
from fleet.api.schemas import HealthAnswer, documented
from fleet.ledger import cluster_config
from fleet.services.configuration import strategy_problem

router = APIRouter(route_class=StrictRoute, tags=["health"])


@router.get("/healthz", responses={200: {"model": HealthAnswer}}, response_model=None)
async def healthz(*, services: ServicesDep) -> Response:
    """The process serves. Says nothing about what it depends on."""
    return answer({"status": "ok", "version": services.context.version})


@router.get("/readyz", responses=documented(success=HealthAnswer), response_model=None)
def readyz(*, services: ServicesDep) -> Response:
    """The process serves and its ledger answers; a queue that is away delays work and refuses nothing.

    `placement_strategy` tells whether the cluster's strategy is installed here: without it, only requests that name
    one themselves are placed by this process.
    """
    # Read for this answer alone: a poll of readiness must not keep an old configuration for the requests after it.
    problem = strategy_problem(cluster_config.load(services.database))
    return answer({"status": "ok", "database": "ok", "placement_strategy": problem or "ok"})


@router.get(
    "/metrics",
    responses=documented() | {200: {"description": "Prometheus text format", "content": {"text/plain": {}}}},
    response_model=None,
    dependencies=[Depends(scraper)],
)
def metrics(*, services: ServicesDep) -> Response:
    """The fleet's figures, read now, and the requests of all workers of this API."""
    registry = CollectorRegistry()
    registry.register(FleetCollector(services.database))
    text = generate_latest(registry) + process_figures()
    return Response(text, media_type=CONTENT_TYPE_PLAIN_0_0_4)
