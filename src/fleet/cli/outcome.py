"""How a command ends: an exit code and, when it is a no, one sentence with what would help. Never a stack trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

DONE: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3


class Refused(Exception):
    """The service (or the ledger) said no; `document` is its problem document, which programs get as it came.

    `told` is its sentence for people where that says more, `hints` are what to type next.
    """

    def __init__(self, document: Mapping[str, Any], *, told: str = "", hints: Sequence[str] = ()) -> None:
        super().__init__(told or str(document.get("detail") or document.get("title") or document))
        self.document = dict(document)
        self.hints = tuple(hints)


class Misused(Exception):
    """What was typed cannot be carried out; `hint` says what would help."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def reason(error: Exception) -> str:
    """Return what the system says of a failure, without its number and the path that was told already."""
    return str(getattr(error, "strerror", None) or error) or type(error).__name__


def not_there_yet(what: str) -> Refused:
    """Return the refusal of a verb whose feature is not there yet."""
    return Refused({"code": "not_supported", "detail": f"{what} is not supported yet"})
