"""States of instances and operations, and the tables along which alone they move."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class InstanceState(StrEnum):
    """Where an instance is in its life. Everything but DELETED holds its charge, errors included."""

    CREATING = "creating"
    RUNNING = "running"
    STOPPED = "stopped"
    DELETING = "deleting"
    DELETED = "deleted"
    ERROR = "error"


class OperationKind(StrEnum):
    """Work that a node's worker carries out."""

    CREATE = "create"
    DELETE = "delete"
    START = "start"
    STOP = "stop"
    MIGRATE = "migrate"


class OperationState(StrEnum):
    """PENDING waits for a worker, RUNNING is leased by one; the others are ends."""

    PENDING = "pending"
    RUNNING = "running"
    DONE = "done"
    FAILED = "failed"
    CANCELLED = "cancelled"


LEGAL_INSTANCE: Mapping[InstanceState, frozenset[InstanceState]] = {
    InstanceState.CREATING: frozenset({InstanceState.RUNNING, InstanceState.ERROR, InstanceState.DELETING}),
    InstanceState.RUNNING: frozenset({InstanceState.STOPPED, InstanceState.ERROR, InstanceState.DELETING}),
    InstanceState.STOPPED: frozenset({InstanceState.RUNNING, InstanceState.ERROR, InstanceState.DELETING}),
    InstanceState.ERROR: frozenset({InstanceState.CREATING, InstanceState.RUNNING, InstanceState.DELETING}),
    InstanceState.DELETING: frozenset({InstanceState.DELETED}),
    InstanceState.DELETED: frozenset(),
}

LEGAL_OPERATION: Mapping[OperationState, frozenset[OperationState]] = {
    OperationState.PENDING: frozenset({OperationState.RUNNING, OperationState.CANCELLED}),
    OperationState.RUNNING: frozenset(
        {OperationState.PENDING, OperationState.DONE, OperationState.FAILED, OperationState.CANCELLED}
    ),
    OperationState.DONE: frozenset(),
    OperationState.FAILED: frozenset({OperationState.PENDING}),
    OperationState.CANCELLED: frozenset(),
}
