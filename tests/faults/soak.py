"""A real sf-api and its clients: callers that create and delete over HTTP, note every answer, and keep their promises.

A caller does what the API tells it and nothing else: after a 503 or a lost connection it repeats the same request (a
create under its Idempotency-Key) until it has an answer that says what became of it. Every answer is kept, so a test
can say which of them a caller should never have seen.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import psutil

from fleet.ledger import instances
from fleet.ledger.database import Sql
from fleet.model.lifecycle import InstanceState
from tests.faults.rig import WAIT_SECONDS_MAX, Rig
from tests.servers import HOST, free_port, wait_until

CLIENT_SECONDS_MAX = 30.0
# How long a caller goes on asking for one answer; beyond it the request counts as never answered.
PATIENCE_SECONDS = 90.0
HELD_MAX = 6
LOST = 0
TIMED_OUT = -1

UNFINISHED = Sql("SELECT COUNT(*) FROM operations WHERE state IN ('pending', 'running')")
CHARGED = Sql("SELECT instance_uuid, node_id, settled_at FROM charges ORDER BY instance_uuid")


@dataclass(frozen=True, slots=True)
class Answer:
    """What a call got: `LOST` when the connection was dropped, `TIMED_OUT` when nothing came within the time-out."""

    status: int
    body: Any = None
    retry_after: str | None = None
    seconds: float = 0.0

    @property
    def code(self) -> str:
        """The problem document's code, or the empty string."""
        return str(self.body.get("code", "")) if isinstance(self.body, Mapping) else ""

    @property
    def asks_to_repeat(self) -> bool:
        """Whether the request should be sent again as it was."""
        return self.status in {LOST, TIMED_OUT} or (self.status in {409, 503} and self.retry_after is not None)


class Client:
    """One kept-alive connection with a time-out; it repeats nothing by itself."""

    def __init__(self, port: int, token: str = "") -> None:
        self._connection = http.client.HTTPConnection(HOST, port, timeout=CLIENT_SECONDS_MAX)
        self._headers = {"Authorization": f"Bearer {token}"} if token else {}

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def call(self, method: str, path: str, body: Any = None, *, key: str = "") -> Answer:
        """One request, one answer."""
        headers = {**self._headers, "Content-Type": "application/json"}
        headers |= {"Idempotency-Key": key} if key else {}
        data = None if body is None else json.dumps(body).encode()
        began = time.monotonic()
        try:
            self._connection.request(method, path, data, headers)
            response = self._connection.getresponse()
            content = response.read()
        except TimeoutError:
            self._connection.close()
            return Answer(TIMED_OUT, seconds=time.monotonic() - began)
        except (http.client.HTTPException, OSError):
            self._connection.close()
            return Answer(LOST, seconds=time.monotonic() - began)
        document = json.loads(content) if content.startswith(b"{") else content.decode()
        return Answer(response.status, document, response.headers.get("Retry-After"), time.monotonic() - began)

    def create(self, name: str, *, key: str = "", **fields: Any) -> Answer:
        """Ask for a small instance."""
        return self.call(
            "POST", "/instances", {"name": name, "cpus": 1, "memory_mb": 64, "disk_gb": 1, **fields}, key=key
        )

    def delete(self, uuid: str) -> Answer:
        """Ask for its end."""
        return self.call("DELETE", f"/instances/{uuid}")


