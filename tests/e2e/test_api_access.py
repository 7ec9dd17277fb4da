"""Who may do what: nothing of another namespace is seen, touched or even confirmed to exist."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import httpx
import jwt
import pytest

from tests.e2e.served import SECRET, As, Names, Served, assert_problem, calling_from, somewhere
from tests.servers import wait_until

SHAPE = {"name": "web", "cpus": 1, "memory_mb": 128, "disk_gb": 1}
KEY_LIVES = (3, 12, 48, 192)
"""Seconds: on a machine on which a key ends before it is used once, the next one lives longer."""

WHOLE_SECONDS = timedelta(seconds=2)
"""A token begins at a whole second and lives for whole ones: so long before its key's end may be its own."""


@dataclass
class Two:
    """An owner with an instance, and somebody else."""

    owner: As
    owner_name: str
    other: As
    other_name: str
    instance: dict[str, Any]


@pytest.fixture
def two(served: Served, new_name: Names) -> Iterator[Two]:
    served.node("access", memory_max=2**20, memory_available=2**20)
    owner_name, other_name = new_name("owner"), new_name("other")
    with served.namespace(owner_name) as owner, served.namespace(other_name) as other:
        made = owner.post("/instances", SHAPE)
        assert made.status_code == 201, made.text
        yield Two(owner, owner_name, other, other_name, made.json())


def without_incident(answer: httpx.Response) -> tuple[int, Any, set[str]]:
    return answer.status_code, answer.json(), set(answer.headers) - {"date"}


def test_what_is_anothers_looks_exactly_like_what_is_not_there(two: Two) -> None:
    mine, nobodys = two.instance, str(uuid.uuid4())
    pairs = [
        ("GET", f"/instances/{mine['uuid']}", f"/instances/{nobodys}", None),
        ("DELETE", f"/instances/{mine['uuid']}", f"/instances/{nobodys}", None),
        ("GET", f"/instances/{mine['uuid']}/events", f"/instances/{nobodys}/events", None),
        ("GET", f"/decisions/{mine['decision_id']}/events", f"/decisions/{nobodys}/events", None),
        ("POST", f"/instances/{mine['uuid']}/stop", f"/instances/{nobodys}/stop", None),
        ("POST", f"/instances/{mine['uuid']}/migrate", f"/instances/{nobodys}/migrate", {}),
        ("GET", f"/decisions/{mine['decision_id']}", f"/decisions/{nobodys}", None),
        ("GET", f"/operations/{mine['operation_id']}", f"/operations/{nobodys}", None),
        ("GET", f"/auth/namespaces/{two.owner_name}", "/auth/namespaces/nobody", None),
        ("GET", f"/auth/namespaces/{two.owner_name}/keys", "/auth/namespaces/nobody/keys", None),
        ("GET", f"/auth/namespaces/{two.owner_name}/events", "/auth/namespaces/nobody/events", None),
        ("POST", f"/auth/namespaces/{two.owner_name}/keys", "/auth/namespaces/nobody/keys", {"name": "mine"}),
        ("DELETE", f"/auth/namespaces/{two.owner_name}/keys/first", "/auth/namespaces/nobody/keys/first", None),
        ("GET", f"/instances?namespace={two.owner_name}", "/instances?namespace=nobody", None),
    ]
    for method, existing, absent, body in pairs:
        seen = two.other.call(method, existing, body)
        not_there = two.other.call(method, absent, body)

        assert_problem(seen, 404, "not_found")
        assert without_incident(seen) == without_incident(not_there), (method, existing)


def test_nothing_is_placed_in_another_namespace(two: Two) -> None:
    for path in ("/instances", "/placements/explain"):
        theirs = two.other.post(path, {**SHAPE, "namespace": two.owner_name})
        nobodys = two.other.post(path, {**SHAPE, "namespace": "nobody"})

        assert_problem(theirs, 404, "not_found")
        assert theirs.json() == nobodys.json()
    assert [item["uuid"] for item in two.owner.get("/instances").json()["items"]] == [two.instance["uuid"]]


