"""Claims as admission honours them: who pays, what is over, and what is left for those without a claim."""

from __future__ import annotations

import pytest

from fleet.ledger import claims, events
from fleet.ledger.database import Database
from fleet.model.admission import Admitted, Refused, Stage
from tests.ledger import claiming, fleet_of, moving
from tests.ledger.fleet_of import NAMESPACE, ask
from tests.ledger.holding import Other, open_transaction

OVER_CLAIM = "placement admitted over namespace capacity claim"


def refused_at(outcome: object) -> tuple[Stage, list[str]]:
    assert isinstance(outcome, Refused), outcome
    return outcome.failing_stage, [figure.dimension for figure in outcome.figures if figure.exceeded]


def test_a_claim_of_another_namespace_pays_nothing(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=8)
    claim = fleet_of.claim(db, limit=(4, 4, 4), namespace="other")
    outcome = fleet_of.admit(db, ask(node_id))

    assert isinstance(outcome, Admitted)
    assert outcome.payer is None
    assert fleet_of.claim_row(db, claim)["used_cpus"] == 0
    fleet_of.assert_exact(db)


def test_what_is_promised_to_claims_is_not_left_for_others(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=8)
    fleet_of.claim(db, limit=(5, 0, 0), namespace="other")
    fleet_of.admitted(db, ask(node_id, cpus=3))

    assert refused_at(fleet_of.admit(db, ask(node_id))) == (Stage.CLUSTER, ["cpus"])


@pytest.mark.parametrize("mode", ["advisory", "hard"])
def test_overage_of_a_claim_is_taken_from_what_others_may_use(db: Database, mode: str) -> None:
    node_id = fleet_of.node(db, cpus=10)
    claim = fleet_of.claim(db, limit=(4, 40, 4), namespace="claimed")
    fleet_of.admitted(db, ask(node_id, cpus=4, namespace="claimed", claim_hard=mode == "hard"))
    assert fleet_of.cluster(db)["overage_cpus"] == 0
    over = fleet_of.admit(db, ask(node_id, cpus=3, namespace="claimed", claim_hard=mode == "hard"))
    if mode == "hard":
        assert refused_at(over) == (Stage.CLAIM, ["cpus"])
        assert fleet_of.claim_row(db, claim)["used_cpus"] == 4
        return

    assert isinstance(over, Admitted)
    assert [(item.dimension, item.limit, item.used, item.requested) for item in over.over_claim] == [("cpus", 4, 4, 3)]
    assert fleet_of.cluster(db)["overage_cpus"] == 3
    fleet_of.assert_exact(db)
    # 10 in all, 4 promised, 3 overdrawn: 3 are left.
    assert refused_at(fleet_of.admit(db, ask(node_id, cpus=4))) == (Stage.NODE, ["cpus"])
    fleet_of.publish(db, fleet_of.rows(db, "SELECT name FROM nodes")[0]["name"], cpus=10)
    fleet_of.admitted(db, ask(node_id, cpus=3))
    fleet_of.delete(db, fleet_of.rows(db, "SELECT MIN(instance_uuid) AS i FROM charges WHERE cpus = 4")[0]["i"])
    assert fleet_of.cluster(db)["overage_cpus"] == 0
    fleet_of.assert_exact(db)


def test_the_unclaimed_guard_counts_overage_although_a_node_has_room(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=10)
    fleet_of.node(db, cpus=2)
    fleet_of.claim(db, limit=(4, 40, 4), namespace="claimed")
    fleet_of.admitted(db, ask(node_id, cpus=7, namespace="claimed"))

    # total 12, promised 4, overdrawn 3: 5 left, of which 3 on this node.
    fleet_of.admitted(db, ask(node_id, cpus=3))
    fleet_of.execute(db, "UPDATE scheduler_node_capacity SET limit_cpus = 14 WHERE node_id = :i", i=node_id)
    stage, dimensions = refused_at(fleet_of.admit(db, ask(node_id, cpus=3)))
    assert (stage, dimensions) == (Stage.CLUSTER, ["cpus"])
    assert isinstance(fleet_of.admit(db, ask(node_id, cpus=2)), Admitted)


def test_a_claim_that_ends_between_the_charge_and_its_payment_leaves_it_to_the_cluster(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_id = fleet_of.node(db, cpus=8)
    wanted = ask(node_id, cpus=2, namespace="claimed", claim_hard=True)
    with claiming.long_ago(db):
        claim = fleet_of.claim(db, limit=(4, 40, 4), namespace="claimed")
        met = claiming.ending_before_it_pays(monkeypatch, db, claim)
        outcome = fleet_of.admit(db, wanted)

    assert met == [claim]
    assert isinstance(outcome, Admitted)
    assert outcome.payer is None
    assert fleet_of.claim_row(db, claim)["used_cpus"] == 0
    assert fleet_of.unclaimed(db)[0] == 2
    fleet_of.assert_exact(db)


def test_what_a_claim_pays_for_waits_for_no_cluster_row(maria: Database, mariadb_ledger_url: str) -> None:
    node_id = fleet_of.node(maria, cpus=8)
    fleet_of.claim(maria, limit=(4, 40, 4), namespace="claimed")
    wanted = ask(node_id, cpus=2, namespace="claimed")
    with open_transaction(maria) as conn:
        conn.exec_driver_sql("SELECT id FROM cluster_capacity WHERE id = 1 FOR UPDATE")
        outcome = Other(mariadb_ledger_url, lambda db: fleet_of.admit(db, wanted)).result()

        assert isinstance(outcome, Admitted)
    fleet_of.assert_exact(maria)


def test_a_namespace_cannot_have_two_active_claims(db: Database) -> None:
    first = fleet_of.claim(db, limit=(1, 1, 1), seconds=1)
    with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
        fleet_of.claim(db, limit=(1, 1, 1))
    claiming.until_past(db, first)
    assert db.unit(lambda conn: claims.fold_expired(conn, first))
    fleet_of.claim(db, limit=(1, 1, 1))
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("how", ["in place", "by a move"])
def test_growth_over_the_claim_is_told_on_the_instance_and_on_the_namespace(db: Database, how: str) -> None:
    here, there = fleet_of.node(db, f"here-{how[:2]}", cpus=8), fleet_of.node(db, f"there-{how[:2]}", cpus=8)
    fleet_of.claim(db, limit=(4, 40, 4))
    instance = fleet_of.admitted(db, ask(here, cpus=3))
    fleet_of.settle(db, instance)
    assert fleet_of.events_of(db, OVER_CLAIM) == []

    if how == "in place":
        outcome = fleet_of.grow(db, ask(here, instance_uuid=instance, cpus=5))
    else:
        outcome = moving.begun(db, moving.to(db, there, instance, cpus=5))

    assert isinstance(outcome, Admitted)
    told = [
        event for where in (("instance", instance), ("namespace", NAMESPACE)) for event in events.listing(db, *where)
    ]
    found = [event for event in told if event.message == OVER_CLAIM]
    assert [(event.level, event.payload["namespace"]) for event in found] == [("warning", NAMESPACE)] * 2
    assert {event.payload["node"] for event in found} == {("here-" if how == "in place" else "there-") + how[:2]}
    for event in found:
        (over,) = event.payload["claim_dimensions"]
        assert (over["dimension"], over["limit"], over["used"], over["requested"]) == ("cpus", 4, 3, 2)
    fleet_of.assert_exact(db)
