"""Settling: what a worker proved becomes the record, in one transaction, guarded by the number of its lease."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from sqlalchemy import Connection

from fleet.ledger import charges, events, instances, operations, release
from fleet.ledger.database import Database
from fleet.ledger.operations import LeasedOperation
from fleet.model.errors import DatabaseUnavailable
from fleet.model.lifecycle import InstanceState

RELEASE_FAILED: Final = "instance placement release failed"


def _nothing() -> None:
    """Do nothing."""


class _Fenced(Exception):
    """Another worker holds the operation now: nothing of ours may be written."""


def settle_create(db: Database, leased: LeasedOperation, *, written: Callable[[], None] = _nothing) -> bool:
    """Record that the domain exists: instance running, charge no draft any more, operation done. False: lease lost.

    `written` is called when all of it is written and not committed yet.
    """

    def work(conn: Connection) -> None:
        charges.settle(conn, leased.instance_uuid)
        moved = instances.move_state(
            conn, leased.instance_uuid, {InstanceState.CREATING, InstanceState.ERROR}, InstanceState.RUNNING
        )
        if not operations.finish(conn, leased):
            raise _Fenced
        if moved:
            payload = {"node": leased.node, "operation": leased.uuid, "attempts": leased.attempts}
            events.record(conn, "instance", leased.instance_uuid, "instance created", payload)
        written()

    try:
        db.unit(work)
    except _Fenced:
        return False
    return True


def settle_delete(db: Database, leased: LeasedOperation, *, written: Callable[[], None] = _nothing) -> bool:
    """Record that the domain is gone: charge released, instance deleted, operation done. False: lease lost.

    `written` is called when instance and operation are written, before the payer is credited and all is committed.
    """

    def rows(conn: Connection) -> None:
        instances.move_state(conn, leased.instance_uuid, {InstanceState.DELETING}, InstanceState.DELETED)
        if not operations.finish(conn, leased):
            raise _Fenced
        written()

    try:
        release_placement(db, leased, rows)
    except _Fenced:
        return False
    return True


def release_placement(db: Database, leased: LeasedOperation, rows: Callable[[Connection], None]) -> None:
    """Release an instance's charges with what an operation writes about it; a failure is told in the log.

    Raises:
        DatabaseUnavailable: nothing is known; the operation is tried again.
    """
    try:
        release.release(db, leased.instance_uuid, rows=rows, about={"operation": leased.uuid})
    except DatabaseUnavailable as error:
        payload = {"node": leased.node, "error": error.told, "operation": leased.uuid}
        events.tell("instance", leased.instance_uuid, RELEASE_FAILED, payload, "error")
        raise
