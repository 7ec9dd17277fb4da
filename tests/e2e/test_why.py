"""`fleet instance events --why`: the four outcomes, as somebody types the question, with the exact answer."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.served import As, Fleet, Served, served_on

HEAD = re.compile(r"(\S+) was chosen by decision (\S+) at (\S+Z); (\d+) nodes were judged\.")
LIKES_WEB = '{"prefer_with_tag": ["role=web"]}'
SMALL = ("--cpus", "1", "--memory", "64", "--disk", "1")


@pytest.fixture(scope="module", params=["sqlite", "mariadb"])
def served(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A fleet of its own: the answers count every node that there is. Two racks; `a2` and `b2` have much memory.

    One process decides them all: what another one sees of a node that was just made is up to three seconds old.
    """
    with served_on(request, tmp_path_factory.mktemp("why"), workers=1) as running:
        yield racked(running)


def racked(served: Served) -> Served:
    for name, rack, memory in (("a1", "a", 65536), ("a2", "a", 2**20), ("b1", "b", 65536), ("b2", "b", 2**20)):
        served.node(name, labels={"rack": rack}, memory_max=memory, memory_available=memory)
    with served.admin() as admin:
        # Who explains reads thoroughly: from here on the process knows all four.
        explained = admin.post("/placements/explain", {"cpus": 1, "memory_mb": 64}).json()
    assert sorted(explained["ranked"]) == ["a1", "a2", "b1", "b2"]
    return served


@pytest.fixture(scope="module")
def web(admin: As) -> dict[str, Any]:
    """One neighbour that others like, on `a1`."""
    body = {"cpus": 1, "memory_mb": 64, "disk_gb": 1, "tags": {"role": "web"}, "placement": {"node": "a1"}}
    answer = admin.post("/instances", body)
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def created(fleet: Fleet, *flags: str) -> str:
    ended = fleet("instance", "create", "one", *SMALL, *flags, "--json")
    assert ended.code == 0, ended.err
    uuid: str = ended.json["uuid"]
    return uuid


def why(fleet: Fleet, uuid: str, *flags: str) -> list[str]:
    """The answer for people, without its first sentence, which names the decision."""
    ended = fleet("instance", "events", uuid, "--why", *flags)
    assert ended.code == 0, ended.err
    head, *rest = ended.out.splitlines()
    assert HEAD.fullmatch(head)
    return rest


def test_nothing_was_asked(fleet: Fleet) -> None:
    assert why(fleet, created(fleet)) == [
        "Nothing was asked: it has no affinity, so no node was scored, and there is nothing to diagnose."
    ]


def test_nothing_but_constraints_has_its_story_at_their_stage(fleet: Fleet, web: dict[str, Any]) -> None:
    assert web["node"] == "a1"
    uuid = created(fleet, "--affinity", '{"require_without_tag": ["role=web"]}')

    assert why(fleet, uuid, "--expected", "a1") == [
        (
            "Nothing was preferred, so no node was scored: its affinity has only require_*; its story is there: "
            "require_without_tag role=web."
        ),
        "affinity_constraints dropped 1 of the 4 nodes that came to it: 1 require_without_tag.",
        (
            "a1 was no candidate: affinity_constraints dropped it for require_without_tag: a neighbour there carries a "
            "tag that must not be there (require_without_tag (role=web present))."
        ),
    ]


def test_with_one_candidate_there_was_no_choice(fleet: Fleet, web: dict[str, Any]) -> None:
    assert web["node"] == "a1"
    uuid = created(fleet, "--affinity", LIKES_WEB, "--label", "rack=b", "--memory", "300000")

    assert why(fleet, uuid) == [
        (
            "There was no choice: b2 was the only node left to score, so affinity was never consulted: it was neither "
            "honoured nor ignored."
        ),
        (
            "Before the scoring 3 of 4 nodes fell: 2 at labels (2 labels_missing), 1 at sufficient_idle_memory "
            "(1 over_limit_memory_mb)."
        ),
    ]


