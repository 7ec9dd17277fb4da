"""The application: routers, problem documents, the web page, and the bounds of one process.

Routes are ordinary functions in a small pool of threads, as many as there are database connections: a request waits for
a thread, never a thread for a connection.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final
from uuid import uuid4

import anyio.to_thread
from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from fleet.api import problems
from fleet.api.dependencies import Services
from fleet.api.metrics import PROBLEMS, REQUEST_SECONDS
from fleet.api.routers import (
    admin,
    auth,
    claims,
    decisions,
    health,
    instances,
    namespaces,
    nodes,
    operations,
    page,
    placements,
)
from fleet.api.schemas import Problem
from fleet.model.errors import FleetError
from fleet.telemetry import get_logger

THREADS: Final = 8
LOGINS_AT_ONCE: Final = 2
LARGE_BODIES_AT_ONCE: Final = 1
_DESCRIPTION: Final = (
    "Chooses a node for an instance, claims its capacity so that it can never be sold twice, and explains why. "
    "Errors are RFC 9457 problem documents; their `code` is stable."
)
_log = get_logger(__name__)


def create_app(services: Services, *, threads: int = THREADS) -> FastAPI:
    """Build the application of one process around its services."""

    @asynccontextmanager
    async def bounded(app: FastAPI) -> AsyncIterator[None]:
        anyio.to_thread.current_default_thread_limiter().total_tokens = threads
        app.state.login_limiter = anyio.CapacityLimiter(LOGINS_AT_ONCE)
        app.state.large_body_limiter = anyio.CapacityLimiter(LARGE_BODIES_AT_ONCE)
        yield

    app = application(services.context.version, bounded)
    app.state.services = services
    return app


def application(
    version: str, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None
) -> FastAPI:
    """Every route with its document, around no services: it describes itself and serves nothing yet."""
    app = FastAPI(
        title="fleet",
        version=version,
        description=_DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
    )
    app.add_exception_handler(FleetError, problems.on_fleet_error)
    app.add_exception_handler(RequestValidationError, problems.on_validation_error)
    app.add_exception_handler(HTTPException, problems.on_http_error)
    app.add_middleware(LastResort)
    # Routes are tried in order: what is asked most comes first.
    nouns = (instances, placements, nodes, auth, namespaces, claims, decisions, operations, admin, health, page)
    for noun in nouns:
        app.include_router(noun.router)
    _document_problems(app)
    return app


class LastResort:
    """Around everything: times each request, and turns a defect into a problem document and one log line."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.perf_counter()
        status = 0

        async def watched(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._app(scope, receive, watched)
        except Exception as error:
            # Whatever is left is a defect, and its caller gets an answer.
            incident = str(uuid4())
            _log.error("api.failed", incident=incident, path=scope["path"], method=scope["method"], exc_info=error)
            if status:
                raise
            detail = "something in the service is broken; its log has more under this incident"
            await problems.problem("internal_error", detail, incident=incident)(scope, receive, watched)
        finally:
            route = getattr(scope.get("route"), "path", "unknown")
            REQUEST_SECONDS.labels(scope["method"], route, str(status)).observe(time.perf_counter() - began)
            if code := scope.get(problems.CODE_IN_SCOPE):
                PROBLEMS.labels(code).inc()


def _document_problems(app: FastAPI) -> None:
    """Put the problem document's shape in the OpenAPI document, and take out the framework's own error shape."""
    build = app.openapi

    def document() -> dict[str, Any]:
        if app.openapi_schema is None:
            found = build()
            shapes = found.setdefault("components", {}).setdefault("schemas", {})
            for name in ("HTTPValidationError", "ValidationError"):
                shapes.pop(name, None)
            shape = Problem.model_json_schema(ref_template="#/components/schemas/{model}")
            shapes.update(shape.pop("$defs", {}))
            shapes["Problem"] = shape
            for operations_of_path in found["paths"].values():
                for operation in operations_of_path.values():
                    operation["responses"].pop("422", None) if _is_framework_error(operation) else None
            app.openapi_schema = found
        return app.openapi_schema

    app.openapi = document  # type: ignore[method-assign]  # the documented way to extend the document


def _is_framework_error(operation: dict[str, Any]) -> bool:
    content = operation["responses"].get("422", {}).get("content", {})
    return "application/json" in content
