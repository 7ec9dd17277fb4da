"""Refusals as the command line tells them: with the name that was typed, and its flags for a body's fields."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.cli.durations import seconds_of, written
from fleet.cli.told_refusals import hints, in_words

UUID = "0039308a-82a5-4a0b-95d0-01574907c7eb"


def absent(what: str) -> dict[str, Any]:
    return {"code": "not_found", "detail": f"no such {what}"}


def invalid(field: str, message: str) -> dict[str, Any]:
    errors = [{"field": field, "message": message}]
    return {"code": "invalid_request", "detail": f"{field}: {message}", "errors": errors}


@pytest.mark.parametrize(
    ("what", "path", "body", "name", "listing"),
    [
        ("namespace", "/auth/namespaces/nope", None, "nope", "fleet namespace list"),
        ("namespace", "/auth/namespaces/nope/keys?limit=500", None, "nope", "fleet namespace list"),
        ("namespace", "/instances", {"namespace": "nope"}, "nope", "fleet namespace list"),
        ("key", "/auth/namespaces/ci/keys/old/rotate", {}, "old of ci", "fleet key list ci"),
        ("key", "/auth/namespaces/ci/keys/old", None, "old of ci", "fleet key list ci"),
        ("node", "/nodes/a%2Fb/cordon", None, "a/b", "fleet node list"),
        ("instance", f"/instances/{UUID}/why?expected=n", None, UUID, "fleet instance list"),
        ("decision", f"/decisions/{UUID}", None, UUID, "fleet decision list"),
        ("operation", f"/operations/{UUID}", None, UUID, "fleet operation list"),
    ],
)
def test_what_is_not_there_is_named_as_it_was_typed(
    what: str, path: str, body: dict[str, Any] | None, name: str, listing: str
) -> None:
    assert in_words(absent(what), path, body) == f"no such {what}: {name}"
    assert hints(absent(what), path, body) == [f"Which there are: {listing}"]


def test_a_claim_that_is_not_there_is_named_with_its_namespace() -> None:
    path = f"/auth/namespaces/ci/claims/{UUID}"

    assert in_words(absent("namespace or claim"), path, None) == f"no such namespace or claim: {UUID} of ci"
    assert hints(absent("namespace or claim"), path, None) == []


def test_where_no_claim_was_named_it_is_the_namespace_that_is_not_there() -> None:
    path = "/auth/namespaces/nope/claims?limit=500"

    assert in_words(absent("namespace or claim"), path, None) == "no such namespace: nope"


def test_a_name_with_a_slash_is_told_so() -> None:
    document = {"code": "not_found", "detail": "no such path"}

    assert in_words(document, "/auth/namespaces/a%2Fb", None) == "'a/b' is no name: it has a slash"
    assert in_words(document, "/auth/namespaces/a", None) == ""


def test_an_operation_that_cannot_be_cancelled_is_looked_up_in_its_list() -> None:
    document = {"code": "not_found", "detail": f"no operation {UUID}"}

    assert hints(document, f"/operations/{UUID}/cancel", None) == ["Which there are: fleet operation list"]


def test_a_choice_of_a_list_is_told_by_its_flag() -> None:
    path = "/decisions?outcome=maybe&limit=500"

    assert in_words(invalid("outcome", "must be 'placed' or 'refused'"), path, None) == (
        "--outcome: must be 'placed' or 'refused'"
    )


def test_what_is_not_supported_is_told_by_its_flag() -> None:
    document = {"code": "not_supported", "detail": "not supported yet: wait_for_capacity_seconds, image"}

    assert in_words(document, "/instances", {}) == "not supported yet: --wait-for-capacity, image"


@pytest.mark.parametrize(
    ("field", "message", "told"),
    [
        ("grace_seconds", "34560000 is above 2592000, the most", "--grace: 400d is above 30d, the most"),
        ("expires_in_seconds", "0 is below 1, the least", "--expires-in: 0s is below 1s, the least"),
        ("limit_cpus", "-1 is below 0, the least", "--cpus: -1 is below 0, the least"),
        ("disk_gb", "-5 is below 0, the least", "disk (GiB): -5 is below 0, the least"),
        ("placement.node", "is missing", ""),
    ],
)
def test_a_value_that_is_refused_is_told_by_its_flag_and_in_units_that_can_be_typed(
    field: str, message: str, told: str
) -> None:
    assert in_words(invalid(field, message), "/auth/namespaces/ci/claims", {}) == told


@pytest.mark.parametrize(
    ("path", "held"),
    [("/auth/namespaces/ci", "--namespace ci"), ("/nodes/sim-05", "--node sim-05")],
)
def test_what_still_holds_instances_is_told_with_the_list_of_them(path: str, held: str) -> None:
    document = {"code": "conflict", "detail": "it still holds 2 instances; delete them first"}

    assert hints(document, path, None) == [f"Which they are: fleet instance list {held}"]


def test_a_key_that_is_there_already_is_rotated() -> None:
    document = {"code": "conflict", "detail": "namespace ci already has a key named deploy"}

    assert hints(document, "/auth/namespaces/ci/keys", {"name": "deploy"}) == [
        "A new secret for it: fleet key rotate ci deploy"
    ]


@pytest.mark.parametrize("seconds", [1, 60, 90, 3600, 86_399, 129_600, 2_592_000])
def test_a_duration_that_is_written_reads_the_same(seconds: int) -> None:
    assert seconds_of(written(seconds)) == seconds
