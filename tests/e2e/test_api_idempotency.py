"""One key, one answer: a retry after a lost answer gets the first one, on every POST that creates something."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, cast

import httpx
import pytest
from starlette.testclient import TestClient

from fleet import bootstrap
from fleet.api import dependencies
from fleet.api.addresses import TrustedProxies
from fleet.api.app import create_app
from fleet.api.dependencies import Services
from fleet.config import load_settings
from fleet.ledger.idempotency import KEPT_SECONDS
from fleet.services.authentication import Authenticator, Caller
from fleet.services.database_clock import DatabaseClock
from tests.e2e.served import ANSWER_SECONDS_MAX, SECRET, As, Names, Served, assert_problem
from tests.e2e.test_api_authenticator import Counted
from tests.ledger import past

SHAPE = {"name": "web", "cpus": 1, "memory_mb": 128, "disk_gb": 1}


Post = Callable[[str, Any, str], Any]
"""What a path answers to a body and a retry key."""


@contextlib.contextmanager
def a_day_ago(served: Served) -> Iterator[TestClient]:
    """The same service, asked by the admin when answers were given that are over by now."""
    context = bootstrap.build(load_settings(served.config, {}), {})
    clock, failures = DatabaseClock(context.database, time.monotonic), cast(Any, Counted())
    authenticator = Authenticator(
        context.database, secret=SECRET, clock=clock, elapsed=time.monotonic, failures=failures
    )
    proxies = TrustedProxies.of(())
    app = create_app(
        Services(
            context=context, authenticator=authenticator, failures=failures, secret=SECRET, trusted_proxies=proxies
        )
    )
    app.dependency_overrides[dependencies.caller] = lambda: Caller(namespace="system", key="test")
    with contextlib.closing(context.database), past.ago(context.database, KEPT_SECONDS + 60), TestClient(app) as client:
        yield client


@pytest.fixture(scope="module", autouse=True)
def node(served: Served) -> None:
    served.node("idempotent", memory_max=2**20, memory_available=2**20)


def test_a_repeated_create_gets_the_first_answer_and_makes_nothing(owner: As) -> None:
    first = owner.post("/instances", SHAPE, Idempotency_Key="one")
    again = owner.post("/instances", SHAPE, Idempotency_Key="one")
    # The same body with its fields in another order is the same body.
    turned = owner.post("/instances", dict(reversed(SHAPE.items())), Idempotency_Key="one")

    assert [answer.status_code for answer in (first, again, turned)] == [201, 201, 201]
    assert first.json() == again.json() == turned.json()
    assert first.headers["location"] == again.headers["location"]
    assert len(owner.get("/instances").json()["items"]) == 1


def test_another_body_under_the_same_key_is_422(owner: As) -> None:
    owner.post("/instances", SHAPE, Idempotency_Key="one")

    assert_problem(owner.post("/instances", {**SHAPE, "cpus": 2}, Idempotency_Key="one"), 422, "idempotency_mismatch")
    assert len(owner.get("/instances").json()["items"]) == 1


def test_a_key_belongs_to_its_namespace(served: Served, owner: As, new_name: Names) -> None:
    first = owner.post("/instances", SHAPE, Idempotency_Key="shared")
    with served.namespace(new_name("ns")) as other:
        theirs = other.post("/instances", SHAPE, Idempotency_Key="shared")

    assert theirs.status_code == 201
    assert theirs.json()["uuid"] != first.json()["uuid"]


def test_the_admin_under_a_namespaces_key_does_not_get_that_namespaces_answer(
    served: Served, admin: As, new_name: Names
) -> None:
    name = new_name("ns")
    with served.namespace(name) as owner:
        body = {**SHAPE, "namespace": name}
        first = owner.post("/instances", body, Idempotency_Key=name)
        theirs = admin.post("/instances", body, Idempotency_Key=name)

    assert first.status_code == theirs.status_code == 201
    assert first.json()["uuid"] != theirs.json()["uuid"]


def test_after_a_refusal_the_same_key_tries_again(served: Served, owner: As) -> None:
    huge = {**SHAPE, "cpus": 15, "memory_mb": 64}
    refused = owner.post("/instances", {**huge, "cpus": 999}, Idempotency_Key="again")
    once_more = owner.post("/instances", {**huge, "cpus": 999}, Idempotency_Key="again")

    assert_problem(refused, 507, "out_of_capacity")
    assert_problem(once_more, 507, "out_of_capacity")
    assert refused.json()["decision_id"] != once_more.json()["decision_id"]
    # Nothing was kept for the key, so another body may use it.
    assert owner.post("/instances", SHAPE, Idempotency_Key="again").status_code == 201


def test_duplicates_at_the_same_time_make_one_thing(owner: As) -> None:
    answers: list[httpx.Response] = []
    barrier = threading.Barrier(6)

    def ask() -> None:
        with httpx.Client(base_url=owner.client.base_url, timeout=ANSWER_SECONDS_MAX) as client:
            caller = As.with_token(client, owner.token)
            barrier.wait()
            answers.append(caller.post("/instances", SHAPE, Idempotency_Key="at once"))

    threads = [threading.Thread(target=ask) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    placed = [answer.json()["uuid"] for answer in answers if answer.status_code == 201]
    waiting = [answer for answer in answers if answer.status_code == 409]
    assert len(placed) + len(waiting) == 6
    assert all(answer.headers["retry-after"] == "1" for answer in waiting)
    assert len(set(placed)) == 1
    assert len(owner.get("/instances").json()["items"]) == 1


CREATING: tuple[tuple[str, Callable[[str], dict[str, Any]]], ...] = (
    ("/auth/namespaces", lambda name: {"name": name}),
    ("/auth/namespaces/system/keys", lambda name: {"name": name, "expires_in_seconds": 600}),
    ("/nodes", lambda name: {"name": name, "region": "eu"}),
)


@pytest.mark.parametrize(("path", "body"), CREATING, ids=[path for path, _ in CREATING])
def test_every_post_that_creates_something_honours_the_key(
    admin: As, new_name: Names, path: str, body: Callable[[str], dict[str, Any]]
) -> None:
    name, key = new_name("made"), new_name("key")

    first = admin.post(path, body(name), Idempotency_Key=key)
    again = admin.post(path, body(name), Idempotency_Key=key)
    mismatch = admin.post(path, {**body(name), "name": f"{name}x"}, Idempotency_Key=key)

    assert first.status_code == again.status_code == 201, again.text
    stable = {key: value for key, value in first.json().items() if key != "sample_age_seconds"}
    assert stable.items() <= again.json().items()
    assert_problem(mismatch, 422, "idempotency_mismatch")


def test_a_key_told_again_still_buys_tokens(served: Served, admin: As, new_name: Names) -> None:
    name, key = new_name("made"), new_name("key")
    admin.post("/auth/namespaces/system/keys", {"name": name}, Idempotency_Key=key)
    again = admin.post("/auth/namespaces/system/keys", {"name": name}, Idempotency_Key=key)

    with As.login(served.url, "system", again.json()["key"]) as caller:
        assert caller.get("/nodes").status_code == 200


def test_without_a_key_a_second_one_is_a_conflict(admin: As, new_name: Names) -> None:
    name = new_name("made")
    for path in ("/auth/namespaces", "/auth/namespaces/system/keys"):
        assert admin.post(path, {"name": name}).status_code == 201
        assert_problem(admin.post(path, {"name": name}), 409, "conflict")


def test_a_retry_key_used_again_a_day_later_brings_no_revoked_secret_back(
    served: Served, admin: As, new_name: Names
) -> None:
    name, node = new_name("ns"), new_name("hv")
    assert admin.post("/auth/namespaces", {"name": name}).status_code == 201
    assert admin.post("/nodes", {"name": node, "backend": "simulated"}).status_code == 201
    keys = f"/auth/namespaces/{name}/keys"

    def told(post: Post) -> list[str]:
        made = post(keys, {"name": "ci"}, f"make-{name}")["key"]
        rotated = post(f"{keys}/ci/rotate", {}, f"rotate-{name}")["key"]
        token = post(f"/nodes/{node}/token", None, f"token-{name}")["token"]
        return [made, rotated, token]

    with a_day_ago(served) as client:

        def then(path: str, body: Any, key: str) -> Any:
            return client.post(path, json=body, headers={"Idempotency-Key": key}).json()

        first = told(then)
        assert told(then) == first
        assert client.delete(f"{keys}/ci").status_code == 204

    later = told(lambda path, body, key: admin.post(path, body, Idempotency_Key=key).json())

    assert set(later).isdisjoint(first)
    logins = [admin.client.post("/auth", json={"namespace": name, "key": key}).status_code for key in first[:2]]
    assert logins == [401, 401]
    assert admin.client.post("/auth", json={"namespace": name, "key": later[1]}).status_code == 200
