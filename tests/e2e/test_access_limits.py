"""Failed logins over HTTP: the bound, whom it stops and whom not, what is recorded, and that no secret is anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from fleet.api.addresses import TrustedProxies
from fleet.ledger.database import Database, Sql
from fleet.services.failed_logins import MESSAGE, PAIR_MAX, TOKENS_MAX, WINDOW_SECONDS
from tests.e2e.served import (
    ANSWER_SECONDS_MAX,
    SECRET,
    As,
    Ended,
    Names,
    Served,
    assert_problem,
    calling_from,
    somewhere,
)


def login(client: httpx.Client, namespace: str, key: str, **headers: str) -> httpx.Response:
    return client.post("/auth", json={"namespace": namespace, "key": key}, headers=headers)


def counted_alone(served: Served) -> bool:
    """Whether Redis was late, by a quarter of a second: a process counts by itself then, for five seconds.

    So two counts may fill, one after the other, where else there is one.
    """
    return "auth.limits_in_memory" in served.log.read_text()


def until_refused(
    served: Served, fail: Callable[[int], httpx.Response], allowed: int = PAIR_MAX, *, begin: int = 0
) -> httpx.Response:
    """Fail until that is refused, which must be after as many failures as are allowed; the refusal.

    All on one connection: one process has both counts, and both are full before it is through with twice as many.
    `begin`: so many failures there were before.
    """
    for at in range(begin, 2 * allowed + 1):
        answer = fail(at)
        if answer.status_code == 429:
            assert at == allowed or (at > allowed and counted_alone(served)), at
            return answer
        assert_problem(answer, 401, "unauthenticated")
    raise AssertionError(f"{2 * allowed + 1} failures and no refusal")


def fails(client: httpx.Client, namespace: str, at: int, **headers: str) -> httpx.Response:
    return login(client, namespace, f"first.{at}", **headers)


@pytest.fixture
def attacked(served: Served, admin: As, new_name: Names) -> tuple[str, str]:
    """A namespace and its key."""
    name = new_name("ns")
    assert admin.post("/auth/namespaces", {"name": name}).status_code == 201
    return name, str(admin.post(f"/auth/namespaces/{name}/keys", {"name": "first"}).json()["key"])


def test_too_many_wrong_keys_are_answered_429_with_the_wait(served: Served, attacked: tuple[str, str]) -> None:
    name, key = attacked
    with calling_from(served, somewhere()) as client:
        until_refused(served, partial(fails, client, name))

        refused = login(client, name, key)

        document = assert_problem(refused, 429, "rate_limited")
        assert 0 < int(refused.headers["retry-after"]) <= WINDOW_SECONDS
        assert document["retry_after_seconds"] == int(refused.headers["retry-after"])
    # The same key from elsewhere is as good as ever.
    with calling_from(served, somewhere()) as client:
        assert login(client, name, key).status_code == 200


def test_a_namespace_that_is_not_there_is_limited_in_the_same_words(served: Served, attacked: tuple[str, str]) -> None:
    answers = []
    for name in (attacked[0], "nobody-at-all", "system"):
        with calling_from(served, somewhere()) as client:
            answers.append(until_refused(served, partial(fails, client, name)))

    details = {assert_problem(answer, 429, "rate_limited")["detail"].partition(";")[0] for answer in answers}
    assert details == {"too many failed logins to this namespace from this address"}


def test_an_attack_stops_neither_others_of_the_address_nor_the_admin_elsewhere(
    served: Served, attacked: tuple[str, str]
) -> None:
    name, key = attacked
    with calling_from(served, somewhere()) as client:
        for at in range(PAIR_MAX * 3):
            login(client, "system", f"wrong{at}")

        assert login(client, "system", served.admin_key).status_code == 429
        assert login(client, name, key).status_code == 200
    with calling_from(served, somewhere()) as client:
        assert login(client, "system", served.admin_key).status_code == 200


def test_a_right_key_gives_nothing_back(served: Served, attacked: tuple[str, str]) -> None:
    name, key = attacked
    with calling_from(served, somewhere()) as client:
        for at in range(PAIR_MAX - 1):
            assert login(client, name, f"first.{at}").status_code == 401
        for _ in range(3):
            assert login(client, name, key).status_code == 200

        until_refused(served, partial(fails, client, name), begin=PAIR_MAX - 1)

        assert login(client, name, key).status_code == 429


def test_bad_tokens_are_limited_and_good_ones_are_served(served: Served, admin: As) -> None:
    with calling_from(served, somewhere()) as client:
        limited = until_refused(
            served, lambda at: client.get("/nodes", headers={"Authorization": f"Bearer {at}"}), TOKENS_MAX
        )

        assert_problem(limited, 429, "rate_limited")
        assert client.get("/nodes", headers=admin.headers).status_code == 200
        assert login(client, "system", served.admin_key).status_code == 200
        # Who brings no token at all has guessed nothing.
        assert_problem(client.get("/nodes"), 401, "unauthenticated")


def test_nobody_chooses_an_address_by_a_header(served: Served, attacked: tuple[str, str]) -> None:
    name, key = attacked
    with calling_from(served, somewhere()) as client:

        def elsewhere(at: int) -> httpx.Response:
            return fails(client, name, at, **{"X-Forwarded-For": f"192.0.2.{at}", "Forwarded": f"for=192.0.2.{at}"})

        until_refused(served, elsewhere)

        assert login(client, name, key, **{"X-Forwarded-For": "192.0.2.99"}).status_code == 429


@pytest.fixture
def behind_a_proxy(tmp_path: Path, redis_url: str) -> Iterator[Served]:
    served = Served(tmp_path, f"sqlite:///{tmp_path / 'ledger.db'}", redis_url, workers=1)
    with served.config.open("a") as config:
        config.write("API_TRUSTED_PROXIES=127.0.0.1,10.0.0.0/8\n")
    with served as running:
        yield running


def test_behind_a_trusted_proxy_each_caller_has_its_own_budget(behind_a_proxy: Served) -> None:
    with behind_a_proxy.client() as proxy:
        key = behind_a_proxy.admin_key

        def claims_another(at: int) -> httpx.Response:
            # What a caller claims stands before what the proxies wrote.
            return fails(proxy, "system", at, **{"X-Forwarded-For": f"192.0.2.{at}, 198.51.100.1, 10.0.0.7"})

        until_refused(behind_a_proxy, claims_another)

        assert login(proxy, "system", key, **{"X-Forwarded-For": "198.51.100.1"}).status_code == 429
        assert login(proxy, "system", key, **{"X-Forwarded-For": "198.51.100.2"}).status_code == 200


@pytest.mark.parametrize(
    ("peer", "forwarded", "caller"),
    [
        ("203.0.113.9", ["192.0.2.1"], "203.0.113.9"),
        ("10.0.0.1", ["192.0.2.1"], "192.0.2.1"),
        ("10.0.0.1", ["1.2.3.4, 192.0.2.1", "10.0.0.2"], "192.0.2.1"),
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["10.0.0.2, 10.0.0.3"], "10.0.0.2"),
        ("10.0.0.1", ["192.0.2.1, nonsense"], "nonsense"),
        ("", ["192.0.2.1"], ""),
        ("10.0.0.1", ["192.0.2.1:4711, 10.0.0.2:4712"], "192.0.2.1"),
        ("10.0.0.1", ["[2001:db8::1]:4711"], "2001:db8::1"),
        ("10.0.0.1", ["2001:db8::1"], "2001:db8::1"),
        ("10.0.0.1", [":::, [, ["], ""),
        ("::ffff:10.0.0.1", ["192.0.2.1, ::ffff:10.0.0.2"], "192.0.2.1"),
    ],
)
def test_a_forwarded_address_is_read_from_the_trusted_end(peer: str, forwarded: list[str], caller: str) -> None:
    assert TrustedProxies.of(["10.0.0.0/8"]).caller(peer, forwarded) == caller
    assert TrustedProxies().caller(peer, forwarded) == peer


def test_a_burst_is_one_event_of_the_namespace_and_says_from_where(
    served: Served, admin: As, attacked: tuple[str, str]
) -> None:
    name, _ = attacked
    address = somewhere()
    with calling_from(served, address) as client:
        until_refused(served, partial(fails, client, name))
        for at in range(PAIR_MAX):
            assert login(client, name, f"first.again{at}").status_code == 429

    events = admin.get(f"/auth/namespaces/{name}/events").json()["items"]

    bursts = [(event["level"], event["payload"]) for event in events if event["message"] == MESSAGE]
    figures = {"budget": "logins_to_one_namespace", "namespace": name, "failures": PAIR_MAX, "window_seconds": 60}
    told = ("warning", {**figures, "by": f"address:{address}"})
    assert bursts == [told] or (bursts == [told] * 2 and counted_alone(served))


def test_every_act_on_keys_says_who_did_it(served: Served, admin: As, new_name: Names) -> None:
    name = new_name("ns")
    with served.namespace(name) as owner:
        key = f"/auth/namespaces/{name}/keys"
        assert owner.post(key, {"name": "second", "expires_in_seconds": 60}).status_code == 201
        assert owner.post(f"{key}/second/rotate", {"grace_seconds": 5}).status_code == 201
        assert owner.delete(f"{key}/second").status_code == 204
        # The events of the owner itself: what it may read of its own namespace.
        events = owner.get(f"/auth/namespaces/{name}/events?newest_first=false").json()["items"]

    acts = [(event["message"], event["payload"].get("key"), event["payload"]["by"]) for event in events]
    who = f"{name}/first"
    assert acts == [
        ("namespace created", None, acts[0][2]),
        ("key created", "first", acts[0][2]),
        ("key created", "second", who),
        ("key rotated", "second", who),
        ("key deleted", "second", who),
    ]
    assert acts[0][2].startswith("system/")


def test_the_admins_last_usable_key_is_not_deleted(admin: As) -> None:
    keys = "/auth/namespaces/system/keys"
    usable = [key["name"] for key in admin.get(keys).json()["items"] if key["state"] == "active"]
    (own,) = [name for name in usable if name.startswith("admin-file.")]
    for name in usable:
        assert name == own or admin.delete(f"{keys}/{name}").status_code == 204

    document = assert_problem(admin.delete(f"{keys}/{own}"), 409, "conflict")

    assert document["state"] == "last_key"
    assert f"key {own} is the last usable one of namespace system" in document["detail"]
    assert admin.get("/nodes").status_code == 200


def test_the_key_in_a_file_is_not_rotated_over_http(admin: As) -> None:
    (own,) = [
        key["name"]
        for key in admin.get("/auth/namespaces/system/keys").json()["items"]
        if key["name"].startswith("admin-file.")
    ]

    document = assert_problem(admin.post(f"/auth/namespaces/system/keys/{own}/rotate", {}), 409, "conflict")

    assert document["state"] == "in_a_file"
    assert admin.get("/nodes").status_code == 200


def test_what_is_anothers_is_not_rotated(served: Served, new_name: Names) -> None:
    name, other = new_name("ns"), new_name("ns")
    with served.namespace(name), served.namespace(other) as stranger:
        theirs = stranger.post(f"/auth/namespaces/{name}/keys/first/rotate", {})
        nobodys = stranger.post("/auth/namespaces/nobody/keys/first/rotate", {})

        assert_problem(theirs, 404, "not_found")
        assert theirs.json() == nobodys.json()


def test_a_retried_rotation_is_told_the_same_secret(served: Served, admin: As, new_name: Names) -> None:
    name = new_name("ns")
    with served.namespace(name):
        path = f"/auth/namespaces/{name}/keys/first/rotate"
        first = admin.post(path, {}, Idempotency_Key=f"rotate-{name}")
        again = admin.post(path, {}, Idempotency_Key=f"rotate-{name}")
        other = admin.post(path, {"grace_seconds": 1}, Idempotency_Key=f"rotate-{name}")

        assert first.json() == again.json()
        assert_problem(other, 422, "idempotency_mismatch")
        As.login(served.url, name, first.json()["key"]).client.close()
        events = admin.get(f"/auth/namespaces/{name}/events").json()["items"]
        assert len([event for event in events if event["message"] == "key rotated"]) == 1


def test_the_commands_make_rotate_list_and_delete(fleet: Callable[..., Ended], served: Served, new_name: Names) -> None:
    name = new_name("ns")
    assert fleet("namespace", "create", name).code == 0
    made = fleet("--json", "key", "create", name, "ci", "--expires-in", "3600").json
    rotated = fleet("--json", "key", "rotate", name, "ci", "--grace", "600").json
    again = fleet("key", "rotate", name, "ci", "--grace", "600")
    listed = fleet("--simple", "key", "list", name).out.splitlines()

    assert made["key"] != rotated["key"]
    assert (rotated["state"], bool(rotated["former_ends_at"])) == ("active", True)
    assert again.code != 0
    assert "without a grace" in again.err
    assert listed[0] == "name,state,created_at,expires_at,former_ends_at"
    assert listed[1].startswith("ci,active,")
    for key in (made["key"], rotated["key"]):
        As.login(served.url, name, key).client.close()
    assert fleet("key", "rotate", name, "ci").code == 0
    with served.client() as client:
        assert {login(client, name, key).status_code for key in (made["key"], rotated["key"])} == {401}
    assert fleet("key", "delete", name, "ci").code == 0
    assert fleet("key", "delete", name, "ci").code != 0


def stored(served: Served) -> dict[str, str]:
    """All that the ledger holds, a text a table and column."""
    database = Database(served.database_url)
    found: dict[str, str] = {}
    with database.read() as conn:
        for table in ("events", "idempotency_keys", "operations", "decisions", "config", "instances", "nodes"):
            for row in Sql(f"SELECT * FROM {table}").run(conn).mappings():
                for column, value in row.items():
                    place = f"{table}.{column}"
                    found[place] = found.get(place, "") + str(value) + "\n"
    database.close()
    return found


def test_no_secret_and_no_hash_is_in_any_answer_event_or_log(served: Served, admin: As, new_name: Names) -> None:
    name, node = new_name("ns"), new_name("node")
    served.node(node)
    with served.namespace(name) as owner:
        keys = f"/auth/namespaces/{name}/keys"
        made = owner.post(keys, {"name": "k"}, Idempotency_Key=f"made-{name}").json()["key"]
        rotated = owner.post(f"{keys}/k/rotate", {"grace_seconds": 60}, Idempotency_Key=f"rot-{name}").json()["key"]
        token = admin.post(f"/nodes/{node}/token", Idempotency_Key=f"token-{node}").json()["token"]
        bought = As.login(served.url, name, rotated)
        with calling_from(served, somewhere()) as client:
            for at in range(PAIR_MAX + 2):
                login(client, name, f"{rotated}{at}")
            for caller in (As.with_token(client, token + "x"), As.with_token(client, bought.token[:-3])):
                assert caller.get("/operations").status_code == 401
        texts = {
            path: admin.get(path).text
            for path in (
                *(keys, f"/auth/namespaces/{name}", f"/auth/namespaces/{name}/events", f"/nodes/{node}", "/nodes"),
                *(f"/nodes/{node}/events", "/admin/config", "/admin/resources", "/metrics", "/openapi.json"),
                *("/auth/namespaces", "/auth/namespaces/system/keys", "/auth/namespaces/system/events", "/operations"),
            )
        }
        bought.client.close()
    texts |= {"the log": served.log.read_text(), **stored(served)}
    database = Database(served.database_url)
    with database.read() as conn:
        rows = Sql("SELECT key_hash, former_hash FROM namespace_keys WHERE namespace = :ns").run(conn, ns=name).all()
        hashes = [value for row in rows for value in row if value]
        token_hash = str(Sql("SELECT token_hash FROM nodes WHERE name = :n").run(conn, n=node).scalar())
    database.close()
    assert len(hashes) >= 3
    assert token_hash.startswith("sha256$")

    hidden: dict[str, Any] = {
        "the key": made.partition(".")[2],
        "the rotated key": rotated.partition(".")[2],
        "the node's token": token.rpartition(".")[2],
        "the admin's key": served.admin_key,
        "the admin's token": admin.token,
        "a bought token": bought.token,
        "what signs tokens": SECRET,
        **{f"hash {at}": value for at, value in enumerate(hashes)},
        "the token's hash": token_hash,
    }
    found = [
        (what, place)
        for what, secret in hidden.items()
        for place, text in texts.items()
        if (secret in text or json.dumps(secret)[1:-1] in text)
        and (what, place) != ("the token's hash", "nodes.token_hash")
    ]
    assert found == []


def test_metrics_want_the_token_that_is_configured(tmp_path: Path, redis_url: str) -> None:
    served = Served(tmp_path, f"sqlite:///{tmp_path / 'ledger.db'}", redis_url, workers=1)
    token = "a-token-for-scrapes-that-is-long-enough"
    with served.config.open("a") as config:
        config.write(f"METRICS_TOKEN={token}\n")
    with served as running:
        answers = [
            httpx.get(f"{running.url}/metrics", headers=headers, timeout=ANSWER_SECONDS_MAX)
            for headers in ({}, {"Authorization": f"Bearer {token}x"}, {"Authorization": f"Bearer {token}"})
        ]
        with running.admin() as admin:
            as_admin = admin.get("/metrics")

    assert [answer.status_code for answer in answers] == [401, 401, 200]
    assert answers[0].json()["code"] == "unauthenticated"
    assert "scheduler_capacity_cluster_total" in answers[2].text
    assert as_admin.status_code == 401
