"""Growth in place that is repeated, or meets a charge that is not what it was: one size, charged once, and no error."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection

from fleet.ledger import admission, charges, growth, moves
from fleet.ledger.admission import Rows
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database
from fleet.model.admission import AdmissionOutcome, Admitted, AlreadyPlaced, Busy, Refused
from tests.ledger import fleet_of
from tests.ledger.fleet_of import grow
from tests.ledger.growing import placed, to


def test_growing_to_the_same_size_twice_charges_once(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=8)
    instance = placed(db, node_id, cpus=2)
    wanted = to(node_id, instance, cpus=4)

    assert isinstance(grow(db, wanted), Admitted)
    before = fleet_of.row(db, node_id)
    assert grow(db, wanted) == AlreadyPlaced(node_id)
    assert fleet_of.row(db, node_id) == before
    assert fleet_of.used(db, node_id)[0] == 4


def test_a_repetition_on_a_full_node_finds_its_size_and_is_not_refused(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_id = fleet_of.node(db, cpus=4)
    instance = placed(db, node_id, cpus=2)
    wanted = to(node_id, instance, cpus=4)
    read = charges.of_instance

    def overtaken(db: Database, uuid: str) -> Any:
        found = read(db, uuid)
        monkeypatch.undo()
        assert isinstance(grow(db, wanted), Admitted)
        return found

    monkeypatch.setattr(charges, "of_instance", overtaken)
    assert grow(db, wanted) == AlreadyPlaced(node_id)
    assert fleet_of.used(db, node_id)[0] == 4
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("meanwhile", ["grown", "released", "moved", "moving"])
def test_a_charge_that_changed_before_it_was_locked_is_never_charged_a_wrong_difference(
    db: Database, monkeypatch: pytest.MonkeyPatch, meanwhile: str
) -> None:
    node_id, there = fleet_of.node(db, cpus=16), fleet_of.node(db, cpus=16)
    instance = placed(db, node_id, cpus=2, settled=meanwhile != "moved")
    read = charges.of_instance

    def overtaken(db: Database, uuid: str) -> Any:
        found = read(db, uuid)
        monkeypatch.undo()
        if meanwhile == "grown":
            assert isinstance(grow(db, to(node_id, instance, cpus=5)), Admitted)
        elif meanwhile == "released":
            fleet_of.delete(db, instance)
        elif meanwhile == "moved":
            fleet_of.admitted(db, to(there, instance, cpus=2, source=node_id))
        else:
            assert isinstance(moves.begin(db, to(there, instance, cpus=2)), Admitted)
        return found

    monkeypatch.setattr(charges, "of_instance", overtaken)
    outcome = grow(db, to(node_id, instance, cpus=9))

    reasons = {"released": "no_charge", "moved": "charge_elsewhere", "moving": "charge_moving"}
    assert getattr(outcome, "ineligible", None) == reasons.get(meanwhile)
    used = {"grown": (9, 0), "released": (0, 0), "moved": (0, 2), "moving": (2, 2)}[meanwhile]
    assert (fleet_of.used(db, node_id)[0], fleet_of.used(db, there)[0]) == used
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("meanwhile", ["released", "moved", "moving", "never there"])
def test_a_charge_that_is_not_there_to_grow_is_a_refusal_and_no_error(db: Database, meanwhile: str) -> None:
    node_id, there = fleet_of.node(db, cpus=16), fleet_of.node(db, cpus=16)
    instance = placed(db, node_id, cpus=2, settled=meanwhile == "moving")
    if meanwhile == "released":
        fleet_of.delete(db, instance)
    elif meanwhile == "moved":
        fleet_of.admitted(db, to(there, instance, cpus=2, source=node_id))
    elif meanwhile == "moving":
        assert isinstance(moves.begin(db, to(there, instance, cpus=2)), Admitted)
    else:
        instance = "never-there"
    outcome = grow(db, to(node_id, instance, cpus=9))

    assert isinstance(outcome, Refused)
    assert outcome.ineligible in {"no_charge", "charge_elsewhere", "charge_moving"}
    fleet_of.assert_exact(db)


def test_a_charge_that_keeps_changing_ends_in_busy(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    node_id = fleet_of.node(db, cpus=1000)
    instance = placed(db, node_id, cpus=1)
    rewritten = iter(range(2, 100))
    admit = admission.admit

    def overtaken(db: Database, wanted: NodeAsk, rows: Rows) -> AdmissionOutcome:
        with monkeypatch.context() as patch:
            patch.setattr(admission, "admit", admit)
            assert isinstance(grow(db, to(node_id, instance, cpus=next(rewritten))), Admitted)
        return admit(db, wanted, rows)

    monkeypatch.setattr(admission, "admit", overtaken)
    assert grow(db, to(node_id, instance, cpus=500)) == Busy(node_id)
    monkeypatch.undo()
    assert fleet_of.used(db, node_id)[0] == growth.REWRITES_FOLLOWED_MAX + 1
    fleet_of.assert_exact(db)


def test_the_callers_rows_stand_or_fall_with_the_growth(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=8)
    instance = placed(db, node_id, cpus=2)

    def fail(_conn: Connection) -> None:
        raise KeyError("the caller's own")

    before = fleet_of.row(db, node_id), fleet_of.cluster(db), charges.of_instance(db, instance)
    with pytest.raises(KeyError):
        growth.grow(db, to(node_id, instance, cpus=4), Rows(changed=fail))
    assert (fleet_of.row(db, node_id), fleet_of.cluster(db), charges.of_instance(db, instance)) == before


def test_a_move_that_was_decided_for_another_size_does_not_begin(db: Database) -> None:
    here, there = fleet_of.node(db, cpus=16), fleet_of.node(db, cpus=16)
    instance = placed(db, here, cpus=2)
    decided = to(there, instance, cpus=2)
    assert isinstance(grow(db, to(here, instance, cpus=4)), Admitted)

    outcome = moves.begin(db, decided)
    assert isinstance(outcome, Refused)
    assert outcome.ineligible == "charge_changed"
    assert fleet_of.used(db, there)[0] == 0
    assert isinstance(moves.begin(db, to(there, instance, cpus=4)), Admitted)
    fleet_of.assert_exact(db)


def test_a_draft_that_grew_is_not_placed_again_in_its_old_size(db: Database) -> None:
    here, there = fleet_of.node(db, cpus=16), fleet_of.node(db, cpus=16)
    instance = placed(db, here, cpus=2, settled=False)
    assert isinstance(grow(db, to(here, instance, cpus=4)), Admitted)

    assert fleet_of.admit(db, to(there, instance, cpus=2, source=here)) == AlreadyPlaced(here)
    assert isinstance(fleet_of.admit(db, to(there, instance, cpus=4, source=here)), Admitted)
    assert (fleet_of.used(db, here)[0], fleet_of.used(db, there)[0]) == (0, 4)
    assert fleet_of.unclaimed(db)[0] == 4
    fleet_of.assert_exact(db)
