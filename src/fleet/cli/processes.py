"""Child processes of one command: started in order, each with its own log, all gone when the command is gone.

Promises: every wait has a bound; a child that fails is reported in words with the end of its log; `stop` asks with
SIGTERM, in the reverse order of the start, and kills what does not listen; a child's whole process group goes with it;
when this process itself is killed, the kernel sends SIGTERM to the children (see `fleet.cli.tether`).
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fleet.cli import tether

STOP_SECONDS_MAX = 10.0
POLL_SECONDS = 0.05
LOG_LINES_SHOWN = 25


class StartFailed(Exception):
    """A process did not come up, or ended when it should not have; the message shows its last words."""


@dataclass(slots=True)
class Child:
    """One started process."""

    name: str
    popen: subprocess.Popen[bytes]
    log: Path
    pid_file: Path

    def last_words(self) -> str:
        """The end of its log, for a person."""
        try:
            lines = self.log.read_text(errors="replace").splitlines()[-LOG_LINES_SHOWN:]
        except OSError as error:
            return f"(its log {self.log} cannot be read: {error})"
        return "\n".join(f"    {line[:400]}" for line in lines) or "    (its log is empty)"


class Processes:
    """The children, in the order of their start. Start them from the main thread: the tether is to that thread."""

    def __init__(self, state: Path, environment: Mapping[str, str]) -> None:
        """Keep logs under `state`/log and process ids under `state`/pid."""
        self._log_folder = state / "log"
        self._pid_folder = state / "pid"
        self._environment = dict(environment)
        self._children: list[Child] = []
        for folder in (self._log_folder, self._pid_folder):
            folder.mkdir(parents=True, exist_ok=True)

    def __len__(self) -> int:
        return len(self._children)

    @property
    def pids(self) -> dict[str, int]:
        """Process id by name."""
        return {child.name: child.popen.pid for child in self._children}

    def start(self, name: str, command: Sequence[str]) -> Child:
        """Start one process; its output goes to its log."""
        log = self._log_folder / f"{name}.log"
        tethered = [sys.executable, "-I", "-S", tether.__file__, str(os.getpid()), *command]
        with log.open("ab") as output:
            popen = subprocess.Popen(
                tethered,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=self._environment,
                # A group of its own: Ctrl-C reaches only this process, which stops the children in order.
                start_new_session=True,
            )
        child = Child(name, popen, log, self._pid_folder / f"{name}.pid")
        child.pid_file.write_text(f"{popen.pid}\n")
        self._children.append(child)
        return child

    def wait_until(self, what: str, ready: Callable[[], bool], seconds: float) -> None:
        """Poll `ready` until it is true; a child that ends meanwhile, or the bound, is a `StartFailed`."""
        deadline = time.monotonic() + seconds
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise StartFailed(f"{what}: not after {seconds:.0f} s.\n{self._all_last_words()}")
            time.sleep(POLL_SECONDS)

    def check(self) -> None:
        """Raise `StartFailed` when a child has ended by itself."""
        for child in self._children:
            code = child.popen.poll()
            if code is not None:
                how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
                raise StartFailed(f"{child.name} {how}. The end of {child.log}:\n{child.last_words()}")

    def stop(self, *, seconds: float = STOP_SECONDS_MAX) -> list[str]:
        """Stop every child, last started first; the names of those that had to be killed."""
        killed: list[str] = []
        for child in reversed(self._children):
            # The process alone: it ends its own workers in its own order.
            if child.popen.poll() is None:
                child.popen.terminate()
            if not _ended(child, seconds):
                killed.append(child.name)
            # What a child left behind in its group goes with it.
            _kill_group(child)
            _ended(child, seconds)
            child.pid_file.unlink(missing_ok=True)
        self._children.clear()
        return killed

    def _all_last_words(self) -> str:
        return "\n".join(f"The end of {child.log}:\n{child.last_words()}" for child in self._children)


def _kill_group(child: Child) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.popen.pid, signal.SIGKILL)


def _ended(child: Child, seconds: float) -> bool:
    try:
        child.popen.wait(timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
