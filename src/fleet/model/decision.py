"""The decision: what the pipeline answers, with every reason. It binds nothing; admission binds.

A decision keeps what a reader needs: for each stage how many nodes it kept and why it dropped the others, the ranked
names, the seed, and one sentence. It is made of plain values, so that it survives JSON and replays bit for bit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class StageResult:
    """What one stage did. `dropped` maps a node's name to its reason and figures, in the order of the snapshot."""

    name: str
    kept: tuple[str, ...]
    dropped: Mapping[str, Mapping[str, Any]]
    overridden: bool = False
    detail: Mapping[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Return the public form."""
        out: dict[str, Any] = {"name": self.name, "kept": list(self.kept), "dropped": dict(self.dropped)}
        if self.overridden:
            out["overridden"] = True
        if self.detail:
            out["detail"] = dict(self.detail)
        return out
