"""A real `sf-api` on a real database, as its own processes, and callers of it."""

from __future__ import annotations

import json
import os
import secrets
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Self

import httpx
import pytest

from fleet.ledger import cluster, cluster_config
from fleet.ledger.database import Database
from fleet.ledger.migrate import migrate
from tests.servers import free_port, fresh_database, wait_until

SECRET = "a-secret-that-only-tests-know-0123456789"
START_SECONDS = 180
ANSWER_SECONDS_MAX = 60
"""So long a caller waits: an answer may be slow where the machine is, and only a hang is a failure."""

METRICS: Mapping[str, Any] = {
    "is_hypervisor": True,
    "cpu_threads": 16,
    "cpu_schedulable": 14,
    "cpu_max_per_instance": 16,
    "cpu_load_1": 0.5,
    "cpu_total_instance_vcpus": 0,
    "memory_max": 65536,
    "memory_available": 60000,
    "memory_reserved_mb": 4096,
    "memory_total_instance_actual": 0,
    "disk_total_gb": 1000,
    "disk_free_gb": 1000,
    "disk_reservation_gb": 20,
    "disk_busy_ms_per_second": 0.0,
    "queue_waiting": 0,
}


class Served:
    """`sf-api` with two workers (or as many as asked), stopped at the end of the block."""

    def __init__(self, folder: Path, database_url: str, redis_url: str, *, workers: int = 2) -> None:
        self.folder = folder
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.database_url = database_url
        self.redis_url = redis_url
        self.key_file = folder / "admin.key"
        self.config = folder / "config"
        self.log = folder / "api.log"
        self.process: subprocess.Popen[bytes] | None = None
        self.config.write_text(
            f"DATABASE_URL={database_url}\nREDIS_URL={redis_url}\nADMIN_KEY_FILE={self.key_file}\n"
            f"API_PORT={self.port}\nAPI_WORKERS={workers}\nAUTH_SECRET={SECRET}\nNODE_NAME=control\n"
        )

    def __enter__(self) -> Self:
        database = Database(self.database_url)
        migrate(database)
        # A machine that is busy must not let the nodes of a module grow stale before its last test.
        cluster_config.store(database, "NODE_METRICS_MAX_AGE_SECONDS", "900")
        database.close()
        self.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self.stop()

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=log, env=clean_environment())
        wait_until(self.answers, seconds=START_SECONDS, what=f"sf-api on {self.url}")

    def stop(self) -> int:
        process = self.process
        if process is None:
            return 0
        self.process = None
        process.send_signal(signal.SIGTERM)
        try:
            return process.wait(timeout=60)
        finally:
            process.kill()

    def command(self, *options: str) -> list[str]:
        return [sys.executable, "-m", "daemons.api", "--config", str(self.config), *options]

    def answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, self.log.read_text()
        try:
            return httpx.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except httpx.HTTPError:
            return False

    @property
    def admin_key(self) -> str:
        return self.key_file.read_text().strip()

    def now(self) -> datetime:
        """What the database's clock shows: every time in an answer is its."""
        with closing(Database(self.database_url)) as database:
            return datetime.fromtimestamp(cluster.now_us(database) / 1_000_000, UTC)

    def client(self) -> httpx.Client:
        """A connection of its own, without a token."""
        return httpx.Client(base_url=self.url, timeout=ANSWER_SECONDS_MAX)

    def admin(self) -> As:
        return As.login(self.url, "system", self.admin_key)

    def namespace(self, name: str) -> As:
        """A new namespace, and a caller with a key of it."""
        with self.admin() as admin:
            assert admin.post("/auth/namespaces", {"name": name}).status_code == 201
            made = admin.post(f"/auth/namespaces/{name}/keys", {"name": "first"})
            assert made.status_code == 201, made.text
        return As.login(self.url, name, made.json()["key"])

    def node(self, name: str, *, labels: Mapping[str, str] | None = None, **metrics: Any) -> None:
        """A registered node with a fresh sample.

        What is placed anywhere may come here, and what this test places anywhere may go to others' nodes and meet
        there what they left behind: charges, and the load that is expected of them. A test whose answer depends on
        that gives its nodes a label of its own, and asks for it.
        """
        declared = {"name": name, "backend": "simulated", **({"labels": labels} if labels else {})}
        with self.admin() as admin:
            assert admin.post("/nodes", declared).status_code in {200, 201}
            answer = admin.put(f"/nodes/{name}/metrics", {"metrics": {**METRICS, **metrics}})
            assert answer.status_code == 200, answer.text


