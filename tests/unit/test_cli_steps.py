"""Progress of a long command: seen from the first moment on a terminal, and out of the way where there is none."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from rich.console import Console

from fleet.cli import app, output
from fleet.cli.simulate_inputs import Inputs
from fleet.cli.steps import steps

SMALL = ("simulate", "--seeds", "2", "--nodes", "2", "--duration", "5", "--strategies", "load-aware")


def terminal() -> Console:
    return Console(file=StringIO(), force_terminal=True, width=100)


def written(console: Console) -> str:
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_a_bar_is_there_before_anything_is_done() -> None:
    console = terminal()

    with steps(console) as bars:
        done = bars.count("nodes", 6)
        before = written(console)
        for _ in range(6):
            done()

    assert "0/6" in before
    assert "6/6" in written(console)


@pytest.mark.parametrize(("lines", "told"), [(True, 10), (False, 0)])
def test_without_a_terminal_a_tenth_is_a_line_or_nothing(lines: bool, told: int) -> None:
    console = Console(file=StringIO())

    with steps(console, lines=lines) as bars:
        done, left = bars.count("nodes", 20), bars.left("instances")
        for _ in range(20):
            done()
        left(0)

    assert written(console).count(" nodes: ") == told
    assert written(console).count(" instances: ") == bool(told)


def test_a_simulation_shows_a_bar_before_its_first_seed_is_drawn(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    err, out, before = terminal(), Console(), []
    draw = Inputs.scenario

    def drawn(inputs: Inputs, seed: int) -> Any:
        before.append(written(err))
        return draw(inputs, seed)

    monkeypatch.setattr(output, "console", lambda *, error=False: err if error else out)
    monkeypatch.setattr(Inputs, "scenario", drawn)
    assert app.run(SMALL) == 0

    assert "seeds drawn" in before[0]
    assert "0/2" in before[0]
    assert "requests answered" in written(err)
    assert "requests answered" not in capsys.readouterr().out


def test_a_simulation_that_nobody_looks_at_prints_its_report_and_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert app.run(SMALL) == 0

    told = capsys.readouterr()
    assert told.err == ""
    assert "requests answered" not in told.out
