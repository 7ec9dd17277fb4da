"""`fleet decide` for people: the sentences of a stored decision, from files alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fleet.cli import app
from tests.documents import a_document, a_node, a_request


@pytest.fixture
def decided(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Any:
    def run(node: dict[str, Any], request: dict[str, Any], *words: str) -> tuple[int, str, str]:
        files = []
        for name, content in (("snapshot", a_document(node)), ("request", request)):
            (tmp_path / name).write_text(json.dumps(content))
            files += [f"--{name}", str(tmp_path / name)]
        code = app.run(["decide", *files, "--seed", "7", *words])
        told = capsys.readouterr()
        return code, told.out, told.err

    return run


def test_a_ranking_is_told_in_the_sentences_of_a_stored_decision(decided: Any) -> None:
    code, out, err = decided(a_node(), a_request(), "--summary", "--strategy", "spread")

    assert (code, err) == (0, "")
    assert out.splitlines() == [
        json.loads(decided(a_node(), a_request(), "--strategy", "spread")[1])["summary"],
        "ranked",
        "asked: cpus 1, memory_mb 1024, disk_gb 10, strategy spread",
        "strategy spread, seed 7, 1 node judged",
        "  ranked, best first: n1 (of 1)",
    ]


def test_a_refusal_is_told_with_where_nodes_fell_and_what_would_help(decided: Any) -> None:
    code, out, _ = decided(a_node(used_cpus=41), a_request(cpus=2, namespace="shop"), "--summary")

    assert code == 1
    assert "refused (out_of_capacity) for namespace shop\n" in out
    assert "  sufficient_idle_cpu dropped 1 for over_limit_cpus: n1\n" in out
    assert "  Ask for 1 vCPU instead of 2: then n1 fits.\n" in out


def test_what_is_wrong_with_the_files_is_told_line_by_line(decided: Any, tmp_path: Path) -> None:
    code, out, err = decided(a_node(state="busy"), a_request(cpus=True), "--summary")

    assert (code, out) == (1, "")
    for culprit in (f"{tmp_path}/snapshot: nodes[0].state: ", f"{tmp_path}/request: cpus: "):
        assert culprit in err


def test_sentences_and_json_are_not_asked_for_together(decided: Any) -> None:
    code, out, err = decided(a_node(), a_request(), "--summary", "--json")

    assert (code, err) == (2, "")
    assert json.loads(out)["detail"] == "--summary and --json: keep one of them"


def test_without_a_word_it_is_json(decided: Any) -> None:
    plain, asked = decided(a_node(), a_request()), decided(a_node(), a_request(), "--json")

    assert plain == asked
    assert json.loads(plain[1])["outcome"] == "ranked"
