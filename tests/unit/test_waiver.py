"""Whether a placement was waived is told by its own try alone."""

from __future__ import annotations

from fleet.services import waiver

LOCKED = {"node": "n1", "outcome": "busy", "demand_waived": True}


def test_a_waived_try_that_found_its_node_locked_makes_no_later_placement_a_waived_one() -> None:
    assert not waiver.is_waived([])
    assert not waiver.is_waived([LOCKED])
    assert not waiver.is_waived([LOCKED, {"node": "n2", "outcome": "refused"}])


def test_the_mark_at_the_end_speaks_of_the_try_itself() -> None:
    assert waiver.is_waived([waiver.MARK])
    assert waiver.is_waived([LOCKED, waiver.MARK])
