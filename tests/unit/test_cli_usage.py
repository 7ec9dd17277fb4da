"""Wrong usage is told as every other refusal: what is wrong, all that is missing, and where to read on."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from fleet.cli import session
from fleet.cli.app import run
from fleet.cli.outcome import REFUSED, UNREACHABLE, USAGE

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


def test_an_update_of_nothing_is_not_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["node", "update", "sim-01"]) == USAGE

    assert capsys.readouterr().err.splitlines()[0] == "fleet: nothing is given to change"


def test_a_label_has_one_value(capsys: pytest.CaptureFixture[str]) -> None:
    labels = ("--label", "rack=a", "--label", "kind=x", "--label", "rack=b")

    assert run([*ASKED, "--cpus", "1", *labels]) == USAGE

    assert capsys.readouterr().err == "fleet: --label gives rack two values: 'a' and 'b'\n"


def test_a_database_without_tables_is_no_fault_of_the_program(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "config"
    config.write_text(f"DATABASE_URL=sqlite:///{tmp_path}/empty.db\n")

    assert run(["ctl", "audit", "--config", str(config)]) == REFUSED

    told = capsys.readouterr().err
    assert told.startswith("fleet: the database refused: no such table: events")
    assert "fleet ctl migrate-db" in told


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_what_cannot_be_written_is_told(form: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "fleet.cli.app", "config", "show", *form]
    with open("/dev/full", "w") as full:  # noqa: PTH123  # a device, and no path of ours
        ended = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stderr) == (
        REFUSED,
        "fleet: the output could not be written: No space left on device\n",
    )


def test_an_output_that_is_closed_is_no_fault() -> None:
    command = f"{sys.executable} -m fleet.cli.app config show >&-"
    ended = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)

    assert (ended.returncode, ended.stderr) == (0, "")


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


def test_a_configuration_that_is_not_there_is_told_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["ctl", "get-config", "--config", str(tmp_path / "none")]) == USAGE

    assert capsys.readouterr().err.splitlines()[-1] == f"       there is no {tmp_path / 'none'}"


@pytest.mark.parametrize(
    ("namespace", "hint"), [("ci", "fleet key create ci NAME"), ("system", "the service's ADMIN_KEY_FILE")]
)
def test_who_has_no_key_is_told_where_one_of_that_namespace_comes_from(
    namespace: str, hint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("FLEET_KEY", "FLEET_KEY_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(session, "INSTALLED_KEY", tmp_path / "none")

    assert run(["--as", namespace, "node", "list"]) == USAGE

    told = capsys.readouterr().err
    assert hint in told
    assert ("ADMIN_KEY_FILE" in told) == (namespace == "system")


def test_a_service_that_is_not_there_is_told_in_words(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FLEET_KEY", "a.b")

    assert run(["--url", "http://127.0.0.1:9", "node", "list"]) == UNREACHABLE

    assert capsys.readouterr().err.startswith(
        "fleet: http://127.0.0.1:9 does not answer (POST /auth): Connection refused"
    )


def test_what_continues_on_a_line_of_its_own_stands_below_the_first(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["ctl", "get-config", "--config", f"{tmp_path}/none"]) == USAGE

    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("fleet: ")
    assert all(line.startswith(" " * 7) for line in lines[1:])