def test_lists_hold_only_ones_own(two: Two) -> None:
    for path in ("/instances", "/decisions", "/operations", f"/operations?instance={two.instance['uuid']}"):
        assert two.other.get(path).json()["items"] == [], path
        assert len(two.owner.get(path).json()["items"]) == 1, path
    assert two.other.get(f"/decisions?instance={two.instance['uuid']}").json()["items"] == []
    assert [item["name"] for item in two.other.get("/auth/namespaces").json()["items"]] == [two.other_name]


def test_the_owner_still_has_everything_after_all_that(two: Two) -> None:
    two.other.delete(f"/instances/{two.instance['uuid']}")

    found = two.owner.get(f"/instances/{two.instance['uuid']}").json()

    assert (found["state"], found["namespace"]) == ("creating", two.owner_name)
    assert two.owner.get(f"/decisions/{two.instance['decision_id']}").status_code == 200
    assert two.owner.get(f"/instances/{two.instance['uuid']}/events").json()["items"]


def test_the_admin_may_name_another_namespace_that_exists(two: Two, admin: As) -> None:
    made = admin.post("/instances", {**SHAPE, "namespace": two.owner_name})

    assert made.status_code == 201, made.text
    assert two.owner.get(f"/instances/{made.json()['uuid']}").json()["namespace"] == two.owner_name
    assert_problem(admin.post("/instances", {**SHAPE, "namespace": "nobody"}), 404, "not_found")


ADMIN_VERBS = (
    ("GET", "/nodes"),
    ("POST", "/nodes"),
    ("GET", "/nodes/access"),
    ("GET", "/nodes/absent"),
    ("GET", "/nodes/not%20a%20name"),
    ("PUT", "/nodes/access"),
    ("DELETE", "/nodes/access"),
    ("DELETE", "/nodes/absent"),
    ("GET", "/nodes/access/events"),
    ("PUT", "/nodes/access/metrics"),
    ("POST", "/nodes/access/cordon"),
    ("POST", "/nodes/access/uncordon"),
    ("POST", "/nodes/access/drain"),
    ("POST", "/nodes/access/token"),
    ("PUT", "/nodes/access/gpus"),
    ("POST", "/auth/namespaces"),
    ("DELETE", "/auth/namespaces/system"),
    ("DELETE", "/auth/namespaces/nobody"),
    ("GET", "/auth/namespaces/nobody/claims"),
    ("POST", "/operations/00000000-0000-4000-8000-000000000000/retry"),
    ("POST", "/operations/00000000-0000-4000-8000-000000000000/cancel"),
    ("GET", "/admin/resources"),
    ("GET", "/admin/cluster-capacity"),
    ("GET", "/admin/snapshot"),
    ("GET", "/decisions/00000000-0000-4000-8000-000000000000/inputs"),
    ("POST", "/admin/ledger/verify"),
    ("GET", "/admin/config"),
    ("GET", "/admin/events"),
    ("GET", "/admin/config/CPU_OVERCOMMIT_RATIO"),
    ("GET", "/admin/config/NO_SUCH_KEY"),
    ("PUT", "/admin/config/CPU_OVERCOMMIT_RATIO"),
    ("DELETE", "/admin/config/CPU_OVERCOMMIT_RATIO"),
)


def test_admin_verbs_are_forbidden_before_anything_is_looked_up(two: Two) -> None:
    answers = [two.owner.call(method, path, {"bogus": 1}) for method, path in ADMIN_VERBS]

    documents = {str(assert_problem(answer, 403, "forbidden")) for answer in answers}
    assert len(documents) == 1


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/nodes/absent"),
        ("PUT", "/nodes/absent"),
        ("DELETE", "/nodes/absent"),
        ("GET", "/nodes/absent/events"),
        ("PUT", "/nodes/absent/metrics"),
        ("POST", "/nodes/absent/cordon"),
        ("POST", "/nodes/absent/uncordon"),
    ],
)
def test_every_path_of_an_absent_node_answers_in_the_same_words(admin: As, method: str, path: str) -> None:
    body = {"/nodes/absent": {"region": "north"}, "/nodes/absent/metrics": {"metrics": {}}}.get(path)

    answer = admin.call(method, path, body if method == "PUT" else None)

    assert assert_problem(answer, 404, "not_found")["detail"] == "no such node"


