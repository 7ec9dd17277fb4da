"""Keeping the leases of the operations in hand alive, in one thread a process.

A lease is short, so that the work of a dead process is taken over soon; a living one extends it while the hypervisor
works. A lease that could not be extended is only noted: the next guarded write of that operation finds out.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, Self

from fleet.ledger import operations
from fleet.ledger.database import Database
from fleet.ledger.operations import LeasedOperation
from fleet.model.errors import FleetError
from fleet.telemetry import get_logger

LEASE_SECONDS: Final = 15.0
BEATS_PER_LEASE: Final = 3

_log = get_logger(__name__)


class Heartbeat:
    """Extends what is registered with it; make one a process and use it as a context manager."""

    def __init__(self, database: Database, *, seconds: float = LEASE_SECONDS) -> None:
        self.seconds = seconds
        self._database = database
        self._held: dict[object, LeasedOperation] = {}
        self._guard = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="heartbeat", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._ended.set()
        self._thread.join(self.seconds)

    @contextmanager
    def keeping(self, leased: LeasedOperation) -> Iterator[None]:
        """Extend this operation's lease while the block runs."""
        token = object()
        with self._guard:
            self._held[token] = leased
        try:
            yield
        finally:
            with self._guard:
                del self._held[token]

    def _beat(self) -> None:
        while not self._ended.wait(self.seconds / BEATS_PER_LEASE):
            with self._guard:
                held = list(self._held.values())
            for leased in held:
                self._extend(leased)

    def _extend(self, leased: LeasedOperation) -> None:
        try:
            if not operations.heartbeat(self._database, leased, self.seconds):
                _log.warning("operation.lease_lost", operation_id=leased.uuid, lease_number=leased.number)
        except FleetError as error:
            _log.warning("operation.heartbeat_missed", operation_id=leased.uuid, reason=error.detail)
