"""What `fleet simulate` found out: a table for people, a document for programs.

Promise: the document holds no time of day and no path, so the same words give the same bytes. The verdict is judged
here: nothing oversold in any run, and every request accounted for in each.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleet.cli.output import tell
from fleet.simulation.compare import Cell, compare
from fleet.simulation.run import Result

# Figure, what people call it, digits. A dot at the end stands for every figure below it.
ROWS: Final = (
    ("requested", "requested", 1),
    ("placed", "placed", 1),
    ("placed_percent", "placed, %", 2),
    ("refused", "refused", 1),
    ("refused_by_code.", "refused as", 1),
    ("never_fits", "of these, too large for an empty fleet", 1),
    ("expired", "expired", 1),
    ("pending", "pending at the end", 1),
    ("delayed", "placed after waiting", 1),
    ("oversold", "oversold", 0),
    ("rejected_percent_by_class.", "rejected, % of", 2),
    ("utilisation_percent.", "used over time, % of", 2),
    ("utilisation_percent_at_end.", "used at the end, % of", 2),
    ("nodes_in_use", "nodes in use, over time", 1),
    ("compaction", "compaction", 3),
    ("stranded_percent.", "stranded, % of what is left of", 2),
    ("bands_percent.", "nodes in band, %", 2),
    ("wait_ms.", "wait, ms,", 1),
    ("tries_per_placement", "tries a placement", 3),
    ("refused_tries_per_placement", "refused tries a placement", 3),
    ("contended_percent", "met a locked row, % of requests", 2),
    ("demand_waived", "placed over the load target", 1),
    ("wakes", "wakes", 1),
    ("wake_shortfalls", "wakes without enough memory", 2),
    ("wake_shortfall_mb_peak", "largest such shortfall, MiB", 1),
    ("placed_at_first_gpu_refusal", "placed before the first GPU refusal", 1),
    ("gpus_unallocated_at_first_refusal", "GPUs unallocated then", 1),
    ("gpu_fragmentation_percent_at_first_refusal", "GPU fragmentation then, %", 2),
    ("gpus_unallocated_at_end", "GPUs unallocated at the end", 1),
    ("gpu_fragmentation_percent_at_end", "GPU fragmentation at the end, %", 2),
)
SHAPES: Final = (
    ("largest_placeable", "largest shape that still fits"),
    ("first_gpu_refusal", "first GPU request refused"),
)
SILENT_WHEN_ZERO: Final = frozenset(
    {
        "never_fits",
        "expired",
        "pending",
        "delayed",
        "wakes",
        "wake_shortfalls",
        "wake_shortfall_mb_peak",
        "demand_waived",
    }
)
METHOD: Final = "mean over seeds; below it the paired difference to the first strategy with its 95 % interval"

NARROW: Final = "mean over seeds; + or - where it is proven to differ from the first (--json has the differences)"
TITLE_WIDTH: Final = 42
COLUMN_WIDTH: Final = 20
NARROW_COLUMN_WIDTH: Final = 13
"""Of a column of means: a narrow terminal gets as many tables as it needs, so that no figure is cut."""


@dataclass(frozen=True, slots=True)
class Report:
    """All runs, and how they compare."""

    inputs: Mapping[str, Any]
    results: Sequence[Result]
    cells: Mapping[str, Mapping[str, Cell]]

    @classmethod
    def of(cls, inputs: Mapping[str, Any], results: Sequence[Result]) -> Report:
        """Compare the results."""
        return cls(inputs, results, compare(results))

    @property
    def strategies(self) -> list[str]:
        """The strategies, in the order in which they were asked for."""
        return list(dict.fromkeys(result.strategy for result in self.results))

    @property
    def seeds(self) -> list[int]:
        """The seeds."""
        return list(dict.fromkeys(result.seed for result in self.results))

    @property
    def good(self) -> bool:
        """Whether every run kept every promise."""
        return all(result.good for result in self.results)

    def faults(self) -> list[str]:
        """Return what was wrong, a sentence each."""
        found = []
        for result in self.results:
            where, figures = f"{result.strategy}, seed {result.seed}", result.figures
            if figures["oversold"]:
                found.append(f"{where}: {figures['oversold']} placements went over a limit or onto a bound GPU")
            if not result.conserved:
                ends = " + ".join(f"{figures[name]} {name}" for name in ("placed", "refused", "expired", "pending"))
                found.append(f"{where}: {ends} is not {figures['requested']} requested")
        return found

    def as_json(self) -> dict[str, Any]:
        """The report for programs."""
        return {
            "good": self.good,
            "faults": self.faults(),
            "inputs": dict(self.inputs),
            "strategies": self.strategies,
            "seeds": self.seeds,
            "method": METHOD,
            "comparison": {
                name: {strategy: cell.as_dict() for strategy, cell in row.items()} for name, row in self.cells.items()
            },
            "runs": [
                {"strategy": result.strategy, "seed": result.seed, "figures": result.figures} for result in self.results
            ],
        }


def show(report: Report, console: Console) -> None:
    """The report for people. A narrow terminal gets the means, and a mark where a difference is proven."""
    narrow = console.is_terminal and console.width < TITLE_WIDTH + COLUMN_WIDTH * len(report.strategies)
    beside = max(1, (console.width - TITLE_WIDTH) // NARROW_COLUMN_WIDTH) if narrow else len(report.strategies)
    title = f"{len(report.seeds)} seed{'' if len(report.seeds) == 1 else 's'}; {NARROW if narrow else METHOD}"
    for start in range(0, len(report.strategies), beside):
        strategies = report.strategies[start : start + beside]
        table = Table(title=None if start else title, title_justify="left")
        table.add_column("", no_wrap=True)
        for strategy in strategies:
            table.add_column(strategy, justify="right", no_wrap=True)
        for name, title_of_row, digits in rows_of(report.cells):
            row = report.cells[name]
            table.add_row(title_of_row, *(_cell_text(row[one], digits, narrow=narrow) for one in strategies))
        console.print(table, soft_wrap=not narrow)
    for strategy in report.strategies:
        found = [one.figures["largest_placeable"] or "none" for one in report.results if one.strategy == strategy]
        tell(console, f"  {strategy}: largest shape that still fits: {', '.join(dict.fromkeys(found))}")
    for fault in report.faults():
        tell(console, fault, "red")
    if report.good:
        tell(console, "nothing oversold; placed + refused + expired + pending = requested in every run", "green")


def _shapes(report: Report, strategy: str) -> str:
    runs = [result.figures for result in report.results if result.strategy == strategy]
    parts = []
    for name, title in SHAPES:
        found = dict.fromkeys(figures[name] or "none" for figures in runs if name in figures)
        if found:
            parts.append(f"{title}: {', '.join(found)}")
    return "; ".join(parts)


def rows_of(cells: Mapping[str, Mapping[str, Cell]]) -> Iterator[tuple[str, str, int]]:
    """Yield the figures that a person sees: name, title, digits."""
    for name, title, digits in ROWS:
        if not name.endswith("."):
            quiet = name in SILENT_WHEN_ZERO and not any(cell.mean for cell in cells.get(name, {}).values())
            if name in cells and not quiet:
                yield name, title, digits
            continue
        for found in sorted(cells) if name == "refused_by_code." else cells:
            if found.startswith(name):
                yield found, f"{title} {UNITS.get(found.removeprefix(name), found.removeprefix(name))}", digits


UNITS: Final = {"cpus": "CPUs", "memory_mb": "memory", "disk_gb": "disk", "gpus": "GPUs"}


def _cell_text(cell: Cell, digits: int, *, narrow: bool) -> Text:
    mean = _number(cell.mean, digits)
    if narrow:
        return Text(mean + ("" if not cell.proven else "+" if (cell.difference or 0) > 0 else "-"))
    if cell.difference is None:
        return Text(mean)
    width = "" if cell.half_width is None else f" ± {_number(cell.half_width, digits)}"
    text = f"{cell.difference:+,.{digits}f}{width}"
    return Text.assemble(mean, "\n", (text, "bold" if cell.proven else "dim"))


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"
