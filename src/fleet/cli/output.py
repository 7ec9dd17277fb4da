"""What commands print: tables for people, JSON or comma-separated lines for programs.

Human words may change at any time; `--json` and `--simple` are what programs rely on.
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

PIPE_WIDTH: Final = 240
IDENTIFIERS: Final = frozenset({"uuid", "id", "name", "node"})
"""Columns whose cells are never broken, however narrow the terminal."""
GAP: Final = 2

_MICROSECONDS: Final = re.compile(r"(?<=:\d\d)\.\d{6}Z$")


class Form(StrEnum):
    """In which form results are printed."""

    HUMAN = "human"
    JSON = "json"
    SIMPLE = "simple"


def console(*, error: bool = False) -> Console:
    """A console; where nobody looks, lines are not broken. `:b:` within an address is no picture."""
    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, highlight=False, emoji=False, soft_wrap=True, width=width)


class Output:
    """Prints results in one form."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self._console = console()

    @property
    def width(self) -> int:
        """How many characters a line holds."""
        return self._console.width

    @property
    def is_human(self) -> bool:
        """Whether a person reads it."""
        return self.form is Form.HUMAN

    def listing(self, items: Sequence[Mapping[str, Any]], columns: Sequence[str], *, title: str = "") -> None:
        """Print items as a table of the named columns; JSON gets all of every item."""
        if self.form is Form.JSON:
            self.json({"items": list(items)})
        elif self.form is Form.SIMPLE:
            self.lines([",".join(columns), *(",".join(plain(_at(item, name)) for name in columns) for item in items)])
        elif not items:
            self._console.print(f"[dim]no {escape(title)}[/]" if title else "[dim]nothing[/]")
        else:
            self._table(items, columns)

    def record(self, item: Mapping[str, Any]) -> None:
        """Print one thing, a line a field."""
        if self.form is Form.JSON:
            self.json(item)
        elif self.form is Form.SIMPLE:
            self.lines(list(_flat(item, ())))
        else:
            table = Table.grid(padding=(0, 2))
            for path, value in _fields(item, ()):
                table.add_row(f"[bold]{escape('.'.join(path))}[/]", escape(plain(value)))
            self._console.print(table)

    def say(self, text: str, *, style: str = "") -> None:
        """One line for people; programs do not see it."""
        if self.is_human:
            self._console.print(escape(text), style=style or None, soft_wrap=True)

    def lines(self, lines: Iterable[str]) -> None:
        """Print plain lines."""
        for line in lines:
            sys.stdout.write(line + "\n")

    def json(self, value: Any) -> None:
        """Print JSON."""
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")

    def _table(self, items: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
        titles = [name.rpartition(".")[2] for name in columns]
        rows = [[_MICROSECONDS.sub("Z", plain(_at(item, name))) for name in columns] for item in items]
        if _narrowest(columns, titles, rows) > self._console.width:
            broken = [title.replace("_", " ") for title in titles]
            if _narrowest(columns, broken, rows) > self._console.width:
                self._blocks(titles, rows)
                return
            titles = broken
        table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, GAP, 0, 0))
        for name, title in zip(columns, titles, strict=True):
            numbers = all(isinstance(_at(item, name), int | float | None) for item in items)
            table.add_column(title, justify="right" if numbers else "left", no_wrap=name in IDENTIFIERS)
        for row in rows:
            table.add_row(*map(escape, row))
        self._console.print(table)

    def _blocks(self, titles: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print each row as a paragraph: a cell that is cut says something else, and an id must bear being copied."""
        for first, *others in rows:
            text = "  ".join([first, *(f"{title} {cell}" for title, cell in zip(titles[1:], others, strict=True))])
            wrapped = textwrap.wrap(
                text,
                self._console.width,
                subsequent_indent="    ",
                break_long_words=False,
                break_on_hyphens=False,
            )
            head, rest = wrapped[0], "".join(f"\n{line}" for line in wrapped[1:])
            self._console.print(
                f"[bold]{escape(first)}[/]{escape(head.removeprefix(first))}{escape(rest)}", soft_wrap=True
            )


def _narrowest(columns: Sequence[str], titles: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """Return the width in which a table needs to cut no word, and to break no id."""
    widths = []
    for at, (name, title) in enumerate(zip(columns, titles, strict=True)):
        cells = [row[at] for row in rows]
        words = cells if name in IDENTIFIERS else [word for cell in cells for word in cell.split()]
        widths.append(max(len(text) for text in (*title.split(), *words)))
    return sum(widths) + GAP * (len(columns) - 1)


def plain(value: Any) -> str:
    """A value as a cell shows it; null is a dash, so that unknown is never read as zero."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={plain(item)}" for name, item in value.items()) or "-"
    if isinstance(value, list):
        return " ".join(plain(item) for item in value) or "-"
    return str(value)


def _at(item: Mapping[str, Any], path: str) -> Any:
    value: Any = item
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _fields(item: Mapping[str, Any], path: tuple[str, ...]) -> Iterable[tuple[tuple[str, ...], Any]]:
    for name, value in item.items():
        if isinstance(value, Mapping) and value:
            yield from _fields(value, (*path, name))
        else:
            yield (*path, name), value


def _flat(item: Mapping[str, Any], path: tuple[str, ...]) -> Iterable[str]:
    """`key,value`; a map's entries as `key,entry,value`, and what is deeper as a Python literal."""
    for name, value in item.items():
        if isinstance(value, Mapping) and not path:
            yield from _flat(value, (name,))
        else:
            shown = repr(value) if isinstance(value, Mapping | list) else ("" if value is None else str(value))
            yield ",".join((*path, name, shown))
