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
from enum import StrEnum
from pathlib import Path
from typing import Final

TIMEOUT_SECONDS: Final = 5.0
GOOD_PROBES_TO_RECOVER: Final = 3
_CONTENT: Final = b"fleet write probe\n" * 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """How a probe of one path ended; `reason` is empty when it was good."""

    path: str
    good: bool
    reason: str = ""
    seconds: float = 0.0


def probe_write(path: str, *, timeout_seconds: float = TIMEOUT_SECONDS) -> ProbeResult:
    """Probe once. For repeated probes keep a `WriteProbe`, which never lets blocked ones pile up."""
    return WriteProbe(path, timeout_seconds=timeout_seconds).run()


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


class NodeHealth(StrEnum):
    """What the probes say of the node."""

    GOOD = "good"
    FAILED = "failed"


class HealthGate:
    """One bad probe fails the node; only three good rounds in a row bring it back."""

    def __init__(self, *, good_to_recover: int = GOOD_PROBES_TO_RECOVER) -> None:
        self._good_to_recover = good_to_recover
        self._good_in_a_row = good_to_recover

    @property
    def health(self) -> NodeHealth:
        """The node's health after the rounds so far; good before the first one."""
        return NodeHealth.GOOD if self._good_in_a_row >= self._good_to_recover else NodeHealth.FAILED

    def observe(self, results: list[ProbeResult]) -> NodeHealth:
        """Count one round of probes over all paths."""
        all_good = all(result.good for result in results)
        self._good_in_a_row = min(self._good_to_recover, self._good_in_a_row + 1) if all_good else 0
        return self.health