TOKEN_VERBS = (
    ("GET", "/instances"),
    ("POST", "/instances"),
    ("GET", "/instances/not-a-uuid"),
    ("POST", "/placements/explain"),
    ("GET", "/decisions"),
    ("GET", "/operations"),
    ("GET", "/auth/namespaces"),
    *ADMIN_VERBS,
)


def forged(**claims: Any) -> str:
    good = {"ns": "system", "key": "admin-file.control", "made": 1, "exp": int(time.time()) + 60}
    return jwt.encode({**good, **claims}, SECRET, algorithm="HS256")


def bad_tokens() -> dict[str, str]:
    none = jwt.encode({"ns": "system", "key": "k", "made": 1, "exp": 2**40}, "", algorithm="none")
    other = jwt.encode({"ns": "system", "key": "k", "made": 1, "exp": 2**40}, "x" * 40, algorithm="HS256")
    return {
        "no scheme": "",
        "empty": "Bearer",
        "another scheme": "Basic c3lzdGVtOng=",
        "nonsense": "Bearer nonsense",
        "three parts": "Bearer a.b.c",
        "unsigned": f"Bearer {none}",
        "signed by another": f"Bearer {other}",
        "a key that is not there": f"Bearer {forged(key='gone')}",
        "a key made at another time": f"Bearer {forged()}",
        "a namespace that is not there": f"Bearer {forged(ns='nobody')}",
        "endless": "Bearer " + "x" * 20_000,
    }


def test_without_a_good_token_every_verb_answers_the_same_401(served: Served) -> None:
    with served.client() as client:
        documents = set()
        for header in bad_tokens().values():
            answer = client.get("/instances", headers={"Authorization": header})
            documents.add(str(assert_problem(answer, 401, "unauthenticated")))
            assert answer.headers["www-authenticate"] == "Bearer"
        for method, path in TOKEN_VERBS:
            answer = client.request(method, path, json={"bogus": 1})
            documents.add(str(assert_problem(answer, 401, "unauthenticated")))
    assert len(documents) == 1


def test_an_expired_token_is_a_401(served: Served, admin: As) -> None:
    claims = jwt.decode(admin.token, SECRET, algorithms=["HS256"])
    fresh = As.with_token(admin.client, jwt.encode(claims, SECRET, algorithm="HS256"))
    expired = As.with_token(
        admin.client, jwt.encode({**claims, "exp": int(time.time()) - 1}, SECRET, algorithm="HS256")
    )

    assert fresh.get("/nodes").status_code == 200
    assert_problem(expired.get("/nodes"), 401, "unauthenticated")


def test_a_wrong_key_and_an_unknown_namespace_are_answered_alike(served: Served, two: Two) -> None:
    wrong = [
        {"namespace": two.owner_name, "key": "first.wrong"},
        {"namespace": two.owner_name, "key": "absent.wrong"},
        {"namespace": two.owner_name, "key": served.admin_key},
        {"namespace": "nobody", "key": "first.wrong"},
        {"namespace": "system", "key": "wrong"},
        {"namespace": "system", "key": "admin-file.control." + served.admin_key},
        {"namespace": "a b", "key": "wrong"},
        {"namespace": "system", "key": "%"},
    ]
    with served.client() as client:
        documents = {str(assert_problem(client.post("/auth", json=body), 401, "unauthenticated")) for body in wrong}
    assert len(documents) == 1


def test_a_key_of_one_namespace_buys_nothing_of_another(served: Served, two: Two, admin: As) -> None:
    key = admin.post(f"/auth/namespaces/{two.owner_name}/keys", {"name": "second"}).json()["key"]

    with served.client() as client:
        good = client.post("/auth", json={"namespace": two.owner_name, "key": key})
        assert good.status_code == 200
        assert good.headers["cache-control"] == "no-store"
        assert 0 < good.json()["expires_in"] <= 3600
        assert_problem(client.post("/auth", json={"namespace": two.other_name, "key": key}), 401, "unauthenticated")
        assert_problem(client.post("/auth", json={"namespace": "system", "key": key}), 401, "unauthenticated")


def stops(served: Served, caller: As) -> bool:
    """All workers refuse it: each connection may meet another one."""
    with calling_from(served, somewhere()) as client:
        return client.get("/instances", headers=caller.headers).status_code == 401


