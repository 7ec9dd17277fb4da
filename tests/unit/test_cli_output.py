"""Tables for people: whole words and whole ids, however narrow the terminal."""

from __future__ import annotations

import contextlib
import os
import pty
import re
import subprocess
import sys
from collections.abc import Callable
from io import StringIO
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from fleet.cli import app, output
from fleet.cli.commands import audit, resources
from fleet.cli.outcome import REFUSED, Refused
from fleet.cli.output import Form, Output
from fleet.cli.told_events import tell
from fleet.ledger.events import EventView

UUID = "6c95a2f8-7189-433c-81b3-7618fc9f3377"
ITEM = {"id": UUID, "node": "sim-01", "created_at": "2026-11-30T00:00:01.123456Z", "summary": "0 of 12 nodes fit"}
COLUMNS = ("id", "node", "created_at", "summary")
WIDTHS = (80, 120, 160, 230)
LONG_ADMIN = "system/admin-file"

Lines = Callable[[int | None, Callable[[Output], None]], list[str]]


@pytest.fixture
def lines_at(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Lines:
    """The lines that are printed on a terminal of that width; None: nobody looks."""

    def at(width: int | None, show: Callable[[Output], None]) -> list[str]:
        for module in (output, app):
            monkeypatch.setattr(module, "terminal_width", lambda _stream: width)
        show(Output(Form.HUMAN))
        read = capsys.readouterr()
        return (read.out + read.err).splitlines()

    return at


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def at(width: int | None, *items: dict[str, Any], columns: tuple[str, ...] = COLUMNS) -> list[str]:
        monkeypatch.setattr(output, "terminal_width", lambda _stream: width)
        Output(Form.HUMAN).listing(items, columns)
        return [line.rstrip() for line in capsys.readouterr().out.splitlines()]

    return at


def test_a_wide_terminal_gets_a_line_an_item(printed: Any) -> None:
    assert printed(120, ITEM)[1].split("  ") == [UUID, "sim-01", "2026-11-30T00:00:01Z", "0 of 12 nodes fit"]


def test_titles_are_broken_before_the_table_is_given_up(printed: Any) -> None:
    lines = printed(18, {"node": "sim-01", "sample_age_seconds": 1}, columns=("node", "sample_age_seconds"))

    assert lines[-1].split() == ["sim-01", "1"]


@pytest.mark.parametrize("width", [60, 40, 20])
def test_a_narrow_terminal_gets_a_paragraph_an_item_and_loses_nothing(printed: Any, width: int) -> None:
    lines = printed(width, ITEM)

    assert lines[0].startswith(UUID)
    assert "…" not in " ".join(lines)
    assert " ".join(" ".join(lines).split()) == (
        f"{UUID} node sim-01 created_at 2026-11-30T00:00:01Z summary 0 of 12 nodes fit"
    )


def test_what_looks_like_a_style_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    table = Table("[bold]head[/]")
    table.add_row("[red]cell[/]")

    output.console().print("[bold]line[/]")
    output.console().print(table)

    told = capsys.readouterr().out
    for text in ("[bold]line[/]", "[bold]head[/]", "[red]cell[/]"):
        assert text in told


def test_no_text_of_the_command_line_is_marked_up_for_a_console_that_prints_it_as_it_is() -> None:
    marked = re.compile(r"\[/\]|\[/?(?:bold|dim|red|green|yellow|italic)\b")
    sources = sorted(Path(app.__file__).parent.rglob("*.py"))

    assert len(sources) > 40
    assert [str(path) for path in sources if marked.search(path.read_text())] == []


def test_an_address_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    # `:b:` is a picture to whoever draws pictures.
    address = "address:2001:db8:b:1::/64"
    Output(Form.HUMAN).listing([{"by": address}], ("by",))
    Output(Form.HUMAN).say(address)
    output.console(error=True).print(address, markup=False)

    read = capsys.readouterr()

    assert [line.strip() for line in (read.out + read.err).splitlines()] == ["by", address, address, address]


def test_a_story_on_a_terminal_is_broken_between_words_and_a_log_is_not() -> None:
    text = "    sufficient_idle_cpu: over_limit_cpus: " + "committed_cpus 18, " * 6
    shown, logged = StringIO(), StringIO()

    for file, terminal in ((shown, True), (logged, False)):
        output.tell(Console(file=file, force_terminal=terminal, width=80, color_system=None), text)

    lines = shown.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert all(line.startswith(" " * 6) for line in lines[1:])
    assert words_of(lines) == text.split()
    assert len(logged.getvalue().splitlines()) == 1


def test_an_id_is_not_pushed_over_the_end_of_a_narrow_line(lines_at: Lines) -> None:
    lines = lines_at(len(UUID) + 1, lambda shown: shown.say(f"    the claim of the namespace ci is {UUID}; done"))

    assert UUID in lines[-2]
    assert max(map(len, lines)) <= len(UUID) + 1


def test_what_holds_several_within_a_cell_is_kept_together() -> None:
    declared = {"labels": {"kind": "simulated", "rack": "c"}, "arch": "amd64", "gpus": ["a"], "profiles": {}}

    assert output.plain(declared) == "labels=(kind=simulated rack=c) arch=amd64 gpus=a profiles=-"


def words_of(lines: list[str]) -> list[str]:
    return " ".join(lines).split()


def an_event() -> dict[str, Any]:
    figures = {f"sim-{at:02d}": {"reason": "over_limit_cpus", "current_cpus": at, "limit_cpus": 3} for at in range(8)}
    return {
        "at": "2026-11-30T00:00:01.123456Z",
        "level": "warning",
        "message": "schedule has no candidates at stage sufficient_idle_cpu, aborting",
        "payload": {"candidates": [], "dropped": figures, "instance": UUID},
    }


@pytest.mark.parametrize("width", WIDTHS)
def test_an_event_is_broken_between_words_and_hangs_below_its_time(lines_at: Lines, width: int) -> None:
    lines = lines_at(width, lambda shown: tell(shown, [an_event()]))
    unbroken = lines_at(None, lambda shown: tell(shown, [an_event()]))

    assert len(unbroken) == 2  # its day, and one line
    assert lines[1].startswith("00:00:01.123456 [warning] schedule has no candidates")
    assert len(lines) > 3
    assert all(line.startswith("  ") for line in lines[2:])
    assert max(map(len, lines)) <= width
    assert words_of(lines) == words_of(unbroken)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_refusal_is_broken_between_words(lines_at: Lines, width: int) -> None:
    detail = " ".join(f"{at} sufficient_idle_cpu," for at in range(20))
    document = {"code": "out_of_capacity", "detail": detail, "decision_id": UUID, "remedies": [{"text": detail}]}

    def refuse(_shown: Output) -> None:
        assert app._told(Refused(document), as_json=False) == REFUSED

    lines = lines_at(width, refuse)
    unbroken = lines_at(None, refuse)

    assert len(unbroken) == 3
    assert unbroken[2] == f"       out_of_capacity; fleet decision show {UUID}"
    assert lines[0].startswith("fleet: 0 sufficient_idle_cpu, ")
    assert all(line.startswith(" " * 7) for line in lines[1:])
    assert max(map(len, lines)) <= width
    assert words_of(lines) == words_of(unbroken)


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("changed", [1, 12])
def test_the_audit_shows_when_and_who_whole(lines_at: Lines, width: int, changed: int) -> None:
    old = {f"limit_{at}": None for at in range(changed)}
    payload = {"by": LONG_ADMIN, "old": old, "new": dict.fromkeys(old, 40), "claim_uuid": UUID}
    event = EventView(
        event_id=7,
        at_us=1_796_000_000_000_000,
        object_type="claim",
        object_id=UUID,
        level="info",
        message="namespace claim changed",
        payload=payload,
    )
    rows = [audit._row(event)] * 2
    lines = lines_at(width, lambda shown: shown.listing(rows, audit.COLUMNS))

    words = words_of(lines)
    assert max(map(len, lines)) <= width
    for whole in ("2026-11-30T00:53:20Z", LONG_ADMIN):
        assert words.count(whole) == 2, lines
    assert words.count(UUID) == 4
    assert "…" not in "".join(lines)


def figures_of(**given: Any) -> dict[str, Any]:
    return dict.fromkeys((*resources.FIGURES, "instances_committed"), 123_456) | {
        "cpu_committed_row_present": True,
        "takes_instances": False,
        "takes_none_because": "cordoned",
        **given,
    }


@pytest.mark.parametrize(("width", "columns"), [(80, "SHORT"), (120, "MIDDLE"), (160, "LONG"), (230, "LONG")])
def test_resources_show_the_columns_that_fit(lines_at: Lines, width: int, columns: str) -> None:
    total = {"cpu_available": 1, "ram_available": 2, "disk_available": 3}
    found = {
        "per_node": {f"hv{at}": figures_of(cpu_load_1=0.5) for at in range(3)},
        "nodes": {"hypervisors": 3, "in_total": 2},
        "total": total,
        "capacity_degraded": False,
    }
    lines = lines_at(width, lambda shown: resources._show_nodes(shown, found))

    assert max(map(len, lines)) <= width
    assert "…" not in "".join(lines)
    rows = [line.split() for line in lines if line.startswith("hv")]
    assert [row[:2] for row in rows] == [[f"hv{at}", "cordoned"] for at in range(3)]
    assert {len(row) for row in rows} == {len(getattr(resources, columns))}


def test_where_nobody_looks_a_row_is_a_line(lines_at: Lines) -> None:
    item = ITEM | {"summary": "word " * 200}

    assert len(lines_at(None, lambda shown: shown.listing([item], COLUMNS))) == 2
    assert len(lines_at(None, lambda shown: shown.record(item))) == len(item)


@pytest.mark.parametrize("width", WIDTHS)
def test_a_long_field_hangs_below_its_beginning(lines_at: Lines, width: int) -> None:
    item = {"uuid": UUID, "why": f"{UUID} " * 9}
    lines = lines_at(width, lambda shown: shown.record(item))

    assert lines[0] == f"uuid  {UUID}"
    assert all(line.startswith(" " * 6) for line in lines[2:])
    assert max(map(len, lines)) <= width
    assert words_of(lines).count(UUID) == 10


def test_a_terminal_of_unknown_width_is_taken_for_80_characters() -> None:
    program = "from fleet.cli.output import *; Output(Form.HUMAN).say('word ' * 40)"
    environ = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
    here, there = pty.openpty()
    try:
        subprocess.run(
            [sys.executable, "-c", program],
            stdin=there,
            stdout=there,
            stderr=there,
            env=environ,
            check=True,
            timeout=60,
        )
    finally:
        os.close(there)
    told = b""
    # One reading may return a part. When nobody has the terminal open any more, the end of it is an error on Linux.
    with contextlib.suppress(OSError):
        while part := os.read(here, 10_000):
            told += part
    os.close(here)
    lines = told.decode().splitlines()
    assert [len(line.split()) for line in lines] == [16, 15, 9]


def test_in_a_paragraph_a_figure_stands_beside_its_name(printed: Any) -> None:
    lines = printed(60, {**ITEM, "summary": "12 words " * 6})

    assert lines[0] == f"{UUID}  node sim-01"
    assert lines[1] == "    created_at 2026-11-30T00:00:01Z"
    assert lines[2].startswith("    summary 12 words 12 words ")
    assert lines[3].startswith("      12 words" if lines[2].endswith("words") else "      words")
