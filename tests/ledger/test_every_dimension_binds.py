"""Each guard compares each dimension: full in one alone is refused for that one, and an exact fit is admitted."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database
from fleet.model.admission import Refused, Stage
from fleet.model.resources import CLUSTER_DIMENSIONS
from tests.ledger import fleet_of
from tests.ledger.fleet_of import PLENTY, ask

LIMIT = 3


def refused_at(db: Database, wanted: NodeAsk) -> tuple[Stage, list[str]]:
    outcome = fleet_of.admit(db, wanted)
    assert isinstance(outcome, Refused), outcome
    return outcome.failing_stage, [figure.dimension for figure in outcome.figures if figure.exceeded]


def assert_binds(db: Database, node_id: int, name: str, stage: Stage, **more: Any) -> None:
    """Two of three are taken: two more are refused there, for that dimension, and one more fits."""
    fleet_of.admitted(db, ask(node_id, **{name: 2}, **more))
    assert refused_at(db, ask(node_id, **{name: 2}, **more)) == (stage, [name])
    fleet_of.admitted(db, ask(node_id, **{name: 1}, **more))
    assert refused_at(db, ask(node_id, **{name: 1}, **more)) == (stage, [name])


@pytest.mark.parametrize("name", CLUSTER_DIMENSIONS)
def test_on_the_node(db: Database, name: str) -> None:
    offered: dict[str, Any] = {"cpus": PLENTY, name: LIMIT}
    node_id = fleet_of.node(db, **offered)

    assert_binds(db, node_id, name, Stage.NODE)
    fleet_of.assert_exact(db)


def test_the_slots_of_the_node(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=PLENTY, max_instances=LIMIT)
    for _ in range(LIMIT):
        fleet_of.admitted(db, ask(node_id))

    assert refused_at(db, ask(node_id)) == (Stage.NODE, ["instances"])
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("name", CLUSTER_DIMENSIONS)
def test_of_a_claim_that_is_enforced(db: Database, name: str) -> None:
    node_id = fleet_of.node(db, cpus=PLENTY)
    wide = dict.fromkeys(CLUSTER_DIMENSIONS, 1000) | {name: LIMIT}
    fleet_of.claim(db, limit=(wide["cpus"], wide["memory_mb"], wide["disk_gb"]), namespace="claimed")

    assert_binds(db, node_id, name, Stage.CLAIM, namespace="claimed", claim_hard=True)
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("name", CLUSTER_DIMENSIONS)
def test_of_the_cluster_where_claims_hold_some_and_overdraw_some(db: Database, name: str) -> None:
    node_id = fleet_of.node(db, cpus=PLENTY)
    at = CLUSTER_DIMENSIONS.index(name)
    promised, overdrawn = 4, 7
    limit, used = ([amount if one == at else 0 for one in range(3)] for amount in (promised, overdrawn))
    fleet_of.claim(db, limit=(limit[0], limit[1], limit[2]), used=(used[0], used[1], used[2]), namespace="claimed")
    fleet_of.execute(db, f"UPDATE cluster_capacity SET total_{name} = {overdrawn + LIMIT}")

    assert_binds(db, node_id, name, Stage.CLUSTER)
