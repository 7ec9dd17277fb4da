"""Carrying one operation out: lease, look, act on the hypervisor, settle. Every step may be repeated by anybody.

    lease ─ preflight ─ hypervisor.create ─ settle_create          a create
    lease ─ hypervisor.delete ─ settle_delete                      a delete

Dies between two steps: the lease runs out, the sweeper wakes the operation, the next attempt repeats what was done (the
driver's verbs and the settling are idempotent by uuid) and goes on. A worker that lost its lease finds out at its next
write and stops. A create whose outcome is unknown keeps its charge until the node proves presence or absence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Final, Protocol

from sqlalchemy import Connection

from fleet.hypervisor.contract import DomainSpec, Hypervisor, HypervisorError
from fleet.ledger import events, gpus, instances, nodes, operations
from fleet.ledger.database import Database
from fleet.ledger.instances import InstanceView
from fleet.ledger.operations import LeasedOperation
from fleet.model.lifecycle import InstanceState, OperationKind, OperationState
from fleet.model.node import NodeState, Scheduling
from fleet.services.context import Context
from fleet.services.heartbeat import Heartbeat
from fleet.services.redirect import redirect
from fleet.services.settle import release_placement, settle_create, settle_delete
from fleet.telemetry import get_logger

RETRY_SECONDS_FIRST: Final = 1.0
RETRY_SECONDS_MAX: Final = 60.0
# A node that stays away for days must not need an operator afterwards: its deletes wait, with long pauses.
DELETE_RETRY_SECONDS_MAX: Final = 300.0
WAIT_FOR_OTHER_SECONDS: Final = 1.0
CREATING_STEP: Final = "hypervisor_create"
DELETING_STEP: Final = "hypervisor_delete"

_log = get_logger(__name__)


class Outcome(StrEnum):
    """How one wake-up ended."""

    NOT_TAKEN = "not_taken"
    DONE = "done"
    RETRY = "retry"
    WAITS = "waits"
    REDIRECTED = "redirected"
    FAILED = "failed"
    CANCELLED = "cancelled"
    LEASE_LOST = "lease_lost"


class Presence(StrEnum):
    """What the hypervisor proves about a domain."""

    PRESENT = "present"
    ABSENT = "absent"
    UNKNOWN = "unknown"


class LeaseLost(Exception):
    """The guarded write matched nothing: another worker has the operation. Rolls the unit back."""


@dataclass(frozen=True, slots=True)
class Workshop:
    """What a worker needs to carry operations out. `hypervisor_of` answers the driver of a node by its name."""

    context: Context
    hypervisor_of: Callable[[str], Hypervisor]
    heartbeat: Heartbeat
    owner: str

    @property
    def database(self) -> Database:
        """The ledger's database."""
        return self.context.database


class _Handler(Protocol):
    def __call__(self, shop: Workshop, leased: LeasedOperation) -> Outcome: ...


def carry_out(shop: Workshop, operation_uuid: str) -> Outcome:
    """Take the operation, if nobody has it, and carry it out.

    Raises:
        DatabaseUnavailable: the lease runs out by itself; the operation is woken again.
    """
    shop.context.fault("worker_after_take")
    leased = operations.lease(shop.database, operation_uuid, shop.owner, shop.heartbeat.seconds)
    if leased is None:
        return Outcome.NOT_TAKEN
    shop.context.fault("worker_after_lease")
    with shop.heartbeat.keeping(leased):
        try:
            outcome = _HANDLERS.get(leased.kind, _unknown_kind)(shop, leased)
        except LeaseLost:
            outcome = Outcome.LEASE_LOST
    _log.info(
        "operation.attempted",
        operation_id=leased.uuid,
        kind=str(leased.kind),
        instance_id=leased.instance_uuid,
        node=leased.node,
        attempt=leased.attempts,
        outcome=str(outcome),
    )
    return outcome


def retry_seconds(attempts: int, longest: float = RETRY_SECONDS_MAX) -> float:
    """The pause after the `attempts`-th attempt: doubled each time, up to `longest`."""
    return float(min(longest, RETRY_SECONDS_FIRST * 2 ** min(attempts - 1, 30)))


