"""Revoked means revoked everywhere: once the answer is read, no process lets in who comes with what was revoked.

Several processes are hammered with the old token while it is revoked. A request counts as a breach when it began after
the answer was there and succeeded all the same.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime, timedelta
from typing import Any

import httpx
import pytest

from fleet.ledger import namespaces
from fleet.ledger.database import Database
from fleet.services.authentication import ALIVE_SECONDS, FORGOTTEN_SECONDS, Authenticator, hashed
from tests.e2e.served import ANSWER_SECONDS_MAX, METRICS, As, Names, Served, calling_from, served_on, somewhere
from tests.e2e.test_api_authenticator import HERE, SECRET, Clock, Counted
from tests.servers import wait_until

WORKERS = 4
HAMMERS = 6
AFTER_SECONDS = 1.5
BEFORE_REQUESTS = 60
HEARS_NOTHING_SECONDS = 0.3
GRACES = (4, 16, 64, 256)
"""Seconds: on a machine on which a grace is over before the former secret is used once, the next one is longer."""


@pytest.fixture(scope="module", params=["sqlite", "mariadb"])
def crowd(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """An API of many processes."""
    with served_on(request, tmp_path_factory.mktemp("crowd"), workers=WORKERS) as running:
        yield running


class Hammering:
    """Requests with one token on connections to all processes, until told to stop; each with when it began."""

    def __init__(self, served: Served, token: str, method: str, path: str, body: Any = None) -> None:
        self._served = served
        self._request = (method, path, body)
        self._headers = {"Authorization": f"Bearer {token}"}
        self._stop = threading.Event()
        self._lock = threading.Lock()
        self.seen: list[tuple[float, int]] = []

    def hammer(self) -> None:
        method, path, body = self._request
        address = somewhere()
        while not self._stop.is_set():
            # A new connection now and then: the kernel gives it to any of the processes.
            with calling_from(self._served, address) as client:
                for _ in range(5):
                    began = time.monotonic()
                    status = client.request(method, path, json=body, headers=self._headers).status_code
                    with self._lock:
                        self.seen.append((began, status))

    def begun(self, since: float) -> int:
        """How many requests that began after `since` are answered."""
        with self._lock:
            return sum(1 for began, _status in self.seen if began > since)

    def successes(self, since: float) -> int:
        with self._lock:
            return sum(1 for began, status in self.seen if began > since and status < 300)

    def around(self, revoke: Callable[[], httpx.Response]) -> tuple[httpx.Response, float]:
        """Revoke amid the hammering; return the answer and when it was there."""
        with ThreadPoolExecutor(HAMMERS) as pool:
            hammers = [pool.submit(self.hammer) for _ in range(HAMMERS)]
            try:
                wait_until(
                    lambda: self.successes(0.0) >= BEFORE_REQUESTS,
                    seconds=120,
                    what="the token lets enough requests in",
                )
                answer = revoke()
                answered = time.monotonic()
                time.sleep(AFTER_SECONDS)
                # On a busy machine that time alone may hold none.
                wait_until(
                    lambda: self.begun(answered) > HAMMERS, seconds=60, what="enough requests begin after the answer"
                )
            finally:
                self._stop.set()
            for hammer in hammers:
                hammer.result(60)
        return answer, answered


def assert_gone(hammering: Hammering, revoke: Callable[[], httpx.Response], status: int) -> None:
    answer, answered = hammering.around(revoke)

    assert answer.status_code == status, answer.text
    after = [code for began, code in hammering.seen if began > answered]
    assert len(after) > HAMMERS
    assert set(after) <= {401, 429}, f"{hammering.successes(answered)} of {len(after)} were let in"


def test_a_deleted_key_is_gone_in_every_process(crowd: Served, new_name: Names) -> None:
    name = new_name("ns")
    with crowd.namespace(name) as owner, crowd.admin() as admin:
        hammering = Hammering(crowd, owner.token, "GET", "/instances")

        assert_gone(hammering, lambda: admin.delete(f"/auth/namespaces/{name}/keys/first"), 204)


def test_a_rotated_keys_former_secret_is_gone_in_every_process(crowd: Served, new_name: Names) -> None:
    name = new_name("ns")
    with crowd.namespace(name) as owner:
        hammering = Hammering(crowd, owner.token, "GET", "/instances")

        # The owner itself: the request that rotates its key is its token's last.
        assert_gone(hammering, lambda: owner.post(f"/auth/namespaces/{name}/keys/first/rotate", {}), 201)


def test_a_deleted_namespaces_tokens_are_gone_in_every_process(crowd: Served, new_name: Names) -> None:
    name = new_name("ns")
    with crowd.namespace(name) as owner, crowd.admin() as admin:
        hammering = Hammering(crowd, owner.token, "GET", "/instances")

        assert_gone(hammering, lambda: admin.delete(f"/auth/namespaces/{name}"), 204)


@pytest.mark.parametrize(("method", "path", "status"), [("POST", "/token", 201), ("DELETE", "/token", 204)])
def test_a_nodes_former_token_is_gone_in_every_process(
    crowd: Served, new_name: Names, method: str, path: str, status: int
) -> None:
    node = new_name("n")
    crowd.node(node)
    with crowd.admin() as admin:
        token = admin.post(f"/nodes/{node}/token").json()["token"]
        hammering = Hammering(crowd, token, "PUT", f"/nodes/{node}/metrics", {"metrics": METRICS})

        assert_gone(hammering, lambda: admin.call(method, f"/nodes/{node}{path}"), status)


def test_a_removed_nodes_token_is_gone_in_every_process(crowd: Served, new_name: Names) -> None:
    node = new_name("n")
    crowd.node(node)
    with crowd.admin() as admin:
        token = admin.post(f"/nodes/{node}/token").json()["token"]
        hammering = Hammering(crowd, token, "GET", "/operations")

        assert_gone(hammering, lambda: admin.delete(f"/nodes/{node}"), 204)


def test_who_did_not_hear_the_first_answer_is_told_that_it_is_gone_only_when_it_is(
    crowd: Served, new_name: Names
) -> None:
    name, ledger = new_name("ns"), Database(crowd.database_url)
    with crowd.namespace(name) as owner, crowd.admin() as admin:
        hammering = Hammering(crowd, owner.token, "GET", "/instances")

        def twice() -> httpx.Response:
            patience = httpx.Timeout(ANSWER_SECONDS_MAX, read=HEARS_NOTHING_SECONDS)
            with httpx.Client(base_url=crowd.url, timeout=patience) as deaf, pytest.raises(httpx.ReadTimeout):
                deaf.delete(f"/auth/namespaces/{name}/keys/first", headers=admin.headers)
            wait_until(lambda: namespaces.key(ledger, name, "first") is None, seconds=60, what="the key is deleted")
            return admin.delete(f"/auth/namespaces/{name}/keys/first")

        assert_gone(hammering, twice, 404)
    ledger.close()


class SlowLedger:
    """A ledger whose answer is long under way: the key is deleted, and more time passes, before it is there."""

    def __init__(self, database: Database, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
        self._read = namespaces.credentials
        self._database, self._clock = database, clock
        self.delete_during_read = False
        monkeypatch.setattr(namespaces, "credentials", self.credentials)

    def credentials(self, *arguments: Any, **more: Any) -> list[namespaces.Credential]:
        found = self._read(*arguments, **more)
        if self.delete_during_read:
            namespaces.delete_key(self._database, "tenant", "k1")
            self._clock.now += FORGOTTEN_SECONDS
        return found


def test_what_was_read_before_the_commit_is_not_remembered_longer_for_being_slow(
    ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fleet.ledger.migrate import migrate

    database, clock = Database(ledger_url), Clock()
    migrate(database)
    namespaces.create(database, "tenant")
    namespaces.create_key(database, "tenant", "k1", hashed("k1.secret"), lifetime_us=None)
    authenticator = Authenticator(database, secret=SECRET, clock=clock, elapsed=clock, failures=Counted())
    token = authenticator.login("tenant", "k1.secret", HERE).token
    slow = SlowLedger(database, clock, monkeypatch)
    slow.delete_during_read = True

    # This one began before the answer to the deletion, and is let in. It must not take others with it.
    assert authenticator.verify(token, HERE).namespace == "tenant"

    assert authenticator.remembered(token) is None
    database.close()


def test_the_wait_outlasts_what_a_process_remembers() -> None:
    assert FORGOTTEN_SECONDS >= ALIVE_SECONDS * 1.05


@pytest.mark.timeout(600)
def test_a_key_within_its_grace_still_works_and_then_ends_with_its_tokens(crowd: Served, new_name: Names) -> None:
    assert any(worked_and_ended(crowd, new_name("ns"), seconds) for seconds in GRACES)


def worked_and_ended(crowd: Served, name: str, seconds: int) -> bool:
    """Whether the former secret's token was let in within the grace; it is refused only when that is over."""
    with crowd.admin() as admin, crowd.namespace(name) as owner:
        rotated = owner.post(f"/auth/namespaces/{name}/keys/first/rotate", {"grace_seconds": seconds}).json()
        ends, began = (datetime.fromisoformat(rotated[at]) for at in ("former_ends_at", "created_at"))
        assert ends - began == timedelta(seconds=seconds)
        worked = owner.get("/instances").status_code == 200
        with As.login(crowd.url, name, rotated["key"]) as fresh:
            wait_until(lambda: owner.get("/instances").status_code != 200, seconds=seconds + 60, what="the grace ends")
            assert crowd.now() >= ends
            (listed,) = admin.get(f"/auth/namespaces/{name}/keys").json()["items"]
            assert listed["former_ends_at"] is None
            assert fresh.get("/instances").status_code == 200
    return worked
