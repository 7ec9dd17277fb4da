"""A daemon's manners: what it tells its supervisor, how it waits, how its tasks are paced."""

from __future__ import annotations

import contextlib
import itertools
import secrets
import socket
import threading
from pathlib import Path

import pytest

from fleet.model.errors import DatabaseUnavailable, QueueUnavailable
from fleet.services.supervision import PAUSE_SECONDS_MAX, Every, Notifier, wait_for


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Stop(threading.Event):
    """Never waits; remembers how long it would have."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[float] = []

    def wait(self, timeout: float | None = None) -> bool:
        self.waits.append(timeout or 0)
        return self.is_set()


@pytest.fixture
def supervisor(tmp_path: Path) -> socket.socket:
    channel = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    channel.bind(str(tmp_path / "notify"))
    channel.settimeout(5)
    return channel


def test_the_supervisor_hears_of_start_life_and_end(supervisor: socket.socket) -> None:
    with supervisor:
        notifier = Notifier(supervisor.getsockname())
        notifier.ready()
        notifier.alive()
        notifier.waiting("the database")
        notifier.stopping()

        assert [supervisor.recv(200).decode() for _ in range(4)] == [
            "READY=1",
            "WATCHDOG=1",
            "STATUS=waiting for the database\nWATCHDOG=1",
            "STOPPING=1",
        ]


def test_an_abstract_socket_is_spoken_to_as_well() -> None:
    name = f"fleet-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind("\0" + name)
        channel.settimeout(5)
        Notifier("@" + name).ready()

        assert channel.recv(200) == b"READY=1"


def test_the_watchdog_is_fed_once_a_second_however_fast_the_loop_turns(supervisor: socket.socket) -> None:
    clock = Clock()
    with supervisor:
        notifier = Notifier(supervisor.getsockname(), monotonic=clock)
        for _ in range(100):
            notifier.alive()
            clock.now += 0.03
        supervisor.setblocking(False)
        heard = 0
        with contextlib.suppress(BlockingIOError):
            while supervisor.recv(200):
                heard += 1

        assert heard == 3


@pytest.mark.parametrize("address", ["", "/nowhere/at/all"])
def test_without_a_supervisor_nothing_happens(address: str) -> None:
    Notifier(address).ready()


def test_a_service_is_awaited_with_growing_pauses() -> None:
    stop, failures = Stop(), [DatabaseUnavailable("down")] * 5 + [QueueUnavailable("down")] * 5

    def probe() -> None:
        if failures:
            raise failures.pop()

    assert wait_for("it", probe, stop=stop, notifier=Notifier("")) is True
    assert stop.waits == sorted(stop.waits)
    assert (stop.waits[0], stop.waits[-1]) == (0.5, PAUSE_SECONDS_MAX)


def test_waiting_ends_when_told_to_stop() -> None:
    stop = Stop()

    def probe() -> None:
        stop.set()
        raise DatabaseUnavailable("down")

    assert wait_for("it", probe, stop=stop, notifier=Notifier("")) is False


def test_a_task_runs_at_once_and_then_at_its_pace() -> None:
    clock, ran = Clock(), []
    task = Every(lambda: 10, lambda: ran.append(clock.now), monotonic=clock)
    for now in (0, 5, 9.9, 10, 12, 20):
        clock.now = now
        task.turn()

    assert ran == [0, 10, 20]


def test_a_task_that_fails_is_tried_again_with_growing_pauses_and_recovers() -> None:
    clock, tried = Clock(), []
    broken = [True]

    def work() -> None:
        tried.append(clock.now)
        if broken[0]:
            raise DatabaseUnavailable("down")

    task = Every(lambda: 10, work, monotonic=clock)
    for _ in range(100):
        task.turn()
        clock.now += 0.5
    pauses = [after - before for before, after in itertools.pairwise(tried)]
    assert pauses == sorted(pauses)
    assert max(pauses) == PAUSE_SECONDS_MAX

    broken[0] = False
    clock.now += PAUSE_SECONDS_MAX
    task.turn()
    clock.now += 10
    task.turn()
    assert tried[-1] - tried[-2] == 10
