"""What commands print: tables for people, JSON or comma-separated lines for programs.

Human words may change at any time; `--json` and `--simple` are what programs rely on. A terminal gets lines broken
between words; where nobody looks, a line is never broken.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any, Final, TextIO

from rich.console import Console
from rich.text import Text

from fleet.cli.layout import GAP, HANG, Sheet, broken

PIPE_WIDTH: Final = 240
"""How wide a table that rich lays out may be where nobody looks."""
IDENTIFIERS: Final = frozenset({"uuid", "id", "name", "node", "at", "by"})
"""Columns whose cells are never broken, however narrow the terminal."""
FIELD_MIN: Final = 24
"""Characters that a field's value is given beside its name, however narrow the terminal."""

_MICROSECONDS: Final = re.compile(r"(?<=:\d\d)\.\d{6}Z$")


class Form(StrEnum):
    """In which form results are printed."""

    HUMAN = "human"
    JSON = "json"
    SIMPLE = "simple"


def terminal_width(stream: TextIO) -> int | None:
    """How many characters a line of the terminal holds, 80 where that is unknown; None where nobody looks."""
    return Console(file=stream).width if stream.isatty() else None


def console(*, error: bool = False) -> Console:
    """A console that leaves lines as they are: `:b:` within an address is no picture, `[b]` within a name no style."""
    stream = sys.stderr if error else sys.stdout
    width = None if stream.isatty() else PIPE_WIDTH
    return Console(file=stream, highlight=False, emoji=False, markup=False, soft_wrap=True, width=width)


def tell(to: Console, text: str, style: str = "", *, hang: int = HANG) -> None:
    """Print a text as it is; on a terminal its lines are broken between words."""
    for line in broken(text, to.width if to.is_terminal else None, hang=hang):
        to.print(line, style=style or None, markup=False, highlight=False, soft_wrap=True)


class Output:
    """Prints results in one form."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self._console = console()
        self._width = terminal_width(sys.stdout)

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
            self._line(f"no {title}" if title else "nothing", "dim")
        else:
            self._table(_sheet(items, columns))

    def fits(self, items: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> bool:
        """Whether a table of the named columns has room for each item on a line of its own."""
        return _sheet(items, columns).fits(self._width)

    def record(self, item: Mapping[str, Any]) -> None:
        """Print one thing, a line a field."""
        if self.form is Form.JSON:
            self.json(item)
        elif self.form is Form.SIMPLE:
            self.lines(list(_flat(item, ())))
        else:
            fields = [(".".join(path), plain(value)) for path, value in _fields(item, ())]
            wide = max((len(name) for name, _value in fields), default=0) + GAP
            for name, value in fields:
                self._field(name, value, wide)

    def say(self, text: str, *, style: str = "") -> None:
        """Print a sentence for people; programs do not see it."""
        if self.is_human:
            for line in broken(text, self._width):
                self._line(line, style)

    def lines(self, lines: Iterable[str]) -> None:
        """Print plain lines."""
        for line in lines:
            sys.stdout.write(line + "\n")

    def json(self, value: Any) -> None:
        """Print JSON."""
        sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False, default=str) + "\n")

    def _line(self, text: str, style: str = "", *, styled: int | None = None) -> None:
        """Print a text as it is, all of it or its first characters in a style."""
        shown = Text(text)
        shown.stylize(style, 0, styled)
        self._console.print(shown, soft_wrap=True)

    def _field(self, name: str, value: str, wide: int) -> None:
        room = None if self._width is None else self._width - wide
        first, *others = value.split("\n") if room is None else broken(value, max(room, FIELD_MIN), hang=0)
        self._line(name.ljust(wide) + first, "bold", styled=len(name))
        for line in others:
            self._line(" " * wide + line)

    def _table(self, sheet: Sheet) -> None:
        table = sheet.laid(self._width)
        if table is None:
            # A cell that is cut says something else, and an id must bear being copied.
            for row, lines in zip(sheet.rows, sheet.paragraphs(self._width), strict=True):
                self._line("\n".join(lines), "bold", styled=len(row[0]))
            return
        for line in table.heads:
            self._line(line, "bold")
        for line in table.rows:
            self._line(line)


def _sheet(items: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Sheet:
    rows = [[_MICROSECONDS.sub("Z", plain(_at(item, name))) for name in columns] for item in items]
    numbers = [
        at for at, name in enumerate(columns) if all(isinstance(_at(item, name), int | float | None) for item in items)
    ]
    whole = [at for at, name in enumerate(columns) if name in IDENTIFIERS]
    return Sheet([name.rpartition(".")[2] for name in columns], rows, numbers, whole)


def plain(value: Any) -> str:
    """A value as a cell shows it; null is a dash, so that unknown is never read as zero."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return " ".join(f"{name}={_within(item)}" for name, item in value.items()) or "-"
    if isinstance(value, list):
        return " ".join(plain(item) for item in value) or "-"
    return str(value)


def _within(value: Any) -> str:
    """A value in a map; what holds several is kept together."""
    several = isinstance(value, Mapping | list) and len(value) > 1
    return f"({plain(value)})" if several else plain(value)


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
