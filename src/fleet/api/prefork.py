"""Worker processes of one server: forked before anything is opened, watched, replaced when they die or hang.

Each worker writes a byte a second into its pipe, from the loop that serves. Silence for `SILENCE_SECONDS_MAX` means
that it hangs: it is killed and replaced. A closed pipe tells a worker that its parent is gone: it stops.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from socket import socket
from typing import Final, NoReturn

from fleet.telemetry import get_logger

BEAT_SECONDS: Final = 1.0
SILENCE_SECONDS_MAX: Final = 30.0
START_SECONDS_MAX: Final = 60.0
STOP_SECONDS_MAX: Final = 25.0
TURN_SECONDS: Final = 0.2
PAUSE_SECONDS_MIN: Final = 0.5
PAUSE_SECONDS_MAX: Final = 15.0
SETTLED_SECONDS: Final = 5.0

_log = get_logger(__name__)

Work = Callable[[socket, Callable[[], bool]], int]
"""What a worker does with its socket; it calls the second argument once a second, and stops when that says False."""


@dataclass(slots=True)
class _Worker:
    number: int
    listening: socket
    pid: int = 0
    beats: int = -1
    started: float = 0.0
    heard: float = 0.0
    ready: bool = False
    pause: float = PAUSE_SECONDS_MIN
    due: float = 0.0


class Workforce:
    """The workers of one server, a socket each."""

    def __init__(self, sockets: list[socket], work: Work, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._workers = [_Worker(number, listening) for number, listening in enumerate(sockets)]
        self._work = work
        self._monotonic = monotonic

    @property
    def pids(self) -> list[int]:
        """Process ids of the living workers."""
        return [worker.pid for worker in self._workers if worker.pid]

    def run(self, stop: threading.Event, *, ready: Callable[[], None], alive: Callable[[], None]) -> None:
        """Keep the workers up until `stop`; `ready` is called once, when all of them serve for the first time."""
        told = False
        try:
            while not stop.is_set():
                self._turn()
                alive()
                if not told and all(worker.ready for worker in self._workers):
                    told = True
                    ready()
        finally:
            self._stop_all()

    def _turn(self) -> None:
        for worker in self._workers:
            self._reap(worker)
            if not worker.pid and self._monotonic() >= worker.due:
                self._start(worker)
        self._listen()
        now = self._monotonic()
        for worker in self._workers:
            patience = SILENCE_SECONDS_MAX if worker.ready else START_SECONDS_MAX
            if worker.pid and now - worker.heard > patience:
                _log.error("api.worker_hangs", worker=worker.number, pid=worker.pid, silent_seconds=patience)
                _signal(worker.pid, signal.SIGKILL)
                worker.heard = now

    def _start(self, worker: _Worker) -> None:
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            os.close(reading)
            self._become(worker, writing)
        os.close(writing)
        os.set_blocking(reading, False)
        worker.pid, worker.beats, worker.ready = pid, reading, False
        worker.started = worker.heard = self._monotonic()

    def _become(self, worker: _Worker, writing: int) -> NoReturn:
        """The child: its own socket and its own end of its own pipe, nothing else of the parent's."""
        code = 1
        try:
            for other in self._workers:
                if other is not worker:
                    other.listening.close()
                if other.beats >= 0:
                    os.close(other.beats)
            os.set_blocking(writing, False)
            code = self._work(worker.listening, lambda: _beat(writing))
        except BaseException as error:  # noqa: BLE001  # a child never runs on in its parent's code
            _log.error("api.worker_broke", worker=worker.number, exc_info=error)
        finally:
            os._exit(code)

    def _listen(self) -> None:
        open_pipes = {worker.beats: worker for worker in self._workers if worker.beats >= 0}
        for pipe in select.select(list(open_pipes), [], [], TURN_SECONDS)[0]:
            worker = open_pipes[pipe]
            if os.read(pipe, 4096):
                worker.heard, worker.ready = self._monotonic(), True
            else:
                os.close(pipe)
                worker.beats = -1

    def _reap(self, worker: _Worker) -> None:
        if not worker.pid:
            return
        pid, status = os.waitpid(worker.pid, os.WNOHANG)
        if pid == 0:
            return
        code = os.waitstatus_to_exitcode(status)
        lived = self._monotonic() - worker.started
        worker.pause = PAUSE_SECONDS_MIN if lived >= SETTLED_SECONDS else min(PAUSE_SECONDS_MAX, worker.pause * 2)
        pause = 0.0 if lived >= SETTLED_SECONDS else worker.pause
        _log.error("api.worker_ended", worker=worker.number, pid=pid, exit_code=code, again_in_seconds=pause)
        if worker.beats >= 0:
            os.close(worker.beats)
        worker.pid, worker.beats, worker.ready = 0, -1, False
        worker.due = self._monotonic() + pause

    def _stop_all(self) -> None:
        for pid in self.pids:
            _signal(pid, signal.SIGTERM)
        deadline = self._monotonic() + STOP_SECONDS_MAX
        for worker in self._workers:
            while worker.pid and not _ended(worker.pid):
                if self._monotonic() > deadline:
                    _log.error("api.worker_killed", worker=worker.number, pid=worker.pid)
                    _signal(worker.pid, signal.SIGKILL)
                time.sleep(0.02)
            worker.pid = 0
            worker.listening.close()
            if worker.beats >= 0:
                os.close(worker.beats)
                worker.beats = -1


def _beat(writing: int) -> bool:
    """Say "I live"; False when nobody listens any more."""
    try:
        os.write(writing, b".")
    except BlockingIOError:
        return True
    except OSError:
        return False
    return True


def _signal(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True
