"""Who did what: every administrative act over HTTP is found in the trail by who did it, whatever it was done to."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from tests.e2e.served import As, Ended, Names, Served, assert_problem


@pytest.fixture
def operator(served: Served, admin: As, new_name: Names) -> Iterator[tuple[As, str]]:
    """An admin with a key of their own, and how the trail calls them."""
    name = new_name("ops")
    made = admin.post("/auth/namespaces/system/keys", {"name": name})
    assert made.status_code == 201, made.text
    with As.login(served.url, "system", made.json()["key"]) as caller:
        yield caller, f"system/{name}"


def trail(admin: As, query: str) -> list[dict[str, Any]]:
    """Every event that a query finds, page by page."""
    found: list[dict[str, Any]] = []
    cursor = ""
    for _ in range(200):
        answer = admin.get(f"/admin/events?{query}{cursor}")
        assert answer.status_code == 200, answer.text
        found += answer.json()["items"]
        if answer.json()["next_cursor"] is None:
            return found
        cursor = f"&cursor={answer.json()['next_cursor']}"
    raise AssertionError("the trail does not end")


def test_every_act_is_found_by_who_did_it(served: Served, admin: As, operator: tuple[As, str], new_name: Names) -> None:
    caller, who = operator
    node, space = new_name("node"), new_name("ns")
    caller.post("/nodes", {"name": node, "backend": "simulated"})
    caller.put(f"/nodes/{node}", {"region": "north"})
    caller.post(f"/nodes/{node}/cordon")
    caller.post(f"/nodes/{node}/cordon")
    caller.put(f"/nodes/{node}/gpus", {"gpus": [{"uuid": new_name("GPU"), "model": "A100"}]})
    caller.post("/auth/namespaces", {"name": space})
    caller.post(f"/auth/namespaces/{space}/keys", {"name": "k"})
    caller.put("/admin/config/SCHEDULER_DEMAND_DECAY_SECONDS", {"value": 601})
    caller.put("/admin/config/SCHEDULER_DEMAND_DECAY_SECONDS", {"value": 601})
    caller.delete("/admin/config/SCHEDULER_DEMAND_DECAY_SECONDS")
    caller.delete(f"/nodes/{node}")

    found = trail(admin, f"by={who}&newest_first=false&limit=2")

    assert [(one["object_type"], one["message"]) for one in found] == [
        ("node", "node registered"),
        ("node", "node updated"),
        ("node", "node scheduling changed"),
        ("node", "gpu inventory changed"),
        ("namespace", "namespace created"),
        ("namespace", "key created"),
        ("cluster", "configuration changed"),
        ("cluster", "configuration changed"),
        ("node", "node removed"),
    ]
    assert {one["by"] for one in found} == {who}
    assert found[1]["payload"] == {"old": {"region": ""}, "new": {"region": "north"}, "by": who}
    changed, reset = found[6]["payload"], found[7]["payload"]
    assert (changed["old"], changed["new"], reset["old"], reset["new"]) == ("600", "601", "601", "600")


def test_an_operator_who_retries_or_cancels_work_is_named(
    served: Served, admin: As, operator: tuple[As, str], new_name: Names
) -> None:
    caller, who = operator
    node = new_name("node")
    served.node(node, labels={"only": node})
    with served.namespace(new_name("ns")) as owner:
        shape = {"name": "i", "cpus": 1, "memory_mb": 64, "placement": {"labels": {"only": node}}}
        made = owner.post("/instances", shape).json()

        assert caller.post(f"/operations/{made['operation_id']}/cancel").status_code == 200

        (found,) = trail(admin, f"by={who}&object_type=instance&object_id={made['uuid']}")
    assert (found["message"], found["payload"]["old"]["state"]) == ("operation cancelled", "pending")


def test_the_trail_is_filtered_by_object_message_level_and_age(
    served: Served, admin: As, operator: tuple[As, str], new_name: Names
) -> None:
    caller, who = operator
    node = new_name("node")
    served.node(node)
    caller.post(f"/nodes/{node}/cordon")
    of_node = f"object_type=node&object_id={node}"

    every = trail(admin, of_node)
    acts = trail(admin, f"{of_node}&acts=true")

    assert [one["id"] for one in every] == sorted((one["id"] for one in every), reverse=True)
    assert len(acts) < len(every)
    assert {one["message"] for one in acts} == {"node registered", "node scheduling changed"}
    assert len(trail(admin, f"{of_node}&message=node%20sched*")) == 1
    assert trail(admin, f"{of_node}&level=error") == []
    assert len(trail(admin, f"{of_node}&since_seconds=3600")) == len(every)
    assert trail(admin, f"{of_node}&until_seconds=3600") == []
    assert [one["by"] for one in every if one["message"] == "node state changed"] == [None]
    assert trail(admin, f"{of_node}&by=system/nobody") == []
    assert who in {one["by"] for one in acts}


@pytest.mark.parametrize("query", ["object_type=host", "level=loud", "since_seconds=-1", "cursor=x", "what=1", "by="])
def test_a_question_that_cannot_be_meant_is_refused(admin: As, query: str) -> None:
    assert_problem(admin.get(f"/admin/events?{query}"), 400, "invalid_request", query.partition("=")[0])


def test_the_trail_is_the_admins_alone(served: Served, new_name: Names) -> None:
    with served.namespace(new_name("ns")) as owner:
        assert_problem(owner.get("/admin/events"), 403, "forbidden")


def test_ctl_lists_acts_youngest_first_with_who_and_from_what_to_what(
    fleet: Callable[..., Ended], served: Served, operator: tuple[As, str], new_name: Names
) -> None:
    caller, who = operator
    node = new_name("node")
    served.node(node)
    caller.post(f"/nodes/{node}/cordon")
    caller.put(f"/nodes/{node}", {"region": "north", "max_instances": 3})
    where = ("--config", str(served.config))

    mine = fleet("ctl", "audit", "--by", who, *where)
    whose = ("--object", f"node:{node}", "--by")
    same = [fleet("ctl", "audit", *whose, by, *where).out for by in (who, f"{who.partition('/')[0]}/", f"{who[:-1]}*")]
    none = fleet("ctl", "audit", *whose, who.partition("/")[0], *where).out.strip()
    over_http = trail(caller, f"object_type=node&object_id={node}&by={who.partition('/')[0]}/")
    told = fleet("ctl", "audit", "--object", f"node:{node}", "--json", *where).json
    every = fleet("ctl", "audit", "--object", f"node:{node}", "--all", "--since", "1h", "--json", *where).json
    few = fleet("ctl", "audit", "--object", f"node:{node}", "--limit", "1", *where)

    lines = mine.out.splitlines()
    assert lines[0].split() == ["at", "by", "object", "message", "change"]
    assert len(over_http) == 3
    assert (same[0].count("node scheduling changed"), none) == (1, "no acts")
    assert all(who in line for text in same[1:] for line in text.splitlines()[1:3])
    assert "region: - to north; max_instances: - to 3" in lines[1]
    assert "enabled to cordoned" in lines[2]
    assert all(who in line and f"node {node}" in line for line in lines[1:])
    assert [one["message"] for one in told["items"]] == ["node updated", "node scheduling changed", "node registered"]
    assert len(every["items"]) > len(told["items"])
    assert "--limit shows more" in few.out
    assert len(few.out.splitlines()) == 3
    assert fleet("ctl", "audit", "--object", f"node:{node}", "--until", "1h", *where).out.strip() == "no acts"


@pytest.mark.parametrize(
    "words",
    [("--object", "host:x"), ("--since", "yesterday"), ("--until", "-5"), ("--level", "loud"), ("--limit", "0")],
)
def test_ctl_says_what_is_wrong_with_a_question(
    fleet: Callable[..., Ended], served: Served, words: tuple[str, str]
) -> None:
    ended = fleet("ctl", "audit", *words, "--config", str(served.config))

    assert ended.code == 2
    assert words[0] in ended.err
