"""Configuration values: how one value is read from text, and how a bad one is refused.

Promise: a refusal names the key, where it stands, what was given (never a secret, never more than a line) and what
would be accepted. Reals are exact decimals, so that a limit computed from them never loses a unit to floating point.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from types import MappingProxyType
from typing import Final, TypeAlias

from fleet.model.errors import InvalidRequest
from fleet.model.findings import shown

ConfigValue: TypeAlias = Decimal | int | bool | str | tuple[str, ...] | Mapping[str, str] | None

UNLIMITED: Final = "unlimited"
DECIMAL_PLACES_MAX: Final = 3

_DECIMAL = re.compile(r"[+-]?\d{1,15}(?:\.\d{1,15})?", re.ASCII)
_WHOLE = re.compile(r"[+-]?\d{1,15}", re.ASCII)
_FLAGS: Final = MappingProxyType({"yes": True, "true": True, "1": True, "no": False, "false": False, "0": False})


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigProblem:
    """One thing wrong with the configuration; `where` is `file:line`, an environment variable or empty."""

    key: str
    reason: str
    where: str = ""

    def __str__(self) -> str:
        """Return `where: key: reason`."""
        return f"{self.where}: {self.key}: {self.reason}" if self.where else f"{self.key}: {self.reason}"


class ConfigError(InvalidRequest):
    """The configuration cannot be used; `problems` holds every reason, not only the first."""

    def __init__(self, problems: Iterable[ConfigProblem]) -> None:
        """Keep the problems; the sentence has one line for each."""
        self.problems: tuple[ConfigProblem, ...] = tuple(problems)
        super().__init__(
            "\n".join(str(problem) for problem in self.problems),
            errors=[{"field": problem.key, "message": problem.reason} for problem in self.problems],
        )


@dataclass(frozen=True, slots=True)
class Parser:
    """How one kind of value is read. `read` raises ValueError; `accepted` completes "accepted: …"."""

    accepted: str
    read: Callable[[str], ConfigValue]


def decimal_between(low: Decimal, high: Decimal, *, above_low: bool = False) -> Parser:
    """An exact decimal with at most three places; `above_low` leaves `low` itself out."""

    def read(text: str) -> Decimal:
        if not _DECIMAL.fullmatch(text):
            raise ValueError("is not a plain decimal number")
        number = Decimal(text)
        if number != round(number, DECIMAL_PLACES_MAX):
            raise ValueError(f"has more than {DECIMAL_PLACES_MAX} decimal places")
        if not low <= number <= high or (above_low and number == low):
            raise ValueError("is out of range")
        return number

    lower = f"above {low}" if above_low else f"from {low}"
    return Parser(f"a decimal number {lower} up to {high} with at most {DECIMAL_PLACES_MAX} decimal places", read)


def whole_between(low: int, high: int) -> Parser:
    """A whole number within bounds, both ends included."""

    def read(text: str) -> int:
        if not _WHOLE.fullmatch(text):
            raise ValueError("is not a whole number")
        if not low <= int(text) <= high:
            raise ValueError("is out of range")
        return int(text)

    return Parser(f"a whole number from {low} to {high}", read)


def flag() -> Parser:
    """A boolean; the text "False" is false, which `bool("False")` is not."""

    def read(text: str) -> bool:
        if text.lower() not in _FLAGS:
            raise ValueError("is not a boolean")
        return _FLAGS[text.lower()]

    return Parser("yes, no, true, false, 1 or 0", read)


def one_of(*choices: str) -> Parser:
    """One word of a closed list, in any letter case."""

    def read(text: str) -> str:
        if text.lower() not in choices:
            raise ValueError("is not one of the known words")
        return text.lower()

    return Parser("one of " + ", ".join(choices), read)


def or_unlimited(parser: Parser) -> Parser:
    """The parser's values, or the word `unlimited`, which reads as None."""

    def read(text: str) -> ConfigValue:
        return None if text.lower() == UNLIMITED else parser.read(text)

    return Parser(f"{parser.accepted}, or the word {UNLIMITED}", read)


def nearest_name(name: str, known: Iterable[str], *, likeness_min: float = 0.6) -> str | None:
    """The known name most like `name`, or None when nothing comes close."""
    found = get_close_matches(name.upper(), list(known), n=1, cutoff=likeness_min)
    return found[0] if found else None


def read_value(parser: Parser, key: str, text: str, *, where: str = "", secret: bool = False) -> ConfigValue:
    """The typed value of `text`; a ConfigError says what was given (never a secret) and what is accepted."""
    try:
        return parser.read(text.strip())
    except ValueError as refusal:
        given = "the value given (not shown)" if secret else shown(text)
        reason = f"{given} {refusal}; accepted: {parser.accepted}"
        raise ConfigError([ConfigProblem(key=key, reason=reason, where=where)]) from None
