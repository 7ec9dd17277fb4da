"""Explaining: where a request would go and why, and why not elsewhere. Changes nothing, stores nothing."""

from __future__ import annotations

from fleet.model.decision import Decision
from fleet.model.request import InstanceRequest, PlacementRequest
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from fleet.services.context import Context


def explain(ctx: Context, namespace: str, request: InstanceRequest, *, seed: int | None = None) -> Decision:
    """Return the decision for `request`, every stage judging every node, on what a decision would see now.

    Raises:
        InvalidRequest: the request breaks a rule that needs the fleet's configuration.
        DatabaseUnavailable: the ledger cannot be read.
    """
    asked = PlacementRequest.model_construct(**{**dict(request), "namespace": namespace})
    chosen = ctx.seed() if seed is None else seed
    snapshot = ctx.snapshots.peek()
    seen = ctx.neighbours.seen(snapshot.frame, asked, fresh_since=ctx.elapsed())
    if seen is not None:
        snapshot = Snapshot(snapshot.frame.with_instances(seen))
    return decide(asked, snapshot, chosen, explain=True)


def snapshot(ctx: Context) -> Snapshot:
    """Return everything that a decision may see now, for saving to a file."""
    return ctx.snapshots.peek()
