"""Cards that are cut into slices, and whole again: nobody gets a card whole beside its slices."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.ledger import nodes
from fleet.ledger.database import Database
from fleet.model.admission import Admitted, Refused
from fleet.model.errors import InvalidRequest
from tests.ledger import fleet_of, gpus_of
from tests.ledger.gpus_of import ask, card, slice_of


def admitted(db: Database, wanted: Any) -> Admitted:
    outcome = fleet_of.admit(db, wanted)
    assert isinstance(outcome, Admitted), outcome
    return outcome


def republish(db: Database, name: str, **more: Any) -> None:
    fleet_of.publish(db, name, cpus=1000, **more)


def test_b40_cards_that_are_cut_into_slices_are_no_whole_cards_any_more(db: Database) -> None:
    cards = [card(f"GPU-{at}") for at in range(8)]
    node_id = gpus_of.node(db, "n", gpus=cards, mig_instances=[])
    holder = ask(node_id)
    admitted(db, holder)
    cut = [card(f"GPU-{at}", mig_mode=True) for at in range(8)]
    slices = [slice_of(one, f"MIG-{at}-{part}", kind="a100") for at, one in enumerate(cut) for part in range(7)]

    republish(db, "n", gpus=cut, mig_instances=slices)

    view = nodes.get(db, "n")
    assert view is not None
    inventory = view.gpus.inventory()
    assert sum(one.is_free for one in inventory.devices) == 0
    assert sum(one.is_free for one in inventory.instances) == 56
    assert isinstance(fleet_of.admit(db, ask(node_id)), Refused)
    assert len(fleet_of.events_of(db, "instance bound to a gpu that is cut into slices")) == 2
    got = [admitted(db, ask(node_id, 7, "a100", "1g.10gb")).gpu_uuids for _ in range(8)]
    assert len({uuid for uuids in got for uuid in uuids}) == 56
    assert isinstance(fleet_of.admit(db, ask(node_id, 1, "", "1g.10gb")), Refused)
    fleet_of.assert_exact(db)

    republish(db, "n", gpus=cards, mig_instances=[])
    assert sum(gpus_of.states(db, node_id).values()) == 56
    assert len(fleet_of.events_of(db, "instance bound to a gpu that is gone")) == 2 * 56
    assert admitted(db, ask(node_id)).gpu_uuids == ("GPU-1",)
    fleet_of.assert_exact(db)


def test_a_card_that_a_slice_is_cut_from_is_nobodys_whole_card_whatever_is_said_of_it(db: Database) -> None:
    parent, other = card("GPU-a"), card("GPU-b")
    part = slice_of(parent, "MIG-a")
    node_id = gpus_of.node(db, "n", gpus=[parent, other], mig_instances=[part])
    for _ in range(2):
        republish(db, "n", gpus=[parent, other], mig_instances=[part])
        republish(db, "n", gpus=[parent, other])

    (event,) = fleet_of.events_of(db, "gpus not taken in")
    assert "'GPU-a' of 'n' must be in MIG mode: 'MIG-a' is a slice of it" in event["payload"]
    assert admitted(db, ask(node_id)).gpu_uuids == ("GPU-b",)
    assert isinstance(fleet_of.admit(db, ask(node_id)), Refused)
    assert admitted(db, ask(node_id, 1, "", "1g.10gb")).gpu_uuids == ("MIG-a",)
    with pytest.raises(InvalidRequest, match="'GPU-a' of 'n' must be in MIG mode"):
        republish(db, "n", gpus=[parent, other], mig_instances=[part], strict_gpus=True)

    # The card is whole again when its slices are gone.
    republish(db, "n", gpus=[parent, other], mig_instances=[])
    assert admitted(db, ask(node_id)).gpu_uuids == ("GPU-a",)
    fleet_of.assert_exact(db)


def test_slices_that_are_told_alone_cut_the_card_that_is_known(db: Database) -> None:
    parent = card("GPU-a")
    node_id = gpus_of.node(db, "n", gpus=[parent], mig_instances=[])
    republish(db, "n", mig_instances=[slice_of(parent, "MIG-a"), slice_of(parent, "MIG-b")])

    assert isinstance(fleet_of.admit(db, ask(node_id)), Refused)
    assert gpus_of.states(db, node_id) == {"GPU-a": False, "MIG-a": False, "MIG-b": False}
