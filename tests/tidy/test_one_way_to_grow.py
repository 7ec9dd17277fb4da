"""Use grows in one place: the statements that charge a node, or make a charge, stand in admission and nowhere else."""

from __future__ import annotations

import re

import pytest

from tests.tidy.tree import python_files, refuse, text_of

ADMISSION = "src/fleet/ledger/admission.py"
GROWS = {
    "a charge is made": re.compile(r"INSERT\s+INTO\s+charges\b"),
    "a node's use is added to": re.compile(r"used_instances\s*=\s*used_instances\s*\+"),
    "a charge changes its node": re.compile(r"UPDATE\s+charges\s+SET\s+node_id\b"),
}


@pytest.mark.parametrize("what", GROWS)
def test_use_grows_through_admission_alone(what: str) -> None:
    places = {
        str(path) for path in python_files() if path.is_relative_to("src/fleet") and GROWS[what].search(text_of(path))
    }

    assert ADMISSION in places, "the statement is written in another way now: look for that one"
    refuse(f"{path}: {what}; only {ADMISSION} may" for path in sorted(places - {ADMISSION}))
