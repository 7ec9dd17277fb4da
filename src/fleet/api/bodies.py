"""Reading a request strictly: bounded, UTF-8, finite numbers, no key twice, nothing a database cannot hold.

The framework reads JSON leniently (the last of two equal keys wins, NaN is a number). What it would let through is
refused here, with the field, before any rule of the product is asked.

A body is read before anybody knows whose it is. A large one, which may take half a second, is read aside, one at a
time: whoever sends many of them keeps nobody waiting but others that send such.
"""

from __future__ import annotations

import json
import math
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from typing import Any, Final, NoReturn

import anyio.to_thread
from fastapi import Request, params
from fastapi.dependencies.utils import get_flat_params
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from starlette.responses import Response

from fleet.api.problems import BodyProblem
from fleet.model.findings import first_repeated

BODY_BYTES_MAX: Final = 1024 * 1024
ASIDE_BYTES: Final = 64 * 1024
"""A body of more is not read in the loop that serves everybody."""

NESTING_MAX: Final = 16
"""Levels of lists and objects in a body. MariaDB refuses a stored JSON of more than 32; what is stored adds a few."""

_SURROGATES: Final = ("\ud800", "\udfff")


class StrictRequest(Request):
    """A request whose body has a bound and whose JSON is strict."""

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """The body's pieces, as long as they stay within the bound together."""
        stated = self.headers.get("content-length", "0")
        if stated.isdecimal() and int(stated[:20]) > BODY_BYTES_MAX:
            _too_large()
        seen = 0
        async for piece in super().stream():
            seen += len(piece)
            if seen > BODY_BYTES_MAX:
                _too_large()
            yield piece

    async def json(self) -> Any:
        """The body as plain values."""
        if not hasattr(self, "_json"):
            body = await self.body()
            if len(body) > ASIDE_BYTES:
                limiter = self.app.state.large_body_limiter
                self._json = await anyio.to_thread.run_sync(parse, body, limiter=limiter)
            else:
                self._json = parse(body)
        return self._json


class StrictRoute(APIRoute):
    """A route that reads its requests strictly and refuses query parameters it does not know."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The framework's handler, behind the strict request."""
        answer = super().get_route_handler()
        known = {field.alias for field in get_flat_params(self.dependant) if isinstance(field.field_info, params.Query)}

        async def handler(request: Request) -> Response:
            if request.scope["query_string"]:
                _refuse_unknown(request, known)
            return await answer(StrictRequest(request.scope, request.receive))

        return handler


def parse(body: bytes) -> Any:
    """Return the JSON value of a body.

    Raises:
        json.JSONDecodeError: not JSON; the framework answers with the position.
        BodyProblem: JSON, but not acceptable.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise BodyProblem("invalid_request", "body", f"is not UTF-8 at byte {error.start}") from None
    try:
        value = json.loads(text, parse_constant=_not_finite, parse_float=_finite, object_pairs_hook=_unique)
    except (json.JSONDecodeError, BodyProblem):
        raise
    except (ValueError, RecursionError):
        # A whole number of thousands of digits, or thousands of brackets.
        raise BodyProblem("invalid_request", "body", "holds a number or a nesting that is too long") from None
    if text.count("{") + text.count("[") > NESTING_MAX:
        _refuse_too_deep(value, (), NESTING_MAX)
    if "\\u" in text:
        _refuse_unstorable(value)
    return value


def _refuse_unknown(request: Request, known: set[str]) -> None:
    unknown = sorted(set(request.query_params) - known)
    if unknown:
        accepted = f"known: {', '.join(sorted(known))}" if known else "this path takes none"
        raise RequestValidationError(
            [
                {"type": "extra_forbidden", "loc": ("query", name[:100]), "msg": f"unknown parameter; {accepted}"}
                for name in unknown[:20]
            ]
        )


def _too_large() -> NoReturn:
    raise BodyProblem("body_too_large", "body", f"is larger than {BODY_BYTES_MAX} bytes")


def _not_finite(name: str) -> NoReturn:
    raise BodyProblem("invalid_request", "body", f"{name} is not a JSON number")


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise BodyProblem("invalid_request", "body", f"the number {text[:40]} is too large")
    return number


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        twice = first_repeated(name for name, _ in pairs)
        raise BodyProblem("invalid_request", twice[:100], "stands twice in one object")
    return found


def _refuse_too_deep(value: Any, path: tuple[str, ...], levels: int) -> None:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else None
    if items is None:
        return
    if levels == 0:
        raise BodyProblem("invalid_request", _field(path[:1]), f"is nested more than {NESTING_MAX} levels deep")
    for name, item in items:
        _refuse_too_deep(item, (*path, str(name)), levels - 1)


def _field(path: tuple[str, ...]) -> str:
    return ".".join(part[:100] if part.isprintable() else "?" for part in path) or "body"


def _refuse_unstorable(value: Any) -> None:
    for path, text in _texts(value, ()):
        if "\0" in text or any(_SURROGATES[0] <= character <= _SURROGATES[1] for character in text):
            raise BodyProblem(
                "invalid_request", _field(path), "holds a NUL or half a character, which cannot be stored"
            )


def _texts(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], str]]:
    if isinstance(value, str):
        yield path, value
    elif isinstance(value, dict):
        for name, item in value.items():
            yield (*path, name), name
            yield from _texts(item, (*path, name))
    elif isinstance(value, list):
        for index, item in enumerate(value):
            yield from _texts(item, (*path, str(index)))
