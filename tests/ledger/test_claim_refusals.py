"""What an administrator is told when a claim is refused: a code, a sentence with figures, and no more than is so."""

from __future__ import annotations

import time
import uuid
from typing import Any

import pytest

from fleet.ledger import claim_grants, claim_views, namespaces
from fleet.ledger.claim_grants import ClaimRefused
from fleet.ledger.claim_views import ClaimView
from fleet.ledger.database import Database
from fleet.model.errors import (
    ClaimBelowUsage,
    ClaimCapacity,
    ClaimConflict,
    ClaimExists,
    ClaimNotReady,
    FleetError,
    Forbidden,
    NotFound,
    RequestInProgress,
)
from fleet.model.resources import Amounts, DimensionFigure
from fleet.services import claims
from fleet.services.authentication import Caller
from fleet.services.idempotency import RetryKey
from tests.ledger import fleet_of
from tests.ledger.fleet_of import NAMESPACE, ask
from tests.ledger.racing import BUSY_SECONDS_MAX, Pause, Threads, until_known

ADMIN = Caller(namespace="system", key="k")


def create(db: Database, *limits: int, namespace: str = NAMESPACE, retry_key: RetryKey | None = None) -> ClaimView:
    fresh = str(uuid.uuid4())
    return claims.create(db, ADMIN, namespace, Amounts(*limits), 60, uuid=fresh, retry_key=retry_key)


@pytest.fixture
def tenant(db: Database) -> Database:
    namespaces.ensure(db, NAMESPACE)
    return db


def test_without_a_counting_node_or_the_clusters_row_claims_are_not_ready(
    tenant: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ClaimNotReady, match="no node counts"):
        create(tenant, 0, 0, 0)
    answering(monkeypatch, ClaimRefused("no_cluster_capacity"))
    with pytest.raises(ClaimNotReady, match="is not known yet"):
        create(tenant, 0, 0, 0)


def test_what_has_no_room_is_named_and_nothing_else(tenant: Database) -> None:
    fleet_of.node(tenant, cpus=10, memory_mb=1000)

    with pytest.raises(ClaimCapacity) as refused:
        create(tenant, 11, 1001, 5)

    expected = "cpus (limit 10, used 0, requested 11), memory_mb (limit 1000, used 0, requested 1001)"
    assert refused.value.detail == f"the cluster does not have the capacity to promise this claim: {expected}"
    assert [item["dimension"] for item in refused.value.extra["dimensions"]] == ["cpus", "memory_mb", "disk_gb"]


def test_where_room_came_meanwhile_every_dimension_is_named(tenant: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = tuple(
        DimensionFigure.of(name, limit=limit, used=0, requested=1)
        for name, limit in (("cpus", 9), ("memory_mb", None), ("disk_gb", 7))
    )
    answering(monkeypatch, ClaimRefused("claim_capacity", figures))

    with pytest.raises(ClaimCapacity) as refused:
        create(tenant, 1, 1, 1)

    assert refused.value.detail.endswith(
        "cpus (limit 9, used 0, requested 1), memory_mb (limit unlimited, used 0, requested 1), "
        "disk_gb (limit 7, used 0, requested 1)"
    )


def test_changes_by_others_are_a_conflict_to_repeat(tenant: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, ClaimRefused("claim_conflict"))

    with pytest.raises(ClaimConflict, match="try again"):
        create(tenant, 1, 1, 1)


def answering(monkeypatch: pytest.MonkeyPatch, refused: ClaimRefused) -> None:
    def grant(*_args: Any, **_options: Any) -> ClaimRefused:
        return refused

    monkeypatch.setattr(claim_grants, "grant", grant)


def test_what_it_uses_beyond_a_shrink_is_named(tenant: Database) -> None:
    node_id = fleet_of.node(tenant, cpus=10)
    claim = create(tenant, 4, 100, 10)
    fleet_of.admitted(tenant, ask(node_id, cpus=3, memory_mb=50))

    with pytest.raises(ClaimBelowUsage) as refused:
        claims.update(tenant, ADMIN, NAMESPACE, claim.uuid, {"cpus": 2, "memory_mb": 50, "disk_gb": 20}, None)

    assert refused.value.detail.endswith(": cpus (limit 2, used 3)")


def test_nobody_but_the_admin_may_do_anything(tenant: Database) -> None:
    fleet_of.node(tenant, cpus=10)
    claim = create(tenant, 1, 1, 1)
    owner = Caller(namespace=NAMESPACE, key="k")
    calls: tuple[Any, ...] = (
        lambda: claims.create(tenant, owner, NAMESPACE, Amounts(), 60, uuid="u", retry_key=None),
        lambda: claims.listing(tenant, owner, NAMESPACE, 10),
        lambda: claims.get(tenant, owner, NAMESPACE, claim.uuid),
        lambda: claims.update(tenant, owner, NAMESPACE, claim.uuid, {}, None),
        lambda: claims.delete(tenant, owner, NAMESPACE, claim.uuid),
    )
    for call in calls:
        with pytest.raises(Forbidden):
            call()


def test_what_is_not_there_is_said_in_the_same_words(tenant: Database) -> None:
    fleet_of.node(tenant, cpus=10)
    namespaces.ensure(tenant, "other")
    theirs = create(tenant, 1, 1, 1, namespace="other")
    said = set()
    for namespace, ref in ((NAMESPACE, theirs.uuid), (NAMESPACE, "x"), ("nobody", theirs.uuid), ("a b\0", "")):
        for verb in (claims.get, claims.delete):
            with pytest.raises(NotFound) as missing:
                verb(tenant, ADMIN, namespace, ref)
            said.add((missing.value.detail, str(missing.value.extra)))
    assert said == {(claims.NO_CLAIM, "{}")}


# --- one key, one claim ------------------------------------------------------------------------------------------


def creating(db: Database, pause: Pause, digest: str, cpus: int) -> str:
    """As a caller does who is told that the first one has not ended yet: the same request once more."""
    key, deadline = RetryKey(namespace="system", key="one", digest=digest), time.monotonic() + BUSY_SECONDS_MAX
    while True:
        try:
            return until_known(lambda: create(db, cpus, 0, 0, retry_key=key)).uuid
        except (RequestInProgress, ClaimConflict) as error:
            if time.monotonic() > deadline:
                return error.code
        except FleetError as error:
            return error.code


def test_of_the_same_request_sent_at_once_all_get_the_one_claim(tenant: Database, db_url: str) -> None:
    fleet_of.node(tenant, cpus=10)
    with Threads(db_url, 8) as crew:
        answers = crew.run(creating, [("d", 2)] * 8)

    (claim,) = claim_views.listing(tenant, NAMESPACE, 10)
    assert answers == [claim.uuid] * 8
    fleet_of.assert_exact(tenant)


def test_of_other_requests_under_its_key_none_gets_it(tenant: Database, db_url: str) -> None:
    fleet_of.node(tenant, cpus=10)
    with Threads(db_url, 4) as crew:
        answers = crew.run(creating, [(str(at), at) for at in range(4)])

    (claim,) = claim_views.listing(tenant, NAMESPACE, 10)
    assert sorted(answers, key=len) == ["idempotency_mismatch"] * 3 + [claim.uuid]
    fleet_of.assert_exact(tenant)


def test_without_a_key_the_second_is_told_which_claim_stands(tenant: Database) -> None:
    fleet_of.node(tenant, cpus=10)
    first = create(tenant, 1, 1, 1)

    with pytest.raises(ClaimExists) as refused:
        create(tenant, 1, 1, 1)

    assert refused.value.extra == {"claim": first.uuid}
