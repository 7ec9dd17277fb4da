"""Daemons that only do what the units and the playbook rely on, packed as a wheel like the product's.

They prove the rollout by itself: what a unit allows, when a restart comes, what a bad configuration does. The file
`/var/lib/sf/database-down` makes them end before they serve, as the real ones do without a database.
"""

import hashlib
import zipfile
from base64 import urlsafe_b64encode
from pathlib import Path

DAEMON = r"""#!python
import json, os, pathlib, signal, socket, sys, time

name = pathlib.Path(sys.argv[0]).name
if name == "fleet":
    tables = pathlib.Path("/var/lib/sf/tables")
    before = tables.read_text() if tables.exists() else None
    tables.write_text("1")
    print(json.dumps({"before": before, "after": "1"}))
    sys.exit()
path = pathlib.Path(sys.argv[sys.argv.index("--config") + 1])
config = path.read_text()
if "--check" in sys.argv:
    sys.exit(f"{path}: NODE_REGION: 'broken' is no region" if "NODE_REGION='broken'" in config else 0)
state = pathlib.Path("/var/lib/sf")
if (state / "database-down").exists():
    sys.exit("no database")


def outcome(action):
    try:
        action()
    except OSError as error:
        return error.strerror
    return "done"


status = dict(line.split(":\t") for line in pathlib.Path("/proc/self/status").read_text().splitlines() if ":\t" in line)
report = {
    "config": config,
    "user": os.getuid(),
    "capabilities": int(status["CapEff"], 16) | int(status["CapBnd"], 16),
    "no_new_privileges": status["NoNewPrivs"],
    "seccomp": status["Seccomp"],
    "measures": outcome(lambda: [pathlib.Path("/proc", f).read_text() for f in ("stat", "meminfo", "loadavg")]),
    "writes": {
        place: outcome(lambda: pathlib.Path(place, f".{name}").write_text("x"))
        for place in (
            "/etc", "/opt/sf/venv", "/usr", "/home", "/root", "/srv", "/sys", "/tmp", "/srv/instances", "/var/lib/sf"
        )
    },
    "raw_socket": outcome(lambda: socket.socket(socket.AF_PACKET, socket.SOCK_RAW)),
    "mount": outcome(lambda: os.chroot("/tmp")),
}
(state / f"{name}.json").write_text(json.dumps(report))

alive = True


def hang(*_):
    global alive
    alive = False


signal.signal(signal.SIGUSR1, hang)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
supervisor = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
supervisor.connect(os.environ["NOTIFY_SOCKET"])
supervisor.send(b"READY=1")
while True:
    if alive:
        supervisor.send(b"WATCHDOG=1")
    time.sleep(0.5)
"""


def build(folder: Path) -> Path:
    """The wheel."""
    commands = ("fleet", "sf-api", "sf-reconciler", "sf-resources", "sf-worker")
    files = {f"sf_fleet-0.0.1.data/scripts/{name}": DAEMON for name in commands}
    information = "sf_fleet-0.0.1.dist-info"
    files[f"{information}/METADATA"] = "Metadata-Version: 2.1\nName: sf-fleet\nVersion: 0.0.1\n"
    files[f"{information}/WHEEL"] = "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    record = [
        f"{name},sha256={urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip('=')},{len(text)}"
        for name, text in files.items()
    ]
    files[f"{information}/RECORD"] = "\n".join([*record, f"{information}/RECORD,,", ""])
    path = folder / "sf_fleet-0.0.1-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for name, text in files.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr = (0o100755 if "/scripts/" in name else 0o100644) << 16
            archive.writestr(entry, text)
    return path