def test_the_expected_node_was_absent_and_that_is_no_matter_of_affinity(fleet: Fleet, web: dict[str, Any]) -> None:
    uuid = created(fleet, "--affinity", LIKES_WEB, "--label", "rack=b")

    assert why(fleet, uuid, "--expected", web["node"])[:2] == [
        (
            "a1 was not scored: labels dropped it for labels_missing: the node lacks a label of the selector, or has "
            "another value for it (unmatched [rack=b])."
        ),
        "Before the scoring 2 of 4 nodes fell: 2 at labels (2 labels_missing).",
    ]


def test_the_expected_node_was_full(fleet: Fleet, web: dict[str, Any]) -> None:
    uuid = created(fleet, "--affinity", LIKES_WEB, "--memory", "300000")
    told = why(fleet, uuid, "--expected", web["node"])

    assert told[0].startswith(
        "a1 was not scored: sufficient_idle_memory dropped it for over_limit_memory_mb: it would exceed the node's "
        "memory limit ("
    )
    assert {"requested_memory_mb 300000", "limit_memory_mb 192512"} <= set(re.findall(r"[a-z_]+ \d+", told[0]))
    assert told[1:4] == [
        "That is a matter of room, not of affinity.",
        "Before the scoring 2 of 4 nodes fell: 2 at sufficient_idle_memory (2 over_limit_memory_mb).",
        "Affinity was consulted and made no difference: all 2 nodes that were scored have 0.",
    ]


def test_the_expected_node_was_scored(fleet: Fleet, web: dict[str, Any]) -> None:
    uuid = created(fleet, "--affinity", LIKES_WEB)

    assert why(fleet, uuid, "--expected", "b1") == [
        (
            "Affinity was consulted and honoured: 4 nodes were scored, the highest score is 1, and only the nodes that "
            "have it went on: a1."
        ),
        f"a1 has 1: {web['uuid']} +1 (role=web).",
        "b1 scored 0, against 1 of a1.",
        "b1 has 0: no neighbour there carries a tag that is preferred or shunned.",
        "The scores of the 4 nodes that were scored: 1 (1 node), 0 (3 nodes).",
    ]


def test_a_create_that_names_its_node_is_no_question_of_affinity(fleet: Fleet) -> None:
    uuid = created(fleet, "--affinity", LIKES_WEB, "--node", "b1")

    assert why(fleet, uuid)[0].startswith("There was no choice: the request itself said where it may go ")


def test_programs_get_the_structure(fleet: Fleet, web: dict[str, Any]) -> None:
    uuid = created(fleet, "--affinity", LIKES_WEB)
    found = json.loads(fleet("instance", "events", uuid, "--why", "--expected", "b1", "--json").out)

    assert (found["instance"], found["verdict"], found["placed_on"]) == (uuid, "scored", "a1")
    assert found["facts"]["tiers"] == {"1": 1, "0": 3}
    assert found["facts"]["chosen"]["considered"][0]["instance_uuid"] == web["uuid"]
    assert found["facts"]["expected"]["score"] == 0
    assert found["later"] is None


def test_an_instance_that_is_not_there_and_another_namespaces_answer_the_same(
    served: Served, fleet: Fleet, new_name: Callable[[str], str]
) -> None:
    uuid = created(fleet)
    with served.namespace(new_name("other")) as other:
        foreign = other.get(f"/instances/{uuid}/why")
        nobody = other.get("/instances/00000000-0000-4000-8000-000000000000/why")
        bad = other.get(f"/instances/{uuid}/why?expected={'x' * 300}")

    assert (foreign.status_code, foreign.json()) == (nobody.status_code, nobody.json())
    assert foreign.status_code == 404
    assert bad.status_code == 400


def test_an_expected_node_without_the_question_is_wrong_usage(fleet: Fleet, tmp_path: Path) -> None:
    assert tmp_path.exists()
    ended = fleet("instance", "events", "00000000-0000-4000-8000-000000000000", "--expected", "a1")

    assert ended.code == 2
    assert "--expected goes with --why" in ended.err
