"""Durations as people write them: `30d`, `12h`, `1d12h`, `90 min`, or seconds alone. A week is 7 days, a day 24 h.

Every flag that takes one reads it by `duration`, so what is accepted is the same everywhere.
"""

from __future__ import annotations

import re
from typing import Final

import typer

AGE_SECONDS_MAX: Final = 100 * 366 * 86_400
_PART: Final = re.compile(
    r"(?P<count>\d{1,15})\s*(?P<unit>weeks?|w|days?|d|hours?|h|minutes?|min|m|seconds?|sec|s)(?![a-z])\s*",
    re.ASCII | re.IGNORECASE,
)
_UNITS: Final = (("w", 604_800), ("d", 86_400), ("h", 3600), ("m", 60), ("s", 1))
_SECONDS: Final = dict(_UNITS)
_PLAIN: Final = re.compile(r"[-+]?\d{1,100}", re.ASCII)


def seconds_of(text: str) -> int:
    """Return the seconds of a duration. A plain number is seconds, whatever it is: the service judges it.

    Raises:
        ValueError: with what would be accepted.
    """
    stripped = text.strip()
    if _PLAIN.fullmatch(stripped):
        return int(stripped)
    total, at, former = 0, 0, len(_UNITS) * 604_800
    while at < len(stripped):
        found = _PART.match(stripped, at)
        length = 0 if found is None else _SECONDS[found["unit"][0].lower()]
        # From the largest unit to the smallest, each once: `1h1h` and `1s2d` are slips of the hand.
        if found is None or length >= former:
            break
        total, at, former = total + int(found["count"]) * length, found.end(), length
    if at < len(stripped) or not stripped:
        raise ValueError(f"{text!r} is not a duration; write for example 30d, 12h, 1d12h, 90min, or seconds alone")
    return total


def written(seconds: int) -> str:
    """Return seconds as a flag takes them: `30d`, `1d12h`, `90s`."""
    left, parts = abs(seconds), []
    # Weeks are left out: who reads 52w1d has to count.
    for unit, length in _UNITS[1:]:
        count, left = divmod(left, length)
        if count:
            parts.append(f"{count}{'min' if unit == 'm' else unit}")
    return ("-" if seconds < 0 else "") + ("".join(parts) or "0s")


def duration(text: str) -> int:
    """Read a flag's value: the `parser` of its option.

    Raises:
        BadParameter: with what would be accepted.
    """
    try:
        return seconds_of(text)
    except ValueError as fault:
        raise typer.BadParameter(str(fault)) from None


def age(text: str) -> int:
    """Read a flag's value that says how long ago something was.

    Raises:
        BadParameter: with what would be accepted; below zero lies the future, and nothing is older than a century.
    """
    found = duration(text)
    if found < 0:
        raise typer.BadParameter(f"{text}: events lie in the past; write how long ago")
    if found > AGE_SECONDS_MAX:
        raise typer.BadParameter(f"{text}: is more than a hundred years")
    return found
