"""`fleet decide`, file to file."""

import json
from pathlib import Path
from typing import Any

import pytest

from fleet.cli.decide import decide_files
from tests.documents import a_document, a_node, a_request


@pytest.fixture
def files(tmp_path: Path) -> Any:
    def write(document: Any, request: Any) -> tuple[str, str]:
        for name, content in (("snapshot.json", document), ("request.json", request)):
            text = content if isinstance(content, str) else json.dumps(content)
            (tmp_path / name).write_text(text)
        return str(tmp_path / "snapshot.json"), str(tmp_path / "request.json")

    return write


def test_a_ranking_ends_with_zero(files: Any) -> None:
    answer, code = decide_files(*files(a_document(a_node()), a_request()))

    assert (answer["outcome"], answer["ranked"], code) == ("ranked", ["n1"], 0)
    assert json.loads(json.dumps(answer)) == answer


def test_a_refusal_ends_with_one(files: Any) -> None:
    answer, code = decide_files(*files(a_document(a_node(used_cpus=42)), a_request()))

    assert (answer["outcome"], answer["code"], code) == ("refused", "out_of_capacity", 1)


def test_a_fork_that_was_decided_can_be_decided_again(files: Any) -> None:
    source = {"uuid": "i1", "node": "n2", "cpus": 1, "memory_mb": 1024, "disk_gb": 10}
    fleet = a_document(a_node(name="n1"), a_node(name="n2", scheduling="cordoned"), instances=[source])

    answer, code = decide_files(*files(fleet, a_request(reason="fork", instance="i1")))

    assert (answer["outcome"], answer["ranked"], code) == ("ranked", ["n2"], 0)


def test_a_destination_that_stands_twice_is_named_once(files: Any) -> None:
    answer, _ = decide_files(*files(a_document(a_node()), a_request(destinations=["n9", "n1", "n9"])))

    assert answer["summary"] == "no node is called n9; 1 node is registered"


def test_problems_of_both_files_are_told_together(files: Any) -> None:
    wrong = a_request(cpus=True, colour="red", strategy="tetris")
    answer, code = decide_files(*files(a_document(a_node(state="busy")), wrong))

    assert (answer["code"], code) == ("invalid_request", 1)
    assert {"nodes[0].state", "cpus", "colour", "strategy"} == {problem["field"] for problem in answer["errors"]}


@pytest.mark.parametrize("text", ["{", "", '{"a": ' * 100_000, "\x00"])
def test_what_is_not_json_is_an_invalid_request(files: Any, text: str) -> None:
    answer, code = decide_files(*files(a_document(a_node()), text))

    assert (answer["code"], code) == ("invalid_request", 1)
    assert "is not JSON" in answer["errors"][0]["message"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"cpus": 1, "memory_mb": 1, "cpus": 2}', "'cpus' stands twice (line 1, column 29)"),
        ('{"cpus": 1, "memory_mb": 1, "name": "\\ud800"}', "half a character"),
    ],
)
def test_what_json_allows_and_nobody_can_mean_is_refused(files: Any, text: str, words: str) -> None:
    answer, code = decide_files(*files(a_document(a_node()), text))

    assert (answer["code"], code) == ("invalid_request", 1)
    assert words in answer["errors"][0]["message"]


def test_a_missing_file_is_named(files: Any) -> None:
    _, request = files(a_document(a_node()), a_request())

    answer, code = decide_files("/nowhere/at-all.json", request)

    assert (answer["code"], code) == ("invalid_request", 1)
    assert answer["errors"][0]["file"] == "/nowhere/at-all.json"


def test_the_argument_beats_the_request_and_the_request_the_configuration(files: Any) -> None:
    document = a_document(a_node(), config={"PLACEMENT_STRATEGY": "by-config"})

    paths = files(document, a_request(strategy="by-request"))
    by_argument, _ = decide_files(paths[0], paths[1], strategy="by-argument")
    by_request, _ = decide_files(*files(document, a_request(strategy="by-request")))
    by_config, _ = decide_files(*files(document, a_request()))

    told = [(answer["code"], answer["errors"][0]["message"]) for answer in (by_argument, by_request, by_config)]
    assert [code for code, _ in told] == ["invalid_request", "invalid_request", "strategy_unavailable"]
    named = [message.partition("'")[2].partition("'")[0] for _, message in told]
    assert named == ["by-argument", "by-request", "by-config"]


def test_the_seed_decides_the_shuffle(files: Any) -> None:
    snapshot, request = files(a_document(*[a_node(name=f"n{i}") for i in range(8)]), a_request())

    first, again, other = (decide_files(snapshot, request, seed)[0]["ranked"] for seed in (1, 1, 2))

    assert first == again != other
