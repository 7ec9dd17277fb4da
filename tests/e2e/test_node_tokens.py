"""What a node's token may do: publish that node's sample, see to its operations, and nothing else whatever is there."""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from fleet.ledger import operations
from fleet.ledger.database import Database, Sql
from tests.e2e.served import METRICS, As, Ended, Names, Served, assert_problem

NOBODYS = "00000000-0000-4000-8000-000000000000"
MAY = {
    ("PUT", "/nodes/{name}/metrics"),
    ("GET", "/operations"),
    ("GET", "/operations/{uuid}"),
    ("POST", "/operations/{uuid}/retry"),
    ("POST", "/operations/{uuid}/cancel"),
}
NEEDS_NO_TOKEN = {"/auth", "/healthz", "/readyz", "/metrics", "/", "/app.js", "/style.css", "/icon.svg"}


@dataclass
class Pair:
    """Two nodes with an operation each, and a caller with the token of the first."""

    node: str
    other: str
    own_operation: str
    others_operation: str
    caller: As


@pytest.fixture
def pair(served: Served, admin: As, new_name: Names) -> Iterator[Pair]:
    node, other, ns = new_name("node"), new_name("node"), new_name("ns")
    made = []
    with served.namespace(ns) as owner:
        for name in (node, other):
            served.node(name, labels={"only": name})
            body = {"name": "web", "cpus": 1, "memory_mb": 64, "placement": {"node": name}}
            placed = owner.post("/instances", body)
            assert placed.status_code == 201, placed.text
            made.append(placed.json()["operation_id"])
    token = admin.post(f"/nodes/{node}/token").json()["token"]
    with served.client() as client:
        yield Pair(node, other, made[0], made[1], As.with_token(client, token))
    # Some of them have GPUs by now, and others ask what a fleet without any answers.
    for name in (node, other):
        admin.post(f"/nodes/{name}/cordon")


def verbs_of(admin: As) -> list[tuple[str, str]]:
    paths = admin.get("/openapi.json").json()["paths"]
    return [(method.upper(), path) for path, found in paths.items() for method in found if path not in NEEDS_NO_TOKEN]


def test_every_other_verb_is_forbidden_in_the_same_words_whatever_is_there(admin: As, pair: Pair) -> None:
    documents = set()
    verbs = [verb for verb in verbs_of(admin) if verb not in MAY]
    assert len(verbs) > 30
    for method, template in verbs:
        for name in (pair.node, pair.other, "absent", "not%20a%20name"):
            path = template.replace("{name}", name).replace("{uuid}", NOBODYS)
            path = re.sub(r"\{\w+\}", "something", path)
            answer = pair.caller.call(method, path, {"bogus": 1})
            documents.add(str(assert_problem(answer, 403, "forbidden")))
    assert len(documents) == 1


def test_another_nodes_paths_answer_the_same_whether_it_is_there_or_not(pair: Pair) -> None:
    answers = [
        pair.caller.put(f"/nodes/{name}/metrics", {"metrics": METRICS}) for name in (pair.other, "absent", "a%20b")
    ]
    answers += [pair.caller.get(f"/operations?node={name}") for name in (pair.other, "absent")]

    assert len({str(assert_problem(answer, 403, "forbidden")) for answer in answers}) == 1


def test_it_publishes_its_own_sample_with_the_gpus_in_it(admin: As, pair: Pair) -> None:
    uuid_of_card = f"GPU-{uuid.uuid4()}"

    answer = pair.caller.put(
        f"/nodes/{pair.node}/metrics",
        {"metrics": {**METRICS, "cpu_load_1": 3.5}, "gpus": [{"uuid": uuid_of_card, "model": "L4"}]},
    )

    assert answer.status_code == 200, answer.text
    found = admin.get(f"/nodes/{pair.node}").json()
    assert found["metrics"]["cpu_load_1"] == 3.5
    assert [card["uuid"] for card in found["gpus"]] == [uuid_of_card]


@pytest.mark.parametrize("field", ["labels", "region", "max_instances", "scheduling", "gpu_kind"])
def test_a_sample_declares_nothing(admin: As, pair: Pair, field: str) -> None:
    before = admin.get(f"/nodes/{pair.node}").json()

    answer = pair.caller.put(f"/nodes/{pair.node}/metrics", {"metrics": METRICS, field: {}})

    assert_problem(answer, 400, "invalid_request", field)
    after = admin.get(f"/nodes/{pair.node}").json()
    assert [after[name] for name in ("labels", "region", "max_instances", "scheduling")] == [
        before[name] for name in ("labels", "region", "max_instances", "scheduling")
    ]


def test_a_refused_sample_tells_nothing_of_the_node_that_has_the_gpu(admin: As, pair: Pair) -> None:
    card = f"GPU-{uuid.uuid4()}"
    taken = admin.put(f"/nodes/{pair.other}/metrics", {"metrics": METRICS, "gpus": [{"uuid": card}]})
    assert taken.status_code == 200, taken.text

    refused = pair.caller.put(f"/nodes/{pair.node}/metrics", {"metrics": METRICS, "gpus": [{"uuid": card}]})

    document = assert_problem(refused, 409, "conflict")
    assert document["gpus"] == [card]
    assert pair.other not in refused.text


