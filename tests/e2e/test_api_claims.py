"""Claims over HTTP: the whole surface, as an operator and as somebody who may not use it."""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import text

from fleet.api.answers import iso
from fleet.ledger.cluster import now_us
from fleet.ledger.database import Database
from tests.e2e.claims_of import claims_of, give_back, path
from tests.e2e.served import As, Names, Served, assert_problem
from tests.servers import wait_until

BODY = {"limit_cpus": 4, "limit_memory_mb": 1024, "limit_disk_gb": 10, "expires_in_seconds": 3600}
SHAPE = {"name": "web", "cpus": 2, "memory_mb": 256, "disk_gb": 1}
NODE = "claimed"
TIME = re.compile(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z")
FIELDS = [
    *("uuid", "namespace", "state", "coverage_state", "limit_cpus", "limit_memory_mb", "limit_disk_gb"),
    *("used_cpus", "used_memory_mb", "used_disk_gb", "expires_at", "created_at", "updated_at"),
    "namespace_deleted_at",
]


@pytest.fixture(scope="module", autouse=True)
def node(served: Served) -> None:
    served.node(NODE, labels={"for": "claims"}, memory_max=2**20, memory_available=2**20)


@pytest.fixture
def ns(admin: As, new_name: Names) -> Iterator[str]:
    """A namespace whose claims are given back afterwards: they would bind what other tests may use."""
    name = new_name("claims")
    assert admin.post("/auth/namespaces", {"name": name}).status_code == 201
    yield name
    give_back(admin, name)


def claimed(admin: As, name: str, **fields: int) -> dict[str, Any]:
    answer = admin.post(path(name), {**BODY, **fields})
    assert answer.status_code == 201, answer.text
    made: dict[str, Any] = answer.json()
    return made


def place(admin: As, name: str, **more: Any) -> str:
    body = {**SHAPE, "namespace": name, "placement": {"labels": {"for": "claims"}}, **more}
    answer = admin.post("/instances", body)
    assert answer.status_code == 201, answer.text
    made: str = answer.json()["uuid"]
    return made


def messages(admin: As, of: str) -> list[tuple[str, dict[str, Any]]]:
    items = admin.get(f"{of}/events?newest_first=false&limit=1000").json()["items"]
    return [(item["message"], item["payload"]) for item in items]


def cluster(admin: As) -> dict[str, int]:
    """What is promised and used, without the totals, which other tests' nodes change."""
    found = admin.get("/admin/cluster-capacity").json()
    return {name: value for name, value in found.items() if name.startswith(("claimed_", "unclaimed_", "overage_"))}


def test_a_claim_is_made_shown_listed_and_deleted(admin: As, ns: str) -> None:
    before = cluster(admin)
    answer = admin.post(path(ns), BODY)

    assert answer.status_code == 201, answer.text
    made = answer.json()
    assert list(made) == FIELDS
    assert answer.headers["location"] == path(ns, made["uuid"])
    assert (made["namespace"], made["state"], made["coverage_state"]) == (ns, "created", "active")
    assert {name: made[name] for name in BODY if name in made} == {n: v for n, v in BODY.items() if n in made}
    assert [made[f"used_{name}"] for name in ("cpus", "memory_mb", "disk_gb")] == [0, 0, 0]
    assert all(TIME.fullmatch(made[name]) for name in ("expires_at", "created_at", "updated_at"))
    assert made["created_at"] < made["expires_at"]
    assert admin.get(path(ns, made["uuid"])).json() == made
    assert admin.get(path(ns, made["uuid"].upper())).json() == made
    assert admin.get(path(ns)).json() == {"items": [made], "next_cursor": None}
    assert cluster(admin)["claimed_cpus"] == before["claimed_cpus"] + 4

    gone = admin.delete(path(ns, made["uuid"]))

    assert (gone.status_code, gone.json()) == (200, made)
    assert claims_of(admin, ns) == []
    assert_problem(admin.get(path(ns, made["uuid"])), 404, "not_found")
    assert_problem(admin.delete(path(ns, made["uuid"])), 404, "not_found")
    assert cluster(admin) == before


def test_a_repeated_create_gets_the_first_answer_and_makes_nothing(admin: As, ns: str) -> None:
    first, again = (admin.post(path(ns), BODY, Idempotency_Key=f"{ns}-one") for _ in range(2))

    assert (first.status_code, again.status_code) == (201, 201)
    assert (first.json(), first.headers["location"]) == (again.json(), again.headers["location"])
    assert len(claims_of(admin, ns)) == 1
    other = admin.post(path(ns), {**BODY, "limit_cpus": 5}, Idempotency_Key=f"{ns}-one")
    assert_problem(other, 422, "idempotency_mismatch")
    # Also when it is deleted by now: the key names one claim, for a day.
    admin.delete(path(ns, first.json()["uuid"]))
    assert admin.post(path(ns), BODY, Idempotency_Key=f"{ns}-one").json() == first.json()
    assert claims_of(admin, ns) == []


def test_a_namespace_has_one_active_claim(admin: As, ns: str) -> None:
    made = claimed(admin, ns)

    refused = assert_problem(admin.post(path(ns), BODY), 409, "claim_exists")

    assert refused["claim"] == made["uuid"]
    assert claims_of(admin, ns) == [made]


def test_what_its_namespace_uses_is_the_claims_and_goes_back_with_it(admin: As, ns: str) -> None:
    place(admin, ns)
    before = cluster(admin)
    made = claimed(admin, ns)

    assert (made["used_cpus"], made["used_memory_mb"], made["used_disk_gb"]) == (2, 256, 1)
    assert cluster(admin)["unclaimed_used_cpus"] == before["unclaimed_used_cpus"] - 2
    place(admin, ns)
    shown = admin.get(path(ns, made["uuid"])).json()
    assert shown["used_cpus"] == 4

    gone = admin.delete(path(ns, made["uuid"])).json()

    assert gone == shown
    assert cluster(admin)["unclaimed_used_cpus"] == before["unclaimed_used_cpus"] + 2
    assert cluster(admin)["claimed_cpus"] == before["claimed_cpus"]


# --- changing ----------------------------------------------------------------------------------------------------


def test_only_the_fields_given_are_changed_and_zero_is_given(admin: As, ns: str) -> None:
    made = claimed(admin, ns)

    changed = admin.put(path(ns, made["uuid"]), {"limit_cpus": 0, "limit_disk_gb": 20})

    assert changed.status_code == 200, changed.text
    kept = {**made, "limit_cpus": 0, "limit_disk_gb": 20, "updated_at": changed.json()["updated_at"]}
    assert changed.json() == kept
    longer = admin.put(path(ns, made["uuid"]), {"expires_in_seconds": 7200}).json()
    assert longer["expires_at"] > made["expires_at"]
    assert {**longer, "expires_at": "", "updated_at": ""} == {**kept, "expires_at": "", "updated_at": ""}


def test_a_change_of_nothing_is_refused(admin: As, ns: str) -> None:
    made = claimed(admin, ns)

    refused = assert_problem(admin.put(path(ns, made["uuid"]), {}), 400, "invalid_request")

    assert refused["detail"] == "no claim fields to update specified"
    assert claims_of(admin, ns) == [made]


def test_a_claim_does_not_shrink_below_what_it_uses(admin: As, ns: str) -> None:
    made = claimed(admin, ns)
    place(admin, ns)

    refused = admin.put(path(ns, made["uuid"]), {"limit_cpus": 1, "limit_memory_mb": 300, "limit_disk_gb": 50})

    document = assert_problem(refused, 409, "claim_below_usage")
    assert "cpus (limit 1, used 2)" in document["detail"]
    assert "memory_mb" not in document["detail"]
    assert [item["dimension"] for item in document["dimensions"] if item["exceeded"]] == ["cpus"]
    assert admin.get(path(ns, made["uuid"])).json()["limit_disk_gb"] == 10
    assert admin.put(path(ns, made["uuid"]), {"limit_cpus": 2, "limit_disk_gb": 50}).status_code == 200


def test_what_the_cluster_cannot_promise_is_507_with_the_figures(admin: As, ns: str) -> None:
    made = admin.post(path(ns), {**BODY, "limit_cpus": 2**40})
    document = assert_problem(made, 507, "claim_capacity")

    assert re.search(r": cpus \(limit \d+, used \d+, requested 1099511627776\)$", document["detail"])
    assert [item["dimension"] for item in document["dimensions"]] == ["cpus", "memory_mb", "disk_gb"]
    assert [item["exceeded"] for item in document["dimensions"]] == [True, False, False]
    assert claims_of(admin, ns) == []
    small = claimed(admin, ns)
    grown = admin.put(path(ns, small["uuid"]), {"limit_cpus": 2**40, "limit_disk_gb": 11})
    assert_problem(grown, 507, "claim_capacity")
    assert admin.get(path(ns, small["uuid"])).json() == small


# --- ends --------------------------------------------------------------------------------------------------------


def test_a_claim_past_its_end_is_replaced_and_not_revived(served: Served, admin: As, ns: str) -> None:
    made = claimed(admin, ns, expires_in_seconds=1)
    shown = until_past(served, admin, made)
    # Nobody swept it: it reads as its row stands, and an attempt to change it sweeps it.
    assert shown["coverage_state"] == "active"

    document = assert_problem(admin.put(path(ns, made["uuid"]), {"expires_in_seconds": 60}), 409, "claim_not_active")

    assert document["coverage_state"] == "expired"
    swept = admin.get(path(ns, made["uuid"])).json()
    assert (swept["state"], swept["coverage_state"]) == ("created", "expired")
    again = claimed(admin, ns)
    assert [item["uuid"] for item in claims_of(admin, ns)] == [again["uuid"], made["uuid"]]
    assert admin.delete(path(ns, made["uuid"])).json() == swept
    assert [item["uuid"] for item in claims_of(admin, ns)] == [again["uuid"]]
    assert messages(admin, path(ns, again["uuid"]))[0][0] == "db record created"


def test_a_claim_past_its_end_stands_in_nobodys_way(served: Served, admin: As, ns: str) -> None:
    first = claimed(admin, ns, expires_in_seconds=1)
    until_past(served, admin, first)

    second = claimed(admin, ns)

    assert [item["coverage_state"] for item in claims_of(admin, ns)] == ["active", "expired"]
    assert second["uuid"] != first["uuid"]


def until_past(served: Served, admin: As, claim: dict[str, Any]) -> dict[str, Any]:
    """Wait for the claim's end by the database's clock, and show the claim."""
    database = Database(served.database_url)
    try:
        wait_until(lambda: str(iso(now_us(database))) > claim["expires_at"], seconds=10, what="the claim's end")
    finally:
        database.close()
    found: dict[str, Any] = admin.get(path(claim["namespace"], claim["uuid"])).json()
    return found


def test_the_pages_of_a_list_miss_nothing(served: Served, admin: As, ns: str) -> None:
    made = []
    for _ in range(3):
        claim = claimed(admin, ns, expires_in_seconds=1)
        made.append(claim["uuid"])
        until_past(served, admin, claim)

    seen: list[str] = []
    cursor = ""
    for _ in range(3):
        answer = admin.get(f"{path(ns)}?limit=1{cursor}").json()
        seen += [item["uuid"] for item in answer["items"]]
        cursor = f"&cursor={answer['next_cursor']}"

    assert seen == made[::-1]
    assert answer["next_cursor"] is None
    assert_problem(admin.get(f"{path(ns)}?cursor=first"), 400, "invalid_request", "cursor")
    assert_problem(admin.get(f"{path(ns)}?limit=0"), 400, "invalid_request", "limit")


def test_a_delete_that_cannot_be_done_leaves_the_claim_and_its_capacity(served: Served, admin: As, ns: str) -> None:
    made, before = claimed(admin, ns), cluster(admin)
    database = Database(served.database_url)
    body = "SELECT RAISE(ABORT, 'no')" if database.is_sqlite else "SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'no'"
    condition = f"BEFORE DELETE ON namespace_claims FOR EACH ROW BEGIN {body}; END"
    with database.engine.begin() as conn:
        conn.execute(text(f"CREATE TRIGGER kept {condition}"))
    try:
        document = assert_problem(admin.delete(path(ns, made["uuid"])), 500, "claim_delete_failed")
    finally:
        with database.engine.begin() as conn:
            conn.execute(text("DROP TRIGGER kept"))
        database.close()

    assert "it stands" in document["detail"]
    assert (claims_of(admin, ns), cluster(admin)) == ([made], before)
    assert admin.delete(path(ns, made["uuid"])).status_code == 200


# --- who and what ------------------------------------------------------------------------------------------------


def test_no_verb_is_the_owners(served: Served, admin: As, new_name: Names) -> None:
    name = new_name("owner")
    with served.namespace(name) as owner:
        made = claimed(admin, name)
        one = path(name, made["uuid"])
        calls = [("GET", path(name)), ("POST", path(name)), ("GET", one), ("PUT", one), ("DELETE", one)]
        for method, where in [*calls, ("GET", f"{one}/events"), ("GET", path("nobody")), ("GET", path(name, "x"))]:
            assert_problem(owner.call(method, where, BODY if method in {"POST", "PUT"} else None), 403, "forbidden")
        assert claims_of(admin, name) == [made]
        admin.delete(one)


def test_what_is_not_there_is_answered_in_the_same_words(admin: As, ns: str, new_name: Names) -> None:
    other = new_name("other")
    admin.post("/auth/namespaces", {"name": other})
    theirs = claimed(admin, other)
    absent = str(uuid.uuid4())
    refs = [(ns, absent), (ns, "not-a-uuid"), (ns, theirs["uuid"]), ("nobody", theirs["uuid"]), ("a b", absent)]
    calls = [("GET", ""), ("PUT", ""), ("DELETE", ""), ("GET", "/events")]
    answers = [
        admin.call(method, path(name, ref) + tail, {"limit_cpus": 1} if method == "PUT" else None)
        for name, ref in refs
        for method, tail in calls
    ]
    answers += [admin.get(path("nobody")), admin.post(path("nobody"), BODY)]

    assert len({str(assert_problem(answer, 404, "not_found")) for answer in answers}) == 1
    assert claims_of(admin, other) == [theirs]
    admin.delete(path(other, theirs["uuid"]))


def test_in_a_deleted_namespace_no_claim_is_made_or_changed(admin: As, ns: str, new_name: Names) -> None:
    name = new_name("gone")
    admin.post("/auth/namespaces", {"name": name})
    made = claimed(admin, name, limit_cpus=0, limit_memory_mb=0, limit_disk_gb=0)
    assert admin.delete(f"/auth/namespaces/{name}").status_code == 204

    for answer in (admin.post(path(name), BODY), admin.put(path(name, made["uuid"]), {"limit_disk_gb": 0})):
        assert_problem(answer, 404, "not_found")
    give_back(admin, name)


def test_the_claim_a_deleted_namespace_left_is_seen_and_given_up_and_its_capacity_returns_at_once(
    served: Served, admin: As, ns: str, new_name: Names
) -> None:
    name = new_name("gone")
    admin.post("/auth/namespaces", {"name": name})
    before = cluster(admin)
    made = claimed(admin, name)
    mine = claimed(admin, ns)
    admin.delete(f"/auth/namespaces/{name}")

    [left] = claims_of(admin, name)
    assert left == {**made, "namespace_deleted_at": left["namespace_deleted_at"]}
    assert TIME.fullmatch(left["namespace_deleted_at"])
    assert admin.get(path(name, made["uuid"])).json() == left
    everybodys = admin.get("/admin/claims?limit=1000").json()["items"]
    assert [claim for claim in everybodys if claim["namespace"] in {name, ns}] == [mine, left]
    assert [message for message, _ in messages(admin, path(name, made["uuid"]))] == ["db record created"]

    gone = admin.delete(path(name, made["uuid"]))
    assert (gone.status_code, gone.json()) == (200, left)
    give_back(admin, ns)
    assert cluster(admin) == before
    assert claims_of(admin, name) == []
    # The namespace's own end is read as well, by the admin alone.
    told = [message for message, _ in messages(admin, f"/auth/namespaces/{name}")]
    assert told[-3:] == [
        "namespace deleted",
        "delete namespace claim request from REST API",
        "namespace claim deleted, capacity returned",
    ]
    with served.namespace(new_name("owner")) as owner:
        assert_problem(owner.get(f"/auth/namespaces/{name}/events"), 404, "not_found")
        assert_problem(owner.get("/admin/claims"), 403, "forbidden")


def test_the_pages_of_all_claims_miss_nothing(admin: As, ns: str, new_name: Names) -> None:
    names = [ns, *(new_name("pages") for _ in range(3))]
    for name in names[1:]:
        admin.post("/auth/namespaces", {"name": name})
    made = [claimed(admin, name, limit_cpus=0, limit_memory_mb=0, limit_disk_gb=0) for name in names]
    page = admin.get("/admin/claims?limit=2").json()
    found = page["items"]
    while page["next_cursor"] is not None:
        page = admin.get(f"/admin/claims?limit=2&cursor={page['next_cursor']}").json()
        found += page["items"]

    assert [claim for claim in found if claim["namespace"] in names] == made[::-1]
    assert len({claim["uuid"] for claim in found}) == len(found)
    for name in names:
        give_back(admin, name)


WRONG: tuple[Any, ...] = (True, False, 1.0, 1.5, "1", -1, 2**40 + 1, 2**53 + 1, 2**63, 10**30, None, [], {})


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_every_wrong_value_is_named_and_nothing_is_stored(admin: As, ns: str, method: str) -> None:
    made = claimed(admin, ns) if method == "PUT" else None
    where = path(ns) if made is None else path(ns, made["uuid"])
    for name in BODY:
        for wrong in (*WRONG, *((0, 10 * 366 * 86_400 + 1) if name == "expires_in_seconds" else ())):
            assert_problem(admin.call(method, where, {**BODY, name: wrong}), 400, "invalid_request", name)

    everything = dict.fromkeys([*BODY, "bogus"], "x")
    document = assert_problem(admin.call(method, where, everything), 400, "invalid_request")
    assert [item["field"] for item in document["errors"]] == list(everything)
    assert claims_of(admin, ns) == ([] if made is None else [made])


def test_every_missing_field_is_named(admin: As, ns: str) -> None:
    document = assert_problem(admin.post(path(ns), {}), 400, "invalid_request")

    assert [item["field"] for item in document["errors"]] == list(BODY)
    for name in BODY:
        short = {field: value for field, value in BODY.items() if field != name}
        assert_problem(admin.post(path(ns), short), 400, "invalid_request", name)


# --- events ------------------------------------------------------------------------------------------------------


def test_a_claims_life_is_told_on_its_own_timeline_and_on_its_namespaces(served: Served, admin: As, ns: str) -> None:
    limits = {name: value for name, value in BODY.items() if name.startswith("limit_")}
    made = claimed(admin, ns)
    one = path(ns, made["uuid"])
    admin.put(one, {"limit_cpus": 5})
    told = messages(admin, one)
    admin.delete(one)

    assert messages(admin, one)[:-1] == told
    assert messages(admin, one)[-1][0] == "namespace claim deleted, capacity returned"
    (created, record), (changed, change) = told
    assert (created, changed) == ("db record created", "namespace claim changed")
    assert limits.items() <= record.items()
    assert record["expires_at"] == made["expires_at"]
    assert record["by"] == change["by"] == "system/admin-file.control"
    assert (change["old"], change["new"]) == ({"limit_cpus": 4}, {"limit_cpus": 5})
    assert "expires_in_seconds" not in change, "the end was not touched"
    of_namespace = messages(admin, f"/auth/namespaces/{ns}")[1:]
    assert [message for message, _ in of_namespace] == [
        "create namespace claim request from REST API",
        "namespace claim changed",
        "delete namespace claim request from REST API",
        "namespace claim deleted, capacity returned",
    ]
    assert of_namespace[0][1] == {"claim": made["uuid"], **BODY, "by": record["by"]}
    assert of_namespace[2][1] == {"claim": made["uuid"], "by": record["by"]}
    assert of_namespace[3][1]["limit_cpus"] == 5


def test_a_deleted_claims_events_are_its_namespaces_and_nobody_elses(
    served: Served, admin: As, new_name: Names
) -> None:
    name, other = new_name("was"), new_name("never")
    admin.post("/auth/namespaces", {"name": other})
    with served.namespace(name) as owner:
        made = claimed(admin, name)
        admin.delete(path(name, made["uuid"]))
        for where in (path(other, made["uuid"]), path("nobody", made["uuid"]), path(name, str(uuid.uuid4()))):
            refused = assert_problem(admin.get(f"{where}/events"), 404, "not_found")
            assert refused["detail"] == assert_problem(admin.get(path(name, made["uuid"])), 404, "not_found")["detail"]
        assert_problem(owner.get(f"{path(name, made['uuid'])}/events"), 403, "forbidden")
    admin.delete(f"/auth/namespaces/{name}")
    # The namespace is gone as well: its claim's end is still told.
    assert [message for message, _ in messages(admin, path(name, made["uuid"]))] == [
        "db record created",
        "namespace claim deleted, capacity returned",
    ]


def test_a_claim_that_is_prolonged_or_cut_short_is_told_with_its_former_end_and_its_new_one(admin: As, ns: str) -> None:
    made = claimed(admin, ns)
    one = path(ns, made["uuid"])
    changed = admin.put(one, {"expires_in_seconds": 60}).json()

    (_, (_, change)) = messages(admin, one)

    assert change["expires_in_seconds"] == 60
    assert change["old"] == {"expires_at": made["expires_at"]}
    assert change["new"] == {"expires_at": changed["expires_at"]}


def test_a_placement_over_the_claim_is_told_on_the_instance_and_on_the_namespace(admin: As, ns: str) -> None:
    claimed(admin, ns, limit_cpus=3)
    place(admin, ns)
    instance = place(admin, ns)

    for of in (f"/instances/{instance}", f"/auth/namespaces/{ns}"):
        found = dict(messages(admin, of))["placement admitted over namespace capacity claim"]
        assert (found["node"], found["namespace"]) == (NODE, ns)
        (over,) = found["claim_dimensions"]
        assert [over[name] for name in ("dimension", "limit", "used", "requested")] == ["cpus", 3, 2, 2]
