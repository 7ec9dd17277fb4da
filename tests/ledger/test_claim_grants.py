"""Granting and changing claims: what is promised is there, whoever asks at the same moment."""

from __future__ import annotations

import uuid
from typing import Any

import pytest

from fleet.ledger import claim_grants, moves, namespaces
from fleet.ledger.claim_grants import ClaimRefused, Granted
from fleet.ledger.database import Database
from fleet.model.admission import Admitted
from fleet.model.resources import Amounts
from tests.ledger import claiming, fleet_of, racing
from tests.ledger.claiming import code, grant, granted
from tests.ledger.fleet_of import NAMESPACE, ask
from tests.ledger.racing import Job, Pause, Threads, until_known

ROUNDS = 20


def test_a_namespace_has_one_claim(db: Database) -> None:
    fleet_of.node(db, cpus=8)
    granted(db, NAMESPACE, 2, 0, 0)

    assert code(grant(db, NAMESPACE, 2, 0, 0)) == "claim_exists"
    assert fleet_of.cluster(db)["claimed_cpus"] == 2
    fleet_of.assert_exact(db)


def test_a_claim_that_ended_makes_room_for_the_next_which_takes_its_charges_over(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=8)
    with claiming.long_ago(db):
        first = granted(db, NAMESPACE, 6, 100, 0)
        instance = fleet_of.admitted(db, ask(node_id, cpus=3))
    assert fleet_of.claim_row(db, first.uuid)["used_cpus"] == 3

    again = granted(db, NAMESPACE, 8, 100, 0)

    assert again.used.cpus == 3
    assert fleet_of.unclaimed(db)[0] == 0
    fleet_of.assert_exact(db)
    fleet_of.delete(db, instance)
    assert fleet_of.claim_row(db, again.uuid)["used_cpus"] == 0
    fleet_of.assert_exact(db)


def test_without_a_node_that_counts_nothing_is_promised(db: Database) -> None:
    namespaces.ensure(db, NAMESPACE)

    assert grant(db, NAMESPACE, 0, 0, 0) == ClaimRefused("no_schedulable_nodes")
    assert fleet_of.rows(db, "SELECT uuid FROM namespace_claims") == []


def test_a_dimension_without_a_limit_is_not_judged(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=8)
    fleet_of.execute(db, "UPDATE scheduler_node_capacity SET limit_cpus = NULL WHERE node_id = :i", i=node_id)
    fleet_of.execute(db, "UPDATE cluster_capacity SET unlimited_cpus = 1, total_cpus = 0")

    granted(db, NAMESPACE, 1000, 10, 10)
    namespaces.ensure(db, "other")
    refused = grant(db, "other", 1000, fleet_of.PLENTY, 0)
    assert isinstance(refused, ClaimRefused)
    assert (refused.figures[0].limit, refused.figures[0].exceeded) == (None, False)
    assert [figure.dimension for figure in refused.figures if figure.exceeded] == ["memory_mb"]
    fleet_of.assert_exact(db)


def test_a_claim_smaller_than_what_its_namespace_uses_is_overdrawn_until_it_grows(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=10)
    fleet_of.admitted(db, ask(node_id, cpus=6))

    claim = granted(db, NAMESPACE, 4, 100, 0)
    assert fleet_of.cluster(db)["overage_cpus"] == 2
    fleet_of.assert_exact(db)
    # 4 promised and 2 overdrawn leave 4.
    namespaces.ensure(db, "other")
    refused = grant(db, "other", 5, 0, 0)
    assert isinstance(refused, ClaimRefused)
    figure = refused.figures[0]
    assert (refused.code, figure.limit, figure.used, figure.requested) == ("claim_capacity", 6, 2, 5)
    assert (figure.exceeded, figure.shortfall) == (True, 1)
    granted(db, "other", 4, 0, 0)

    # What it overdraws is its own: growing into that takes nothing from anybody.
    assert code(claim_grants.change(db, claim.uuid, {"cpus": 6})) == "granted"
    assert fleet_of.cluster(db)["overage_cpus"] == 0
    assert code(claim_grants.change(db, claim.uuid, {"cpus": 7})) == "claim_capacity"
    fleet_of.assert_exact(db)


def test_what_the_cluster_paid_ahead_for_a_move_is_the_claims(db: Database) -> None:
    here, there = fleet_of.node(db, cpus=8), fleet_of.node(db, cpus=8)
    instance = fleet_of.admitted(db, ask(here, cpus=2))
    fleet_of.settle(db, instance)
    grown = ask(there, cpus=5, instance_uuid=instance, held=Amounts(2, 1, 0, 1))
    assert isinstance(moves.begin(db, grown), Admitted)
    assert fleet_of.unclaimed(db)[0] == 5

    assert granted(db, NAMESPACE, 8, 100, 0).used.cpus == 5
    assert fleet_of.unclaimed(db)[0] == 0
    fleet_of.assert_exact(db)