class Api:
    """A real sf-api of a rig, on a port of its own, and how to call it."""

    def __init__(
        self, rig: Rig, *, workers: int = 1, database_url: str = "", wait: bool = True, faults: str = ""
    ) -> None:
        self.rig = rig
        self.port = free_port()
        key_file = rig.folder / "admin.key"
        rig.environment |= {
            "FLEET_API_HOST": HOST,
            "FLEET_API_PORT": str(self.port),
            "FLEET_API_WORKERS": str(workers),
            "FLEET_ADMIN_KEY_FILE": str(key_file),
        }
        own_url = rig.environment["FLEET_DATABASE_URL"]
        rig.environment["FLEET_DATABASE_URL"] = database_url or own_url
        self.process = rig.start("api", faults=faults)
        rig.environment["FLEET_DATABASE_URL"] = own_url
        self._key_file = key_file
        self._token = ""
        self._clients: list[Client] = []
        if wait:
            self.wait_until_ready()

    def wait_until_ready(self) -> None:
        """Return once it serves with its ledger."""
        wait_for(
            self.rig,
            lambda: self.process.poll() is not None or self.status("/readyz") == 200,
            what="sf-api is ready",
        )
        assert self.process.poll() is None, self.rig.logs()

    def status(self, path: str) -> int:
        """What a GET without a token answers: its status, or `LOST`."""
        return self.get(path).status

    def get(self, path: str) -> Answer:
        """A GET without a token, on a connection of its own."""
        client = Client(self.port)
        answer = client.call("GET", path)
        client.close()
        return answer

    def client(self) -> Client:
        """A caller of the namespace `system`."""
        if not self._token:
            login = Client(self.port)
            answer = login.call(
                "POST", "/auth", {"namespace": "system", "key": self._key_file.read_text(encoding="ascii").strip()}
            )
            login.close()
            assert answer.status == 200, answer
            self._token = answer.body["token"]
        self._clients.append(Client(self.port, self._token))
        return self._clients[-1]

    def close(self) -> None:
        """Close the callers' connections; the process is the rig's."""
        for client in self._clients:
            client.close()

    def worker_pids(self) -> set[int]:
        """The processes that serve, without their parent."""
        return {child.pid for child in psutil.Process(self.process.pid).children()}


StartApi = Callable[..., Api]


@contextlib.contextmanager
def apis_of(rig: Rig) -> Iterator[StartApi]:
    """Start as many as needed, with `Api`'s options; their callers' connections are closed at the end."""
    with contextlib.ExitStack() as stack:
        yield lambda **options: stack.enter_context(contextlib.closing(Api(rig, **options)))


@dataclass(slots=True)
class Told:
    """What one caller knows for certain, and every answer it ever got."""

    held: list[str] = field(default_factory=list)
    created: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    answers: list[Answer] = field(default_factory=list)
    unanswered: list[str] = field(default_factory=list)


