"""The ledger's health: counters that differ from their charges now, and whether passes keep them true."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, Final

from fleet.ledger import passes
from fleet.ledger.database import Database
from fleet.ledger.verify import verify
from fleet.model.moment import iso

DIFFERENCES_SHOWN_MAX: Final = 20


def drift(db: Database, names: Mapping[int, str]) -> dict[str, Any]:
    """Return how many figures differ from the truth right now, and the first of them. `names` are the nodes' by id.

    What the last pass left is zero: a difference arose since then, or a pass cannot mend it.
    """
    found = verify(db).differences
    shown = [{**asdict(one), "row": _named(one.row, names)} for one in found[:DIFFERENCES_SHOWN_MAX]]
    return {"count": len(found), "differences": shown}


def last_pass(db: Database, names: Mapping[int, str]) -> dict[str, Any]:
    """Return when a pass last ended well, what it corrected, whether that is too long ago, and the last failure."""
    found, failed = passes.last(db), passes.last_failed(db)
    failure = None
    if failed is not None:
        failure = {
            "at": iso(failed.at_us),
            "age_seconds": failed.age_seconds,
            # Of two in the same moment (SQLite's clock counts milliseconds) the failure is the one to tell.
            "since_last_good": found is None or failed.at_us >= found.at_us,
            "code": failed.code,
            "error": failed.error,
        }
    known = {
        "ended_at": None if found is None else iso(found.at_us),
        "age_seconds": None if found is None else found.age_seconds,
        "duration_seconds": None if found is None else found.duration_seconds,
        "corrections": None if found is None else found.corrections,
        "corrected": [
            {**one, "row": _named(str(one.get("row", "")), names)} for one in (() if found is None else found.corrected)
        ],
    }
    stale = found is None or found.age_seconds > passes.STALE_SECONDS
    return {**known, "stale": stale, "stale_after_seconds": passes.STALE_SECONDS, "last_failure": failure}


def _named(row: str, names: Mapping[int, str]) -> str:
    """Return a row as operators call it: the ledger knows nodes by number."""
    kind, _, key = row.partition(" ")
    return f"node {names.get(int(key), key)}" if kind == "node" and key.isdecimal() else row
