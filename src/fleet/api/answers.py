"""Answers: plain values to JSON bytes at once, times as ISO-8601 UTC, lists in pages."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, TypeVar

from starlette.responses import Response

from fleet.model.errors import InvalidRequest
from fleet.model.moment import iso
from fleet.model.request import is_name

LIMIT_DEFAULT: Final = 100
LIMIT_MAX: Final = 1000
CURSOR_CHARACTERS_MAX: Final = 128
_POSITION: Final = re.compile(r"(\d{1,18})\.([0-9a-f-]{36})", re.ASCII)
_PLACE: Final = re.compile(r"(\d{1,18})(?:\.(\d{1,6}))?", re.ASCII)
_DECISION_PART: Final = re.compile(r"(\d{1,18})\.([0-9a-f-]{36})\.(\d{1,6})", re.ASCII)
_NUMBER: Final = re.compile(r"\d{1,18}", re.ASCII)

T = TypeVar("T")
__all__ = [
    "LIMIT_DEFAULT",
    "LIMIT_MAX",
    "answer",
    "decision_part",
    "iso",
    "name_after",
    "number",
    "page",
    "place",
    "position",
]


def answer(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return plain values as JSON. Reals become JSON numbers: they are shown, not reckoned with."""
    body = json.dumps(content, default=float, ensure_ascii=False, separators=(",", ":")).encode()
    return Response(body, status, headers=headers, media_type="application/json")


def page(
    found: Sequence[T], limit: int, show: Callable[[T], Mapping[str, Any]], cursor: Callable[[T], object]
) -> Response:
    """Return `{"items", "next_cursor"}`. Callers read one more than `limit`: whether there is one says the rest."""
    items = [show(item) for item in found[:limit]]
    following = str(cursor(found[limit - 1])) if len(found) > limit else None
    return answer({"items": items, "next_cursor": following})


def position(cursor: str | None) -> tuple[int, str] | None:
    """Return the `(time, uuid)` that a cursor of a listing by age names."""
    found = _read(_POSITION, cursor)
    return None if found is None else (int(found[1]), found[2])


def name_after(cursor: str | None) -> str:
    """Return the name that a cursor of a listing by name names; empty: from the first."""
    if cursor is not None and not is_name(cursor):
        raise _not_of_this_list()
    return cursor or ""


def number(cursor: str | None) -> int | None:
    """Return the number that a cursor of a listing by number names."""
    found = _read(_NUMBER, cursor)
    return None if found is None else int(found[0])


def place(cursor: str | None) -> tuple[int, int] | None:
    """Return the `(row, part)` that a cursor of a timeline names; a number alone is the row itself."""
    found = _read(_PLACE, cursor)
    return None if found is None else (int(found[1]), int(found[2] or 0))


def decision_part(cursor: str | None) -> tuple[int, str, int] | None:
    """Return the `(time, decision, part)` that a cursor of a node's schedule events names."""
    found = _read(_DECISION_PART, cursor)
    return None if found is None else (int(found[1]), found[2], int(found[3]))


def _read(form: re.Pattern[str], cursor: str | None) -> re.Match[str] | None:
    """Return the parts of a cursor; None: the first page is asked for.

    Raises:
        InvalidRequest: it is no cursor of this list.
    """
    if cursor is None:
        return None
    found = form.fullmatch(cursor)
    if found is None:
        raise _not_of_this_list()
    return found


def _not_of_this_list() -> InvalidRequest:
    message = "is not a cursor of this list; take `next_cursor` of the page before as it is"
    return InvalidRequest(f"cursor: {message}", errors=[{"field": "cursor", "message": message}])
