"""What a unit of work leaves to be done once its COMMIT is known to have been carried out.

Never for an attempt that rolled back, and once, however often the unit was tried. It must be quick, and of no
consequence for the ledger: whatever happens in it does not make the committed change look undone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Final

from sqlalchemy import Connection

Left = Callable[[], object]
_LEFT: Final = "fleet_after_commit"


def collect(conn: Connection, left: list[Left]) -> None:
    """Collect in `left` what the transaction that begins on `conn` leaves."""
    conn.info[_LEFT] = left


def after_commit(conn: Connection, do: Left) -> None:
    """Have something done once the unit on `conn` has committed; outside a unit it is not done."""
    left = conn.info.get(_LEFT)
    if left is not None:
        left.append(do)


def carry_out(left: Sequence[Left]) -> None:
    """Do what was left, in order."""
    for do in left:
        with suppress(Exception):
            do()
