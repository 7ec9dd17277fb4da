"""Explaining: where a request would go and why, and why not elsewhere. Changes nothing, stores nothing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fleet.model.decision import Decision
from fleet.model.request import InstanceRequest, PlacementRequest
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from fleet.services import remedies
from fleet.services.context import Context


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision in which every stage judged every node, with what would help when it is a refusal."""

    decision: Decision
    remedies: remedies.Remedies

    def as_dict(self, limit: int | None = None) -> dict[str, Any]:
        """Return the public form, with at most `limit` nodes in each list."""
        form = self.decision.as_dict(limit)
        return {**form, "remedies": remedies.forms(self.remedies)} if self.decision.refused else form


def explain(ctx: Context, namespace: str, request: InstanceRequest, *, seed: int | None = None) -> Explanation:
    """Return the decision for `request`, every stage judging every node, on what a decision would see now.

    Raises:
        InvalidRequest: the request breaks a rule that needs the fleet's configuration.
        DatabaseUnavailable: the ledger cannot be read.
    """
    asked = PlacementRequest.model_construct(**{**dict(request), "namespace": namespace})
    seen = _seen_by(ctx, asked)
    decision = decide(asked, seen, ctx.seed() if seed is None else seed, explain=True)
    return Explanation(decision, remedies.of_refusal(asked, seen, decision))


def _seen_by(ctx: Context, request: PlacementRequest) -> Snapshot:
    """Return what a decision on this request would see: the fleet, and the neighbours that it asks about."""
    now = ctx.elapsed()
    fleet = ctx.snapshots.peek()
    neighbours = ctx.neighbours.seen(fleet.frame, request, fresh_since=now)
    return fleet if neighbours is None else Snapshot(fleet.frame.with_instances(neighbours))
