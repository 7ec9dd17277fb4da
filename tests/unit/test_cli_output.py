"""Tables for people: whole words and whole ids, however narrow the terminal."""

from __future__ import annotations

import sys
from typing import Any

import pytest
from rich.console import Console

from fleet.cli import output
from fleet.cli.output import Form, Output

UUID = "6c95a2f8-7189-433c-81b3-7618fc9f3377"
ITEM = {"id": UUID, "node": "sim-01", "created_at": "2026-11-30T00:00:01.123456Z", "summary": "0 of 12 nodes fit"}
COLUMNS = ("id", "node", "created_at", "summary")


@pytest.fixture
def printed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Any:
    def at(width: int, *items: dict[str, Any], columns: tuple[str, ...] = COLUMNS) -> list[str]:
        monkeypatch.setattr(output, "console", lambda: Console(file=sys.stdout, width=width))
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


def test_an_address_is_printed_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    # `:b:` is a picture to whoever draws pictures.
    address = "address:2001:db8:b:1::/64"
    Output(Form.HUMAN).listing([{"by": address}], ("by",))
    Output(Form.HUMAN).say(address)
    output.console(error=True).print(address, markup=False)

    read = capsys.readouterr()

    assert [line.strip() for line in (read.out + read.err).splitlines()] == ["by", address, address, address]
