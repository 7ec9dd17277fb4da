"""What `fleet explain` makes of a decision: a row a node, with every stage that would drop it."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.cli.commands.asking import show_decision
from fleet.cli.output import Form, Output
from fleet.cli.session import Shell
from fleet.placement.counterfactuals import remedies
from fleet.placement.pipeline import decide
from tests.documents import a_node
from tests.unit.placement.asking import request_of, snapshot_of

STORAGE = {"resource": "metal_server", "operator": "has", "tags": {"type": "storage"}}


def explained(*nodes: dict[str, Any], config: Any = None, **request: Any) -> dict[str, Any]:
    asked, snapshot = request_of(**request), snapshot_of(*nodes, config=config)
    decision = decide(asked, snapshot, 0, explain=True)
    found = remedies(asked, snapshot, 0, decision)
    return {**decision.as_dict(), "remedies": [one.as_dict() for one in found]}


@pytest.fixture
def shown(capsys: pytest.CaptureFixture[str]) -> Any:
    def show(decision: dict[str, Any]) -> list[str]:
        show_decision(Shell(Output(Form.HUMAN), "", "system", None, {}), decision)
        return capsys.readouterr().out.splitlines()

    return show


def test_a_node_has_one_row_with_its_first_failing_stage_and_the_others(shown: Any) -> None:
    node = a_node(scheduling="cordoned", region="us", used_cpus=42)
    request = {"region": "eu", "gpus": 1, "placement_rules": [STORAGE]}

    lines = shown(explained(node, **request))
    rows = [line for line in lines if line.startswith("n1 ")]

    assert len(rows) == 1
    assert rows[0].split()[:3] == ["n1", "scheduling_state", "cordoned"]
    assert rows[0].rstrip().endswith("region sufficient_idle_cpu gpu placement_rules")


def test_rules_that_are_only_preferred_are_no_reason_against_a_node(shown: Any) -> None:
    decision = explained(a_node(), config={"AFFINITY_MATCHING": "preferred"}, placement_rules=[STORAGE])

    assert decision["outcome"] == "ranked"
    assert [stage["name"] for stage in decision["stages"] if stage.get("overridden")] == ["placement_rules"]
    assert "Not on:" not in shown(decision)


def test_remedies_stand_below_the_sentence_the_smallest_first(shown: Any) -> None:
    lines = shown(explained(a_node(used_cpus=41), cpus=2))

    assert lines[1:5] == [
        "What would help:",
        "  Ask for 1 vCPU instead of 2: then n1 fits.",
        "  Wait until n1 has 1 vCPU more: then n1 fits.",
        "  Register a node with room for at least 2 vCPUs, 1024 MiB of memory, 10 GiB of disk. (an operator can)",
    ]


def test_an_answer_without_remedies_still_tells_the_nearest_node(shown: Any) -> None:
    decision = explained(a_node(used_cpus=41), cpus=2)
    del decision["remedies"]

    assert "What would help: nearest is n1: it lacks 1 vCPU" in shown(decision)


def test_a_rule_of_many_parts_is_told_in_few_words_and_says_what_is_left_out(shown: Any) -> None:
    other = {"resource": "virtual_machine", "operator": "has", "tags": {"role": "db"}, "within": "rack"}
    rules = [{"any_of": [STORAGE, {"all_of": [STORAGE, other]}, STORAGE, STORAGE]}]

    (row,) = [line for line in shown(explained(a_node(labels={}), placement_rules=rules)) if line.startswith("n1 ")]

    storage = "metal_server has type=storage"
    assert f"rule=any of ({storage}, all of ({storage}, virtual_machine has role=db within rack), 2 more)" in " ".join(
        row.split()
    )


def test_a_line_for_programs_tells_a_refusals_code_and_stage(capsys: pytest.CaptureFixture[str]) -> None:
    shell = Shell(Output(Form.SIMPLE), "", "system", None, {})

    show_decision(shell, explained(a_node(region="eu"), region="us"))
    refused = capsys.readouterr().out.splitlines()
    show_decision(shell, explained(a_node()))
    ranked = capsys.readouterr().out.splitlines()

    assert refused[:4] == ["outcome,refused", "code,out_of_capacity", "stage,region", "transient,False"]
    assert refused[4].startswith("summary,0 of 1 nodes fit: 1 region")
    assert ranked[0] == "node,weight"
