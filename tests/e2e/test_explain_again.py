"""Where would it move? An instance that is there already, asked about over HTTP and at the command line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from fleet.ledger import charges, instances
from fleet.ledger.database import Database
from fleet.model.lifecycle import InstanceState
from tests.e2e.served import As, Ended, Names, Served, assert_problem


@pytest.fixture
def pair(served: Served, admin: As, new_name: Names) -> Iterator[tuple[str, str]]:
    """Two nodes of this test's own, the first of them small."""
    label = new_name("pair")
    names = (f"{label}-a", f"{label}-b")
    for name, threads in zip(names, (1, 16), strict=True):
        body = {"name": name, "backend": "simulated", "labels": {"pair": label}}
        assert admin.post("/nodes", body).status_code == 201
        served.node(name, cpu_schedulable=threads, cpu_threads=threads)
    yield names
    for name in names:
        admin.post(f"/nodes/{name}/cordon", {})


@pytest.fixture
def instance(served: Served, owner: As, pair: tuple[str, str]) -> str:
    """A running instance on the first of them, which may be on both."""
    label = pair[0].removesuffix("-a")
    body = {"name": "web", "cpus": 2, "memory_mb": 64, "placement": {"labels": {"pair": label}}, "strategy": "binpack"}
    # Which of two is chosen is decided by a process that sees both: one that explains has just read every node that is
    # there, and this caller's connection stays with it.
    assert ask(owner, body)["ranked"] == list(pair)
    made = owner.post("/instances", body).json()
    assert made["node"] == pair[0], made
    db = Database(served.database_url)

    def run(conn: Any) -> None:
        charges.settle(conn, made["uuid"])
        assert instances.move_state(conn, made["uuid"], {InstanceState.CREATING}, InstanceState.RUNNING)

    db.unit(run)
    db.close()
    return str(made["uuid"])


def ask_again(caller: As, instance: str, reason: str, **more: Any) -> Any:
    return ask(caller, {"instance": instance, "reason": reason, **more})


def ask(caller: As, body: dict[str, Any]) -> Any:
    answer = caller.post("/placements/explain", body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def dropped(decision: dict[str, Any], stage: str) -> dict[str, Any]:
    (found,) = [item["dropped"] for item in decision["stages"] if item["name"] == stage]
    return dict(found)


def test_its_owner_is_told_where_it_would_move_and_nothing_is_changed(
    owner: As, pair: tuple[str, str], instance: str
) -> None:
    before = owner.get(f"/instances/{instance}").json()
    moved = ask_again(owner, instance, "migrate")
    nowhere = ask_again(owner, instance, "evacuate", destinations=[])

    assert moved["ranked"] == [pair[1]]
    assert dropped(moved, "scheduling_state")[pair[0]]["reason"] == "migration_source"
    assert (nowhere["outcome"], nowhere["code"]) == ("refused", "no_schedulable_nodes")
    assert [one["change"][0]["field"] for one in nowhere["remedies"]][:1] == ["destinations"]
    assert owner.get(f"/instances/{instance}").json() == before


def test_a_resize_is_explained_by_its_increase(owner: As, pair: tuple[str, str], instance: str) -> None:
    stays, moves = ask_again(owner, instance, "resize", cpus=3), ask_again(owner, instance, "resize", cpus=8)

    assert stays["ranked"] == list(pair)
    assert moves["ranked"] == [pair[1]]
    assert dropped(moves, "sufficient_idle_cpu")[pair[0]]["requested_cpus"] == 6
    assert ask_again(owner, instance, "resize")["ranked"] == list(pair)


def test_an_operator_may_ask_about_a_named_node(admin: As, pair: tuple[str, str], instance: str) -> None:
    assert ask_again(admin, instance, "migrate", node=pair[1])["ranked"] == [pair[1]]
    here = admin.post("/placements/explain", {"instance": instance, "reason": "migrate", "node": pair[0]})
    assert pair[0] in assert_problem(here, 409, "conflict")["detail"]
    unknown = ask_again(admin, instance, "migrate", node="no-such-node")
    assert (unknown["outcome"], unknown["code"]) == ("refused", "node_not_found")


def test_another_namespace_does_not_learn_that_it_is_there(served: Served, new_name: Names, instance: str) -> None:
    with served.namespace(new_name("other")) as stranger:
        for uuid in (instance, "11111111-1111-4111-8111-111111111111"):
            answer = stranger.post("/placements/explain", {"instance": uuid, "reason": "migrate"})
            assert assert_problem(answer, 404, "not_found")["detail"] == "no such instance"


def test_all_that_is_wrong_with_the_question_is_told_at_once(owner: As, instance: str) -> None:
    body = {"instance": "web", "reason": "fork", "cpus": 0, "memory_mb": True, "image": "x"}
    document = assert_problem(owner.post("/placements/explain", body), 400, "invalid_request")
    assert {item["field"] for item in document["errors"]} == {"instance", "reason", "cpus", "memory_mb", "image"}

    mixed = {"instance": instance, "reason": "migrate", "cpus": 3}
    document = assert_problem(owner.post("/placements/explain", mixed), 400, "invalid_request", "cpus")
    assert "belongs to a resize" in document["detail"]
    assert_problem(owner.post("/placements/explain", {"reason": "migrate"}), 400, "invalid_request", "instance")
    assert_problem(owner.post("/placements/explain", {"memory_mb": 64}), 400, "invalid_request", "cpus")


def test_the_command_line_asks_the_same(fleet: Callable[..., Ended], pair: tuple[str, str], instance: str) -> None:
    moved = fleet("explain", "--instance", instance, "--reason", "migrate")
    grown = fleet("explain", "--instance", instance, "--reason", "resize", "--cpus", "8", "--json")
    listed = fleet("explain", "--instance", instance, "--reason", "evacuate", "--destination", pair[1], "--json")

    assert moved.code == grown.code == listed.code == 0
    assert f"{pair[1]} is first of 1 of" in moved.out
    assert grown.json["ranked"] == listed.json["ranked"] == [pair[1]]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--instance", "1", "--reason", "fork"), "--reason"),
        (("--instance", "1"), "--reason"),
        (("--reason", "migrate", "--cpus", "1", "--memory", "64"), "--instance"),
        (("--instance", "1", "--reason", "migrate", "--region", "eu"), "--region"),
    ],
)
def test_what_does_not_go_together_is_wrong_usage(
    fleet: Callable[..., Ended], words: tuple[str, ...], said: str
) -> None:
    ended = fleet("explain", *words)
    assert ended.code == 2
    assert said in ended.err