def test_it_sees_its_own_operations_only(pair: Pair) -> None:
    listed = pair.caller.get("/operations").json()["items"]
    named = pair.caller.get(f"/operations?node={pair.node}").json()["items"]

    assert [item["uuid"] for item in listed] == [pair.own_operation]
    assert named == listed
    assert pair.caller.get(f"/operations/{pair.own_operation}").status_code == 200
    for method, suffix in (("GET", ""), ("POST", "/retry"), ("POST", "/cancel")):
        documents = {
            str(assert_problem(pair.caller.call(method, f"/operations/{one}{suffix}"), 404, "not_found"))
            for one in (pair.others_operation, NOBODYS)
        }
        assert len(documents) == 1


def test_it_cancels_and_retries_its_own_operations_and_is_named(served: Served, admin: As, pair: Pair) -> None:
    cancelled = pair.caller.post(f"/operations/{pair.own_operation}/cancel")
    assert (cancelled.status_code, cancelled.json()["state"]) == (200, "cancelled")
    again = pair.caller.post(f"/operations/{pair.own_operation}/retry")
    assert_problem(again, 409, "conflict")

    events = admin.get(f"/instances/{cancelled.json()['instance_uuid']}/events").json()["items"]

    (event,) = [event for event in events if event["message"] == "operation cancelled"]
    assert event["payload"]["by"] == f"node:{pair.node}"
    assert admin.get(f"/operations/{pair.others_operation}").json()["state"] == "pending"


def test_an_operation_that_has_moved_on_is_no_longer_its_own(served: Served, pair: Pair) -> None:
    """The node's look and its act are two moments; in between the operation may be redirected."""
    database = Database(served.database_url)
    found = operations.get(database, pair.own_operation)
    assert found is not None
    other = operations.get(database, pair.others_operation)
    assert other is not None
    database.unit(
        lambda conn: Sql("UPDATE operations SET node_id = :node WHERE uuid = :uuid").run(
            conn, node=other.node_id, uuid=found.uuid
        )
    )
    try:
        with pytest.raises(Exception, match="no operation"):
            operations.cancel(database, found.uuid, node_id=found.node_id, by="node:x")
        with pytest.raises(Exception, match="no operation"):
            operations.retry(database, found.uuid, node_id=found.node_id, by="node:x")
    finally:
        database.close()


def test_a_new_token_ends_the_former_and_a_retry_is_told_the_same(admin: As, served: Served, pair: Pair) -> None:
    path = f"/nodes/{pair.node}/token"

    first = admin.post(path, Idempotency_Key=f"key-{pair.node}")
    same = admin.post(path, Idempotency_Key=f"key-{pair.node}")

    assert (first.status_code, first.headers["cache-control"]) == (201, "no-store")
    assert first.json() == same.json()
    assert set(first.json()) == {"node", "created_at", "token"}
    assert_problem(pair.caller.get("/operations"), 401, "unauthenticated")
    fresh = As.with_token(pair.caller.client, first.json()["token"])
    assert fresh.get("/operations").status_code == 200
    events = admin.get(f"/nodes/{pair.node}/events").json()["items"]
    made = [event["payload"] for event in events if event["message"] == "node token made"]
    assert [one["replaced"] for one in made] == [True, False]
    assert all(re.fullmatch(r"system/admin-file\.\w+", one["by"]) for one in made)


def test_tokens_that_are_nearly_one_are_none(pair: Pair) -> None:
    token = pair.caller.token
    stem, _, secret = token.rpartition(".")
    for wrong in (
        f"{stem}.{secret[:-1]}",
        f"{stem}.",
        stem,
        f"fleet-node.{pair.other}.{secret}",
        f"fleet-node.absent.{secret}",
        f"fleet-node.a b.{secret}",
        "fleet-node.",
        "fleet-node..",
    ):
        caller = As.with_token(pair.caller.client, wrong)
        assert_problem(caller.put(f"/nodes/{pair.node}/metrics", {"metrics": METRICS}), 401, "unauthenticated")


@pytest.mark.parametrize("method", ["POST", "DELETE"])
def test_a_node_that_is_not_there_has_no_token(admin: As, method: str) -> None:
    assert_problem(admin.call(method, "/nodes/absent/token"), 404, "not_found")


def test_the_command_makes_and_ends_a_token(fleet: Callable[..., Ended], served: Served, new_name: Names) -> None:
    node = new_name("node")
    served.node(node)

    made = fleet("--json", "node", "token", node)
    assert made.code == 0, made.err
    with served.client() as client:
        caller = As.with_token(client, made.json["token"])
        assert caller.put(f"/nodes/{node}/metrics", {"metrics": METRICS}).status_code == 200
        ended = fleet("node", "token", node, "--revoke")
        assert (ended.code, ended.out) == (0, f"node {node} has no token any more\n")
        assert_problem(caller.put(f"/nodes/{node}/metrics", {"metrics": METRICS}), 401, "unauthenticated")
    assert fleet("node", "token", node, "--revoke").code != 0
    assert fleet("node", "token", "absent").code != 0
