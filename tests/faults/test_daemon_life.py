"""Daemons start, wait, tell their supervisor and stop in words, whatever is down around them."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from fleet.model.lifecycle import InstanceState
from tests.faults.rig import WAIT_SECONDS_MAX, Rig
from tests.servers import HOST, MariaDBServer, RedisServer, free_port, wait_until

pytestmark = pytest.mark.slow

DAEMONS = ("worker", "reconciler", "resources")
ALL = ("api", *DAEMONS)
UNITS = Path(__file__).resolve().parents[2] / "systemd"


@pytest.fixture
def rig(tmp_path: Path, own_mariadb: MariaDBServer, own_redis: RedisServer) -> Iterator[Rig]:
    made = Rig(tmp_path, own_mariadb.url(own_mariadb.create_database()), own_redis.url())
    (tmp_path / "blobs").mkdir()
    made.environment |= {
        "FLEET_BLOBS_PATH": str(tmp_path / "blobs"),
        "FLEET_API_HOST": HOST,
        "FLEET_API_PORT": str(free_port()),
        "FLEET_API_WORKERS": "2",
        "FLEET_ADMIN_KEY_FILE": str(tmp_path / "admin.key"),
    }
    yield made
    made.close()


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as channel:
        channel.bind(str(tmp_path / "notify"))
        channel.settimeout(WAIT_SECONDS_MAX)
        yield channel


def heard_until(supervisor: socket.socket, wanted: str) -> list[str]:
    heard: list[str] = []
    while wanted not in heard:
        heard.append(supervisor.recv(500).decode())
    return heard


def stop_seconds_max(daemon: str) -> float:
    """What its unit gives it; then it is killed."""
    (seconds,) = re.findall(r"^TimeoutStopSec=(\d+)$", (UNITS / f"sf-{daemon}.service").read_text(), re.MULTILINE)
    return float(seconds)


def run(*arguments: str, environment: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", *arguments],
        env={"PATH": "/usr/bin:/bin", **(environment or {})},
        capture_output=True,
        text=True,
        timeout=WAIT_SECONDS_MAX,
        check=False,
    )


@pytest.mark.parametrize("daemon", ALL)
def test_a_daemon_says_when_it_serves_lives_and_stops(rig: Rig, supervisor: socket.socket, daemon: str) -> None:
    process = rig.start(daemon, more={"NOTIFY_SOCKET": str(supervisor.getsockname())})
    heard_until(supervisor, "READY=1")
    heard_until(supervisor, "WATCHDOG=1")
    process.terminate()

    assert process.wait(stop_seconds_max(daemon)) == 0
    assert heard_until(supervisor, "STOPPING=1")[-1] == "STOPPING=1"
    assert "Traceback" not in rig.logs()


def test_b36_daemons_wait_for_the_database_and_serve_when_it_is_there(
    rig: Rig, own_mariadb: MariaDBServer, supervisor: socket.socket
) -> None:
    created = rig.create()
    own_mariadb.kill()
    waiting = [
        rig.start("worker", "--all-simulated", more={"NOTIFY_SOCKET": str(supervisor.getsockname())}),
        rig.start("reconciler"),
        rig.start("resources"),
    ]
    heard_until(supervisor, "STATUS=waiting for the database\nWATCHDOG=1")
    own_mariadb.start()
    # This process's own idle connections went with the server.
    rig.db.close()

    assert "READY=1" in heard_until(supervisor, "READY=1")
    rig.wait_for_state(created.uuid, InstanceState.RUNNING)
    assert [process.poll() for process in waiting] == [None, None, None]
    assert "Traceback" not in rig.logs()


@pytest.mark.parametrize("daemon", ALL)
def test_a_daemon_that_waits_can_be_stopped(
    rig: Rig, own_mariadb: MariaDBServer, supervisor: socket.socket, daemon: str
) -> None:
    own_mariadb.kill()
    process = rig.start(daemon, more={"NOTIFY_SOCKET": str(supervisor.getsockname())})
    heard_until(supervisor, "STATUS=waiting for the database\nWATCHDOG=1")
    process.send_signal(signal.SIGTERM)

    assert process.wait(stop_seconds_max(daemon)) == 0


def test_a_reconciler_that_loses_the_database_goes_on_when_it_is_back(rig: Rig, own_mariadb: MariaDBServer) -> None:
    created = rig.create()
    reconciler = rig.start("reconciler")
    wait_until(lambda: "pass complete" in rig.logs(), seconds=WAIT_SECONDS_MAX, what="the first pass")
    own_mariadb.kill()
    wait_until(lambda: "task.postponed" in rig.logs(), seconds=WAIT_SECONDS_MAX, what="the outage is noticed")
    own_mariadb.start()
    rig.db.close()
    rig.start_worker()

    rig.wait_for_state(created.uuid, InstanceState.RUNNING)
    assert reconciler.poll() is None


@pytest.mark.parametrize("daemon", ALL)
def test_once_without_the_database_ends_in_a_sentence(tmp_path: Path, daemon: str) -> None:
    environment = {
        "FLEET_DATABASE_URL": "mysql+pymysql://root@127.0.0.1:1/nothing",
        "FLEET_REDIS_URL": "redis://127.0.0.1:1/0",
        "FLEET_INSTANCES_PATH": str(tmp_path),
        "FLEET_NODE_BACKEND": "simulated",
        "FLEET_ADMIN_KEY_FILE": str(tmp_path / "admin.key"),
    }
    ended = run(f"daemons.{daemon}", "--once", environment=environment)

    assert ended.returncode == 3
    assert f"sf-{daemon}: the ledger's database did not answer" in ended.stderr
    assert "Traceback" not in ended.stderr


@pytest.mark.parametrize("daemon", ALL)
def test_check_looks_at_the_configuration_and_starts_nothing(tmp_path: Path, daemon: str) -> None:
    config = tmp_path / "config"
    good = f"DATABASE_URL=sqlite:///{tmp_path}/l.db\nREDIS_URL=redis://127.0.0.1:1/0\nNODE_BACKEND=simulated\n"
    good += f"ADMIN_KEY_FILE={tmp_path}/admin.key\n"
    config.write_text(good + f"INSTANCES_PATH={tmp_path}/instances\n")
    assert run(f"daemons.{daemon}", "--config", str(config), "--check").returncode == 0
    config.write_text(good + "NODE_CPU_RESERVATION_THREADS=lots\n")
    refused = run(f"daemons.{daemon}", "--config", str(config), "--check")

    assert refused.returncode == 2
    assert f"{config}:5: NODE_CPU_RESERVATION_THREADS: 'lots'" in refused.stderr
    assert not (tmp_path / "l.db").exists()


def test_a_backend_without_a_driver_is_refused_by_name(tmp_path: Path) -> None:
    config = tmp_path / "config"
    config.write_text("DATABASE_URL=sqlite:////nowhere\nREDIS_URL=redis://127.0.0.1:1/0\nNODE_BACKEND=firecracker\n")
    refused = run("daemons.worker", "--config", str(config), "--check")

    assert refused.returncode == 2
    assert "NODE_BACKEND: 'firecracker' has no driver" in refused.stderr


def test_missing_urls_are_named_together(tmp_path: Path) -> None:
    (tmp_path / "config").write_text("NODE_BACKEND=simulated\n")
    refused = run("daemons.reconciler", "--config", str(tmp_path / "config"), "--check")

    assert refused.returncode == 2
    assert "DATABASE_URL" in refused.stderr
    assert "REDIS_URL" in refused.stderr


def test_once_of_the_reconciler_prints_its_report(rig: Rig) -> None:
    ended = run("daemons.reconciler", "--once", environment=rig.environment)
    report = json.loads(ended.stdout)

    assert ended.returncode == 0, ended.stderr
    assert (report["nodes"], report["corrections"], report["missing"]) == (2, [], [])


def test_once_of_the_worker_does_what_is_queued(rig: Rig) -> None:
    created = rig.create()
    ended = run("daemons.worker", "--all-simulated", "--once", environment=rig.environment)

    assert ended.returncode == 0, ended.stderr
    assert rig.instance(created.uuid).state is InstanceState.RUNNING


def test_once_of_resources_publishes_what_is_registered_and_says_how_many(rig: Rig) -> None:
    file = str(rig.described_file)
    ended = run("daemons.resources", "--simulated", file, "--once", environment=rig.environment)
    assert (ended.returncode, json.loads(ended.stdout)) == (0, {"published": 2, "of": 2})

    unregistered = run("daemons.resources", "--once", environment=rig.environment)
    assert (unregistered.returncode, json.loads(unregistered.stdout)) == (1, {"published": 0, "of": 1})