@pytest.mark.parametrize(
    ("limits", "refused"),
    [({"cpus": 11, "memory_mb": 10}, "claim_capacity"), ({"cpus": 6, "memory_mb": 1}, "claim_below_usage")],
)
def test_one_refused_dimension_leaves_the_other_as_it_was(db: Database, limits: dict[str, int], refused: str) -> None:
    node_id = fleet_of.node(db, cpus=10)
    claim = granted(db, NAMESPACE, 4, 20, 5)
    fleet_of.admitted(db, ask(node_id, memory_mb=8))
    before = fleet_of.claim_row(db, claim.uuid), fleet_of.cluster(db)

    assert code(claim_grants.change(db, claim.uuid, limits)) == refused
    assert (fleet_of.claim_row(db, claim.uuid), fleet_of.cluster(db)) == before
    both = claim_grants.change(db, claim.uuid, {"cpus": 10, "memory_mb": 8})
    assert isinstance(both, Granted)
    assert both.limits == Amounts(10, 8, 5)
    fleet_of.assert_exact(db)


def test_a_claim_may_be_prolonged_and_shrunk_without_a_node(db: Database) -> None:
    fleet_of.node(db, cpus=10)
    claim = granted(db, NAMESPACE, 4, 20, 5)
    fleet_of.execute(db, "UPDATE scheduler_node_capacity SET counted = 0")
    fleet_of.execute(
        db, "UPDATE cluster_capacity SET counted_nodes = 0, total_cpus = 0, total_memory_mb = 0, total_disk_gb = 0"
    )

    later = claim_grants.change(db, claim.uuid, {}, 7200)
    assert isinstance(later, Granted)
    assert later.expires_at_us > claim.expires_at_us
    assert code(claim_grants.change(db, claim.uuid, {"cpus": 3})) == "granted"
    assert code(claim_grants.change(db, claim.uuid, {"cpus": 4})) == "no_schedulable_nodes"
    fleet_of.assert_exact(db)


def test_an_overdrawn_dimension_that_is_not_named_forbids_no_change_of_another(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=10)
    claim = granted(db, NAMESPACE, 4, 20, 5)
    fleet_of.admitted(db, ask(node_id, cpus=6))

    assert code(claim_grants.change(db, claim.uuid, {"memory_mb": 10})) == "granted"
    assert code(claim_grants.change(db, claim.uuid, {"cpus": 3})) == "claim_below_usage"
    assert fleet_of.cluster(db)["overage_cpus"] == 2
    fleet_of.assert_exact(db)


def test_a_claim_that_does_not_exist_is_not_found(db: Database) -> None:
    assert claim_grants.change(db, str(uuid.uuid4()), {"cpus": 1}) == ClaimRefused("not_found")


# --- races -------------------------------------------------------------------------------------------------------


def granting(db: Database, pause: Pause, namespace: str, cpus: int) -> str:
    """Where many share one file, somebody may not get his turn in time: he is told to try again, and does."""
    until_known(lambda: namespaces.ensure(db, namespace))
    return until_known(lambda: code(grant(db, namespace, cpus, 100, 0)))


def deleting(db: Database, pause: Pause, instance: str) -> str:
    return until_known(lambda: type(fleet_of.delete(db, instance)).__name__)


def creating(db: Database, pause: Pause, namespace: str, node_id: int) -> str:
    wanted = ask(node_id, namespace=namespace)
    return until_known(lambda: type(racing.until_decided(db, pause, racing.guarded, wanted)).__name__)


def either(db: Database, pause: Pause, job: Job, *arguments: Any) -> str:
    return str(job(db, pause, *arguments))


def test_of_two_grants_to_one_namespace_one_wins(db: Database, db_url: str) -> None:
    node_id = fleet_of.node(db, cpus=1000)
    with Threads(db_url, 2) as crew:
        for round_ in range(ROUNDS):
            namespace = f"tenant-{round_}"
            fleet_of.admitted(db, ask(node_id, namespace=namespace))
            assert sorted(crew.run(granting, [(namespace, 2)] * 2)) == ["claim_exists", "granted"]
    assert fleet_of.cluster(db)["claimed_cpus"] == 2 * ROUNDS
    fleet_of.assert_exact(db)


def test_of_twenty_grants_as_many_win_as_there_is_room_for(db: Database, db_url: str) -> None:
    fleet_of.node(db, cpus=10)
    with Threads(db_url, 20) as crew:
        answers = crew.run(granting, [(f"tenant-{number}", 2) for number in range(20)])
    assert sorted(answers) == ["claim_capacity"] * 15 + ["granted"] * 5
    assert fleet_of.cluster(db)["claimed_cpus"] == 10
    fleet_of.assert_exact(db)


def test_creates_and_deletes_racing_with_the_grant_of_their_claim_are_paid_once(db: Database, db_url: str) -> None:
    node_id = fleet_of.node(db, cpus=1000)
    with Threads(db_url, 5) as crew:
        for round_ in range(ROUNDS):
            namespace = f"tenant-{round_}"
            first, _ = (fleet_of.admitted(db, ask(node_id, namespace=namespace)) for _ in range(2))
            jobs = [(granting, namespace, 8), (deleting, first), *[(creating, namespace, node_id)] * 3]
            assert crew.run(either, jobs) == ["granted", "Released", *["Admitted"] * 3]
            fleet_of.assert_exact(db)