def stays_out(served: Served, caller: As) -> None:
    wait_until(lambda: all(stops(served, caller) for _ in range(6)), seconds=60, what="the token stops working")


def test_tokens_stop_working_with_their_key(served: Served, admin: As, new_name: Names) -> None:
    name = new_name("ns")
    with served.namespace(name) as owner:
        assert owner.get("/instances").status_code == 200

        assert owner.delete(f"/auth/namespaces/{name}/keys/first").status_code == 204

        stays_out(served, owner)
        # A new key of the same name is another key.
        assert admin.post(f"/auth/namespaces/{name}/keys", {"name": "first"}).status_code == 201
        stays_out(served, owner)


@pytest.mark.timeout(600)
def test_a_key_ends_by_itself(served: Served, admin: As, new_name: Names) -> None:
    name = new_name("ns")
    assert admin.post("/auth/namespaces", {"name": name}).status_code == 201
    with served.client() as client:
        body, caller, ends = used_in_time(served, admin, client, name)

        stays_out(served, caller)
        # Each of the processes may be a moment behind the database's clock.
        wait_until(lambda: client.post("/auth", json=body).status_code != 200, seconds=60, what="the key ends")
        assert served.now() >= ends - WHOLE_SECONDS
        assert_problem(client.post("/auth", json=body), 401, "unauthenticated")


def used_in_time(served: Served, admin: As, client: httpx.Client, name: str) -> tuple[dict[str, str], As, datetime]:
    """A key that was let in, a token bought with it, and the key's end: each is refused only when its time is over."""
    for seconds in KEY_LIVES:
        key = {"name": f"lives-{seconds}", "expires_in_seconds": seconds}
        made = admin.post(f"/auth/namespaces/{name}/keys", key).json()
        ends, began = (datetime.fromisoformat(made[at]) for at in ("expires_at", "created_at"))
        assert ends - began == timedelta(seconds=seconds)
        body = {"namespace": name, "key": made["key"]}
        bought = client.post("/auth", json=body)
        if bought.status_code == 200:
            assert bought.json()["expires_in"] <= seconds
            caller = As.with_token(client, bought.json()["token"])
            if caller.get("/instances").status_code == 200:
                return body, caller, ends
        assert served.now() >= ends - WHOLE_SECONDS
    raise AssertionError(f"no key of {KEY_LIVES} seconds was used before its end")


def test_a_deleted_namespace_is_gone_with_its_keys_and_its_name_stays_reserved(
    served: Served, admin: As, new_name: Names
) -> None:
    name = new_name("ns")
    with served.namespace(name) as owner:
        assert admin.delete(f"/auth/namespaces/{name}").status_code == 204

        stays_out(served, owner)
    assert_problem(admin.get(f"/auth/namespaces/{name}"), 404, "not_found")
    assert_problem(admin.delete(f"/auth/namespaces/{name}"), 404, "not_found")
    document = assert_problem(admin.post("/auth/namespaces", {"name": name}), 409, "conflict")
    assert document["state"] == "deleted"


def test_a_namespace_with_instances_and_the_admin_are_not_deleted(two: Two, admin: As) -> None:
    document = assert_problem(admin.delete(f"/auth/namespaces/{two.owner_name}"), 409, "conflict")
    assert document["instances"] == 1
    assert_problem(admin.delete("/auth/namespaces/system"), 409, "conflict")


def test_no_answer_and_no_log_line_holds_a_secret(served: Served, admin: As, new_name: Names) -> None:
    name = new_name("ns")
    admin.post("/auth/namespaces", {"name": name})
    key = admin.post(f"/auth/namespaces/{name}/keys", {"name": "k"}).json()["key"]

    shown = [
        admin.get(path).text
        for path in (f"/auth/namespaces/{name}/keys", f"/auth/namespaces/{name}/events", "/admin/config", "/metrics")
    ]

    log = served.log.read_text()
    for secret in (key, key.partition(".")[2], served.admin_key, SECRET, admin.token):
        assert all(secret not in text for text in shown)
        assert secret not in log


def test_the_admin_key_file_is_private(served: Served) -> None:
    assert served.key_file.stat().st_mode & 0o777 == 0o600
    assert [path.name for path in served.folder.iterdir() if path.name.startswith(".admin")] == []
