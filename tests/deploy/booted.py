"""A machine with a running systemd, in a container without a network of its own.

It gets a control group of its own in every hierarchy, so that machines of several runs do not share one, and it ends
with the process that started it.
"""

import contextlib
import os
import secrets
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.provision import SYSTEMD_NSPAWN, cannot_run, required

GROUPS = Path("/sys/fs/cgroup")
BOOT_SECONDS = 240
STOP_SECONDS = 20
CLEAN = "env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8"

# The shell puts itself into the new groups and becomes the container's supervisor.
BOOT = """
for group in $GROUP_FOLDERS; do mkdir "$group" && echo $$ > "$group/cgroup.procs"; done
exec setpriv --pdeathsig SIGTERM "$@"
"""


@dataclass(frozen=True)
class Machine:
    """A booted machine: `init` is its first process as seen from outside."""

    root: Path
    init: int

    @property
    def enter(self) -> str:
        return f"nsenter --target {self.init} --all {CLEAN}"

    def run(self, *command: str) -> str:
        done = subprocess.run(
            [*self.enter.split(), *command], capture_output=True, text=True, timeout=BOOT_SECONDS, check=False
        )
        return (done.stdout + done.stderr).strip()

    def unit(self, name: str, prop: str) -> str:
        return self.run("systemctl", "show", "--value", f"--property={prop}", name)


def wait_until(holds: Callable[[], bool], seconds: float, what: str) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"not within {seconds} s: {what}"
        time.sleep(0.2)


def group_folders(name: str) -> list[Path]:
    """One in each hierarchy, or one in the only hierarchy."""
    parents = (
        [GROUPS]
        if (GROUPS / "cgroup.procs").exists()
        else [GROUPS / hierarchy for hierarchy in ("systemd", "unified", "memory", "cpu", "cpuacct", "pids")]
    )
    return [parent / name for parent in parents if parent.is_dir()]


def remove_groups(folders: list[Path]) -> None:
    for folder in folders:
        for inner in sorted((path for path in folder.rglob("*") if path.is_dir()), reverse=True):
            with contextlib.suppress(OSError):
                inner.rmdir()
        with contextlib.suppress(OSError):
            folder.rmdir()


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def boot(root: Path) -> Iterator[Machine]:
    # Of its own, also when a run that was killed outright had the same process id and left its groups behind.
    name = f"fleet-{os.getpid()}-{secrets.token_hex(4)}"
    folders = group_folders(name)
    command = [
        str(required(SYSTEMD_NSPAWN).path),
        *("--quiet", f"--directory={root}", f"--machine={name}", "--register=no", "--keep-unit", "--private-network"),
        *("--resolv-conf=off", "--timezone=off", "--link-journal=no", "--console=pipe", "--boot"),
    ]
    with (root.parent / f"{root.name}.log").open("w+") as log:
        supervisor = subprocess.Popen(
            ["sh", "-euc", BOOT, "sh", *command],
            env=os.environ | {"GROUP_FOLDERS": " ".join(map(str, folders))},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield booted(root, supervisor, log.name)
        finally:
            supervisor.terminate()
            try:
                supervisor.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                supervisor.kill()
                supervisor.wait(STOP_SECONDS)
            remove_groups(folders)


def booted(root: Path, supervisor: "subprocess.Popen[bytes]", log: str) -> Machine:
    """The machine once its systemd says that all is up."""
    end = time.monotonic() + BOOT_SECONDS
    while True:
        found = children(supervisor.pid) if supervisor.poll() is None else []
        if found and Machine(root, found[0]).run("systemctl", "is-system-running") in {"running", "degraded"}:
            return Machine(root, found[0])
        if supervisor.poll() is not None or time.monotonic() > end:
            cannot_run(f"no container boots here within {BOOT_SECONDS} s: {Path(log).read_text()[-600:]}")
        time.sleep(0.2)
