"""States of instances and operations, and the table along which alone an instance moves.

An operation moves by the guarded statements of `fleet.ledger.operations`, each of which names the state it starts from.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class InstanceState(StrEnum):
    """Where an instance is in its life. One in ERROR holds its charge until its node proves that no domain is there."""

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
