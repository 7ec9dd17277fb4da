"""What the database's driver says of a failure, for people: no number, no type of Python, the address kept."""

from __future__ import annotations

import re
from typing import Final

from sqlalchemy.exc import TimeoutError as PoolTimeout

SHOWN_MAX: Final = 200

_ERRNO: Final = re.compile(r"\[Errno -?\d+\] ")
_REPR: Final = re.compile(r"\b\w*(?:Error|Exception|timeout)\((?:-?\d+, )?'([^']*)'\)")
_NO_WAY_TO: Final = re.compile(r"Can't connect to MySQL server on '(?P<address>[^']*)' \((?P<why>.*)\)")


def in_words(error: Exception | None) -> str:
    """Return why the database did not answer, as a part of a sentence."""
    if error is None:
        return "no answer"
    if isinstance(error, PoolTimeout):
        return "all connections of this process are in use"
    reason = getattr(error, "orig", None) or error
    said = reason.args[1] if len(reason.args) > 1 and isinstance(reason.args[1], str) else str(reason)
    line = _REPR.sub(r"\1", _ERRNO.sub("", said.partition("\n")[0]))[:SHOWN_MAX]
    away = _NO_WAY_TO.fullmatch(line)
    if away is not None:
        return f"{away['address']} cannot be reached: {away['why'][:1].lower()}{away['why'][1:]}"
    return line or "the connection was closed"
