"""What is wrong with a value that came from outside: every problem with its field, told together, with a bound.

Promise: a sentence names a value of the wrong kind by its kind, and shows a text or a number only as far as fits on a
line, so that neither a secret nor a megabyte comes back to the caller.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from fleet.model.errors import InvalidRequest

PROBLEMS_MAX: Final = 50
SHOWN_MAX: Final = 60


class Findings:
    """The problems of one value. `PROBLEMS_MAX` of them end the reading: nobody mends more at once."""

    def __init__(self) -> None:
        """Start without problems."""
        self.problems: list[dict[str, str]] = []

    def add(self, field: str, message: str) -> None:
        """Note what is wrong with the value at `field`; the last that is kept raises."""
        self.problems.append({"field": field, "message": message})
        if len(self.problems) >= PROBLEMS_MAX:
            self.finish()

    def finish(self) -> None:
        """Raise InvalidRequest with every problem noted, if there was any."""
        if self.problems:
            raise refusal_of(self.problems)


def refusal_of(problems: list[dict[str, str]]) -> InvalidRequest:
    """Return the refusal that tells all of `[{"field": …, "message": …}]`."""
    detail = "; ".join(f"{item['field']}: {item['message']}".removeprefix(": ") for item in problems)
    return InvalidRequest(detail, errors=problems)


def shown(value: object) -> str:
    """Return a value as a sentence can hold it: quoted, on one line, cut."""
    return repr(_cut(str(value)))


def as_given(value: object) -> str:
    """Return the same with quotes around a text alone, since their lack is often the fault."""
    return shown(value) if isinstance(value, str) else shown(value)[1:-1]


def step(key: str) -> str:
    """Return a key as a part of a field's name: on one line, cut."""
    if not key:
        return '""'
    cut = _cut(key)
    return cut if cut.isprintable() else repr(cut)[1:-1]


def _cut(text: str) -> str:
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"


def first_repeated(names: Iterable[str]) -> str:
    """Return the first name that came before; empty: none did. Each is looked at once, however many there are."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            return name
        seen.add(name)
    return ""


def kind_of(value: Any) -> str:
    """Return what a value is, in JSON's words; a fraction, which is neither long nor secret, as it is."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return str(value)
    kinds: tuple[tuple[type | tuple[type, ...], str], ...] = (
        (str, "a text"),
        (int, "a whole number"),
        ((list, tuple), "a list"),
        (dict, "an object"),
    )
    return next((word for kind, word in kinds if isinstance(value, kind)), "something else")


def are_texts(*values: object) -> bool:
    """Return whether every value is a text: what a constructor asks of values whose types nobody has checked."""
    return all(isinstance(value, str) for value in values)
