"""A waived demand clause: how the walk marks the try that passes it by, and the event of the placement it made.

The mark names no node: it speaks of the try that the row stands or falls with. Earlier tries may have been waived too
and found their node locked; the placement that follows them is none the less an ordinary one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

MARK: Final[Mapping[str, Any]] = {"demand_waived": True}
MESSAGE: Final = "no candidate admitted and some refused on demand alone, waiving demand guard"


def is_waived(walk: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the try that a decision's walk ends with was waived."""
    return bool(walk) and walk[-1] == MARK


def denials(walk: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return why each node that refused did so, the last time that it was tried."""
    found: dict[str, dict[str, Any]] = {}
    for note in walk:
        if note.get("outcome") != "refused":
            continue
        dimensions = note.get("dimensions", [])
        over = [figure["dimension"] for figure in dimensions]
        eligible = not note.get("ineligible")
        found[note["node"]] = {
            "failing_stage": note.get("failing_stage"),
            "dimensions": dimensions,
            "demand_only": eligible and over == ["demand"],
        }
    return found


def payload(walk: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the payload of the waiver's event, given what was tried before it.

    `candidates` are those that were refused or, over their load target already, not asked yet (the first of them).
    """
    refused = denials(walk)
    skipped = [note["first"] for note in walk if note.get("outcome") == "skipped"]
    return {"candidates": list(dict.fromkeys([*refused, *skipped])), "denials": refused}
