"""`fleet claim` against a running service: what people type, what they are shown, and what helps after a no."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from fleet.cli.app import run
from tests.e2e.claims_of import give_back
from tests.e2e.served import As, Fleet, Names, Served

SIZES = ("--cpus", "4", "--memory", "1024", "--disk", "10")
DAY = ("--expires-in", "1d")
SHAPE = {"name": "web", "cpus": 2, "memory_mb": 256, "disk_gb": 1}


@pytest.fixture(scope="module", autouse=True)
def room(served: Served) -> None:
    served.node("claim-cli", labels={"for": "cli-claims"}, memory_max=2**20, memory_available=2**20)


@pytest.fixture
def ns(admin: As, new_name: Names) -> Iterator[str]:
    name = new_name("cli-claims")
    assert admin.post("/auth/namespaces", {"name": name}).status_code == 201
    yield name
    give_back(admin, name)


def place(admin: As, name: str) -> None:
    body = {**SHAPE, "namespace": name, "placement": {"labels": {"for": "cli-claims"}}}
    answer = admin.post("/instances", body)
    assert answer.status_code == 201, answer.text


def created(fleet: Fleet, ns: str, *more: str) -> dict[str, Any]:
    made = fleet("claim", "create", ns, *SIZES, *DAY, "--json", *more)
    assert made.code == 0, made
    found: dict[str, Any] = made.json
    return found


def limits(claim: dict[str, Any]) -> list[int]:
    return [claim[f"limit_{name}"] for name in ("cpus", "memory_mb", "disk_gb")]


def test_a_claim_is_made_shown_changed_listed_and_deleted(fleet: Fleet, ns: str) -> None:
    made = created(fleet, ns)
    shown = fleet("claim", "show", ns, made["uuid"], "--json").json
    grown = fleet("claim", "update", ns, made["uuid"], "--cpus", "6", "--disk", "0", "--json").json
    listed = fleet("claim", "list", ns, "--json").json["items"]
    events = fleet("claim", "events", ns, made["uuid"], "--json").json["items"]
    deleted = fleet("claim", "delete", ns, made["uuid"], "--json")
    gone = fleet("claim", "show", ns, made["uuid"])

    assert (limits(made), shown) == ([4, 1024, 10], made)
    assert (limits(grown), grown["expires_at"]) == ([6, 1024, 0], made["expires_at"])
    assert listed == [grown]
    assert [event["message"] for event in events] == ["db record created", "namespace claim changed"]
    assert (deleted.code, deleted.json) == (0, grown)
    assert (gone.code, f"fleet claim list {ns}" in gone.err) == (1, True)


def test_sizes_and_durations_are_what_people_write(fleet: Fleet, ns: str) -> None:
    sizes = ("--cpus", "1", "--memory", "1 GB", "--disk", "1500MiB")

    made = fleet("claim", "create", ns, *sizes, "--expires-in", "1d12h", "--json").json
    longer = fleet("claim", "update", ns, "--expires-in", "259200", "--json").json

    assert limits(made) == [1, 1024, 2]
    assert (made["expires_at"] < longer["expires_at"], limits(longer)) == (True, limits(made))


def test_without_a_uuid_the_active_claim_is_meant(fleet: Fleet, ns: str) -> None:
    none = fleet("claim", "show", ns)
    made = created(fleet, ns)

    assert (none.code, f"the namespace {ns} has no active claim" in none.err) == (1, True)
    assert fleet("claim", "show", ns, "--json").json == made
    assert fleet("claim", "update", ns, "--cpus", "5", "--json").json["uuid"] == made["uuid"]
    assert len(fleet("claim", "events", ns, "--json").json["items"]) == 2
    [youngest] = fleet("claim", "events", ns, "--limit", "1", "--json").json["items"]
    assert youngest["message"] == "namespace claim changed"
    # What is deleted is named.
    unnamed = fleet("claim", "delete", ns)
    assert (unnamed.code, f"{made['uuid']} (active)" in unnamed.err) == (2, True)


def test_a_claim_over_its_limit_may_stay_as_large_as_it_is(fleet: Fleet, admin: As, ns: str) -> None:
    created(fleet, ns, "--cpus", "3")
    place(admin, ns)
    place(admin, ns)

    refused = fleet("claim", "update", ns, "--cpus", "2")

    assert (refused.code, "The smallest it may be now: --cpus 3." in refused.err) == (1, True)
    assert fleet("claim", "update", ns, "--cpus", "3", "--json").code == 0


def test_what_was_typed_wrong_is_told_in_the_words_it_was_typed_in(fleet: Fleet, ns: str) -> None:
    nowhere = fleet("claim", "show", "no-such-namespace")
    misspelt = fleet("claim", "show", ns, "notauuid")

    assert (nowhere.code, "no such namespace: no-such-namespace" in nowhere.err) == (1, True)
    assert ("fleet namespace list" in nowhere.err, "fleet claim list no-such" in nowhere.err) == (True, False)
    assert (misspelt.code, "'notauuid' is not a uuid" in misspelt.err) == (2, True)


def test_people_see_what_is_used_of_each_limit_and_what_is_over(fleet: Fleet, admin: As, ns: str) -> None:
    created(fleet, ns, "--cpus", "3")
    place(admin, ns)
    within = fleet("claim", "list", ns).out.splitlines()
    place(admin, ns)
    over = fleet("claim", "list", ns).out.splitlines()
    shown = [line.split() for line in fleet("claim", "show", ns).out.splitlines() if line]

    titles = ["uuid", "namespace", "coverage_state", "cpus_used/limit", "memory_mb_used/limit", "disk_gb_used/limit"]
    assert within[0].split() == [*titles, "over", "expires_at"]
    assert within[1].split()[3:7] == ["2/3", "256/1024", "1/10", "-"]
    assert over[1].split()[3:8] == ["4/3", "512/1024", "2/10", "cpus", "+1"]
    assert ["dimension", "limit", "used", "left", "over"] in shown
    assert ["cpus", "3", "4", "0", "1"] in shown
    assert ["memory_mb", "1024", "512", "512", "0"] in shown


def test_programs_get_plain_lines_with_the_uuid_first(fleet: Fleet, ns: str) -> None:
    made = created(fleet, ns)

    head, line = fleet("--simple", "claim", "list", ns).out.splitlines()
    shown = fleet("claim", "show", ns, "--simple").out.splitlines()

    assert (
        dict(zip(head.split(","), line.split(","), strict=True)).items()
        >= {
            "uuid": made["uuid"],
            "limit_cpus": "4",
            "used_cpus": "0",
        }.items()
    )
    assert f"uuid,{made['uuid']}" in shown
    assert "limit_memory_mb,1024" in shown


def test_the_claims_of_all_namespaces_are_listed_when_none_is_named(
    fleet: Fleet, admin: As, ns: str, new_name: Names
) -> None:
    other = new_name("cli-claims")
    admin.post("/auth/namespaces", {"name": other})
    mine, theirs = created(fleet, ns), created(fleet, other)

    listed = fleet("claim", "list", "--json").json["items"]
    fleet("claim", "delete", other, theirs["uuid"])

    assert [item for item in listed if item["namespace"] in {ns, other}] == sorted(
        [mine, theirs], key=lambda item: str(item["namespace"])
    )


# --- refusals ----------------------------------------------------------------------------------------------------


def test_a_second_claim_is_refused_with_the_one_that_is_there(fleet: Fleet, ns: str) -> None:
    made = created(fleet, ns)

    refused = fleet("claim", "create", ns, *SIZES, *DAY)
    document = fleet("claim", "create", ns, *SIZES, *DAY, "--json")

    assert (refused.code, refused.out) == (1, "")
    assert "claim_exists" in refused.err
    assert f"fleet claim update {ns} {made['uuid']}" in refused.err
    assert (document.code, document.json["code"], document.json["claim"]) == (1, "claim_exists", made["uuid"])
    assert "remedies" not in document.json


def test_what_the_cluster_cannot_promise_is_refused_with_what_is_left(fleet: Fleet, admin: As, ns: str) -> None:
    found = admin.get("/admin/cluster-capacity").json()
    left = max(0, found["total_cpus"] - found["claimed_cpus"] - found["unclaimed_used_cpus"] - found["overage_cpus"])

    refused = fleet("claim", "create", ns, "--cpus", "1000000", "--memory", "1", "--disk", "0", *DAY)
    created(fleet, ns)
    grown = fleet("claim", "update", ns, "--cpus", "1000000")

    assert (refused.code, grown.code) == (1, 1)
    assert f"The largest it may be now: --cpus {left}." in refused.err
    assert f"The largest it may be now: --cpus {left}." in grown.err
    assert "Requested is the growth: --cpus 1000000, from 4." in grown.err
    assert ("promise this claim:" in refused.err, "promise the growth of this claim:" in grown.err) == (True, True)
    assert "fleet claim list" in refused.err
    assert fleet("claim", "update", ns, "--cpus", str(left)).code == 0


def test_a_shrink_below_use_is_refused_with_the_smallest_size(fleet: Fleet, admin: As, ns: str) -> None:
    created(fleet, ns)
    place(admin, ns)

    refused = fleet("claim", "update", ns, "--cpus", "1", "--memory", "8", "--disk", "5")
    smallest = fleet("claim", "update", ns, "--cpus", "2", "--memory", "256", "--disk", "5", "--json")

    assert (refused.code, "claim_below_usage" in refused.err) == (1, True)
    assert "The smallest it may be now: --cpus 2 --memory 256." in refused.err
    assert (smallest.code, limits(smallest.json)) == (0, [2, 256, 5])


def test_who_is_not_the_admin_is_refused(
    fleet: Fleet, served: Served, new_name: Names, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = new_name("owner")
    with served.namespace(name), served.admin() as admin:
        key = admin.post(f"/auth/namespaces/{name}/keys", {"name": "second"}).json()["key"]
    monkeypatch.setenv("FLEET_KEY", key)

    for words in (("list",), ("list", name), ("create", name, *SIZES, *DAY), ("show", name, str(uuid.uuid4()))):
        ended = fleet("--as", name, "claim", *words)

        assert (ended.code, "forbidden" in ended.err) == (1, True), ended


WRONG: tuple[tuple[str, ...], ...] = (
    ("create", "NS"),
    ("create", "NS", *SIZES),
    ("create", "NS", *SIZES, "--expires-in", "soon"),
    ("create", "NS", *SIZES, "--expires-in", ""),
    ("create", "NS", *SIZES, "--expires-in", "1h1h"),
    ("create", "NS", "--cpus", "1", "--memory", "much", "--disk", "1", *DAY),
    ("create", "NS", "--cpus", "1.5", "--memory", "1", "--disk", "1", *DAY),
    ("update", "NS"),
    ("delete", "NS"),
    ("show",),
)


@pytest.mark.parametrize("words", WRONG, ids=" ".join)
def test_what_cannot_be_meant_is_exit_2_in_words(fleet: Fleet, ns: str, words: tuple[str, ...]) -> None:
    ended = fleet("claim", *(ns if word == "NS" else word for word in words))

    assert (ended.code, bool(ended.err)) == (2, True), ended


JUDGED: tuple[tuple[tuple[str, ...], str], ...] = (
    (("--cpus", "-1", "--memory", "1", "--disk", "1", *DAY), "--cpus: -1 is below 0"),
    (("--cpus", "1", "--memory", "1", "--disk", "-1", *DAY), "--disk (GiB): -1 is below 0"),
    (("--cpus", "1", "--memory", "9" * 30, "--disk", "1", *DAY), "--memory (MiB): a number of so many digits"),
    ((*SIZES, "--expires-in", "0"), "--expires-in: 0s is below 1s"),
    ((*SIZES, "--expires-in", "-1"), "--expires-in: -1s is below 1s"),
    ((*SIZES, "--expires-in", "99999w"), "--expires-in: 699993d is above 3660d"),
)


@pytest.mark.parametrize(("flags", "told"), JUDGED)
def test_an_amount_that_the_service_refuses_is_told_by_its_flag(
    fleet: Fleet, ns: str, flags: tuple[str, ...], told: str
) -> None:
    ended = fleet("claim", "create", ns, *flags)

    assert (ended.code, told in ended.err) == (1, True), ended


def test_a_service_that_does_not_answer_is_exit_3(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_KEY", "admin.any")

    assert run(["--url", "http://127.0.0.1:9", "claim", "list"]) == 3