def _create(shop: Workshop, leased: LeasedOperation) -> Outcome:
    instance = instances.get(shop.database, leased.instance_uuid)
    if instance is None or instance.state in {InstanceState.DELETING, InstanceState.DELETED}:
        return _end(shop, leased, OperationState.CANCELLED, "its instance is being deleted")
    if instance.state is InstanceState.ERROR and not _revive(shop, leased):
        return _end(shop, leased, OperationState.FAILED, "its charge was given back; create a new instance")
    if leased.attempts > leased.attempts_max:
        return _give_up(shop, leased, instance, f"{leased.attempts_max} attempts ended without an answer")
    reason = _preflight(shop, leased, instance)
    shop.context.fault("worker_after_preflight")
    if reason is not None and redirect(shop.context, leased, reason) is not None:
        return Outcome.REDIRECTED
    # Under this number nobody else acts; from here on the domain may exist.
    _must(operations.step(shop.database, leased, f"{CREATING_STEP}:{leased.number}", shop.heartbeat.seconds))
    shop.context.fault("worker_before_hypervisor_create")
    try:
        _driver(shop, leased).create(_spec(instance, tuple(_gpus(shop, leased, instance))))
    except HypervisorError as error:
        return _create_failed(shop, leased, instance, error)
    shop.context.fault("worker_after_hypervisor_create")
    return _settle_create(shop, leased)


def _preflight(shop: Workshop, leased: LeasedOperation, instance: InstanceView) -> str | None:
    """Why the create should go elsewhere, asked on the node itself; None: it may go on here.

    A pinned instance goes on where its owner wants it, and so does one that an earlier attempt may have made already.
    """
    if leased.step.startswith(CREATING_STEP) or (instance.request.get("placement") or {}).get("node"):
        return None
    node = nodes.get(shop.database, leased.node or "")
    if node is None:
        return "node_removed"
    if node.state is NodeState.ERROR:
        return "node_state"
    if any(_gpus(shop, leased, instance).values()):
        return "gpu_missing"
    return "scheduling_state" if node.scheduling is not Scheduling.ENABLED else None


def _create_failed(shop: Workshop, leased: LeasedOperation, instance: InstanceView, error: HypervisorError) -> Outcome:
    """The driver did not make it: try again, go elsewhere, or give up, by what is certain."""
    if error.transient and leased.attempts < leased.attempts_max:
        return _retry(shop, leased, error.detail, retry_seconds(leased.attempts))
    if not error.transient and _presence(shop, leased) is Presence.ABSENT:
        reason = f"hypervisor_{error.fault}"
        pinned = (instance.request.get("placement") or {}).get("node")
        if not pinned and redirect(shop.context, leased, reason) is not None:
            return Outcome.REDIRECTED
    return _give_up(shop, leased, instance, error.detail)


def _settle_create(shop: Workshop, leased: LeasedOperation) -> Outcome:
    before_commit = partial(shop.context.fault, "worker_before_settle_commit")
    settled = settle_create(shop.database, leased, written=before_commit)
    shop.context.fault("worker_after_settle")
    return Outcome.DONE if settled else Outcome.LEASE_LOST


def _give_up(shop: Workshop, leased: LeasedOperation, instance: InstanceView, error: str) -> Outcome:
    """End a create that is not tried again. Its charge goes back only when the node proves that nothing is there."""
    presence = _presence(shop, leased)
    if presence is Presence.PRESENT:
        return _settle_create(shop, leased)
    payload = {"operation": leased.uuid, "node": leased.node, "attempts": leased.attempts, "error": error}

    def rows(conn: Connection) -> None:
        instances.move_state(conn, instance.uuid, {InstanceState.CREATING}, InstanceState.ERROR, error=error)
        _must(operations.end(conn, leased, OperationState.FAILED, error))
        charge = "released" if presence is Presence.ABSENT else "kept until the node proves that no domain is there"
        events.record(conn, "instance", instance.uuid, "instance create failed", {**payload, "charge": charge}, "error")

    if presence is Presence.ABSENT:
        release_placement(shop.database, leased, rows)
    else:
        shop.database.unit(rows)
    return Outcome.FAILED


def _presence(shop: Workshop, leased: LeasedOperation) -> Presence:
    try:
        found = {domain.uuid for domain in _driver(shop, leased).domains()}
    except HypervisorError as error:
        _log.warning("domain.unproven", instance_id=leased.instance_uuid, node=leased.node, reason=error.detail)
        return Presence.UNKNOWN
    return Presence.PRESENT if leased.instance_uuid in found else Presence.ABSENT


def _revive(shop: Workshop, leased: LeasedOperation) -> bool:
    """An operator's retry of a failed create: only while its charge still stands on the node."""

    def work(conn: Connection) -> bool:
        if operations.charged_node(conn, leased.instance_uuid) != leased.node_id:
            return False
        instances.move_state(conn, leased.instance_uuid, {InstanceState.ERROR}, InstanceState.CREATING)
        return True

    return shop.database.unit(work)


