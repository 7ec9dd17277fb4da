"""Creating an instance: place it, and write instance, decision and operation in the admission's own transaction.

After the commit the node's worker is woken. Whoever dies in between leaves an operation that the sweeper wakes. A fork
is made by the same steps: only what is asked, and of whom, differs (`services/fork.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection

from fleet.ledger import admission, decisions, events, idempotency, instances, operations
from fleet.ledger.database import Batch
from fleet.ledger.idempotency import Keyed
from fleet.model.affinity import DEPRECATED_EVENT
from fleet.model.errors import NotFound
from fleet.model.lifecycle import InstanceState, OperationKind
from fleet.model.request import InstanceRequest, PlacementRequest
from fleet.queue.jobs import WakeUp
from fleet.services import placed_event
from fleet.services.context import Context
from fleet.services.idempotency import RetryKey, once
from fleet.services.place import Admit, Placing, Refusal, place


@dataclass(frozen=True, slots=True)
class Created:
    """An admitted instance: its charge is committed, its node's worker will make it."""

    uuid: str
    node: str
    decision_id: str
    operation_id: str
    state: str = InstanceState.CREATING


def create_instance(
    ctx: Context, namespace: str, request: InstanceRequest, retry_key: RetryKey | None = None
) -> Created | Refusal:
    """Place `request` for `namespace`. A retry with the same key gets the first answer.

    Raises:
        InvalidRequest, IdempotencyMismatch, RequestInProgress, DatabaseUnavailable.
    """
    return once(
        ctx.database,
        retry_key,
        make=lambda keyed: _create(ctx, namespace, request, keyed),
        replay=replayed,
    )


def replayed(answer: Mapping[str, Any]) -> Created | Refusal:
    """Return the first answer to a retry of it."""
    return Created(**answer)


def _create(ctx: Context, namespace: str, request: InstanceRequest, keyed: Keyed | None) -> Created | Refusal:
    asked = PlacementRequest.of(request, namespace)
    return place_new(ctx, namespace, request, keyed, asked)


def place_new(
    ctx: Context,
    namespace: str,
    request: InstanceRequest,
    keyed: Keyed | None,
    asked: PlacementRequest,
    *,
    admit: Admit = admission.admit,
    only_here: bool = False,
    told: Mapping[str, Any] = MappingProxyType({}),
) -> Created | Refusal:
    """Place what is `asked` as a new instance made from `request`; `told` is added to the event of its placement.

    `admit` and `only_here` as in `Placing`.

    Raises:
        NotFound: the namespace was deleted meanwhile.
    """
    ctx.fault("api_before_decide")
    uuid, operation_id = ctx.new_uuid(), ctx.new_uuid()
    body = request.model_dump(mode="json", exclude_defaults=True)

    def new_rows(batch: Batch, node_id: int, node: str, row: decisions.DecisionRow) -> None:
        ctx.fault("api_after_node_guard_before_commit")
        instances.insert(batch, uuid, namespace, request, body=body, node_id=node_id, decision_id=row.id)
        operations.insert(batch, operation_id, OperationKind.CREATE, uuid, namespace, node_id)
        decisions.insert(batch, row)
        spec = request.affinity_spec
        if spec is not None and spec.deprecated:
            events.record(batch, "instance", uuid, DEPRECATED_EVENT, spec.deprecation(), level="warning")
        placed_event.record(
            batch,
            uuid,
            node,
            row,
            placement_attempts=1,
            operation=operation_id,
            cpus=request.cpus,
            memory_mb=request.memory_mb,
            disk_gb=request.disk_gb,
            **told,
        )

    def key(conn: Connection, node: str, decision_id: str) -> None:
        idempotency.keep(conn, keyed, asdict(Created(uuid, node, decision_id, operation_id)))

    placing = Placing(
        request=asked,
        instance_uuid=uuid,
        namespace=namespace,
        new_rows=new_rows,
        key=key if keyed is not None else None,
        admit=admit,
        only_here=only_here,
    )
    try:
        placed = place(ctx, placing)
    except admission.NewRowRefused:
        # It was deleted after the caller was let in.
        raise NotFound("no such namespace") from None
    if isinstance(placed, Refusal):
        placed_event.tell_refused(uuid, namespace, placed)
        return placed
    ctx.fault("api_after_commit_before_wake")
    ctx.wake(WakeUp(operation_id, placed.node_id))
    return Created(uuid, placed.node, placed.decision_id, operation_id)
