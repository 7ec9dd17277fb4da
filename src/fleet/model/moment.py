"""A moment of the ledger as people and programs read it: whole microseconds since 1970 become ISO-8601, UTC."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, overload

_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@overload
def iso(at_us: int) -> str: ...
@overload
def iso(at_us: int | None) -> str | None: ...
def iso(at_us: int | None) -> str | None:
    """Return database microseconds as `2026-11-29T12:00:00.000000Z`; what is not known stays None."""
    if at_us is None:
        return None
    return (_EPOCH + timedelta(microseconds=at_us)).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
