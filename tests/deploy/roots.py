"""Throwaway machines for the rollout: a minimal Debian root, made once, unpacked for each host.

The packed root lies in the user's cache folder under the digest of what is in it and can be made again at any time; so
do the wheels that go with it. Only what is not there yet needs a network.
Whatever is mounted for a run is mounted in a mount namespace of that run, so it is gone with its last process,
however that ends.
"""

import hashlib
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.provision import MMDEBSTRAP, cannot_run, required

REPOSITORY = Path(__file__).resolve().parents[2]
PLAYBOOKS = REPOSITORY / "deploy" / "ansible"
SUITE = "bookworm"
# python3-venv for the wheel; libstdc++6, which every Debian has because of apt, for NumPy; systemd for `enable`
# and for booting it.
PACKAGES = ("dbus", "libstdc++6", "passwd", "python3", "python3-venv", "systemd", "systemd-sysv")
MAKE_SECONDS = 600
RUN_SECONDS = 600


def tool(name: str) -> str:
    """A program of the development requirements, from beside this Python."""
    path = Path(sys.executable).parent / name
    if not path.exists():
        cannot_run(f"{path} is not there; ./dev install brings it")
    return str(path)


def cache(kind: str) -> Path:
    """A folder of the user's cache, there from now on."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "sf-fleet" / kind
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def packed_root() -> Path:
    """The packed root, from the cache or newly made."""
    if os.geteuid() != 0:
        cannot_run("a root file system is made and entered by root only; run the tests as root for this layer")
    mmdebstrap = required(MMDEBSTRAP).path
    digest = hashlib.sha256(" ".join((SUITE, *PACKAGES)).encode()).hexdigest()[:16]
    folder = cache("roots")
    packed = folder / f"{SUITE}-{digest}.tar"
    if not packed.exists():
        making = folder / f"{digest}.{os.getpid()}.making.tar"
        command = [
            str(mmdebstrap),
            "--quiet",
            "--variant=essential",
            f"--include={','.join(PACKAGES)}",
            SUITE,
            str(making),
        ]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=MAKE_SECONDS, check=False)
            if done.returncode != 0:
                cannot_run(f"no root file system could be made: {done.stderr.strip()[-600:]}")
            # Another run may have been quicker; both made the same.
            making.rename(packed)
        finally:
            making.unlink(missing_ok=True)
    return packed


def unpack(packed: Path, root: Path) -> None:
    root.mkdir(parents=True)
    subprocess.run(["tar", "-C", str(root), "-xf", str(packed)], check=True, timeout=RUN_SECONDS)


def python_version(packed: Path) -> str:
    """Which Python 3 the packed root has, as 3.11."""
    listing = ["tar", "--list", "--file", str(packed)]
    names = subprocess.run(listing, capture_output=True, text=True, check=True, timeout=RUN_SECONDS).stdout.split()
    (version,) = {found[1] for name in names if (found := re.fullmatch(r"[.]?/?usr/bin/python(3[.]\d+)", name))}
    return version


@dataclass(frozen=True)
class Run:
    """What one `ansible-playbook` said."""

    returncode: int
    output: str

    def counts(self, host: str) -> dict[str, int]:
        """The recap line of a host: ok, changed, unreachable, failed, skipped, rescued, ignored."""
        lines = [line for line in self.output.splitlines() if line.startswith(host) and "ok=" in line]
        assert len(lines) == 1, self.output
        return {name: int(count) for name, count in (pair.split("=") for pair in lines[0].split(":")[1].split())}


def ansible_environment() -> dict[str, str]:
    """No configuration of the machine's user takes part, and the output has no colours."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    return kept | {
        "ANSIBLE_CONFIG": str(PLAYBOOKS / "ansible.cfg"),
        "ANSIBLE_CONNECTION_PLUGINS": str(Path(__file__).parent / "connection"),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_FORCE_COLOR": "0",
        "ANSIBLE_RETRY_FILES_ENABLED": "0",
        "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3",
        "LC_ALL": "C.UTF-8",
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
    }


def playbook(book: Path, inventory: Path, *arguments: str, roots: tuple[Path, ...] = ()) -> Run:
    """Run a playbook, with /proc and /dev mounted in each of `roots` for as long as it runs."""
    command = [tool("ansible-playbook"), "-i", str(inventory), str(book), *arguments]
    if roots:
        mounts = 'for root in $ROOTS; do mount -t proc proc "$root/proc" && mount --rbind /dev "$root/dev"; done'
        inside = ["sh", "-ec", f'{mounts}; exec "$@"', "sh", *command]
        command = ["unshare", "--mount", "--pid", "--fork", "--kill-child", *inside]
    done = subprocess.run(
        command,
        cwd=PLAYBOOKS,
        env=ansible_environment() | {"ROOTS": " ".join(map(str, roots))},
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
        check=False,
    )
    return Run(done.returncode, done.stdout + done.stderr)
