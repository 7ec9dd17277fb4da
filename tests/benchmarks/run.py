"""`./dev bench`: every figure beside its floors, measured in one run on this machine.

    ./dev bench [--quick] [--only NAME]… [--out FOLDER] [--profile]

The database is a private MariaDB that flushes every commit; the API has two workers; clients are separate processes on
the same cores. `--profile` also runs the API under cProfile and prints where its time goes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import pstats
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console

from tests.benchmarks import creates, deciding, reconciling
from tests.benchmarks.figures import Figure, show
from tests.benchmarks.others import Others
from tests.benchmarks.stage import Stage, stage

NAMES = ("decide", "creates-1000", "rules", "workers", "reconcile", "creates-5000", "creates-10000")
PROFILE_SECONDS = 6.0
PROFILE_LINES = 35


class Bench:
    """One run: what is asked for, in the order in which the database grows."""

    def __init__(self, arguments: argparse.Namespace, console: Console) -> None:
        self._only: list[str] = arguments.only or list(NAMES)
        self._pace: creates.Pace = (1, 2.0) if arguments.quick else (3, 4.0)
        self._profile: Path | None = arguments.out if arguments.profile else None
        self._console = console
        self.figures: list[Figure] = []

    def run(self) -> None:
        """Everything that is asked for."""
        if "decide" in self._only:
            self._measure(deciding.decide_alone)
            self._measure(deciding.gpu_stage)
        if set(self._only) - {"decide"}:
            with stage(self._profile) as built:
                self._on(built)

    def _on(self, built: Stage) -> None:
        self._grow(built, 1000)
        if "creates-1000" in self._only:
            bare = self._floors(built)
            self._measure(lambda: creates.many_clients(built, self._pace, workers=False, bars=(300, bare)))
            self._measure(lambda: creates.one_client(built, self._pace, 10))
            self._profiled(built)
        if "rules" in self._only:
            self._measure(lambda: creates.with_rules(built, self._pace))
        if "reconcile" in self._only:
            self._measure(lambda: reconciling.reconcile_pass(built, self._pace[0]))
        if "workers" in self._only:
            self._measure(lambda: creates.many_clients(built, self._pace, workers=True, bars=(None, None)))
        if "creates-5000" in self._only:
            self._grow(built, 5000)
            self._floors(built)
            self._measure(lambda: creates.many_clients(built, self._pace, workers=False, bars=(200, None)))
        if "creates-10000" in self._only:
            self._grow(built, 10_000)
            self._measure(lambda: creates.one_client(built, self._pace, 15))
            self._profiled(built)

    def _grow(self, built: Stage, nodes: int) -> None:
        started = time.monotonic()
        built.grow(nodes)
        self._console.print(f"  {nodes:,} nodes registered and measured in {time.monotonic() - started:.0f} s")

    def _floors(self, built: Stage) -> float:
        rates: list[float] = []

        def measured() -> list[Figure]:
            found, bare = creates.floors(built, self._pace)
            rates.append(bare)
            return found

        self._measure(measured)
        return rates[0]

    def _measure(self, measurement: Callable[[], list[Figure]]) -> None:
        others = Others()
        found = measurement()
        for figure in found:
            figure.others_percent = others.percent()
            self.figures.append(figure)
            verdict = {True: "met", False: "NOT MET", None: ""}[figure.met]
            noise = f"(others {figure.others_percent:.0f} %)"
            self._console.print(f"  {figure.name}: {figure.value:,.2f} {figure.unit} {figure.bar} {verdict} {noise}")

    def _profiled(self, built: Stage) -> None:
        if self._profile is None:
            return
        creates.profiled(built, PROFILE_SECONDS)
        output = self._profile / f"api-{built.nodes}-nodes.pstats"
        for order in ("cumulative", "tottime"):
            pstats.Stats(str(output)).sort_stats(order).print_stats(PROFILE_LINES)


def machine() -> dict[str, Any]:
    """What the figures were measured on."""
    return {
        "at": datetime.now(tz=UTC).isoformat(timespec="seconds"),
        "processors": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 10**9, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "load_before": os.getloadavg()[0],
    }


def arguments_of(words: list[str]) -> argparse.Namespace:
    """What was asked for."""
    parser = argparse.ArgumentParser(prog="./dev bench", description="benchmarks, each beside its floors")
    parser.add_argument("--quick", action="store_true", help="one short round of everything")
    parser.add_argument("--only", action="append", choices=NAMES, help="may be given several times")
    parser.add_argument("--out", type=Path, default=Path("var/bench"), help="folder for bench.json and profiles")
    parser.add_argument("--profile", action="store_true", help="also run the API under cProfile")
    return parser.parse_args(words)


def main(words: list[str]) -> int:
    """Measure, print, write; 1 when a bar is not met."""
    arguments = arguments_of(words)
    arguments.out.mkdir(parents=True, exist_ok=True)
    console = Console(highlight=False, width=max(Console().width, 160))
    about = machine()
    console.print(
        f"{about['processors']} processors, {about['memory_gb']} GB, Python {about['python']}, {about['system']}"
    )
    bench = Bench(arguments, console)
    bench.run()
    show(bench.figures, console)
    document = {"machine": about, "figures": [figure.as_json() for figure in bench.figures]}
    (arguments.out / "bench.json").write_text(json.dumps(document, indent=1) + "\n")
    console.print(f"written: {arguments.out / 'bench.json'}")
    missed = [figure.name for figure in bench.figures if figure.met is False]
    if missed:
        console.print(f"{len(missed)} bars are not met: {'; '.join(missed)}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
