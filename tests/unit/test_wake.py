"""Waking after the commit: nobody waits for it, and nothing that goes wrong on the way ends it."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from fleet.model.errors import QueueUnavailable
from fleet.queue.jobs import WakeUp
from fleet.services.wake import Wake

SECONDS = 60.0


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Queue:
    """Takes what is put, or raises what it is told to."""

    def __init__(self) -> None:
        self.error: Exception | None = None
        self.taken: list[str] = []

    def put(self, *wake_ups: WakeUp) -> None:
        if self.error is not None:
            raise self.error
        self.taken += [wake_up.operation_uuid for wake_up in wake_ups]


@pytest.fixture
def queue() -> Queue:
    return Queue()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def wake(queue: Queue, clock: Clock) -> Wake:
    return Wake(queue, monotonic=clock)  # type: ignore[arg-type]


def test_what_is_woken_is_put_soon(wake: Wake, queue: Queue) -> None:
    for uuid in ("a", "b", "c"):
        wake(WakeUp(uuid, 1))

    assert wake.flush(SECONDS)
    assert queue.taken == ["a", "b", "c"]
    assert wake.missed == 0


def test_a_bug_in_putting_costs_its_wake_ups_and_nothing_else(wake: Wake, queue: Queue) -> None:
    queue.error = TypeError("a defect")
    with capture_logs() as said:
        wake(WakeUp("lost", 1))
        assert wake.flush(SECONDS)

    assert wake.missed == 1
    # The capture hears every thread of the process.
    assert [line["operation_ids"] for line in said if line["event"] == "operation.wake_ups_lost"] == [["lost"]]
    queue.error = None
    wake(WakeUp("next", 1))
    assert wake.flush(SECONDS)
    assert queue.taken == ["next"]


def test_an_absent_queue_is_left_alone_for_a_while(wake: Wake, queue: Queue, clock: Clock) -> None:
    queue.error = QueueUnavailable("away")
    wake(WakeUp("lost", 1))
    assert wake.flush(SECONDS)
    queue.error = None
    wake(WakeUp("left to the sweeper", 1))
    assert wake.missed == 2

    clock.now += 3
    wake(WakeUp("back", 1))
    assert wake.flush(SECONDS)
    assert queue.taken == ["back"]
