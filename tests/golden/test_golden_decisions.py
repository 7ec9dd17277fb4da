"""Decisions that were right once stay what they were, bit for bit, on every machine and version."""

import json
from pathlib import Path

import pytest

from tests.golden.rewrite import CASES, answer


@pytest.mark.parametrize("path", sorted(CASES.glob("*.json")), ids=lambda path: path.stem)
def test_the_decision_is_what_it_was(path: Path) -> None:
    case = json.loads(path.read_text())

    assert case["decision"] == answer(case)


def test_there_are_golden_decisions() -> None:
    assert len(list(CASES.glob("*.json"))) >= 6
