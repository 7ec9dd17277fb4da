"""What a deleted namespace's claim still keeps: said when it is deleted, listed, shown, and had back at once."""

from __future__ import annotations

import pytest

from tests.e2e.claims_of import claims_of, give_back, path
from tests.e2e.served import As, Fleet, Names, Served

BODY = {"limit_cpus": 4, "limit_memory_mb": 1024, "limit_disk_gb": 10, "expires_in_seconds": 3600}


@pytest.fixture(scope="module", autouse=True)
def room(served: Served) -> None:
    served.node("claim-deleted", memory_max=2**20, memory_available=2**20)


@pytest.fixture
def ns(admin: As, new_name: Names) -> str:
    name = new_name("gone")
    assert admin.post("/auth/namespaces", {"name": name}).status_code == 201
    return name


def claimed(admin: As, ns: str) -> str:
    made = admin.post(path(ns), BODY)
    assert made.status_code == 201, made.text
    return str(made.json()["uuid"])


def test_a_deletion_says_what_the_claim_keeps_for_how_long_and_how_to_have_it_back(
    fleet: Fleet, admin: As, ns: str
) -> None:
    uuid = claimed(admin, ns)
    delay = admin.get("/admin/config/CLEANER_DELAY_SECONDS").json()["value"]

    said = fleet("namespace", "delete", ns)

    assert said.code == 0, said
    words = " ".join(said.out.split())
    assert f"namespace {ns} is deleted" in words
    assert f"its claim keeps 4 vCPUs, 1024 MiB of memory and 10 GiB of disk for {delay} s more" in words
    assert words.endswith(f"to have that back now: fleet claim delete {ns} {uuid}")
    assert fleet("claim", "delete", ns, uuid).code == 0
    assert claims_of(admin, ns) == []


def test_a_deletion_that_leaves_no_claim_says_no_more_and_programs_are_told_nothing(
    fleet: Fleet, admin: As, ns: str, new_name: Names
) -> None:
    other = new_name("gone")
    admin.post("/auth/namespaces", {"name": other})
    claimed(admin, other)

    assert fleet("namespace", "delete", ns).out == f"namespace {ns} is deleted\n"
    quiet = fleet("namespace", "delete", other, "--json")
    assert (quiet.code, quiet.out) == (0, "")
    give_back(admin, other)


def test_a_deletion_that_is_refused_says_only_that(fleet: Fleet, new_name: Names) -> None:
    refused = fleet("namespace", "delete", new_name("nobody"))

    assert refused.code == 1
    assert "claim" not in refused.out + refused.err


def test_the_claim_of_a_deleted_namespace_is_listed_as_such_and_shown(fleet: Fleet, admin: As, ns: str) -> None:
    uuid = claimed(admin, ns)
    fleet("namespace", "delete", ns)

    everybodys, its_own = fleet("claim", "list"), fleet("claim", "list", ns)
    shown, told = fleet("claim", "show", ns), fleet("namespace", "events", ns)
    programs = [claim for claim in fleet("claim", "list", "--json").json["items"] if claim["uuid"] == uuid]

    assert f"{ns} (deleted)" in everybodys.out
    assert f"{ns} (deleted)" in its_own.out
    assert (shown.code, "namespace_deleted_at" in shown.out) == (0, True)
    assert "namespace deleted" in told.out
    assert programs == claims_of(admin, ns)
    assert programs[0]["namespace_deleted_at"]
    give_back(admin, ns)
