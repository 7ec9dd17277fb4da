"""The worker: takes wake-ups off the queues and lets several operations run side by side, each in a thread.

RQ's own worker runs one job at a time in the main thread, or forks 12 ms of processor time away for each; an operation
waits for a hypervisor most of its life (docs/adr/0005-worker.md). This one keeps RQ's queues and jobs and replaces the
loop. Promises: at most `slots` operations at once; a slot whose operation does not come back within `stuck_seconds`
ends the process (the supervisor starts a new one, the lease has run out long before); the queue's server may go away
and come back; `stop` finishes what is in hand.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Final

from fleet.model.errors import FleetError, QueueUnavailable
from fleet.queue.jobs import Inbox
from fleet.telemetry import get_logger

TAKE_SECONDS: Final = 1
PAUSE_SECONDS_MIN: Final = 0.2
PAUSE_SECONDS_MAX: Final = 5.0
STOP_SECONDS_MAX: Final = 20.0

_log = get_logger(__name__)


class WorkerStuck(FleetError):
    """An operation did not come back although its driver's waits are bounded; the process must be started anew."""

    code = "worker_stuck"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """How many operations at once, and after how long one that does not end condemns the process."""

    slots: int = 4
    stuck_seconds: float = 900.0


class Worker:
    """One process's loop over its nodes' queues."""

    def __init__(
        self,
        inbox: Inbox,
        handle: Callable[[str], object],
        *,
        node_ids: Callable[[], Iterable[int]],
        stop: threading.Event,
        alive: Callable[[], None] = lambda: None,
        limits: WorkerLimits | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`handle` carries one operation out by its uuid; `node_ids` is asked before each wait, so it must be quick."""
        self._inbox = inbox
        self._handle = handle
        self._node_ids = node_ids
        self._stop = stop
        self._alive = alive
        self._limits = limits or WorkerLimits()
        self._monotonic = monotonic
        self._free = threading.Semaphore(self._limits.slots)
        self._in_hand: dict[object, tuple[str, float]] = {}
        self._guard = threading.Lock()

    @property
    def busy(self) -> int:
        """How many operations are in hand."""
        with self._guard:
            return len(self._in_hand)

    def run(self) -> None:
        """Work until `stop` is set; then wait for what is in hand, with a bound.

        Raises:
            WorkerStuck: an operation does not end.
        """
        pool = ThreadPoolExecutor(self._limits.slots, thread_name_prefix="operation")
        pause = PAUSE_SECONDS_MIN
        try:
            while not self._stop.is_set():
                self._alive()
                self._check_stuck()
                try:
                    self._turn(pool)
                    pause = PAUSE_SECONDS_MIN
                except QueueUnavailable as error:
                    _log.warning("queue.lost", reason=error.detail, pause_seconds=pause)
                    self._stop.wait(pause)
                    pause = min(PAUSE_SECONDS_MAX, pause * 2)
            self._finish_in_hand()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)

    def burst(self) -> int:
        """Carry out, one after the other, what is queued now; return how many wake-ups that were."""
        self._inbox.serve(self._node_ids())
        done = 0
        while not self._stop.is_set():
            uuid = self._inbox.take(TAKE_SECONDS)
            if uuid is None:
                return done
            self._handle(uuid)
            done += 1
        return done

    def _turn(self, pool: ThreadPoolExecutor) -> None:
        self._inbox.serve(self._node_ids())
        if self._inbox.idle:
            self._stop.wait(TAKE_SECONDS)
            return
        if not self._free.acquire(timeout=TAKE_SECONDS):
            return
        uuid = None
        try:
            uuid = self._inbox.take(TAKE_SECONDS)
        finally:
            if uuid is None:
                self._free.release()
        if uuid is not None:
            # The same operation may come twice at once, so it cannot be its own key.
            token = object()
            with self._guard:
                self._in_hand[token] = (uuid, self._monotonic())
            pool.submit(self._one, token, uuid)

    def _one(self, token: object, uuid: str) -> None:
        try:
            self._handle(uuid)
        except FleetError as error:
            # The row has kept its lease, which runs out; the sweeper wakes it again.
            _log.warning("operation.interrupted", operation_id=uuid, code=error.code, reason=error.detail)
        except Exception:  # noqa: BLE001 - one broken operation must not end the others; its lease runs out
            _log.exception("operation.broke", operation_id=uuid)
        finally:
            with self._guard:
                self._in_hand.pop(token, None)
            self._free.release()

    def _check_stuck(self) -> None:
        with self._guard:
            stuck = [
                uuid for uuid, since in self._in_hand.values() if self._monotonic() - since > self._limits.stuck_seconds
            ]
        if stuck:
            raise WorkerStuck(f"not ended for {self._limits.stuck_seconds:.0f} s: operations {', '.join(stuck)}")

    def _finish_in_hand(self) -> None:
        deadline = self._monotonic() + STOP_SECONDS_MAX
        while self.busy and self._monotonic() < deadline:
            self._alive()
            threading.Event().wait(0.02)
        if self.busy:
            _log.warning("worker.left_operations", operations=self.busy)