class Soak:
    """Callers that create and delete at random, from `with` to its end."""

    def __init__(self, api: Api, *, callers: int = 6, seed: int = 1, pause_seconds: float = 0.03) -> None:
        self._api = api
        self._stop = threading.Event()
        self._pause_seconds = pause_seconds
        self.told = [Told() for _ in range(callers)]
        self._threads = [
            threading.Thread(target=self._call, args=(api.client(), told, number, random.Random(seed * 1000 + number)))
            for number, told in enumerate(self.told)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE_SECONDS + 2 * CLIENT_SECONDS_MAX)
        assert not any(thread.is_alive() for thread in self._threads), "a caller hangs"

    @property
    def answers(self) -> list[Answer]:
        """All answers so far."""
        return [answer for told in self.told for answer in list(told.answers)]

    def count(self, status: int) -> int:
        """How often that was answered."""
        return sum(answer.status == status for answer in self.answers)

    def goes_on(self, *, more: int = 20) -> None:
        """Wait until that many further creates were acknowledged."""
        before = self.count(201)
        try:
            wait_until(lambda: self.count(201) >= before + more, seconds=WAIT_SECONDS_MAX, what="work goes on")
        except TimeoutError as error:
            raise TimeoutError(f"{error}; {self.summary()}\n{self._api.rig.logs()}") from None

    def summary(self) -> str:
        """Answers by status and code, and the slowest."""
        counts = Counter(f"{answer.status} {answer.code}".strip() for answer in self.answers)
        slowest = max((answer.seconds for answer in self.answers), default=0.0)
        return f"{dict(counts)}, slowest {slowest:.1f} s"

    def _call(self, client: Client, told: Told, number: int, draw: random.Random) -> None:
        turn = 0
        while not self._stop.wait(self._pause_seconds):
            turn += 1
            if told.held and (len(told.held) >= HELD_MAX or draw.random() < 0.4):
                self._delete(client, told, told.held.pop(draw.randrange(len(told.held))))
            else:
                self._create(client, told, f"i{number}-{turn}")
        client.close()

    def _create(self, client: Client, told: Told, name: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while time.monotonic() < deadline:
            answer = client.create(name, key=f"key-{name}")
            told.answers.append(answer)
            if answer.status == 201:
                told.created.add(answer.body["uuid"])
                told.held.append(answer.body["uuid"])
            if not answer.asks_to_repeat:
                return
            time.sleep(0.2)
        told.unanswered.append(name)

    def _delete(self, client: Client, told: Told, uuid: str) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        lost = False
        while time.monotonic() < deadline:
            answer = client.delete(uuid)
            told.answers.append(answer)
            # Gone is an answer only to a repeated delete whose first answer never came.
            if answer.status == 202 or (answer.status == 404 and lost):
                told.deleted.add(uuid)
            elif answer.status == 404:
                told.unanswered.append(f"{uuid} was acknowledged and is gone")
            lost = lost or answer.status != 202
            if not answer.asks_to_repeat:
                return
            time.sleep(0.2)
        told.unanswered.append(uuid)


def wait_for(rig: Rig, done: Callable[[], bool], *, what: str) -> None:
    """Poll until it is so; who waits in vain is shown what the processes said."""
    try:
        wait_until(done, seconds=WAIT_SECONDS_MAX, what=what)
    except TimeoutError as error:
        raise TimeoutError(f"{error}\n{rig.logs()}") from None


def wait_until_all_is_done(rig: Rig) -> None:
    """Wait until no accepted operation is left."""

    def done() -> bool:
        with rig.db.read() as conn:
            return int(UNFINISHED.run(conn).scalar_one()) == 0

    wait_for(rig, done, what="all accepted operations end")


def assert_books_are_true(rig: Rig, created: set[str], deleted: set[str]) -> None:
    """Once all work is done: what was acknowledged is there and nothing else, each with one domain and one charge."""
    views = {view.uuid: view for view in everything(rig)}
    assert set(views) == created
    assert {uuid for uuid, view in views.items() if view.state is InstanceState.DELETED} == deleted
    alive = {uuid: view for uuid, view in views.items() if uuid not in deleted}
    assert {view.state for view in alive.values()} <= {InstanceState.RUNNING}
    with rig.db.read() as conn:
        charges = [tuple(row) for row in CHARGED.run(conn)]
    assert all(settled is not None for _, _, settled in charges)
    assert sorted((uuid, node_id) for uuid, node_id, _ in charges) == sorted(
        (uuid, view.node_id) for uuid, view in alive.items()
    )
    domains = [(domain.uuid, node.name) for node in rig.described for domain in rig.driver(node.name).domains()]
    assert sorted(domains) == sorted((uuid, view.node) for uuid, view in alive.items())
    assert rig.differences() == []


def everything(rig: Rig) -> Sequence[instances.InstanceView]:
    """Every instance that ever was, deleted ones too."""
    with rig.db.read() as conn:
        uuids = [str(row.uuid) for row in Sql("SELECT uuid FROM instances").run(conn)]
    return [rig.instance(uuid) for uuid in uuids]


def assert_only_honest_answers(soak: Soak, *, lost: bool) -> None:
    """Success or "try again" within the caller's time-out; a lost connection only where a process was killed."""
    allowed = {(201, ""), (202, ""), (404, "not_found"), (409, "conflict")}
    allowed |= {(503, "database_unavailable"), (503, "placement_busy")} | ({(LOST, "")} if lost else set())
    assert {(answer.status, answer.code) for answer in soak.answers} <= allowed, soak.summary()
    assert [told.unanswered for told in soak.told if told.unanswered] == [], soak.summary()
    assert {answer.retry_after for answer in soak.answers if answer.status in {409, 503}} <= {"1"}, soak.summary()
    assert max(answer.seconds for answer in soak.answers) < CLIENT_SECONDS_MAX
