"""What would help a refused request, and how many more of a shape fit: over HTTP and at the command line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.e2e.served import As, Ended, Names, Served, assert_problem

LABEL = "only-for-placements"
NODES_WITH_ROOM = 3
MIB = 1024


@pytest.fixture(scope="module", autouse=True)
def nodes(served: Served, admin: As) -> None:
    """Three nodes that other tests never choose, for the label that is asked for is theirs alone."""
    for number, memory in enumerate((4096 + 4 * MIB, 4096 + 3 * MIB, 4096 + 2 * MIB)):
        name = f"shaped-{number}"
        body = {"name": name, "backend": "simulated", "labels": {LABEL: "yes", "row": str(number)}}
        assert admin.post("/nodes", body).status_code in {200, 201}
        served.node(name, memory_available=memory)
    served.node("shaped-like-no-other")


def shape(**changes: Any) -> dict[str, Any]:
    placement = {"labels": {LABEL: "yes", **changes.pop("labels", {})}}
    return {"name": "web", "cpus": 1, "memory_mb": MIB, "disk_gb": 1, "placement": placement, **changes}


def test_so_many_can_be_created_as_are_shown_and_then_one_is_refused(owner: As) -> None:
    asked = f"/placements/capacity?cpus=1&memory_mb={MIB}&disk_gb=1&label={LABEL}%3Dyes"
    before = owner.get(asked).json()
    answers, shown = [], []

    for _ in range(before["fits"] + 1):
        shown.append(owner.get(asked).json()["fits"])
        answers.append(owner.post("/instances", shape()))
    after = owner.get(asked).json()

    # Pending memory counts a third under the default ratio, so that more fit than the headroom alone would hold.
    assert before["fits"] == sum(item["fits"] for item in before["items"]) > NODES_WITH_ROOM
    assert before["nodes_with_room"] == NODES_WITH_ROOM
    assert (before["binds"], before["charged_to"]["payer"]) == ("memory_mb", "cluster")
    assert shown == list(range(before["fits"], -1, -1))
    assert [answer.status_code for answer in answers] == [201] * before["fits"] + [507]
    assert (after["fits"], after["nodes_with_room"]) == (0, 0)
    by_node: dict[str, int] = {}
    for answer in answers[:-1]:
        by_node[answer.json()["node"]] = by_node.get(answer.json()["node"], 0) + 1
    assert by_node == {item["node"]: item["fits"] for item in before["items"] if item["fits"]}


def test_a_refusal_tells_what_would_help_and_its_decision_tells_the_same(owner: As) -> None:
    refused = owner.post("/instances", shape(memory_mb=1, labels={"row": "0", "colour": "red"}))
    document = assert_problem(refused, 503, "labels_unmatched")
    record = owner.get(f"/decisions/{document['decision_id']}").json()["record"]
    explained = owner.post("/placements/explain", shape(memory_mb=1, labels={"row": "0", "colour": "red"})).json()

    assert record["remedies"]
    for told in (document, explained):
        # A process that has just told others what would help leaves it to the decision.
        assert told.get("remedies", record["remedies"])[0]["change"] == record["remedies"][0]["change"]
    first = record["remedies"][0]
    assert [change["field"] for change in first["change"]] == ["placement.labels[colour]"]
    assert record["figures"]["shaped-0"]["stage"] == "labels"
    assert record["figures"]["shaped-0"]["unmatched"] == ["colour=red"]


def test_a_remedy_that_is_carried_out_places_the_instance(owner: As) -> None:
    body = {"name": "big", "cpus": 4, "memory_mb": 64, "placement": {"labels": {"colour": "red"}}}
    remedies = owner.post("/placements/explain", body).json()["remedies"]

    assert remedies[0]["change"] == [{"field": "placement.labels[colour]", "from": "red", "to": None}]
    assert owner.post("/instances", {**body, "placement": {}}).status_code == 201


def test_a_ranking_has_no_remedies(owner: As) -> None:
    explained = owner.post("/placements/explain", {"cpus": 1, "memory_mb": 1}).json()

    assert explained["outcome"] == "ranked"
    assert "remedies" not in explained


BAD = (
    ("cpus=0&memory_mb=1", "cpus"),
    ("cpus=1", "memory_mb"),
    ("cpus=true&memory_mb=1", "cpus"),
    ("cpus=1&memory_mb=NaN", "memory_mb"),
    ("cpus=1&memory_mb=1&disk_gb=-1", "disk_gb"),
    ("cpus=1&memory_mb=99999999999999999999", "memory_mb"),
    ("cpus=1&memory_mb=1&gpus=-1", "gpus"),
    ("cpus=1&memory_mb=1&gpu_profile=1g.10gb", "gpu_profile"),
    ("cpus=1&memory_mb=1&label=rack", "label"),
    ("cpus=1&memory_mb=1&label=rack%3Da&label=rack%3Db", "label"),
    ("cpus=1&memory_mb=1&arch=z80", "arch"),
    ("cpus=1&memory_mb=1&region=%00", "region"),
    ("cpus=1&memory_mb=1&limit=0", "limit"),
    ("cpus=1&memory_mb=1&cursor=x", "cursor"),
    ("cpus=1&memory_mb=1&colour=red", "colour"),
)


@pytest.mark.parametrize(("query", "field"), BAD)
def test_a_bad_shape_is_a_400_that_names_the_parameter(owner: As, query: str, field: str) -> None:
    assert_problem(owner.get(f"/placements/capacity?{query}"), 400, "invalid_request", field)


def test_another_namespace_may_be_asked_for_by_the_admin_only(owner: As, admin: As, new_name: Names) -> None:
    path = "/placements/capacity?cpus=1&memory_mb=1&namespace="

    assert_problem(owner.get(path + "system"), 404, "not_found")
    assert_problem(admin.get(path + new_name("nobody")), 404, "not_found")
    assert admin.get(path + "system").status_code == 200


def test_pages_of_nodes_hold_every_node_once(owner: As) -> None:
    # Of the others none is asked for, so that none comes or goes between two pages, however old its sample grows.
    path = f"/placements/capacity?cpus=1&memory_mb=1&limit=2&label={LABEL}%3Dyes"
    page = owner.get(path).json()
    names = [item["node"] for item in page["items"]]
    while page["next_cursor"] is not None:
        page = owner.get(f"{path}&cursor={page['next_cursor']}").json()
        names += [item["node"] for item in page["items"]]

    assert len(names) == len(set(names)) == page["nodes"]


def test_the_command_line_shows_how_many_fit_and_what_binds(fleet: Callable[..., Ended]) -> None:
    told = fleet("capacity", "--shape", "1x512x1", "--label", f"{LABEL}=yes", "--all")
    document = fleet("capacity", "--shape", "1x512x1", "--label", f"{LABEL}=yes", "--json").json
    lines = fleet("--simple", "capacity", "--shape", "1x512x1").out.splitlines()
    misused = fleet("capacity", "--shape", "1x512")

    assert told.code == 0
    assert f"{document['fits']} more of 1x512x1 fit" in told.out
    assert "labels_missing" in told.out
    assert document["shape"] == {"cpus": 1, "memory_mb": 512, "disk_gb": 1, "labels": {LABEL: "yes"}}
    assert lines[0] == "node,fits,binds,reason"
    assert misused.code == 2


def test_the_command_line_tells_what_would_help(fleet: Callable[..., Ended]) -> None:
    asked = ("--cpus", "1", "--memory", "64", "--label", "colour=red")

    refused = fleet("instance", "create", "red", *asked)
    document = fleet("instance", "create", "red", *asked, "--json").json
    explained = fleet("explain", *asked)
    shown = fleet("decision", "show", document["decision_id"])

    assert refused.code == 1
    for told in (refused.err, explained.out, shown.out):
        assert "Drop the label colour=red: then" in told
    assert "also" in explained.out
    assert document["remedies"]
