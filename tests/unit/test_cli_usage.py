"""Wrong usage is told as every other refusal: what is wrong, all that is missing, and where to read on."""

from __future__ import annotations

import json

import pytest

from fleet.cli.app import run
from fleet.cli.outcome import USAGE

ASKED = ("instance", "create", "x", "--memory", "64")


@pytest.mark.parametrize(
    ("line", "told", "help_of"),
    [
        (("claim", "create", "ci"), "missing: --cpus, --memory, --disk and --expires-in", "claim create"),
        (("claim", "create", "ci", "--cpus=1", "--disk", "1"), "missing: --memory and --expires-in", "claim create"),
        (("claim", "create", "--cpus", "1"), "missing: NAMESPACE, --memory, --disk and --expires-in", "claim create"),
        (("node", "show"), "missing: NAME", "node show"),
        ((*ASKED, "--cpus", "four"), "--cpus: 'four' is not a whole number", "instance create"),
        ((*ASKED, "--cpu", "1"), "there is no option --cpu; did you mean --cpus or --gpus?", "instance create"),
        ((*ASKED, "--nothing-like-it"), "there is no option --nothing-like-it", "instance create"),
        (("namespace", "events", "ci", "--limit", "0"), "--limit: 0 is below 1, the least", "namespace events"),
        (("capacity",), "missing: --shape", "capacity"),
    ],
)
def test_wrong_usage_is_a_sentence(
    line: tuple[str, ...], told: str, help_of: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line) == USAGE

    read = capsys.readouterr()
    assert read.out == ""
    assert read.err.splitlines() == [f"fleet: {told}", f"       fleet {help_of} --help"]


def test_a_value_is_told_with_what_would_be_accepted(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ctl", "audit", "--since", "yesterday"]) == USAGE

    assert capsys.readouterr().err.startswith("fleet: --since: 'yesterday' is not a duration; write for example 30d")


def test_programs_get_wrong_usage_as_a_document(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["node", "show", "--json"]) == USAGE

    assert json.loads(capsys.readouterr().out) == {"code": "usage", "detail": "missing: NAME"}


@pytest.mark.parametrize("line", [(), ("node",), ("ctl",)])
def test_without_a_command_there_is_help_that_is_not_cut_off(
    line: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(line) == USAGE

    read = capsys.readouterr()
    assert read.err.startswith(f"Usage: {' '.join(['fleet', *line])} [OPTIONS]")
    assert "..." not in read.err.replace("[ARGS]...", "")


def test_help_ends_well(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0

    assert capsys.readouterr().out.startswith("Usage: fleet [OPTIONS]")


def test_what_continues_on_a_line_of_its_own_stands_below_the_first(
    tmp_path: object, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ctl", "get-config", "--config", f"{tmp_path}/none"]) == USAGE

    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("fleet: ")
    assert all(line.startswith(" " * 7) for line in lines[1:])
