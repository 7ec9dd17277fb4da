"""The time each layer took: a table before pytest's last line. A layer is the first folder under tests/."""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import PurePosixPath

import pytest

OUTCOMES = ("passed", "failed", "skipped")


def layer_of(nodeid: str) -> str:
    """``tests/ledger/test_x.py::test_y`` is of the layer ``ledger``."""
    parts = PurePosixPath(nodeid.partition("::")[0]).parts
    inside = parts[1:] if parts and parts[0] == "tests" else parts
    return inside[0] if len(inside) > 1 else "(top)"


class LayerTimes:
    """Adds up what pytest reports: seconds of every phase, outcomes of every test."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.outcomes: defaultdict[str, Counter[str]] = defaultdict(Counter)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        layer = layer_of(report.nodeid)
        self.seconds[layer] += report.duration
        # A failure while setting up or taking down is a failure; a pass there is not a test yet.
        if report.when == "call" or report.outcome != "passed":
            self.outcomes[layer][report.outcome] += 1

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self.seconds:
            return
        terminalreporter.section("time per layer")
        terminalreporter.write_line(f"{'layer':<14}{'seconds':>9}" + "".join(f"{word:>9}" for word in OUTCOMES))
        for layer in sorted(self.seconds, key=lambda name: -self.seconds[name]):
            counts = "".join(f"{self.outcomes[layer][word]:>9}" for word in OUTCOMES)
            terminalreporter.write_line(f"{layer:<14}{self.seconds[layer]:>9.1f}{counts}")
