"""Codes and statuses: the table of the requirements, line by line, and the headers that go with them."""

from __future__ import annotations

import json

import pytest

from fleet.api.problems import CODES, MEDIA_TYPE, of_error, problem
from fleet.ledger.database import unavailable as database_unavailable
from fleet.model import errors
from fleet.queue.connection import unavailable as queue_unavailable

# The requirements' table of answers. Codes that stand for HTTP itself are ours: 405, 413 and 500.
STATUSES = {
    "invalid_request": 400,
    "not_supported": 400,
    "unauthenticated": 401,
    "forbidden": 403,
    "claim_exceeded": 403,
    "not_found": 404,
    "node_not_found": 404,
    "conflict": 409,
    "affinity_unsatisfiable": 409,
    "claim_exists": 409,
    "claim_below_usage": 409,
    "claim_not_active": 409,
    "idempotency_mismatch": 422,
    "rate_limited": 429,
    "claim_delete_failed": 500,
    "placement_busy": 503,
    "affinity_unsatisfied": 503,
    "pin_ineligible": 503,
    "labels_unmatched": 503,
    "no_gpu_nodes": 503,
    "no_nodes": 503,
    "no_schedulable_nodes": 503,
    "claim_not_ready": 503,
    "claim_conflict": 503,
    "database_unavailable": 503,
    "out_of_capacity": 507,
    "claim_capacity": 507,
}
OURS = {
    "method_not_allowed": 405,
    "body_too_large": 413,
    "internal_error": 500,
    "broken_promise": 500,
    "queue_unavailable": 503,
    "strategy_unavailable": 503,
}


def test_every_code_has_the_status_of_the_requirements() -> None:
    assert {code: status for code, (status, _) in CODES.items()} == STATUSES | OURS


@pytest.mark.parametrize("code", CODES)
def test_every_document_has_what_the_standard_asks(code: str) -> None:
    answer = problem(code, "a sentence")

    document = json.loads(bytes(answer.body))
    assert answer.media_type == MEDIA_TYPE
    assert answer.status_code == document["status"] == CODES[code][0]
    assert (document["type"], document["code"], document["detail"]) == (
        f"urn:fleet:problem:{code}",
        code,
        "a sentence",
    )
    assert document["title"]


@pytest.mark.parametrize("transient", [True, False])
def test_only_a_refusal_that_may_pass_says_when_to_come_back(transient: bool) -> None:
    answer = problem("out_of_capacity", "0 of 3 nodes fit", transient=transient, stage="sufficient_idle_cpu")

    assert answer.headers.get("retry-after") == ("15" if transient else None)
    assert json.loads(bytes(answer.body))["stage"] == "sufficient_idle_cpu"


@pytest.mark.parametrize("code", ["placement_busy", "claim_not_ready", "claim_conflict", "database_unavailable"])
def test_what_passes_soon_says_so(code: str) -> None:
    assert problem(code, "x").headers["retry-after"] == "1"


def test_a_401_says_how_to_authenticate() -> None:
    assert problem("unauthenticated", "x").headers["www-authenticate"] == "Bearer"


def test_every_error_of_the_model_has_a_place_in_the_table() -> None:
    def below(kind: type[errors.FleetError]) -> set[type[errors.FleetError]]:
        return {kind}.union(*(below(child) for child in kind.__subclasses__()))

    # A driver's and a worker's own errors end in an operation or a process and never meet a caller; whether they are
    # known here depends on what was imported before.
    for kind in below(errors.FleetError):
        assert kind.code in CODES or not kind.__module__.startswith("fleet.model"), kind


def test_a_request_still_in_progress_is_a_conflict_to_be_repeated() -> None:
    answer = of_error(errors.RequestInProgress("the first one still runs"))

    assert (answer.status_code, answer.headers["retry-after"]) == (409, "1")
    assert "retry-after" not in of_error(errors.Conflict("it is deleting")).headers


def test_figures_stand_beside_the_standard_members() -> None:
    answer = of_error(errors.Conflict("node n1 holds 2 instances", state="active", instances=2))

    document = json.loads(bytes(answer.body))
    assert (document["state"], document["instances"]) == ("active", 2)


@pytest.mark.parametrize(
    "error",
    [
        database_unavailable(RuntimeError("can't connect to 'sf'@'db.internal'")),
        queue_unavailable(RuntimeError("Error 111 connecting to db.internal:6379")),
    ],
)
def test_a_caller_is_not_told_where_our_servers_are(error: errors.Unavailable) -> None:
    document = json.loads(bytes(of_error(error).body))

    assert "db.internal" in error.detail
    assert "db.internal" not in json.dumps(document)
    assert "did not answer; " in document["detail"]
