"""How a command ends: an exit code and, when it is a no, one sentence with what would help. Never a stack trace."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

DONE: Final = 0
REFUSED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3


class Refused(Exception):
    """The service (or the ledger) said no; `document` is its problem document."""

    def __init__(self, document: Mapping[str, Any]) -> None:
        super().__init__(str(document.get("detail") or document.get("title") or document))
        self.document = dict(document)


class Misused(Exception):
    """What was typed cannot be carried out; `hint` says what would help."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


def not_there_yet(what: str) -> Refused:
    """Return the refusal of a verb whose feature is not there yet."""
    return Refused({"code": "not_supported", "detail": f"{what} is not supported yet"})
