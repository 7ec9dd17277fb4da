"""Progress of a long command: bars on a terminal; where there is none a line for every tenth, or nothing."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from fleet.cli.output import tell

TENTHS = 10


class Steps:
    """The bars of one command. Any thread may move them."""

    def __init__(self, console: Console, progress: Progress | None, *, lines: bool = True) -> None:
        """Without `progress`, print lines, or nothing."""
        self._console = console
        self._lines = lines
        self._progress = progress
        self._lock = threading.Lock()

    def count(self, what: str, total: int) -> Callable[[], None]:
        """A new bar; call what is returned once for each that is done."""
        if self._progress is not None:
            bar = self._progress.add_task(what, total=total)
            return lambda: self._advance(bar)
        return self._printer(what, total)

    def left(self, what: str) -> Callable[[int], None]:
        """A new bar that ends at nothing left; call what is returned with how many are left."""
        if self._progress is None:
            return self._left_printer(what)
        progress, bar, most = self._progress, self._progress.add_task(what, total=1), [1]

        def told(left: int) -> None:
            most[0] = max(most[0], left)
            progress.update(bar, total=most[0], completed=most[0] - left)

        return told

    def _advance(self, bar: TaskID) -> None:
        if self._progress is not None:
            self._progress.advance(bar)

    def _printer(self, what: str, total: int) -> Callable[[], None]:
        done = [0]

        def advance() -> None:
            with self._lock:
                done[0] += 1
                at = done[0] * TENTHS // max(1, total)
                if self._lines and at != (done[0] - 1) * TENTHS // max(1, total):
                    tell(self._console, f"  {what}: {done[0]} of {total}")

        return advance

    def _left_printer(self, what: str) -> Callable[[int], None]:
        last = [-1]

        def told(left: int) -> None:
            # Halving is news, and so is the end.
            if self._lines and (last[0] < 0 or left <= last[0] // 2):
                last[0] = left
                tell(self._console, f"  {what}: {left} left")

        return told


@contextmanager
def steps(console: Console, *, lines: bool = True) -> Iterator[Steps]:
    """Bars on a terminal; else lines, or nothing without `lines`."""
    if not console.is_terminal:
        yield Steps(console, None, lines=lines)
        return
    columns = (TextColumn("{task.description:<26}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console) as progress:
        yield Steps(console, progress)