def _delete(shop: Workshop, leased: LeasedOperation) -> Outcome:
    if not _stop_others(shop, leased):
        operations.fail(
            shop.database, leased, "waits for another operation on it", WAIT_FOR_OTHER_SECONDS, counted=False
        )
        return Outcome.WAITS
    _must(operations.step(shop.database, leased, f"{DELETING_STEP}:{leased.number}", shop.heartbeat.seconds))
    shop.context.fault("worker_before_hypervisor_delete")
    try:
        _driver(shop, leased).delete(leased.instance_uuid)
    except HypervisorError as error:
        if error.transient or leased.attempts < leased.attempts_max:
            return _retry(shop, leased, error.detail, retry_seconds(leased.attempts, DELETE_RETRY_SECONDS_MAX))
        return _end(shop, leased, OperationState.FAILED, error.detail)
    shop.context.fault("worker_after_hypervisor_delete")
    before_commit = partial(shop.context.fault, "worker_before_settle_delete_commit")
    settled = settle_delete(shop.database, leased, written=before_commit)
    shop.context.fault("worker_after_settle_delete")
    return Outcome.DONE if settled else Outcome.LEASE_LOST


def _stop_others(shop: Workshop, leased: LeasedOperation) -> bool:
    """End what else is planned for the instance; False while a worker has it in hand and could still make a domain."""

    def work(conn: Connection) -> bool:
        others = [
            other for other in operations.unfinished_others(conn, leased) if other.kind is not OperationKind.DELETE
        ]
        ended = [operations.cancel_unheld(conn, other.uuid, "its instance is being deleted") for other in others]
        return all(ended)

    return shop.database.unit(work)


def _unknown_kind(shop: Workshop, leased: LeasedOperation) -> Outcome:
    """An operation of a newer version: it waits for a worker that knows it."""
    _retry(shop, leased, f"this worker does not know operations of kind {leased.kind}", RETRY_SECONDS_MAX)
    return Outcome.WAITS


def _retry(shop: Workshop, leased: LeasedOperation, error: str, seconds: float) -> Outcome:
    payload = {
        "operation": leased.uuid,
        "kind": str(leased.kind),
        "node": leased.node,
        "attempt": leased.attempts,
        "error": error,
        "retry_in_seconds": seconds,
    }

    def work(conn: Connection) -> None:
        _must(operations.postpone(conn, leased, error, seconds))
        events.record(conn, "instance", leased.instance_uuid, "operation attempt failed", payload, "warning")

    shop.database.unit(work)
    return Outcome.RETRY


def _end(shop: Workshop, leased: LeasedOperation, state: OperationState, why: str) -> Outcome:
    payload = {"operation": leased.uuid, "kind": str(leased.kind), "node": leased.node, "error": why}

    def work(conn: Connection) -> None:
        _must(operations.end(conn, leased, state, why))
        level = "error" if state is OperationState.FAILED else "info"
        events.record(conn, "instance", leased.instance_uuid, f"operation {state}", payload, level)

    shop.database.unit(work)
    return Outcome.FAILED if state is OperationState.FAILED else Outcome.CANCELLED


def _must(written: bool) -> None:  # noqa: FBT001 - the row count of a guarded write
    if not written:
        raise LeaseLost


def _driver(shop: Workshop, leased: LeasedOperation) -> Hypervisor:
    return shop.hypervisor_of(leased.node or "")


def _gpus(shop: Workshop, leased: LeasedOperation, instance: InstanceView) -> Mapping[str, bool]:
    """The units that the instance holds on this node, and whether each is missing."""
    return gpus.held_by(shop.database, instance.uuid, leased.node_id) if instance.request.get("gpus") else {}


def _spec(instance: InstanceView, gpu_uuids: tuple[str, ...]) -> DomainSpec:
    return DomainSpec(
        uuid=instance.uuid,
        name=instance.name,
        cpus=instance.cpus,
        memory_mb=instance.memory_mb,
        disk_gb=instance.disk_gb,
        image=instance.image,
        gpus=instance.request.get("gpus", 0),
        gpu_profile=instance.request.get("gpu_profile", ""),
        gpu_uuids=gpu_uuids,
    )


_HANDLERS: Final[dict[OperationKind, _Handler]] = {OperationKind.CREATE: _create, OperationKind.DELETE: _delete}
