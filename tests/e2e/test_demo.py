"""`./dev demo` and `./dev run`, as a person would type them: real processes, the embedded servers, one story."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from fleet.cli.caller import Caller, Session
from tests.e2e.served import clean_environment
from tests.servers import free_port, wait_until

DEVMODE = [sys.executable, "-m", "fleet.cli.devmode"]
DEMO_SECONDS_MAX = 240
START_SECONDS_MAX = 180
STOP_SECONDS_MAX = 90

pytestmark = pytest.mark.slow


def family(process: psutil.Process) -> list[psutil.Process]:
    return [process, *process.children(recursive=True)]


def lives(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        # It ended between the two questions.
        return False


def test_the_demo_places_refuses_explains_and_leaves_nothing_running(tmp_path: Path) -> None:
    started = time.monotonic()
    # Spaces and an apostrophe, as in a folder that a person named.
    state = tmp_path / "it's my var"

    done = subprocess.run(
        [*DEVMODE, "demo", "--state", str(state)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=DEMO_SECONDS_MAX,
        check=False,
    )

    text = done.stdout
    assert done.returncode == 0, text + done.stderr
    assert re.search(r"0 of 12 nodes fit: .*1 scheduling_state", text), text
    assert re.search(r"oversold 0, lost 0, stuck 0, ledger differences 0", text), text
    assert "all well" in text
    assert not list((state / "pid").iterdir())
    assert time.monotonic() - started < DEMO_SECONDS_MAX


@pytest.fixture
def running(tmp_path: Path) -> Iterator[tuple[subprocess.Popen[str], int, Path]]:
    port, state = free_port(), tmp_path / "var"
    process = start(state, port)
    yield process, port, state
    if process.poll() is None:
        process.terminate()
        process.wait(STOP_SECONDS_MAX)


def start(state: Path, port: int) -> subprocess.Popen[str]:
    log = state.with_suffix(".out")
    with log.open("w") as output:
        process = subprocess.Popen(
            [*DEVMODE, "run", "--state", str(state), "--port", str(port)],
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            env=clean_environment(),
        )
    wait_until(
        lambda: process.poll() is not None or "Ctrl-C stops everything" in log.read_text(),
        seconds=START_SECONDS_MAX,
        what="the control plane is up",
    )
    assert process.poll() is None, log.read_text()
    return process


def admin(state: Path, port: int) -> contextlib.closing[Caller]:
    session = Session(f"http://127.0.0.1:{port}", (state / "admin.key").read_text().strip())
    return contextlib.closing(session.caller())


def test_state_survives_a_stop_and_a_start(running: tuple[subprocess.Popen[str], int, Path]) -> None:
    process, port, state = running
    with admin(state, port) as caller:
        made = caller.must("POST", "/instances", {"name": "kept", "cpus": 1, "memory_mb": 1024, "disk_gb": 1})
        caller.must("PUT", "/nodes/sim-01", {"labels": {"rack": "z"}})
    members = family(psutil.Process(process.pid))

    process.send_signal(signal.SIGTERM)
    code = process.wait(STOP_SECONDS_MAX)
    left = [member for member in members if lives(member)]

    assert code == 0
    assert left == []

    again = start(state, port)
    with admin(state, port) as caller:
        found = caller.get(f"/instances/{made['uuid']}")
        labels = caller.get("/nodes/sim-01")["labels"]
    again.send_signal(signal.SIGINT)
    again.wait(STOP_SECONDS_MAX)

    assert (found["name"], found["node"]) == ("kept", made["node"])
    assert labels == {"rack": "z"}


def test_what_a_run_prints_works_when_it_is_typed_from_anywhere(
    running: tuple[subprocess.Popen[str], int, Path], tmp_path: Path
) -> None:
    _, _, state = running
    printed = [line.strip() for line in state.with_suffix(".out").read_text().splitlines()]
    commands = [line for line in printed if line.startswith(("fleet ", ". "))]
    away = tmp_path / "elsewhere"
    away.mkdir()
    clean = {"HOME": str(tmp_path), "PATH": os.defpath, "LC_ALL": "C.UTF-8"}

    typed = subprocess.run(
        ["sh", "-ec", "\n".join(commands)],
        cwd=away,
        env=clean,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert len(commands) == 5
    assert (typed.returncode, typed.stderr) == (0, ""), typed
    assert "sim-11" in typed.stdout
    assert "running" in typed.stdout
    assert "node registered" in typed.stdout
    assert (state / "admin.key").read_text().strip() not in (state / "env.sh").read_text()


def test_nothing_is_left_running_when_it_is_killed_outright(
    running: tuple[subprocess.Popen[str], int, Path],
) -> None:
    process, _port, _state = running
    members = family(psutil.Process(process.pid))[1:]

    os.kill(process.pid, signal.SIGKILL)
    process.wait(STOP_SECONDS_MAX)
    _gone, left = psutil.wait_procs(members, timeout=STOP_SECONDS_MAX)

    assert len(members) >= 6
    assert [member for member in left if lives(member)] == []


def test_a_taken_port_is_named(running: tuple[subprocess.Popen[str], int, Path], tmp_path: Path) -> None:
    process, port, _state = running

    second = subprocess.run(
        [*DEVMODE, "run", "--state", str(tmp_path / "other"), "--port", str(port)],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=START_SECONDS_MAX,
        check=False,
    )
    process.send_signal(signal.SIGTERM)
    process.wait(STOP_SECONDS_MAX)

    assert second.returncode == 1
    assert f"port {port} on 127.0.0.1 is taken" in second.stdout


@pytest.mark.parametrize(
    ("flags", "named"),
    [
        (("--database-url", "mysql+pymysql://root@127.0.0.1:1/none"), "the ledger's database did not answer"),
        (("--database-url", "postgresql://somewhere"), "accepted: a URL that begins with mysql+pymysql"),
        (("--redis-url", "redis://127.0.0.1:1/0"), "the queue's server did not answer"),
        (("--state", "/proc/nowhere"), "/proc/nowhere"),
    ],
)
def test_what_cannot_be_started_is_told_in_words(tmp_path: Path, flags: tuple[str, str], named: str) -> None:
    done = subprocess.run(
        [*DEVMODE, "run", "--state", str(tmp_path / "var"), "--port", "0", *flags],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=START_SECONDS_MAX,
        check=False,
    )

    assert done.returncode == 1
    assert named in done.stdout
    assert "Traceback" not in done.stdout + done.stderr


@pytest.mark.parametrize("command", ["demo", "run"])
def test_what_another_program_keeps_in_the_folder_is_left_alone(tmp_path: Path, command: str) -> None:
    for name in ("log", "tmp"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "precious").write_text("kept")

    done = subprocess.run(
        [*DEVMODE, command, "--state", str(tmp_path), "--port", "0"],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=START_SECONDS_MAX,
        check=False,
    )

    assert done.returncode == 1
    assert f"{tmp_path} holds log, tmp, and no control plane made them" in done.stdout
    assert all((tmp_path / name / "precious").read_text() == "kept" for name in ("log", "tmp"))


def test_a_port_that_is_none_is_wrong_usage() -> None:
    done = subprocess.run(
        [*DEVMODE, "run", "--port", "99999"],
        capture_output=True,
        text=True,
        env=clean_environment(),
        timeout=START_SECONDS_MAX,
        check=False,
    )

    assert done.returncode == 2
    assert "Usage: ./dev run" in done.stderr
    assert "Traceback" not in done.stderr
