"""An instance that is placed again: what it holds, what it asks, and how the answer of the walk is told.

What it asks is what it was made with, rules and labels among it, in the size that its charge holds: an overhead that
the cluster changed since then is not charged to it. The node that it was pinned to binds it only while it is there:
whoever moved it away did so past the pin, and a move never chooses where it comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection

from fleet.ledger import charges, decisions, instances
from fleet.ledger.database import Batch
from fleet.ledger.instances import InstanceView
from fleet.model.admission import Admitted, Charge
from fleet.model.errors import Conflict, NotFound
from fleet.model.lifecycle import InstanceState
from fleet.model.request import PlacementRequest, Reason, parse_placement_request
from fleet.model.resources import Amounts
from fleet.placement.stage import all_strategies
from fleet.services import placed_event
from fleet.services.context import Context
from fleet.services.place import Admit, Placed, Placing, Refusal, place

NO_INSTANCE = "no such instance"
PLACEABLE = frozenset({InstanceState.RUNNING, InstanceState.STOPPED})
"""The states in which an instance is somewhere for good, so that it can be placed again or forked."""

NewRows = Callable[[Batch, int, str, decisions.DecisionRow], None]
"""Rows of the caller that stand or fall with the charge (its operation), given the chosen node and the decision."""

Key = Callable[[Connection, str, str], None]
"""Writes the idempotency key, given the node's name and the decision's id."""


def no_rows(_batch: Batch, _node_id: int, _node: str, _row: decisions.DecisionRow) -> None:
    """Write no rows of the caller."""


@dataclass(frozen=True, slots=True)
class Subject:
    """An instance in a state in which it can be placed again, and its charge."""

    instance: InstanceView
    charge: Charge

    @property
    def node(self) -> str:
        """The name of the node that holds it."""
        return self.instance.node or ""

    @property
    def overhead_mb(self) -> int:
        """What its charge holds beyond its memory: the overhead of the time when it was made."""
        return self.charge.amounts.memory_mb - self.instance.memory_mb

    def holds(self, target: Amounts) -> Amounts:
        """Return what its charge holds at another size of the instance."""
        return Amounts(
            target.cpus, max(0, target.memory_mb + self.overhead_mb), target.disk_gb, self.charge.amounts.instances
        )


@dataclass(frozen=True, slots=True)
class Chosen:
    """Where the instance is to be, held in the ledger. `moves`: its node holds it too, until the move ends.

    `decision_id` None: the instance has that size where it is already, and nothing was decided.
    """

    node_id: int
    node: str
    decision_id: str | None
    moves: bool
    waived: bool = False
    admitted: Admitted | None = None


class Stopped(Exception):
    """The instance may not be placed again any more: it was deleted, or failed, or another leases its operation now."""


def subject(ctx: Context, instance_uuid: str) -> Subject:
    """Return the instance and its charge.

    Raises:
        NotFound: no such instance.
        Conflict: it is being made, moved or deleted, or it failed; the sentence says which.
    """
    instance = instances.get(ctx.database, instance_uuid)
    if instance is None or instance.state is InstanceState.DELETED:
        raise NotFound(NO_INSTANCE)
    if instance.state not in PLACEABLE:
        raise Conflict(f"the instance is {instance.state}; only a running or stopped one can be placed again or forked")
    held = {charge.role: charge for charge in charges.of_instance(ctx.database, instance_uuid)}
    if "incoming" in held:
        raise Conflict("the instance is being moved; wait until that has ended")
    if "primary" not in held:
        raise Conflict(f"the instance is {instance.state} but holds no room in the ledger")
    return Subject(instance, held["primary"])


def made_with(instance: InstanceView) -> dict[str, Any]:
    """Return what an instance was made with, as it is asked again.

    A strategy that is not installed any more is left out: it would order nodes, and who fits does not depend on it.
    """
    made = dict(instance.request)
    if made.get("strategy") and made["strategy"] not in all_strategies():
        del made["strategy"]
    return made


def question(
    ctx: Context, who: Subject, reason: Reason, holds: Amounts | None = None, **changed: Any
) -> PlacementRequest:
    """Return what is asked for it; `holds`: what its charge is to hold, `changed`: fields that differ.

    Raises:
        InvalidRequest: a field breaks a rule.
    """
    holds = holds or who.charge.amounts
    overhead = ctx.configuration().instance_overhead_mb
    body: dict[str, Any] = {
        **made_with(who.instance),
        "namespace": who.instance.namespace,
        "instance": who.instance.uuid,
        "reason": str(reason),
        "cpus": holds.cpus,
        # Stages add the overhead of today; what it was made with is in what it holds.
        "memory_mb": max(1, holds.memory_mb - overhead),
        "disk_gb": holds.disk_gb,
        "gpus": who.charge.gpus.count,
        "gpu_kind": who.charge.gpus.kind,
        "gpu_profile": who.charge.gpus.profile,
        **changed,
    }
    placement = dict(body.get("placement") or {})
    if "placement" not in changed and (reason is not Reason.RESIZE or placement.get("node") != who.node):
        placement.pop("node", None)
    return parse_placement_request({**body, "placement": placement})


def place_again(
    ctx: Context,
    who: Subject,
    request: PlacementRequest,
    admit: Admit,
    *,
    holds: Amounts | None = None,
    new_rows: NewRows = no_rows,
    key: Key | None = None,
    told: Mapping[str, Any] = MappingProxyType({}),
) -> Chosen | Refusal:
    """Decide on `request` and walk with `admit`, the ledger's verb; refusals leave an event. `told` goes in the event.

    Raises:
        Conflict: the instance was deleted, or somebody else began to move it, meanwhile.
        DatabaseUnavailable: nothing is known, nothing was placed.
    """
    instance, home, sized = who.instance, who.charge.node_id, holds or who.charge.amounts
    figures = {"cpus": sized.cpus, "memory_mb": sized.memory_mb, "disk_gb": sized.disk_gb}

    def rows(conn: Connection, node_id: int, _node: str, _row: decisions.DecisionRow) -> None:
        if not instances.still(conn, instance.uuid, PLACEABLE):
            raise Stopped
        if node_id == home:
            instances.resize(conn, instance.uuid, sized.cpus, sized.memory_mb - who.overhead_mb, sized.disk_gb)

    def all_rows(batch: Batch, node_id: int, node: str, row: decisions.DecisionRow) -> None:
        decisions.insert(batch, row)
        placed_event.record(
            batch,
            instance.uuid,
            node,
            row,
            # Which only a move may not choose: a resize may have tried to grow there.
            previous_node=None if request.reason is Reason.RESIZE else who.node,
            message=placed_event.RESIZED if node_id == home else placed_event.MOVE_BEGUN,
            from_node=who.node,
            reason=str(request.reason),
            **figures,
            **told,
        )
        new_rows(batch, node_id, node, row)

    placing = Placing(
        request=request,
        instance_uuid=instance.uuid,
        namespace=instance.namespace,
        new_rows=all_rows,
        rows=rows,
        key=key,
        charged=sized,
        admit=admit,
    )
    try:
        placed = place(ctx, placing)
    except Stopped:
        raise Conflict("the instance was deleted or failed while a node was chosen for it") from None
    if isinstance(placed, Refusal):
        placed_event.record_refused(ctx.database, instance.uuid, placed, reason=str(request.reason), from_node=who.node)
        return placed
    return _chosen(ctx, placed, home)


def _chosen(ctx: Context, placed: Placed, home: int) -> Chosen:
    """Return the answer. What was there already is ours when our decision is: it stands or falls with the charge."""
    moves = placed.node_id != home
    decision_id: str | None = placed.decision_id
    if placed.admitted is None and decisions.get(ctx.database, placed.decision_id) is None:
        if moves:
            raise Conflict("somebody else began to move the instance meanwhile; wait until that has ended")
        decision_id = None
    return Chosen(placed.node_id, placed.node, decision_id, moves, placed.waived, placed.admitted)
