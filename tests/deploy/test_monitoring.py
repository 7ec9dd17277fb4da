"""The alerts and the dashboard: whole, about metrics that exist, and the rules fire when they should and not else."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from fleet.api.app import application
from fleet.api.metrics_reference import metric_names
from fleet.api.problems import CODES
from fleet.ledger import passes
from tests.provision import PROMTOOL, required

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "monitoring"
GUIDE = ROOT / "docs" / "operator" / "monitoring.md"
METRIC = re.compile(r"\b(?:scheduler|fleet|node)_[a-z0-9_]+\b")
STRING = re.compile(r'"[^"]*"')
SEVERITIES = {"critical", "warning", "info"}


def rules() -> list[Mapping[str, Any]]:
    document = yaml.safe_load((FOLDER / "alerts.yml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def cases() -> list[Mapping[str, Any]]:
    document = yaml.safe_load((FOLDER / "alerts.test.yml").read_text(encoding="utf-8"))
    found: list[Mapping[str, Any]] = document["tests"]
    return found


def dashboard() -> dict[str, Any]:
    found: dict[str, Any] = json.loads((FOLDER / "grafana-dashboard.json").read_text(encoding="utf-8"))
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Each expression of the dashboard, with the title of its panel."""
    for panel in dashboard()["panels"]:
        for target in panel.get("targets", []):
            yield panel["title"], target["expr"]


def named_in(expression: str) -> set[str]:
    return set(METRIC.findall(STRING.sub('""', expression)))


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: rule["alert"])
def test_an_alert_is_about_metrics_that_exist_and_says_what_it_means_and_what_to_do(rule: Mapping[str, Any]) -> None:
    named = named_in(rule["expr"])

    assert named <= metric_names()
    assert named or "up{" in rule["expr"]
    assert rule["labels"]["severity"] in SEVERITIES
    assert rule["annotations"]["summary"].endswith(".")
    assert rule["annotations"]["runbook"] == f"docs/operator/monitoring.md#{rule['alert'].lower()}"


def test_every_alert_has_its_section_in_the_guide_and_every_section_its_alert() -> None:
    sections = re.findall(r"^### (Fleet\w+)$", GUIDE.read_text(encoding="utf-8"), re.MULTILINE)

    assert sections == [rule["alert"] for rule in rules()]


def test_codes_and_paths_that_alerts_ask_for_exist() -> None:
    paths = set(application("0").openapi()["paths"])
    text = "\n".join(rule["expr"] for rule in rules()) + "\n".join(expression for _, expression in expressions())

    for codes in re.findall(r'code=~?"([^"]+)"', text):
        assert set(codes.split("|")) <= set(CODES)
    assert set(re.findall(r'path="([^"]+)"', text)) <= paths


def test_a_stale_reconciler_is_told_when_the_admins_view_says_stale() -> None:
    (rule,) = [rule for rule in rules() if rule["alert"] == "FleetReconcilerStale"]

    assert rule["expr"].endswith(f"> {passes.STALE_SECONDS}")


def test_every_alert_is_tested_to_fire_and_every_test_begins_silent_or_ends_so() -> None:
    fires, silent = set(), 0
    for case in cases():
        expected = [sample["labels"] for one in case["promql_expr_test"] for sample in one["exp_samples"]]
        fires |= {name for labels in expected for name in re.findall(r'alertname="(\w+)"', labels)}
        silent += any(not one["exp_samples"] for one in case["promql_expr_test"])

    assert fires == {rule["alert"] for rule in rules()}
    assert silent >= len(cases()) - 1


def test_the_healthy_fleet_of_the_tests_has_every_metric_that_alerts_ask_for() -> None:
    (healthy,) = [case for case in cases() if case["name"] == "a healthy fleet is silent"]
    series = {series["series"].partition("{")[0] for series in healthy["input_series"]}

    assert set().union(*(named_in(rule["expr"]) for rule in rules())) <= series


def test_the_dashboard_can_be_imported() -> None:
    board = dashboard()
    identifiers = [panel["id"] for panel in board["panels"]]
    variables = {variable["name"]: variable["type"] for variable in board["templating"]["list"]}

    assert board["schemaVersion"] >= 36
    assert (board["id"], board["uid"], board["title"]) == (None, "fleet-overview", "fleet")
    assert len(set(identifiers)) == len(identifiers)
    assert variables["datasource"] == "datasource"
    for panel in board["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
            assert panel["fieldConfig"]["defaults"]["unit"], panel["title"]
            assert panel["description"], panel["title"]
            assert panel["targets"], panel["title"]
    used = set(re.findall(r"\$(\w+)", " ".join(expression for _, expression in expressions())))
    assert used <= set(variables)


def test_panels_do_not_lie_over_each_other() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in dashboard()["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_the_dashboard_shows_every_metric_but_what_it_leaves_out_on_purpose() -> None:
    named = {metric for _, expression in expressions() for metric in named_in(expression)}
    # Whether a node counts and when a pass ended are told by what is shown; sums of seconds are for averages.
    left_out = {
        "scheduler_capacity_node_counted",
        "scheduler_capacity_last_success_timestamp_seconds",
        *(name for name in metric_names() if name.endswith("_sum")),
        "fleet_decision_seconds_count",
    }

    assert named <= metric_names()
    assert metric_names() - named == left_out


def test_the_rules_and_the_scrape_are_what_prometheus_reads() -> None:
    promtool = required(PROMTOOL)
    for what, name in (("rules", "alerts.yml"), ("config", "prometheus.yml")):
        done = ran(promtool.path, "check", what, str(FOLDER / name))
        assert done.returncode == 0, done.stdout + done.stderr


def test_each_alert_fires_when_it_should_and_no_other_does() -> None:
    done = ran(required(PROMTOOL).path, "test", "rules", str(FOLDER / "alerts.test.yml"))

    assert done.returncode == 0, done.stdout + done.stderr


def test_a_rule_that_asks_for_less_fails_its_tests(tmp_path: Path) -> None:
    text = (FOLDER / "alerts.yml").read_text(encoding="utf-8")
    assert text.count("> 900\n") == 2
    (tmp_path / "alerts.yml").write_text(text.replace("> 900\n", "> 90\n"), encoding="utf-8")
    (tmp_path / "alerts.test.yml").write_bytes((FOLDER / "alerts.test.yml").read_bytes())
    done = ran(required(PROMTOOL).path, "test", "rules", str(tmp_path / "alerts.test.yml"))

    assert done.returncode != 0
    assert "FleetReconcilerStale" in done.stdout + done.stderr


def test_every_expression_of_the_dashboard_is_one_that_prometheus_can_read(tmp_path: Path) -> None:
    promtool = required(PROMTOOL)
    known = {"$dimension": "cpus", "$node": ".*"}
    records = []
    for place, (_, expression) in enumerate(expressions()):
        for name, value in known.items():
            expression = expression.replace(name, value)  # noqa: PLW2901  # one text, step by step
        records.append({"record": f"panel:{place}", "expr": expression})
    path = tmp_path / "panels.yml"
    path.write_text(yaml.safe_dump({"groups": [{"name": "panels", "rules": records}]}), encoding="utf-8")
    done = ran(promtool.path, "check", "rules", str(path))

    assert done.returncode == 0, done.stdout + done.stderr


def ran(*command: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(list(map(str, command)), capture_output=True, text=True, timeout=120, check=False)
