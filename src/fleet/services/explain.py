"""Explaining: where a request would go and why, and why not elsewhere. Changes nothing, stores nothing.

A decision is about nodes. Who would pay is told beside it: a claim, or the cluster's unclaimed side, can refuse what
every node has room for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from fleet.ledger import promised
from fleet.model.admission import Stage
from fleet.model.decision import Decision
from fleet.model.request import InstanceRequest, PlacementRequest, Reason
from fleet.model.resources import Amounts, DimensionFigure
from fleet.placement.guarded import GuardAnswer
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from fleet.services import remedies, replacing
from fleet.services.capacity import CLAIM, CLUSTER
from fleet.services.context import Context
from fleet.services.destination import move_request
from fleet.services.guarded import Answer, by_owner
from fleet.services.resize import resize_request


@dataclass(frozen=True, slots=True)
class Payer:
    """Who would be charged: the namespace's claim, or the cluster; `no` is what it would answer instead."""

    claim: str | None
    figures: tuple[DimensionFigure, ...]
    no: Answer | None

    def as_dict(self) -> dict[str, Any]:
        """Return the public form."""
        refuses = None if self.no is None else {"code": self.no.code, "detail": self.no.detail}
        figures = [figure.as_dict() for figure in self.figures]
        payer = CLUSTER if self.claim is None else CLAIM
        return {"payer": payer, "claim": self.claim, "dimensions": figures, "refuses": refuses}


@dataclass(frozen=True, slots=True)
class Explanation:
    """A decision in which every stage judged every node, who would pay, and what would help when either says no."""

    decision: Decision
    payer: Payer
    remedies: remedies.Remedies

    def as_dict(self, limit: int | None = None) -> dict[str, Any]:
        """Return the public form, with at most `limit` nodes in each list."""
        form = {**self.decision.as_dict(limit), "charged_to": self.payer.as_dict()}
        said_no = self.decision.refused or self.payer.no is not None
        return {**form, "remedies": remedies.forms(self.remedies)} if said_no else form


def explain(ctx: Context, namespace: str, request: InstanceRequest, *, seed: int | None = None) -> Explanation:
    """Return the decision for `request`, every stage judging every node, on what a decision would see now.

    Raises:
        InvalidRequest: the request breaks a rule that needs the fleet's configuration.
        DatabaseUnavailable: the ledger cannot be read.
    """
    asked = PlacementRequest.of(request, namespace)
    return _explained(ctx, asked, seed, asked.amounts(ctx.configuration().instance_overhead_mb), grows=False)


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
        who, holds, asked = resize_request(ctx, instance_uuid, Amounts(**size))
        return _explained(ctx, asked, seed, (holds - who.charge.amounts).floored(), grows=True)
    asked = move_request(ctx, instance_uuid, reason, node=node, destinations=destinations)[1]
    return _explained(ctx, asked, seed, Amounts(), grows=True)


def _explained(
    ctx: Context, asked: PlacementRequest, seed: int | None, charged: Amounts, *, grows: bool
) -> Explanation:
    """`charged` is what the payer is asked for: a move as such asks it for nothing.

    `grows`: it is added to what the payer pays already.
    """
    seen = _seen_by(ctx, asked)
    decision = decide(asked, seen, ctx.seed() if seed is None else seed, explain=True)
    hard = ctx.configuration().claim_enforcement == "hard"
    room = promised.room_of(ctx.database, asked.namespace or "", claim_hard=hard)
    stage = Stage.CLUSTER if room.claim is None else Stage.CLAIM
    figures = room.side.figures(charged, grows=grows)
    if not any(figure.exceeded for figure in figures):
        found = remedies.of_refusal(asked, seen, decision)
        return Explanation(decision, Payer(room.claim, figures, None), found)
    payer = Payer(room.claim, figures, by_owner(stage, figures))
    if decision.refused:
        return Explanation(decision, payer, remedies.of_refusal(asked, seen, decision))
    answer = GuardAnswer(stage, figures=figures, idle=room.idle, unclaimed=room.unclaimed.figures(charged, grows=grows))
    return Explanation(decision, payer, remedies.of_guard(asked, seen, decision, answer))


def _seen_by(ctx: Context, request: PlacementRequest) -> Snapshot:
    """Return what a decision on this request would see: the fleet, and the neighbours that it asks about."""
    now = ctx.elapsed()
    fleet = ctx.snapshots.peek()
    neighbours = ctx.neighbours.seen(fleet.frame, request, fresh_since=now)
    return fleet if neighbours is None else Snapshot(fleet.frame.with_instances(neighbours))
