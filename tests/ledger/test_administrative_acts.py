"""What operators do to nodes and operations is recorded in the act's own transaction: who, and what was before."""

from __future__ import annotations

import json
import uuid
from typing import Any

import pytest

from fleet.ledger import nodes, operations, samples
from fleet.ledger.database import Database
from fleet.ledger.gpu_refresh import Report
from fleet.ledger.nodes import NodeIn
from fleet.model.errors import Conflict
from fleet.model.gpu_report import ReportedUnit, Unit
from fleet.model.lifecycle import OperationKind
from tests.ledger import fleet_of
from tests.ledger.fleet_of import events_of, rows

BY = "system/ops"


def payloads(db: Database, message: str) -> list[dict[str, Any]]:
    return [json.loads(found["payload"]) for found in events_of(db, message)]


def test_registering_says_who_and_what_was_declared(db: Database) -> None:
    nodes.register(db, NodeIn(name="n", declared={"labels": {"rack": "r1"}}), by=BY)

    assert payloads(db, "node registered") == [{"declared": {"labels": {"rack": "r1"}}, "by": BY}]


def test_an_update_says_both_values_of_what_changed_and_of_nothing_else(db: Database) -> None:
    nodes.register(db, NodeIn(name="n", declared={"labels": {"rack": "r1"}, "region": "north"}), by=BY)

    changed = {"labels": {"rack": "r2"}, "region": "north", "max_instances": 5, "backend": "simulated"}
    nodes.update(db, "n", changed, by=BY)
    nodes.register(db, NodeIn(name="n", declared={"gpu_count": 2, "mig_profiles": {"1g.5gb": 7}}), by="system/deploy")

    assert payloads(db, "node updated") == [
        {
            "old": {"labels": {"rack": "r1"}, "backend": "", "max_instances": None},
            "new": {"labels": {"rack": "r2"}, "backend": "simulated", "max_instances": 5},
            "by": BY,
        },
        {
            "old": {"gpu_count": 0, "mig_profiles": {}},
            "new": {"gpu_count": 2, "mig_profiles": {"1g.5gb": 7}},
            "by": "system/deploy",
        },
    ]


def test_setting_what_is_set_is_no_event(db: Database) -> None:
    declared = {"labels": {"rack": "r1"}, "arch": "amd64", "backend": "simulated", "gpu_count": 1}
    nodes.register(db, NodeIn(name="n", declared=declared), by=BY)

    nodes.register(db, NodeIn(name="n", declared=declared), by=BY)
    nodes.update(db, "n", {"arch": "amd64"}, by=BY)

    assert payloads(db, "node updated") == []


def test_a_node_that_comes_back_is_registered_not_updated(db: Database) -> None:
    fleet_of.node(db, "n", cpus=4)
    samples.remove_node(db, "n", by=BY)

    nodes.register(db, NodeIn(name="n", declared={"region": "south"}), by=BY)

    assert payloads(db, "node removed") == [{"state": "active", "by": BY}]
    assert payloads(db, "node registered")[-1] == {"declared": {"region": "south"}, "by": BY}


def test_a_cordon_says_who_and_a_second_one_is_no_event(db: Database) -> None:
    fleet_of.node(db, "n", cpus=4)

    samples.set_scheduling(db, "n", "cordoned", by=BY)
    samples.set_scheduling(db, "n", "cordoned", by=BY)
    samples.set_scheduling(db, "n", "enabled", by="ctl:ann@control")

    assert payloads(db, "node scheduling changed") == [
        {"from": "enabled", "to": "cordoned", "by": BY},
        {"from": "cordoned", "to": "enabled", "by": "ctl:ann@control"},
    ]


def test_declared_gpus_say_who_and_measured_ones_nobody(db: Database) -> None:
    nodes.register(db, NodeIn(name="n", declared={"backend": "simulated"}), by=BY)
    card = ReportedUnit(unit=Unit.CARD, uuid="GPU-1", model="A100")

    samples.set_gpus(db, "n", Report(cards=[card], strict=True, by=BY))
    samples.set_gpus(db, "n", Report(cards=[]))

    declared, measured = payloads(db, "gpu inventory changed")
    assert (declared["added_uuids"], declared["by"]) == (["GPU-1"], BY)
    assert measured["gone_uuids"] == ["GPU-1"]
    assert "by" not in measured


def operation_of(db: Database) -> str:
    made = str(uuid.uuid4())
    db.unit(
        lambda conn: operations.insert(conn, made, OperationKind.CREATE, str(uuid.uuid4()), "tenant", 1, attempts_max=1)
    )
    return made


def test_a_retry_says_who_and_what_it_had_come_to(db: Database) -> None:
    made = operation_of(db)
    leased = operations.lease(db, made, "worker", 60)
    assert leased is not None
    operations.fail(db, leased, "no disk", None)

    operations.retry(db, made, by=BY)
    with pytest.raises(Conflict):
        operations.retry(db, made, by=BY)

    (found,) = payloads(db, "operation retried")
    assert found["old"] == {"state": "failed", "attempts": 1, "error": "no disk"}
    assert found["new"] == {"state": "pending", "attempts": 0}
    assert (found["operation"], found["by"]) == (made, BY)


def test_a_cancel_says_who_and_from_which_state(db: Database) -> None:
    made = operation_of(db)

    operations.cancel(db, made, by=BY)
    with pytest.raises(Conflict):
        operations.cancel(db, made, by=BY)

    (found,) = payloads(db, "operation cancelled")
    assert (found["old"], found["new"], found["by"]) == (
        {"state": "pending", "attempts": 0},
        {"state": "cancelled"},
        BY,
    )


def test_an_act_that_is_refused_leaves_no_event(db: Database) -> None:
    node_id = fleet_of.node(db, "n", cpus=4)
    fleet_of.admitted(db, fleet_of.ask(node_id))
    before = rows(db, "SELECT COUNT(*) AS n FROM events")

    with pytest.raises(Conflict):
        samples.remove_node(db, "n", by=BY)

    assert rows(db, "SELECT COUNT(*) AS n FROM events") == before
