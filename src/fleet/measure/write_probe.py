"""Write probe: can an instance's disk really be written there, now?

A probe writes a small file, forces it to the disk, reads it back and removes it. It runs in a thread of its own with
a bound, because a dead network file system blocks for ever; a probe that is still blocked counts as failed and no
second one piles up behind it.
"""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

TIMEOUT_SECONDS: Final = 5.0
_CONTENT: Final = b"fleet write probe\n" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """How a probe of one path ended; `reason` is empty when it was good."""

    path: str
    good: bool
    reason: str = ""
    seconds: float = 0.0


class WriteProbe:
    """Repeated probes of one path."""

    def __init__(
        self,
        path: str,
        *,
        timeout_seconds: float = TIMEOUT_SECONDS,
        write: Callable[[str], None] | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._path = path
        self._timeout_seconds = timeout_seconds
        self._write = write or write_and_read_back
        self._monotonic = monotonic
        self._blocked: threading.Thread | None = None

    def run(self) -> ProbeResult:
        """Probe the path; an answer comes within the bound whatever the file system does."""
        began = self._monotonic()
        if self._blocked is not None and self._blocked.is_alive():
            return self._result(began, "an earlier probe is still blocked there")
        ended: list[str] = []
        thread = threading.Thread(target=self._attempt, args=(ended,), name="write-probe", daemon=True)
        thread.start()
        thread.join(self._timeout_seconds)
        if not ended:
            self._blocked = thread
            return self._result(began, f"no answer within {self._timeout_seconds:g} s")
        self._blocked = None
        return self._result(began, ended[0])

    def _attempt(self, ended: list[str]) -> None:
        try:
            self._write(self._path)
        except OSError as fault:
            ended.append(f"{fault.strerror or fault} ({self._path})")
        else:
            ended.append("")

    def _result(self, began: float, reason: str) -> ProbeResult:
        seconds = round(self._monotonic() - began, 3)
        return ProbeResult(path=self._path, good=not reason, reason=reason, seconds=seconds)


def write_and_read_back(path: str) -> None:
    """Write a small file under `path`, force it to the disk, compare it, remove it. Raises OSError."""
    handle, name = tempfile.mkstemp(prefix=".fleet-write-probe-", dir=path)
    try:
        with os.fdopen(handle, "r+b") as probe:
            probe.write(_CONTENT)
            probe.flush()
            os.fsync(probe.fileno())
            probe.seek(0)
            if probe.read() != _CONTENT:
                raise OSError(f"what was written under {path} does not read back")
    finally:
        Path(name).unlink()
