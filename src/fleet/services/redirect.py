"""Redirecting a create: its node turned out unfit before anything was made there, so it is placed again elsewhere.

One transaction moves the charge, the instance and the operation to the new node; namespace and cluster are not charged
again. The worker's lease number guards it: a worker that lost its lease redirects nothing.
"""

from __future__ import annotations

from sqlalchemy import Connection

from fleet.ledger import charges, decisions, instances, operations
from fleet.ledger.database import Batch
from fleet.ledger.operations import LeasedOperation
from fleet.model.errors import StrategyUnavailable
from fleet.model.request import PlacementRequest
from fleet.queue.jobs import WakeUp
from fleet.services import placed_event
from fleet.services.context import Context
from fleet.services.place import Placed, Placing, Refusal, place
from fleet.services.replacing import Stopped, made_with

PLACEMENT_ATTEMPTS_MAX = 3


def redirect(ctx: Context, leased: LeasedOperation, reason: str) -> str | None:
    """Place the instance of a create on another node. Return that node's name; None when it stays where it is.

    Raises:
        DatabaseUnavailable: nothing was changed.
    """
    instance = instances.get(ctx.database, leased.instance_uuid)
    if instance is None or instance.placement_attempts >= PLACEMENT_ATTEMPTS_MAX:
        return None
    held = [charge.amounts for charge in charges.of_instance(ctx.database, instance.uuid) if charge.role == "primary"]
    if not held:
        return None
    # The node that it leaves is never tried again (`source`), so to the pipeline it is a create like any other, with
    # the rules and labels that it was made with. Its own draft is no neighbour of itself.
    body = {**made_with(instance), "namespace": instance.namespace, "instance": instance.uuid}

    def rows(conn: Connection, node_id: int, _node: str, row: decisions.DecisionRow) -> None:
        if not instances.place_elsewhere(conn, instance.uuid, node_id, row.id):
            raise Stopped
        if not operations.redirect(conn, leased, node_id):
            raise Stopped

    def new_rows(batch: Batch, _node_id: int, node: str, row: decisions.DecisionRow) -> None:
        decisions.insert(batch, row)
        placed_event.record(
            batch,
            instance.uuid,
            node,
            row,
            previous_node=leased.node,
            placement_attempts=instance.placement_attempts + 1,
            reason=reason,
            operation=leased.uuid,
            cpus=held[0].cpus,
            memory_mb=held[0].memory_mb,
            disk_gb=held[0].disk_gb,
        )

    placing = Placing(
        request=PlacementRequest.model_validate(body),
        instance_uuid=instance.uuid,
        namespace=instance.namespace,
        new_rows=new_rows,
        rows=rows,
        source=leased.node_id,
        charged=held[0],
    )
    placed = _placed(ctx, placing)
    if isinstance(placed, Refusal):
        placed_event.record_refused(ctx.database, instance.uuid, placed, previous_node=leased.node, reason=reason)
        return None
    if placed is None or placed.node_id == leased.node_id:
        return None
    ctx.fault("worker_after_redirect")
    ctx.wake(WakeUp(leased.uuid, placed.node_id, leased.number))
    return placed.node


def _placed(ctx: Context, placing: Placing) -> Placed | Refusal | None:
    """Place it again; None: it was stopped."""
    try:
        return place(ctx, placing)
    except Stopped:
        return None
    except StrategyUnavailable as missing:
        # A package that this machine lacks must not end the create: it goes on where it is.
        return Refusal(missing.code, missing.detail)
