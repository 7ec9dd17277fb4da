"""`POST /auth`: a key buys a token."""

from __future__ import annotations

from functools import partial

import anyio.to_thread
from fastapi import APIRouter, Request
from starlette.responses import Response

from fleet.api.answers import answer
from fleet.api.bodies import StrictRoute
from fleet.api.dependencies import ServicesDep
from fleet.api.schemas import LoginBody, TokenAnswer, documented

router = APIRouter(route_class=StrictRoute, tags=["auth"])


@router.post("/auth", responses=documented(429, success=TokenAnswer), response_model=None)
async def login(*, body: LoginBody, services: ServicesDep, request: Request) -> Response:
    """Exchange a namespace's key for a bearer token."""
    # Verifying a key is slow on purpose: it gets threads of its own, so that a flood of logins delays no create.
    limiter = request.app.state.login_limiter
    address = services.address(request)
    # Who is over the bound does not even wait for such a thread.
    services.failures.refuse_known(address, body.namespace)
    login = partial(services.authenticator.login, body.namespace, body.key, address)
    token = await anyio.to_thread.run_sync(login, limiter=limiter, abandon_on_cancel=False)
    headers = {"Cache-Control": "no-store"}
    return answer({"token": token.token, "expires_in": token.expires_in}, headers=headers)
