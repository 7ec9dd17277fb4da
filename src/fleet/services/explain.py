"""Explaining: where a request would go and why, and why not elsewhere. Changes nothing, stores nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fleet.model.decision import Decision
from fleet.model.request import InstanceRequest, PlacementRequest, Reason
from fleet.model.resources import Amounts
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from fleet.services import remedies, replacing
from fleet.services.context import Context
from fleet.services.destination import move_request
from fleet.services.resize import resize_request


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
    asked = PlacementRequest.of(request, namespace)
    return _explained(ctx, asked, seed)


def explain_again(
    ctx: Context,
    instance_uuid: str,
    reason: Reason,
    *,
    target: Mapping[str, int] = MappingProxyType({}),
    node: str | None = None,
    destinations: Sequence[str] | None = None,
    seed: int | None = None,
) -> Explanation:
    """Return where an instance would be placed again: a resize to `target` (amounts that differ), or a move.

    `node` and `destinations` as in `choose_destination`.

    Raises:
        NotFound, Conflict: it is not there, or is being made, moved or deleted.
        InvalidRequest: an amount is out of bounds; DatabaseUnavailable: the ledger cannot be read.
    """
    if reason is Reason.RESIZE:
        view = replacing.subject(ctx, instance_uuid).instance
        size = {"cpus": view.cpus, "memory_mb": view.memory_mb, "disk_gb": view.disk_gb, **target}
        asked = resize_request(ctx, instance_uuid, Amounts(**size))[2]
    else:
        asked = move_request(ctx, instance_uuid, reason, node=node, destinations=destinations)[1]
    return _explained(ctx, asked, seed)


def _explained(ctx: Context, asked: PlacementRequest, seed: int | None) -> Explanation:
    seen = _seen_by(ctx, asked)
    decision = decide(asked, seen, ctx.seed() if seed is None else seed, explain=True)
    return Explanation(decision, remedies.of_refusal(asked, seen, decision))


def _seen_by(ctx: Context, request: PlacementRequest) -> Snapshot:
    """Return what a decision on this request would see: the fleet, and the neighbours that it asks about."""
    now = ctx.elapsed()
    fleet = ctx.snapshots.peek()
    neighbours = ctx.neighbours.seen(fleet.frame, request, fresh_since=now)
    return fleet if neighbours is None else Snapshot(fleet.frame.with_instances(neighbours))
