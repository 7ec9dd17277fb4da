"""A figure with its bar: what was measured, what was asked for, and whether it is met."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table


@dataclass(slots=True, kw_only=True)
class Figure:
    """One line of the table. `at_least`/`below` are the bars; a figure without one is for the record."""

    name: str
    value: float
    unit: str
    at_least: float | None = None
    below: float | None = None
    detail: str = ""
    rounds: list[float] = field(default_factory=list)
    others_percent: float | None = None  # what processes that are not ours used of all processors meanwhile

    @property
    def met(self) -> bool | None:
        """Whether the bar is met; None without one."""
        if self.at_least is not None:
            return self.value >= self.at_least
        return None if self.below is None else self.value < self.below

    @property
    def bar(self) -> str:
        """The bar in words."""
        if self.at_least is not None:
            return f"at least {self.at_least:g}"
        return "" if self.below is None else f"below {self.below:g}"

    def as_json(self) -> dict[str, Any]:
        """The figure for programs."""
        return {**asdict(self), "met": self.met}


def show(figures: list[Figure], console: Console) -> None:
    """The table, ready to be pasted."""
    table = Table(title="Benchmarks", title_justify="left")
    for name in ("figure", "value", "bar", "", "others", "detail"):
        table.add_column(name, justify="right" if name in {"value", "others"} else "left")
    for figure in figures:
        verdict = {True: "[green]met[/]", False: "[red]NOT MET[/]", None: ""}[figure.met]
        others = "" if figure.others_percent is None else f"{figure.others_percent:.0f} %"
        table.add_row(figure.name, f"{figure.value:,.2f} {figure.unit}", figure.bar, verdict, others, figure.detail)
    console.print(table)