@dataclass
class As:
    """A caller with a token."""

    client: httpx.Client
    token: str
    headers: dict[str, str] = field(default_factory=dict)

    @classmethod
    def login(cls, url: str, namespace: str, key: str) -> As:
        client = httpx.Client(base_url=url, timeout=ANSWER_SECONDS_MAX)
        answer = client.post("/auth", json={"namespace": namespace, "key": key})
        assert answer.status_code == 200, answer.text
        return cls.with_token(client, answer.json()["token"])

    @classmethod
    def with_token(cls, client: httpx.Client, token: str) -> As:
        return cls(client, token, {"Authorization": f"Bearer {token}"})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.client.close()

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> httpx.Response:
        sent = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
        return self.client.request(method, path, json=body, headers=sent)

    def raw(self, method: str, path: str, content: Any, **headers: str) -> httpx.Response:
        sent = {"Content-Type": "application/json", **self.headers}
        sent |= {name.replace("_", "-"): value for name, value in headers.items()}
        return self.client.request(method, path, content=content, headers=sent)

    def get(self, path: str) -> httpx.Response:
        return self.call("GET", path)

    def post(self, path: str, body: Any = None, **headers: str) -> httpx.Response:
        return self.call("POST", path, body, **headers)

    def put(self, path: str, body: Any = None) -> httpx.Response:
        return self.call("PUT", path, body)

    def delete(self, path: str) -> httpx.Response:
        return self.call("DELETE", path)


@dataclass
class Ended:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)


@contextmanager
def served_on(request: pytest.FixtureRequest, folder: Path, *, workers: int = 2) -> Iterator[Served]:
    """`sf-api` on the database that a fixture's parameter names: `sqlite`, or `mariadb`."""
    with ExitStack() as stack:
        url = f"sqlite:///{folder / 'ledger.db'}"
        if request.param == "mariadb":
            url = stack.enter_context(fresh_database(request.getfixturevalue("mariadb")))
        redis_url = request.getfixturevalue("redis_server").url()
        yield stack.enter_context(Served(folder, url, redis_url, workers=workers))


def somewhere() -> str:
    """A loopback address that no other test calls from: failures are counted by address, of all tests together."""
    return f"127.{1 + secrets.randbelow(250)}.{secrets.randbelow(250)}.{2 + secrets.randbelow(250)}"


def calling_from(served: Served, address: str) -> httpx.Client:
    transport = httpx.HTTPTransport(local_address=address)
    return httpx.Client(base_url=served.url, timeout=ANSWER_SECONDS_MAX, transport=transport)


def clean_environment() -> dict[str, str]:
    """The environment without this machine's own FLEET_ variables, and without a terminal's size: it wraps lines."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("FLEET_") and name not in {"COLUMNS", "LINES"}
    }


def assert_problem(answer: httpx.Response, status: int, code: str, field_name: str | None = None) -> dict[str, Any]:
    """The problem document of a refusal that names a field (`a` also names `a.b` and `a.0`)."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    document: dict[str, Any] = answer.json()
    assert (document["status"], document["code"]) == (status, code)
    assert document["type"] == f"urn:fleet:problem:{code}"
    assert document["title"]
    assert document["detail"]
    if field_name is not None:
        fields = [item["field"] for item in document["errors"]]
        assert any(name == field_name or name.startswith(f"{field_name}.") for name in fields), document
        assert field_name in document["detail"]
    return document


Names = Callable[[str], str]
"""What the fixture `new_name` is: names that no other test uses."""

Fleet = Callable[..., Ended]
"""What the fixture `fleet` is: a command line, run as the admin."""
