"""Waking an operation after its commit. A lost wake-up is found by the sweeper, so this never fails a caller.

While the queue's server is away nobody waits for it twice: after a failure, wake-ups are left to the sweeper a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Final

from fleet.ledger import events
from fleet.ledger.database import Database
from fleet.model.errors import QueueUnavailable
from fleet.queue.connection import Eviction
from fleet.queue.jobs import WakeUp, WakeUps
from fleet.telemetry import get_logger

AWAY_SECONDS: Final = 2.0

_log = get_logger(__name__)


class Wake:
    """Call it with an operation and its node after the commit."""

    def __init__(
        self, wake_ups: WakeUps, *, away_seconds: float = AWAY_SECONDS, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wake_ups = wake_ups
        self._away_seconds = away_seconds
        self._monotonic = monotonic
        self._away_until = float("-inf")
        self._guard = threading.Lock()
        self._missed = 0

    @property
    def missed(self) -> int:
        """How many wake-ups this process left to the sweeper."""
        return self._missed

    def __call__(self, wake_up: WakeUp) -> None:
        """Wake the node's worker, or leave it to the sweeper. Never raises for an absent queue."""
        with self._guard:
            away = self._monotonic() < self._away_until
            self._missed += away
        if away:
            return
        try:
            self._wake_ups.put(wake_up)
        except QueueUnavailable as error:
            with self._guard:
                self._missed += 1
                self._away_until = self._monotonic() + self._away_seconds
            _log.warning(
                "operation.wake_up_lost",
                operation_id=wake_up.operation_uuid,
                node_id=wake_up.node_id,
                reason=error.detail,
            )


def record_eviction(db: Database, eviction: Eviction) -> bool:
    """Say loudly, once a start, that the queue's server may drop queued work. Return whether it may."""
    if eviction.policy is None:
        _log.warning(
            "queue.policy_unknown", reason="the server does not tell its maxmemory-policy; it must be noeviction"
        )
        return False
    if not eviction.loses_jobs:
        return False
    payload = {
        "policy": eviction.policy,
        "memory_max_bytes": eviction.memory_max_bytes,
        "wanted": "noeviction",
        "effect": "queued wake-ups may be dropped without an error; the sweeper finds them later",
    }
    _log.error("queue.evicts", **payload)
    db.unit(lambda conn: events.record(conn, "cluster", "queue", "queue server evicts keys", payload, "warning"))
    return True
