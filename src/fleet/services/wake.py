"""Waking an operation after its commit. A lost wake-up is found by the sweeper, so this never fails a caller.

While the queue's server is away nobody waits for it twice: after a failure, wake-ups are left to the sweeper a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from fleet.ledger import events
from fleet.ledger.database import Database
from fleet.model.errors import QueueUnavailable
from fleet.queue.connection import Eviction
from fleet.queue.jobs import WakeUp, WakeUps
from fleet.telemetry import get_logger

AWAY_SECONDS: Final = 2.0
GATHERED_MAX: Final = 10_000

_log = get_logger(__name__)


class Wake:
    """Call it with an operation and its node after the commit.

    The caller does not wait for the queue's server: a thread puts what has gathered while it put the last, in one round
    trip. Whoever dies in between leaves operations that the sweeper wakes, like a wake-up that was lost on the way.
    """

    def __init__(
        self, wake_ups: WakeUps, *, away_seconds: float = AWAY_SECONDS, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._wake_ups = wake_ups
        self._away_seconds = away_seconds
        self._monotonic = monotonic
        self._away_until = float("-inf")
        self._guard = threading.Condition()
        self._gathered: list[WakeUp] = []
        self._putting = False
        self._thread: threading.Thread | None = None
        self._missed = 0

    @property
    def missed(self) -> int:
        """How many wake-ups this process left to the sweeper."""
        return self._missed

    def __call__(self, wake_up: WakeUp) -> None:
        """Wake the node's worker soon, or leave it to the sweeper. Never raises for an absent queue, never waits."""
        with self._guard:
            if self._monotonic() < self._away_until or len(self._gathered) >= GATHERED_MAX:
                self._missed += 1
                return
            self._gathered.append(wake_up)
            if self._thread is None:
                # Made with the first wake-up, so after any fork.
                self._thread = threading.Thread(target=self._put_gathered, name="wake", daemon=True)
                self._thread.start()
            self._guard.notify()

    def flush(self, seconds: float) -> bool:
        """Wait until what was gathered is put, at most `seconds`: before a process ends. False: time was up."""
        with self._guard:
            return self._guard.wait_for(lambda: not self._gathered and not self._putting, timeout=seconds)

    def _put_gathered(self) -> None:
        while True:
            with self._guard:
                self._putting = False
                self._guard.notify_all()
                self._guard.wait_for(lambda: bool(self._gathered))
                batch, self._gathered = self._gathered, []
                self._putting = True
            self._put(batch)

    def _put(self, batch: Sequence[WakeUp]) -> None:
        try:
            self._wake_ups.put(*batch)
        except QueueUnavailable as error:
            with self._guard:
                self._missed += len(batch)
                self._away_until = self._monotonic() + self._away_seconds
            _log.warning("operation.wake_ups_lost", operation_ids=_uuids(batch), reason=error.detail)
        except Exception:  # noqa: BLE001  # logged with its traceback
            # A defect may cost these wake-ups, never the thread: without it nothing would be woken any more.
            with self._guard:
                self._missed += len(batch)
            _log.exception("operation.wake_ups_lost", operation_ids=_uuids(batch))


def _uuids(batch: Sequence[WakeUp]) -> list[str]:
    return [wake_up.operation_uuid for wake_up in batch]


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
