"""Decisions that were right once stay what they were, bit for bit, on every machine and version."""

import json
from pathlib import Path

import pytest

from fleet.model.request import Reason
from fleet.placement.stage import all_stages
from tests.golden.rewrite import CASES, answer


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_the_decision_is_what_it_was(path: Path) -> None:
    case = json.loads(path.read_text())

    assert case["decision"] == answer(case)


def test_every_stage_has_a_say_in_a_golden_decision() -> None:
    cases = [json.loads(path.read_text())["decision"] for path in CASES.glob("*.json")]
    heard = {stage["name"] for case in cases for stage in case["stages"]}

    assert heard == {stage.name for stage in all_stages()}


def test_the_codes_of_a_decision_are_among_the_golden_ones() -> None:
    codes = {json.loads(path.read_text())["decision"]["code"] for path in CASES.glob("*.json")}

    assert codes >= {
        *(None, "affinity_unsatisfiable", "affinity_unsatisfied", "labels_unmatched"),
        *("no_gpu_nodes", "no_nodes", "no_schedulable_nodes", "node_not_found", "out_of_capacity", "pin_ineligible"),
    }


def test_every_reason_that_a_decision_may_be_asked_for_is_among_the_golden_ones() -> None:
    asked = {json.loads(path.read_text())["request"].get("reason", "create") for path in CASES.glob("*.json")}

    assert asked == set(Reason)
