"""How people read a placing: the stages in an instance's events, those of a refusal, and who still uses weights."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.served import As, Ended, Names, Served, clean_environment

OWN = {"only-for": "timeline"}
STARTED = "started scheduling"
PLACED = "instance placed"
DAY = re.compile(r"\d{4}-\d\d-\d\d \(UTC\)")
FIND_WEIGHTS = r"""#!/bin/bash
BINARY='require_with_tag require_without_tag prefer_with_tag prefer_without_tag'
for uuid in $(sf-client --simple instance list | tail -n +2 | cut -d, -f1); do
    sf-client --simple instance show "$uuid" 2>/dev/null \
        | grep '^metadata,affinity,' | head -1 | cut -d, -f3- \
        | BINARY="$BINARY" UUID="$uuid" python3 -c '
import ast, os, sys
raw = sys.stdin.read().strip()
if not raw:
    sys.exit()
try:
    spec = ast.literal_eval(raw)
except (ValueError, SyntaxError):
    sys.exit()
binary = set(os.environ["BINARY"].split())
if isinstance(spec, dict) and spec and not (set(spec) & binary):
    print("%s %s" % (os.environ["UUID"], spec))
'
done
"""
"""The procedure that operators know, to the letter."""


@pytest.fixture(scope="module", autouse=True)
def room(served: Served) -> None:
    """Two nodes that only these tests ask for: events tell of every node that is ranked."""
    for name in ("timeline-a", "timeline-b"):
        served.node(name, labels=OWN, memory_max=2**20, memory_available=2**20, cpu_schedulable=200, cpu_threads=202)


@pytest.fixture(scope="module")
def tenant(served: Served) -> Iterator[As]:
    with served.namespace("timeline") as caller:
        # Who explains reads thoroughly: the process on the other end of this connection knows both nodes from here on.
        explained = caller.post("/placements/explain", {"cpus": 1, "memory_mb": 64, "placement": {"labels": OWN}})
        assert len(explained.json()["ranked"]) == 2
        yield caller


def created(caller: As, **body: Any) -> dict[str, Any]:
    shape = {"cpus": 1, "memory_mb": 64, "disk_gb": 1, "placement": {"labels": OWN}}
    answer = caller.post("/instances", {**shape, **body})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def pages(caller: As, path: str, limit: int, *, newest_first: bool) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    cursor = ""
    while True:
        answer = caller.get(
            f"{path}{'&' if '?' in path else '?'}limit={limit}&newest_first={str(newest_first).lower()}{cursor}"
        )
        assert answer.status_code == 200, answer.text
        page = answer.json()
        assert len(page["items"]) <= limit
        found += page["items"]
        if page["next_cursor"] is None:
            return found
        cursor = f"&cursor={page['next_cursor']}"


@pytest.mark.parametrize("limit", [1, 5, 1000])
def test_pages_of_events_hold_each_stage_once_in_both_orders(tenant: As, limit: int) -> None:
    path = f"/instances/{created(tenant)['uuid']}/events"

    oldest_first = pages(tenant, path, limit, newest_first=False)
    newest_first = pages(tenant, path, limit, newest_first=True)

    assert oldest_first == newest_first[::-1]
    assert [item["message"] for item in (oldest_first[0], oldest_first[-1])] == [STARTED, PLACED]
    assert len({(item["id"], item["part"]) for item in oldest_first}) == len(oldest_first) > 15


def test_the_limit_counts_what_is_shown_and_the_newest_come_first(tenant: As) -> None:
    answer = tenant.get(f"/instances/{created(tenant)['uuid']}/events?limit=3").json()

    assert [item["message"] for item in answer["items"]] == [
        PLACED,
        "schedule final candidates",
        "schedule have lowest cpu load",
    ]
    assert answer["next_cursor"] is not None


@pytest.mark.parametrize("cursor", ["x", "1.", ".1", "1.2.3", "-1.0", "9" * 30, "1.99999999"])
def test_a_cursor_of_nothing_is_refused(tenant: As, cursor: str) -> None:
    answer = tenant.get(f"/instances/{created(tenant)['uuid']}/events?cursor={cursor}")

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_a_refusals_stages_are_read_from_its_decision_and_only_by_its_owner(served: Served, tenant: As) -> None:
    refused = tenant.post("/instances", {"cpus": 900_000, "memory_mb": 64}).json()
    path = f"/decisions/{refused['decision_id']}/events"

    told = tenant.get(path).json()
    listed = tenant.get("/decisions?outcome=refused").json()["items"]

    assert [item["message"] for item in told["items"]][-1] == "schedule failed, insufficient resources"
    assert told["items"][-1]["payload"]["message"] == refused["detail"]
    assert refused["decision_id"] in {item["id"] for item in listed}
    with served.namespace("timeline-others") as other:
        assert other.get(path).status_code == 404


def told(ended: Ended) -> list[str]:
    """The lines of a timeline, which begins with a day, without its days: at midnight there is another one."""
    lines = ended.out.splitlines()
    assert DAY.fullmatch(lines[0]), ended
    return [line for line in lines if not DAY.fullmatch(line)]


def test_events_are_lines_for_people_oldest_first(fleet: Callable[..., Ended], tenant: As) -> None:
    made = created(tenant)

    lines = told(fleet("instance", "events", made["uuid"]))
    table = fleet("instance", "events", made["uuid"], "--simple").out.splitlines()

    assert re.fullmatch(rf"\d\d:\d\d:\d\d\.\d{{6}} {STARTED}", lines[0])
    assert f"{PLACED}: node {made['node']};" in lines[-1]
    assert sum("schedule at stage sufficient_idle_cpu: candidates: " in line for line in lines) == 1
    assert table[0] == "at,level,message,payload"


def test_a_decision_is_shown_with_its_events(fleet: Callable[..., Ended]) -> None:
    refused = fleet("instance", "create", "huge", "--cpus", "900000", "--memory", "64", "--json").json

    lines = told(fleet("decision", "show", refused["decision_id"], "--events"))
    items = fleet("decision", "show", refused["decision_id"], "--events", "--json").json["items"]

    assert "schedule failed, insufficient resources" in lines[-1]
    assert "[warning]" in lines[-1]
    assert len(items) == len(lines)


def test_the_known_procedure_finds_the_instances_that_use_weights(
    served: Served, new_name: Names, tmp_path: Path
) -> None:
    name = new_name("weights")
    with served.namespace(name) as owner:
        weighted = created(owner, affinity={"static-runner": -10})["uuid"]
        in_metadata = created(owner, metadata={"affinity": {"a": 100, "b": 1}, "note": "x"})["uuid"]
        created(owner, affinity={"prefer_with_tag": ["web"]})
        created(owner, metadata={"note": "x"})
        with served.admin() as admin:
            key = admin.post(f"/auth/namespaces/{name}/keys", {"name": "script"}).json()["key"]
    environment = {
        **clean_environment(),
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "FLEET_URL": served.url,
        "FLEET_NAMESPACE": name,
        "FLEET_KEY": key,
        "XDG_CACHE_HOME": str(tmp_path),
    }

    ended = subprocess.run(
        ["bash", "-c", FIND_WEIGHTS], env=environment, capture_output=True, text=True, timeout=120, check=True
    )

    assert sorted(ended.stdout.splitlines()) == sorted(
        [f"{weighted} {{'static-runner': -10}}", f"{in_metadata} {{'a': 100, 'b': 1}}"]
    )


def test_one_command_finds_them_too_and_says_which_to_look_at_twice(
    fleet: Callable[..., Ended], served: Served, tenant: As
) -> None:
    plain = created(tenant, affinity={"static-runner": -10})["uuid"]
    mixed = created(tenant, metadata={"affinity": {"a": 100, "b": -1, "c": 0}})["uuid"]
    binary = created(tenant, affinity={"prefer_with_tag": ["web"]})["uuid"]
    where = ("--config", str(served.config))

    lines = fleet("ctl", "find-weighted-affinity", *where).out.splitlines()
    found = json.loads(fleet("ctl", "find-weighted-affinity", "--json", *where).out)["items"]

    assert f"{plain} {{'static-runner': -10}}" in lines
    assert any(line.startswith(mixed) and "sizes differ" in line for line in lines)
    assert not any(line.startswith(binary) for line in lines)
    (one,) = [item for item in found if item["uuid"] == mixed]
    assert one["mapped_to"] == {"prefer_with_tag": ["a"], "prefer_without_tag": ["b"]}
    assert one["mixed"] is True


def test_events_of_every_noun_are_filtered_alike(served: Served, tenant: As) -> None:
    made = created(tenant)
    with served.admin() as admin:
        for caller, path, message in (
            (tenant, f"/instances/{made['uuid']}/events", PLACED),
            (admin, f"/nodes/{made['node']}/events", "node registered"),
            (admin, "/auth/namespaces/timeline/events", "key created"),
        ):
            everything = pages(caller, path, 1000, newest_first=False)
            one = caller.get(f"{path}?message={message}&level=info&since_seconds=3600").json()["items"]
            beginning = caller.get(f"{path}?message={message[:5]}*&limit=1000").json()["items"]
            assert [item["message"] for item in one] == [message] * len(one)
            assert len(one) == sum(item["message"] == message for item in everything) > 0
            assert len(beginning) == sum(item["message"].startswith(message[:5]) for item in everything)
            assert caller.get(f"{path}?until_seconds=3600").json() == {"items": [], "next_cursor": None}


@pytest.mark.parametrize(
    "wrong",
    [
        *("level=loud", "level=", "message=", "since_seconds=-1", "since_seconds=x", "until_seconds=1.5"),
        *(f"message={'m' * 256}", "since_seconds=99999999999", "by=me", "limit=1001", "scheduling=true"),
    ],
)
def test_a_filter_of_nothing_is_refused(tenant: As, wrong: str) -> None:
    answer = tenant.get(f"/instances/{created(tenant)['uuid']}/events?{wrong}")

    assert (answer.status_code, answer.json()["code"]) == (400, "invalid_request")


def test_a_candidate_node_tells_what_a_decision_did_with_it(
    fleet: Callable[..., Ended], served: Served, tenant: As
) -> None:
    made = created(tenant)
    other = {"timeline-a": "timeline-b", "timeline-b": "timeline-a"}[made["node"]]
    with served.admin() as admin:
        chosen, passed_over = (
            [
                item
                for item in admin.get(f"/nodes/{name}/events?scheduling=true&limit=20").json()["items"]
                if item["decision_id"] == made["decision_id"]
            ]
            for name in (made["node"], other)
        )
        whole = pages(admin, f"/nodes/{other}/events?scheduling=true&since_seconds=3600", 1000, newest_first=True)
        paged = pages(admin, f"/nodes/{other}/events?scheduling=true&since_seconds=3600", 3, newest_first=True)
    lines = fleet("node", "events", made["node"], "--scheduling", "--since", "600").out.splitlines()

    assert [item["message"] for item in chosen] == ["schedule candidate admitted", "schedule final candidates"]
    assert chosen[0]["payload"]["instance"] == made["uuid"]
    assert [item["message"] for item in passed_over] == ["schedule final candidates"]
    assert paged == whole
    assert any("schedule candidate admitted" in line and made["uuid"] in line for line in lines)


def test_every_timeline_is_narrowed_down_and_told_in_the_same_way(
    fleet: Callable[..., Ended], served: Served, tenant: As, new_name: Names
) -> None:
    name, node, uuid = new_name("ns"), new_name("node"), created(tenant)["uuid"]
    served.node(node)
    with served.admin() as admin, served.namespace(name):
        limits = {"limit_cpus": 0, "limit_memory_mb": 0, "limit_disk_gb": 0, "expires_in_seconds": 600}
        assert admin.post(f"/auth/namespaces/{name}/claims", limits).status_code == 201

        for words in (("node", "events", node), ("namespace", "events", name), ("claim", "events", name)):
            assert len(told(fleet(*words))) == len(fleet(*words, "--since", "1h", "--json").json["items"]) > 0
        for noun, of in (("instance", uuid), ("node", node), ("namespace", name), ("claim", name)):
            first = fleet(noun, "events", of, "--json").json["items"][0]["message"]
            chosen = fleet(noun, "events", of, "--message", f"{first[:4]}*", "--level", "info", "--json").json["items"]
            assert first in {event["message"] for event in chosen}
            assert all(event["message"].startswith(first[:4]) for event in chosen)
            assert fleet(noun, "events", of, "--until", "1d").out.strip() == "no events"
            assert fleet(noun, "events", of, "--since", "yesterday").code == 2
