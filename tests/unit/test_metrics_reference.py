"""The page of the metrics says what the metrics are."""

from __future__ import annotations

import re
from pathlib import Path

from fleet.api.metrics_reference import COMMAND, metric_names, page
from fleet.services.metric_catalogue import COUNTERS, GAUGES

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "metrics.md"
KNOWN_BY_THESE_NAMES = {
    "scheduler_capacity_node_expected_demand",
    "scheduler_capacity_last_success_timestamp_seconds",
    "scheduler_capacity_unguarded_admissions_total",
    "node_resource_health",
}
"""What operators have in their alerts already."""


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), f"write it again: {COMMAND}"


def test_every_metric_is_named_once_with_a_unit_and_a_meaning() -> None:
    described = [(one.name, one.unit, one.meaning) for one in GAUGES]
    described += [(one.name, one.unit, one.meaning) for one in COUNTERS]

    assert len({name for name, _, _ in described}) == len(described)
    assert all(unit and meaning.endswith(".") for _, unit, meaning in described)
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", name) for name, _, _ in described)


def test_names_that_operators_alert_on_stay() -> None:
    assert metric_names() >= KNOWN_BY_THESE_NAMES
