"""A waived demand clause: how the walk marks the try that passes it by, and the event of the placement it made.

The mark names no node: it speaks of the try that the row stands or falls with. Earlier tries may have been waived too
and found their node locked; the placement that follows them is none the less an ordinary one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleet.ledger import events
from fleet.ledger.database import Batch

MARK: Final[Mapping[str, Any]] = {"demand_waived": True}
MESSAGE: Final = "no candidate admitted and some refused on demand alone, waiving demand guard"


def is_waived(walk: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the try that a decision's walk ends with was waived."""
    return bool(walk) and walk[-1] == MARK


def record(batch: Batch, instance_uuid: str, node: str, walk: Sequence[Mapping[str, Any]]) -> None:
    """Write the event of a waived placement, with who was refused before; nothing for an ordinary one."""
    if not is_waived(walk):
        return
    denials = {note["node"]: note["dimensions"] for note in walk if note.get("dimensions")}
    events.record(batch, "instance", instance_uuid, MESSAGE, {"node": node, "denials": denials}, level="warning")
