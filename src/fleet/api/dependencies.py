"""What routes are handed: the services, the caller behind the token, and the retry key.

All of it without waiting, unless a token has to be looked up.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Final
from uuid import UUID

from anyio import sleep
from fastapi import Depends, Header, Path, Query, Request
from fastapi.concurrency import run_in_threadpool
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from fleet.api.addresses import TrustedProxies
from fleet.api.answers import CURSOR_CHARACTERS_MAX, LIMIT_DEFAULT, LIMIT_MAX
from fleet.ledger.database import Database
from fleet.model.errors import Forbidden, InvalidRequest, NotFound, Unauthenticated
from fleet.model.request import Name
from fleet.services.authentication import FORGOTTEN_SECONDS, Authenticator, Caller, require_admin
from fleet.services.context import Context
from fleet.services.failed_logins import FailedLogins
from fleet.services.idempotency import RetryKey

TOKEN_CHARACTERS_MAX: Final = 2000
NODES_ONLY: Final = "a node's token may only publish that node's sample and see to its operations"
_PRINTABLE: Final = re.compile(r"[\x20-\x7e]{1,255}", re.ASCII)
_bearer = HTTPBearer(auto_error=False, description="The token that `POST /auth` answers.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Services:
    """What a process serves with.

    `secret` signs its tokens; `trusted_proxies` are believed about who calls; `metrics_token`, where there is one, is
    what a scrape has to send.
    """

    context: Context
    authenticator: Authenticator
    failures: FailedLogins
    secret: str
    trusted_proxies: TrustedProxies
    metrics_token: str = ""

    @property
    def database(self) -> Database:
        """The ledger's database."""
        return self.context.database

    def address(self, request: Request) -> str:
        """The caller's address: the peer's, or what a trusted proxy says that it is."""
        peer = "" if request.client is None else request.client.host
        return self.trusted_proxies.caller(peer, request.headers.getlist("x-forwarded-for"))


async def services(request: Request) -> Services:
    """The services of this process."""
    found: Services = request.app.state.services
    return found


async def caller_or_node(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Caller:
    """Who is calling, where a node's token may be enough; a token seen a moment ago costs no wait."""
    if credentials is None or len(credentials.credentials) > TOKEN_CHARACTERS_MAX:
        raise Unauthenticated("the token is missing, not valid or expired; get one from POST /auth")
    of_this_process: Services = request.app.state.services
    found = of_this_process.authenticator.remembered(credentials.credentials)
    if found is not None:
        return found
    verify = of_this_process.authenticator.verify
    return await run_in_threadpool(verify, credentials.credentials, of_this_process.address(request))


async def caller(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> Caller:
    """Who is calling; a node's token is refused before anything is looked up."""
    found = await caller_or_node(request, credentials)
    if found.node:
        raise Forbidden(NODES_ONLY)
    return found


async def node_or_admin(request: Request, found: Annotated[Caller, Depends(caller_or_node)]) -> Caller:
    """The admin, or a node (where the path names one: that node); nothing is looked up for anyone else."""
    if not found.node:
        require_admin(found)
    elif request.path_params.get("name", found.node) != found.node:
        raise Forbidden(NODES_ONLY)
    return found


@asynccontextmanager
async def revoking(of_this_process: Services, namespace: str) -> AsyncGenerator[None]:
    """Around what ends keys of a namespace: left only when no process can let in who comes with them.

    Also where there was nothing to end: that may be the second try of somebody who did not hear the first answer.
    """
    try:
        yield
    except NotFound:
        await sleep(FORGOTTEN_SECONDS)
        raise
    of_this_process.authenticator.forget(namespace)
    await sleep(FORGOTTEN_SECONDS)


async def admin(found: Annotated[Caller, Depends(caller)]) -> Caller:
    """The admin; anyone else is refused before anything is looked up."""
    require_admin(found)
    return found


async def retry_key(
    request: Request,
    found: Annotated[Caller, Depends(caller)],
    idempotency_key: Annotated[str | None, Header(description="1-255 printable characters, kept for a day")] = None,
) -> RetryKey | None:
    """The caller's `Idempotency-Key` with the digest of what it stands for: verb, path and body in canonical form."""
    if idempotency_key is None:
        return None
    if not _PRINTABLE.fullmatch(idempotency_key):
        message = "must be 1-255 printable ASCII characters"
        raise InvalidRequest(f"Idempotency-Key: {message}", errors=[{"field": "Idempotency-Key", "message": message}])
    body = await request.json() if await request.body() else None
    text = json.dumps([found.namespace, request.method, request.url.path, body], sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()
    return RetryKey(namespace=found.namespace, key=idempotency_key, digest=digest)


async def scraper(
    request: Request, credentials: Annotated[HTTPAuthorizationCredentials | None, Depends(_bearer)]
) -> None:
    """Whoever scrapes the metrics, which name namespaces: with the token for that, where one is configured."""
    wanted: str = request.app.state.services.metrics_token
    sent = "" if credentials is None else credentials.credentials
    if wanted and not hmac.compare_digest(sent.encode(), wanted.encode()):
        raise Unauthenticated("the metrics want the bearer token that METRICS_TOKEN sets on this control node")


ServicesDep = Annotated[Services, Depends(services)]
CallerDep = Annotated[Caller, Depends(caller)]
AdminDep = Annotated[Caller, Depends(admin)]
CallerOrNodeDep = Annotated[Caller, Depends(caller_or_node)]
NodeOrAdminDep = Annotated[Caller, Depends(node_or_admin)]
RetryKeyDep = Annotated[RetryKey | None, Depends(retry_key)]
LimitQuery = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="how many items at most")]
CursorQuery = Annotated[
    str | None, Query(max_length=CURSOR_CHARACTERS_MAX, description="`next_cursor` of the page before")
]
NamePath = Annotated[Name, Path()]
UuidPath = Annotated[UUID, Path()]

__all__ = [
    "LIMIT_DEFAULT",
    "AdminDep",
    "CallerDep",
    "CallerOrNodeDep",
    "CursorQuery",
    "LimitQuery",
    "NamePath",
    "NodeOrAdminDep",
    "RetryKeyDep",
    "Services",
    "ServicesDep",
    "UuidPath",
    "revoking",
]
