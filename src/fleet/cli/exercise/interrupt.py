"""Ctrl-C and its kin, taken between two calls and never within one.

A request that was cut off may still be carried out after the cleaning up has looked: what it makes would be left. So a
signal is noted, and raises at the next call or wait. The cleaning up is bounded, and no signal ends it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from types import FrameType
from typing import Any, Final, Self

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
SLICE_SECONDS: Final = 0.1
STDERR: Final = 2


class Stopped(Exception):
    """Somebody asked for the end."""


class Interrupt:
    """The signals of one run. A context manager: afterwards they are what they were."""

    def __init__(self) -> None:
        self.number = 0
        self._cleaning = False
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._note) for number in SIGNALS}
        return self

    def __exit__(self, *_exc: object) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def clean(self) -> None:
        """From here on signals are answered in words only."""
        self._cleaning = True

    def check(self) -> None:
        """Go on, unless the end was asked for.

        Raises:
            Stopped: it was.
        """
        if self.number and not self._cleaning:
            raise Stopped

    def sleep(self, seconds: float) -> None:
        """Wait, and no longer than until the end is asked for.

        Raises:
            Stopped: it was.
        """
        deadline = time.monotonic() + seconds
        self.check()
        while (left := deadline - time.monotonic()) > 0:
            time.sleep(min(SLICE_SECONDS, left))
            self.check()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        told = b"stopping: cleaning up first\n" if not self.number else b"still cleaning up; that has a bound\n"
        self.number = self.number or number
        # Not through a stream: it may be writing right now.
        with contextlib.suppress(OSError):
            os.write(STDERR, told)
