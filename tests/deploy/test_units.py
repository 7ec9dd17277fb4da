"""The units under systemd/: systemd accepts them, and they keep what they promise."""

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.deploy.roots import REPOSITORY
from tests.provision import SYSTEMD_ANALYZE, required

UNITS = REPOSITORY / "systemd"
DAEMONS = ("sf-api", "sf-reconciler", "sf-resources", "sf-worker")
# Of 100, as `systemd-analyze security` counts; an unprotected service has 96.
EXPOSURE_MAX = 16
DEVICES = ("PrivateDevices", "DevicePolicy", "DeviceAllow")


def settings(unit: Path) -> list[tuple[str, str, str]]:
    """(section, key, value) of each line, repeated keys included."""
    found, section = [], ""
    for line in unit.read_text().splitlines():
        if line.startswith("["):
            section = line.strip("[]")
        elif line and not line.startswith("#"):
            key, _, value = line.partition("=")
            found.append((section, key, value))
    return found


@pytest.fixture(scope="module")
def analyze() -> str:
    return str(required(SYSTEMD_ANALYZE).path)


@pytest.fixture
def image(tmp_path: Path) -> Path:
    """As much of a machine as the verification looks at: the units and the commands that they name."""
    units = tmp_path / "etc/systemd/system"
    units.mkdir(parents=True)
    for unit in UNITS.iterdir():
        shutil.copy(unit, units)
    # What the units order themselves by, from this machine, as any machine has it.
    (tmp_path / "usr/lib/systemd").mkdir(parents=True)
    shutil.copytree("/usr/lib/systemd/system", tmp_path / "usr/lib/systemd/system", symlinks=True)
    commands = tmp_path / "opt/sf/venv/bin"
    commands.mkdir(parents=True)
    for daemon in DAEMONS:
        (commands / daemon).write_text("#!/bin/sh\n")
        (commands / daemon).chmod(0o755)
    return tmp_path


def verify(analyze: str, image: Path, unit: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [analyze, "verify", f"--root={image}", unit], capture_output=True, text=True, timeout=60, check=False
    )


@pytest.mark.parametrize("unit", [*(f"{daemon}.service" for daemon in DAEMONS), "sf.target"])
def test_systemd_accepts_the_unit_without_a_word(analyze: str, image: Path, unit: str) -> None:
    done = verify(analyze, image, unit)

    assert (done.returncode, done.stdout + done.stderr) == (0, "")


def test_the_verification_sees_a_misspelled_directive_and_a_missing_command(analyze: str, image: Path) -> None:
    unit = image / "etc/systemd/system/sf-api.service"
    unit.write_text(unit.read_text().replace("WatchdogSec=", "WatchdogSecs="))
    (image / "opt/sf/venv/bin/sf-worker").unlink()

    assert "WatchdogSecs" in verify(analyze, image, "sf-api.service").stderr
    assert verify(analyze, image, "sf-worker.service").returncode != 0


@pytest.mark.parametrize("daemon", DAEMONS)
def test_the_sandbox_leaves_little_open(analyze: str, daemon: str) -> None:
    command = [analyze, "security", "--offline=true", f"--threshold={EXPOSURE_MAX}", str(UNITS / f"{daemon}.service")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert done.returncode == 0, done.stdout[-2000:]


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_unit_never_gives_up_and_never_storms(daemon: str) -> None:
    """B36: with the database down at boot the service restarted so fast that systemd left it dead."""
    found = {(section, key): value for section, key, value in settings(UNITS / f"{daemon}.service")}

    assert found["Unit", "StartLimitIntervalSec"] == "0"
    assert found["Service", "Restart"] == "always"
    # One attempt takes at most both together, so the daemon is back within a minute of what it waits for.
    assert int(found["Service", "RestartSec"]) >= 2
    assert int(found["Service", "RestartSec"]) + int(found["Service", "TimeoutStartSec"]) <= 60


def test_the_four_units_share_one_sandbox() -> None:
    """What differs is what the daemons do, not how far each is trusted; which devices each sees, see below."""
    own = {"ExecStartPre", "ExecStart", "TimeoutStopSec", "KillMode", "PrivateUsers", *DEVICES}
    shared = [
        [
            (key, value)
            for section, key, value in settings(UNITS / f"{daemon}.service")
            if section == "Service" and key not in own
        ]
        for daemon in DAEMONS
    ]

    assert all(found == shared[0] for found in shared)


@pytest.mark.parametrize("daemon", DAEMONS)
def test_a_daemon_sees_no_devices_but_the_gpus_that_it_measures(daemon: str) -> None:
    """Hidden, they would look like a machine without GPUs."""
    found = [(key, value) for _, key, value in settings(UNITS / f"{daemon}.service") if key in DEVICES]
    gpus = [("DevicePolicy", "closed"), ("DeviceAllow", "char-nvidia* rw")]

    assert found == (gpus if daemon == "sf-resources" else [("PrivateDevices", "yes")])


def test_no_instance_lives_in_a_control_group_that_a_unit_kills() -> None:
    """B37: updating the agent killed the instances. A worker's group is killed whole, so it must start none itself."""
    found = settings(UNITS / "sf-worker.service")

    assert ("Service", "KillMode", "control-group") in found
    assert not [value for _, key, value in found if key in {"Delegate", "Slice"}]


@pytest.mark.parametrize("unit", sorted(UNITS.iterdir()), ids=lambda unit: unit.name)
def test_every_block_of_directives_says_why(unit: Path) -> None:
    """A directive has a comment above it, or stands in a run of directives that has one."""
    explained = False
    for line in unit.read_text().splitlines():
        if line.startswith("#"):
            explained = True
        elif not line or line.startswith("["):
            explained = False
        else:
            obvious = line.split("=")[0] in {"Description", "ExecStart", "WantedBy"}
            assert explained or obvious, line
