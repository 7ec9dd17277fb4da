"""The Shaken Fist vectors about granting and changing claims, by their numbers, on both backends."""

from __future__ import annotations

import uuid

import pytest

from fleet.ledger import claim_grants, namespaces
from fleet.ledger.claim_grants import ClaimRefused, Granted
from fleet.ledger.database import Database
from fleet.model.resources import Amounts
from tests.ledger import fleet_of
from tests.ledger.fleet_of import NAMESPACE, ask
from tests.ledger.ledgers import (  # noqa: F401  # pytest finds fixtures by name
    db,
    db_url,
    mariadb_ledger,
    mariadb_ledger_url,
    sqlite_ledger_url,
    sqlite_template,
)

pytestmark = pytest.mark.vectors

HOUR = 3600


def grant(db: Database, cpus: int) -> Granted | ClaimRefused:  # noqa: F811
    namespaces.ensure(db, NAMESPACE)
    return claim_grants.grant(db, NAMESPACE, Amounts(cpus, 100, 10), HOUR, uuid=str(uuid.uuid4()))


def cpus_of(outcome: Granted | ClaimRefused) -> tuple[float | None, float, float]:
    """Limit, used and requested of the only dimension that has no room."""
    assert isinstance(outcome, ClaimRefused), outcome
    assert [figure.dimension for figure in outcome.figures if figure.exceeded] == ["cpus"]
    return outcome.figures[0].limit, outcome.figures[0].used, outcome.figures[0].requested


def test_v23_a_claim_is_granted_up_to_what_is_neither_claimed_nor_used(db: Database) -> None:  # noqa: F811
    node_id = fleet_of.node(db, cpus=100)
    fleet_of.claim(db, limit=(20, 0, 0), namespace="claimed")
    fleet_of.admitted(db, ask(node_id, cpus=30, namespace="unclaimed"))

    refused = grant(db, 51)
    assert cpus_of(refused) == (80, 30, 51)
    assert isinstance(refused, ClaimRefused)
    assert refused.code == "claim_capacity"
    assert fleet_of.cluster(db)["claimed_cpus"] == 20
    assert isinstance(grant(db, 50), Granted)
    assert fleet_of.cluster(db)["claimed_cpus"] == 70
    fleet_of.assert_exact(db)


def test_v23_what_the_namespace_uses_already_becomes_its_claims(db: Database) -> None:  # noqa: F811
    node_id = fleet_of.node(db, cpus=100)
    fleet_of.admitted(db, ask(node_id, cpus=40, namespace="other"))
    fleet_of.admitted(db, ask(node_id, cpus=40))

    assert cpus_of(grant(db, 70)) == (100, 40, 70)
    fleet_of.assert_exact(db)
    granted = grant(db, 40)
    assert isinstance(granted, Granted)
    assert granted.used.cpus == 40
    cluster = fleet_of.cluster(db)
    assert (cluster["claimed_cpus"], cluster["unclaimed_used_cpus"]) == (40, 40)
    fleet_of.assert_exact(db)

    assert isinstance(claim_grants.change(db, granted.uuid, {"cpus": 60}), Granted)
    assert cpus_of(claim_grants.change(db, granted.uuid, {"cpus": 61})) == (40, 40, 1)
    assert fleet_of.cluster(db)["claimed_cpus"] == fleet_of.claim_row(db, granted.uuid)["limit_cpus"] == 60
    fleet_of.assert_exact(db)


def test_v24_a_claim_shrinks_to_what_it_uses_and_no_further(db: Database) -> None:  # noqa: F811
    node_id = fleet_of.node(db, cpus=100)
    granted = grant(db, 16)
    assert isinstance(granted, Granted)
    fleet_of.admitted(db, ask(node_id, cpus=8))

    assert isinstance(claim_grants.change(db, granted.uuid, {"cpus": 8}), Granted)
    assert fleet_of.cluster(db)["claimed_cpus"] == 8
    fleet_of.assert_exact(db)
    below = claim_grants.change(db, granted.uuid, {"cpus": 4})
    assert isinstance(below, ClaimRefused)
    assert below.code == "claim_below_usage"
    assert cpus_of(below)[:2] == (4, 8)
    assert fleet_of.cluster(db)["claimed_cpus"] == fleet_of.claim_row(db, granted.uuid)["limit_cpus"] == 8
    fleet_of.assert_exact(db)


def test_v24_a_claim_past_its_end_is_not_changed(db: Database) -> None:  # noqa: F811
    node_id = fleet_of.node(db, cpus=100)
    granted = grant(db, 16)
    assert isinstance(granted, Granted)
    fleet_of.admitted(db, ask(node_id, cpus=8))
    fleet_of.execute(db, "UPDATE namespace_claims SET expires_at = {now} - 1")

    assert claim_grants.change(db, granted.uuid, {"cpus": 20}, HOUR) == ClaimRefused("claim_not_active")
    assert fleet_of.cluster(db)["claimed_cpus"] == 0
    assert fleet_of.unclaimed(db)[0] == 8
    fleet_of.assert_exact(db)
