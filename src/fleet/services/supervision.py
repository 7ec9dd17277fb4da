"""How a daemon lives: it says when it serves and that it lives, waits for what is down, and stops when asked.

The protocol of `sd_notify` is one datagram to a Unix socket; without a supervisor nothing is sent. The watchdog is fed
by the working loop itself, so that a loop that hangs is noticed, which a thread of its own would hide.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import Final

from fleet.model.errors import DatabaseUnavailable, QueueUnavailable
from fleet.telemetry import get_logger

PAUSE_SECONDS_MIN: Final = 0.5
PAUSE_SECONDS_MAX: Final = 15.0
PROGRESS_EVERY_SECONDS: Final = 1.0

_log = get_logger(__name__)


class Notifier:
    """Speaks to the supervisor at `address` (systemd's NOTIFY_SOCKET); an empty address is nobody."""

    def __init__(self, address: str, *, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._address = "\0" + address[1:] if address.startswith("@") else address
        self._monotonic = monotonic
        self._last_alive = float("-inf")

    def ready(self) -> None:
        """Say that the daemon serves now."""
        self._send("READY=1")

    def alive(self) -> None:
        """Feed the watchdog; call it as often as the loop turns."""
        now = self._monotonic()
        if now - self._last_alive >= PROGRESS_EVERY_SECONDS:
            self._last_alive = now
            self._send("WATCHDOG=1")

    def waiting(self, what: str) -> None:
        """Say what the start waits for, and that it goes on."""
        self._send(f"STATUS=waiting for {what}\nWATCHDOG=1")

    def stopping(self) -> None:
        """Say that the daemon is going."""
        self._send("STOPPING=1")

    def _send(self, text: str) -> None:
        if not self._address:
            return
        # A supervisor that went away is no reason to stop working.
        with contextlib.suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
            channel.sendto(text.encode(), self._address)


def stop_on_signals() -> threading.Event:
    """Return an event that SIGTERM and SIGINT set. A second signal ends the process at once."""
    stop = threading.Event()

    def asked(_signum: int, _frame: FrameType | None) -> None:
        if stop.is_set():
            os._exit(1)
        stop.set()

    signal.signal(signal.SIGTERM, asked)
    signal.signal(signal.SIGINT, asked)
    return stop


def wait_for(what: str, probe: Callable[[], object], *, stop: threading.Event, notifier: Notifier) -> bool:
    """Call `probe` until the service it asks answers, with growing pauses; False when asked to stop meanwhile."""
    pause = PAUSE_SECONDS_MIN
    while not stop.is_set():
        try:
            probe()
        except (DatabaseUnavailable, QueueUnavailable) as error:
            _log.warning("service.awaited", service=what, reason=error.detail, pause_seconds=pause)
            notifier.waiting(what)
            stop.wait(pause)
            pause = min(PAUSE_SECONDS_MAX, pause * 2)
        else:
            return True
    return False


class Every:
    """A task that is due every so many seconds; the first time at once. Failures double the pause up to a bound."""

    def __init__(
        self, seconds: Callable[[], float], task: Callable[[], object], *, monotonic: Callable[[], float]
    ) -> None:
        self._seconds = seconds
        self._task = task
        self._monotonic = monotonic
        self._due = float("-inf")
        self._pause = PAUSE_SECONDS_MIN

    def turn(self) -> None:
        """Run the task if it is due."""
        if self._monotonic() < self._due:
            return
        try:
            self._task()
        except (DatabaseUnavailable, QueueUnavailable) as error:
            _log.warning("task.postponed", task=self._task.__qualname__, reason=error.detail, pause_seconds=self._pause)
            self._due = self._monotonic() + self._pause
            self._pause = min(PAUSE_SECONDS_MAX, self._pause * 2)
        else:
            self._pause = PAUSE_SECONDS_MIN
            self._due = self._monotonic() + self._seconds()
