"""How text is laid out for a terminal: lines broken between words, tables whose columns fit, else paragraphs.

Promise: no word is ever cut or broken, so a time, a name or a uuid bears being copied. A width of None is no terminal:
nothing is broken there, and a line is a line.

Not rich's own table: with columns that must not break (min_width, no_wrap) 6,000 rows take it 5.8 s, and this 0.16 s.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Final

from rich.cells import cell_len

GAP: Final = 2
HANG: Final = 2
CELL_LINES_MAX: Final = 4
"""Lines of a cell above which rows are easier to read as paragraphs."""

_WORD: Final = re.compile(r" *[^ ]+")


def broken(text: str, width: int | None, *, hang: int = HANG) -> list[str]:
    """Return the lines of a text; what goes on hangs below its beginning, so much further in."""
    if width is None:
        return text.split("\n")
    return [line for paragraph in text.split("\n") for line in _broken(paragraph, width, hang)]


def _broken(paragraph: str, width: int, hang: int) -> Iterator[str]:
    begins = len(paragraph) - len(paragraph.lstrip(" "))
    # However narrow it is, there is room for some words beside the indent.
    indent = " " * min(begins + hang, width // 2)
    line, length = "", 0
    for word in _WORD.findall(paragraph):
        if line and length + cell_len(word) > width:
            yield line
            word = word.lstrip(" ")  # noqa: PLW2901  # the break stands in their place
            # A word that fits a line is not pushed over its end.
            line = indent[: max(0, width - cell_len(word))]
            length = len(line)
        line, length = line + word, length + cell_len(word)
    yield line


@dataclass(frozen=True, slots=True)
class Laid:
    """A table as lines of text."""

    heads: Sequence[str]
    rows: Sequence[str]


@dataclass(frozen=True, slots=True)
class Sheet:
    """A table: its heads, its rows, which columns are numbers, and which are never broken."""

    titles: Sequence[str]
    rows: Sequence[Sequence[str]]
    numbers: Collection[int] = ()
    whole: Collection[int] = ()

    def fits(self, width: int | None) -> bool:
        """Whether every row is one line; heads may take more."""
        return width is None or _total(self._widths(self._broken_heads())) <= width

    def laid(self, width: int | None) -> Laid | None:
        """Return its lines: heads are broken before cells are. None where it had to cut a word, or is hard to read."""
        widths = self._widths(self.titles)
        if width is None or _total(widths) <= width:
            return self._laid(self.titles, widths)
        heads = self._broken_heads()
        widths = self._widths(heads)
        if _total(widths) > width:
            least = self._widths(heads, words=True)
            if _total(least) > width:
                return None
            widths = _shared(least, widths, width - _total(least))
        lines = [len(broken(cell, wide, hang=0)) for row in self.rows for cell, wide in zip(row, widths, strict=True)]
        return self._laid(heads, widths) if max(lines, default=0) <= CELL_LINES_MAX else None

    def paragraphs(self, width: int | None) -> Iterator[list[str]]:
        """Return each row as a paragraph: its first cell, then every other one after its head, whole on a line."""
        for first, *others in self.rows:
            told = [f"{title} {cell}" for title, cell in zip(self.titles[1:], others, strict=True)]
            yield list(_filled([first, *told], width))

    def _broken_heads(self) -> list[str]:
        return [title.replace("_", " ") for title in self.titles]

    def _widths(self, heads: Sequence[str], *, words: bool = False) -> list[int]:
        """Return what each column needs for the words of its head, and for its cells, or their words where allowed."""
        return [
            max(
                _longest(head),
                *(_longest(row[at]) if words and at not in self.whole else cell_len(row[at]) for row in self.rows),
                0,
            )
            for at, head in enumerate(heads)
        ]

    def _laid(self, heads: Sequence[str], widths: Sequence[int]) -> Laid:
        return Laid(self._lines(heads, widths), [line for row in self.rows for line in self._lines(row, widths)])

    def _lines(self, cells: Sequence[str], widths: Sequence[int]) -> list[str]:
        parts = [broken(cell, wide, hang=0) for cell, wide in zip(cells, widths, strict=True)]
        lines = []
        for texts in itertools.zip_longest(*parts, fillvalue=""):
            padded = []
            for at, (text, wide) in enumerate(zip(texts, widths, strict=True)):
                space = " " * (wide - cell_len(text))
                padded.append(space + text if at in self.numbers else text + space)
            lines.append((" " * GAP).join(padded).rstrip())
        return lines


def _filled(parts: Sequence[str], width: int | None) -> Iterator[str]:
    """Yield lines of as many parts as fit; a part is broken only where a line of its own is too short for it."""
    line, *others = parts
    for part in others:
        if width is None or cell_len(line) + GAP + cell_len(part) <= width:
            line += " " * GAP + part
        else:
            yield from broken(line, width)
            line = " " * 2 * HANG + part
    yield from broken(line, width)


def _shared(least: Sequence[int], wanted: Sequence[int], spare: int) -> list[int]:
    """Return widths with the spare characters given one by one to the column that wants most, for its width."""
    widths = list(least)
    for _one in range(spare):
        at = max(range(len(widths)), key=lambda column: Fraction(wanted[column], widths[column] or 1))
        widths[at] += 1
    return widths


def _longest(text: str) -> int:
    return max((cell_len(word) for word in text.split()), default=0)


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)
