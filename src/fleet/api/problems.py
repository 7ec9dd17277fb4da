"""THE place where codes become HTTP statuses. Every refusal and error leaves as an RFC 9457 problem document.

A document always has `type`, `title`, `status`, `detail` and `code`; `code` is API and is never renamed. Figures for
programs stand beside them under their own names.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match
from starlette.types import Receive, Scope, Send

from fleet.model.body_problems import field_of, sentence_of
from fleet.model.errors import FleetError, RequestInProgress
from fleet.placement.stage import strategy_problems
from fleet.telemetry import get_logger

MEDIA_TYPE: Final = "application/problem+json"
TYPE_PREFIX: Final = "urn:fleet:problem:"
CODE_IN_SCOPE: Final = "fleet.problem"

# code: (status, title). The order is that of the decisions' table.
CODES: Final[Mapping[str, tuple[int, str]]] = {
    "invalid_request": (400, "The request breaks a rule"),
    "not_supported": (400, "Not supported yet"),
    "unauthenticated": (401, "Not authenticated"),
    "forbidden": (403, "Not allowed"),
    "claim_exceeded": (403, "The namespace's claim is exceeded"),
    "not_found": (404, "Not found"),
    "node_not_found": (404, "No such node"),
    "method_not_allowed": (405, "Method not allowed"),
    "conflict": (409, "The object's state forbids it"),
    "affinity_unsatisfiable": (409, "A required tag cannot be satisfied"),
    "claim_exists": (409, "The namespace has an active claim"),
    "claim_below_usage": (409, "The claim is used beyond that"),
    "claim_not_active": (409, "The claim is not active"),
    "body_too_large": (413, "The body is too large"),
    "idempotency_mismatch": (422, "The idempotency key belongs to another request"),
    "rate_limited": (429, "Too many requests"),
    "internal_error": (500, "Internal error"),
    "broken_promise": (500, "Internal error"),
    "claim_delete_failed": (500, "The claim could not be deleted"),
    "placement_busy": (503, "Candidates are busy"),
    "affinity_unsatisfied": (503, "Enforced rules leave no node"),
    "pin_ineligible": (503, "The pinned node does not qualify"),
    "labels_unmatched": (503, "No node has the labels"),
    "no_gpu_nodes": (503, "No node serves GPUs"),
    "no_nodes": (503, "No node is registered"),
    "no_schedulable_nodes": (503, "No node takes instances now"),
    "claim_not_ready": (503, "Claims are not ready"),
    "claim_conflict": (503, "The claim is being changed"),
    "strategy_unavailable": (503, "The cluster's strategy is not installed"),
    "database_unavailable": (503, "The ledger does not answer"),
    "queue_unavailable": (503, "The queue does not answer"),
    "out_of_capacity": (507, "Out of capacity"),
    "claim_capacity": (507, "The cluster cannot promise it"),
}
RETRY_AFTER_SECONDS: Final[Mapping[str, int]] = {
    "placement_busy": 1,
    "claim_not_ready": 1,
    "claim_conflict": 1,
    "database_unavailable": 1,
    "queue_unavailable": 1,
}
TRANSIENT_CAPACITY_SECONDS: Final = 15
DETAIL_CHARACTERS_MAX: Final = 4000
PROBLEMS_MAX: Final = 100

_BY_STATUS: Final = {404: "not_found", 405: "method_not_allowed", 413: "body_too_large"}
_log = get_logger(__name__)


class BodyProblem(HTTPException):
    """A body that cannot be read as JSON at all. An HTTPException, so that the framework passes it on untouched."""

    def __init__(self, code: str, field: str, message: str) -> None:
        super().__init__(CODES[code][0], detail=message)
        self.code = code
        self.errors = [{"field": field, "message": message}]


class ProblemResponse(Response):
    """A problem document. It leaves its code in the request's scope, for whoever counts what was answered."""

    def __init__(self, code: str, body: bytes, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(body, status, headers=headers, media_type=MEDIA_TYPE)
        self.code = code

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        scope[CODE_IN_SCOPE] = self.code
        await super().__call__(scope, receive, send)


def problem(code: str, detail: str, *, headers: Mapping[str, str] | None = None, **extra: Any) -> Response:
    """Return the document of one code, with the headers that belong to it."""
    status, title = CODES[code]
    document = {
        "type": f"{TYPE_PREFIX}{code}",
        "title": title,
        "status": status,
        "detail": detail[:DETAIL_CHARACTERS_MAX],
        "code": code,
        **{name: value for name, value in extra.items() if value is not None},
    }
    sent = {**_headers(code, extra), **(headers or {})}
    body = json.dumps(document, default=float, separators=(",", ":")).encode()
    return ProblemResponse(code, body, status, sent)


def of_error(error: FleetError) -> Response:
    """Return the document of one of the product's errors."""
    code = error.code if error.code in CODES else "internal_error"
    if CODES[code][0] == 500:
        _log.error("api.promise_broken", code=error.code, detail=error.detail)
    if error.told != error.detail:
        _log.warning("api.unavailable", code=error.code, reason=error.detail)
    headers = {"Retry-After": "1"} if isinstance(error, RequestInProgress) else None
    return problem(code, error.told, headers=headers, **error.extra)


def invalid(errors: Sequence[Mapping[str, str]]) -> Response:
    """Return an `invalid_request` that lists every problem with its field."""
    shown = list(errors)[:PROBLEMS_MAX]
    detail = "; ".join(f"{item['field']}: {item['message']}" for item in shown)
    return problem("invalid_request", detail, errors=shown)


async def on_fleet_error(_request: Request, error: Exception) -> Response:
    """Answer an error of the product."""
    assert isinstance(error, FleetError)
    return of_error(error)


async def on_validation_error(_request: Request, error: Exception) -> Response:
    """Answer what the framework found wrong in body, path, query and headers: all of it together."""
    assert isinstance(error, RequestValidationError)
    found = [_finding(item) for item in error.errors()]
    return invalid([*found, *strategy_problems(error.body, found)])


async def on_http_error(request: Request, error: Exception) -> Response:
    """Answer what the framework itself refuses: unknown paths, methods, unreadable bodies."""
    assert isinstance(error, HTTPException)
    if isinstance(error, BodyProblem):
        return problem(error.code, f"{error.errors[0]['field']}: {error.detail}", errors=error.errors)
    code = _BY_STATUS.get(error.status_code, "invalid_request" if error.status_code < 500 else "internal_error")
    details = {"not_found": "no such path", "method_not_allowed": "this path does not know that method"}
    headers = dict(error.headers or {})
    if code == "method_not_allowed":
        headers["Allow"] = ", ".join(_methods(request))
    return problem(code, details.get(code, str(error.detail)), headers=headers)


def _methods(request: Request) -> list[str]:
    """The methods that any route knows for the path; the framework looks at the first route only."""
    known: set[str] = set()
    for candidate in ("GET", "HEAD", "POST", "PUT", "DELETE"):
        scope = {**request.scope, "method": candidate}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.router.routes):
            known.add(candidate)
    return sorted(known)


def _finding(item: Mapping[str, Any]) -> dict[str, str]:
    place: Iterable[Any] = item["loc"]
    where, *rest = place
    if item["type"] == "json_invalid":
        reason = (item.get("ctx") or {}).get("error", "")
        return {"field": "body", "message": f"not valid JSON at character {rest[0] if rest else 0}: {reason}"}
    field = field_of(rest) or str(where)
    message = sentence_of(item)
    if where == "body" and not rest and item["type"] in {"model_attributes_type", "dict_type", "missing"}:
        message = "must be a JSON object, sent with Content-Type: application/json"
    return {"field": field, "message": message}


def _headers(code: str, extra: Mapping[str, Any]) -> dict[str, str]:
    if code == "unauthenticated":
        return {"WWW-Authenticate": "Bearer"}
    if code == "out_of_capacity" and extra.get("transient"):
        return {"Retry-After": str(TRANSIENT_CAPACITY_SECONDS)}
    seconds = extra.get("retry_after_seconds", RETRY_AFTER_SECONDS.get(code))
    return {} if seconds is None else {"Retry-After": str(seconds)}
