"""The worker's loop: side by side, never too many, through outages, to a clean end."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterable

import pytest

from fleet.model.errors import DatabaseUnavailable, QueueUnavailable
from fleet.queue.jobs import Inbox
from fleet.queue.worker import Worker, WorkerLimits, WorkerStuck
from tests.servers import wait_until

SECONDS_MAX = 60.0


class Waiting(Inbox):
    """An inbox in this process; an exception in it is raised when its turn comes."""

    def __init__(self, *wake_ups: str | Exception) -> None:
        self.served: list[int] = []
        self.wake_ups: queue.SimpleQueue[str | Exception] = queue.SimpleQueue()
        for wake_up in wake_ups:
            self.wake_ups.put(wake_up)

    @property
    def idle(self) -> bool:
        return not self.served

    def serve(self, node_ids: Iterable[int]) -> None:
        self.served = list(node_ids)

    def take(self, seconds: int) -> str | None:
        try:
            found = self.wake_ups.get(timeout=0.02)
        except queue.Empty:
            return None
        if isinstance(found, Exception):
            raise found
        return found


class Running:
    """A worker in a thread."""

    def __init__(
        self, inbox: Waiting, handle: Callable[[str], object], *, slots: int = 4, stuck_seconds: float = 60
    ) -> None:
        self.stop = threading.Event()
        self.turns = 0
        self.error: BaseException | None = None
        self.worker = Worker(
            inbox,
            handle,
            node_ids=lambda: [1],
            stop=self.stop,
            alive=self._alive,
            limits=WorkerLimits(slots=slots, stuck_seconds=stuck_seconds),
        )
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _alive(self) -> None:
        self.turns += 1

    def _run(self) -> None:
        try:
            self.worker.run()
        except WorkerStuck as error:
            self.error = error

    def end(self) -> None:
        self.stop.set()
        self.thread.join(SECONDS_MAX)
        assert not self.thread.is_alive()


def test_operations_run_side_by_side_up_to_the_number_of_slots() -> None:
    barrier = threading.Barrier(3, timeout=SECONDS_MAX)
    now, most, guard = [0], [0], threading.Lock()

    def handle(_uuid: str) -> None:
        with guard:
            now[0] += 1
            most[0] = max(most[0], now[0])
        barrier.wait()
        with guard:
            now[0] -= 1

    inbox = Waiting(*(f"o{number}" for number in range(9)))
    running = Running(inbox, handle, slots=3)
    wait_until(lambda: inbox.wake_ups.empty() and running.worker.busy == 0, seconds=SECONDS_MAX, what="all are done")
    running.end()

    assert most[0] == 3


def test_one_broken_operation_does_not_end_the_others() -> None:
    done: list[str] = []

    def handle(uuid: str) -> None:
        if uuid == "broken":
            raise ZeroDivisionError
        if uuid == "unlucky":
            raise DatabaseUnavailable("away")
        done.append(uuid)

    running = Running(Waiting("broken", "unlucky", "good"), handle)
    wait_until(lambda: done == ["good"], seconds=SECONDS_MAX, what="the good one is done")
    running.end()


def test_an_outage_of_the_queue_is_sat_out() -> None:
    done: list[str] = []
    running = Running(Waiting(QueueUnavailable("away"), QueueUnavailable("away"), "o"), done.append)
    wait_until(lambda: done == ["o"], seconds=SECONDS_MAX, what="work goes on after the outage")
    running.end()


def test_the_watchdog_is_fed_by_the_loop_itself() -> None:
    running = Running(Waiting(), lambda _uuid: None)
    wait_until(lambda: running.turns > 3, seconds=SECONDS_MAX, what="the loop turns")
    running.end()


def test_stop_waits_for_what_is_in_hand() -> None:
    begun, go = threading.Event(), threading.Event()
    done: list[str] = []

    def handle(uuid: str) -> None:
        begun.set()
        go.wait(SECONDS_MAX)
        done.append(uuid)

    running = Running(Waiting("o"), handle)
    assert begun.wait(SECONDS_MAX)
    running.stop.set()
    go.set()
    running.end()

    assert done == ["o"]


def test_an_operation_that_never_ends_condemns_the_process_and_not_the_service() -> None:
    never = threading.Event()
    running = Running(Waiting("stuck"), lambda _uuid: never.wait(2 * SECONDS_MAX), stuck_seconds=0.2)
    wait_until(lambda: running.error is not None, seconds=SECONDS_MAX, what="the worker gives up")
    never.set()

    assert "stuck" in str(running.error)


def test_a_worker_without_nodes_waits_for_some() -> None:
    stop = threading.Event()
    inbox = Waiting("o")
    asked: list[int] = []

    def node_ids() -> list[int]:
        asked.append(1)
        return [] if len(asked) < 2 else [1]

    done: list[str] = []

    def handle(uuid: str) -> None:
        done.append(uuid)
        stop.set()

    Worker(inbox, handle, node_ids=node_ids, stop=stop).run()

    assert done == ["o"]


def test_a_burst_ends_with_the_queue() -> None:
    done: list[str] = []
    worker = Worker(Waiting("a", "b"), done.append, node_ids=lambda: [1], stop=threading.Event())

    assert (worker.burst(), done) == (2, ["a", "b"])


@pytest.mark.parametrize("slots", [1, 4])
def test_the_same_operation_may_be_delivered_twice_at_once(slots: int) -> None:
    done: list[str] = []
    inbox = Waiting("same", "same")
    running = Running(inbox, done.append, slots=slots)
    wait_until(lambda: len(done) == 2 and running.worker.busy == 0, seconds=SECONDS_MAX, what="both deliveries ended")
    running.end()
