"""Child processes: started with a log, reported in words, gone with their parent."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.cli.processes import Processes, StartFailed
from tests.servers import wait_until

UP_SECONDS_MAX = 60
SLEEP = [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"]
DEAF = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)",
]
PARENT = """
import os, sys, time
from pathlib import Path
from fleet.cli.processes import Processes
processes = Processes(Path(sys.argv[1]), dict(os.environ))
processes.start("child", [sys.executable, "-c", "import time; print('up', flush=True); time.sleep(60)"])
time.sleep(60)
"""


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    made = Processes(tmp_path, dict(os.environ))
    yield made
    made.stop(seconds=1.0)


def is_up(state: Path, name: str) -> bool:
    return "up" in (state / "log" / f"{name}.log").read_text()


def is_alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_started_process_is_stopped_and_its_pid_file_is_gone(tmp_path: Path, processes: Processes) -> None:
    child = processes.start("sleeper", SLEEP)
    pid_file = tmp_path / "pid" / "sleeper.pid"
    recorded = int(pid_file.read_text())
    processes.wait_until("it is up", lambda: is_up(tmp_path, "sleeper"), UP_SECONDS_MAX)

    killed = processes.stop()

    assert recorded == child.popen.pid
    assert killed == []
    assert not is_alive(recorded)
    assert not pid_file.exists()


def test_a_process_that_does_not_listen_is_killed_and_named(tmp_path: Path, processes: Processes) -> None:
    child = processes.start("deaf", DEAF)
    processes.wait_until("it is up", lambda: is_up(tmp_path, "deaf"), UP_SECONDS_MAX)

    killed = processes.stop(seconds=0.3)

    assert killed == ["deaf"]
    assert not is_alive(child.popen.pid)


def test_a_failing_process_is_reported_with_the_end_of_its_log(processes: Processes) -> None:
    processes.start("failing", [sys.executable, "-c", "import sys; print('the disk is full'); sys.exit(3)"])

    with pytest.raises(StartFailed, match=r"(?s)failing ended with exit code 3.*the disk is full"):
        processes.wait_until("it answers", lambda: False, UP_SECONDS_MAX)


def test_a_wait_has_a_bound(tmp_path: Path, processes: Processes) -> None:
    processes.start("sleeper", SLEEP)

    with pytest.raises(StartFailed, match=r"(?s)it answers: not after 0 s.*sleeper.log"):
        processes.wait_until("it answers", lambda: False, 0.2)


def test_children_end_when_their_parent_is_killed_outright(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", PARENT, str(tmp_path)]) as parent:
        pid_file = tmp_path / "pid" / "child.pid"
        wait_until(
            lambda: pid_file.exists() and bool(pid_file.read_text()) and is_up(tmp_path, "child"),
            seconds=UP_SECONDS_MAX,
            what="the child is up",
        )
        child = int(pid_file.read_text())

        os.kill(parent.pid, signal.SIGKILL)
        parent.wait(UP_SECONDS_MAX)

    wait_until(lambda: not is_alive(child), seconds=UP_SECONDS_MAX, what="the child has ended")
