"""An overdrawn claim and an unguarded admission are never silent: an event on each timeline that an operator reads."""

from __future__ import annotations

import pytest

from fleet.ledger import events
from fleet.ledger.database import Database
from fleet.model.admission import Admitted
from tests.ledger import fleet_of

OVER_CLAIM = "placement admitted over namespace capacity claim"


@pytest.mark.vectors
def test_shakenfist_v14_an_overdrawn_claim_is_recorded_on_instance_and_namespace(db: Database) -> None:
    node_id = fleet_of.node(db, "here", cpus=8)
    fleet_of.claim(db, limit=(1, 1024, 10))
    ask = fleet_of.ask(node_id, cpus=2)

    fleet_of.admitted(db, ask)

    on_instance = events.listing(db, "instance", ask.instance_uuid)
    on_namespace = events.listing(db, "namespace", ask.namespace)
    assert [event.message for event in on_instance] == [OVER_CLAIM]
    assert [event.message for event in on_namespace] == [OVER_CLAIM]
    assert (on_instance[0].level, on_instance[0].payload["node"]) == ("warning", "here")
    (found,) = on_instance[0].payload["claim_dimensions"]
    assert (found["dimension"], found["limit"], found["used"], found["requested"]) == ("cpus", 1, 0, 2)


def test_an_admission_within_its_claim_records_nothing_of_it(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=8)
    fleet_of.claim(db, limit=(4, 1024, 10))
    ask = fleet_of.ask(node_id, cpus=2)

    fleet_of.admitted(db, ask)

    assert events.listing(db, "instance", ask.instance_uuid) == []


def test_an_admission_on_an_unsized_node_is_recorded(db: Database) -> None:
    node_id = fleet_of.register(db)
    ask = fleet_of.ask(node_id, admit_unsized=True)
    fleet_of.node(db, cpus=8)

    outcome = fleet_of.admit(db, ask)

    assert isinstance(outcome, Admitted)
    assert outcome.unguarded
    messages = [event.message for event in events.listing(db, "instance", ask.instance_uuid)]
    assert messages == ["instance placed without capacity guard"]
