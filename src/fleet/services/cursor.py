"""Up to when rows were read: where the next quick read and the next thorough one begin.

Promise: a thorough read begins where the last thorough one did, less the longest life of a transaction; so whatever was
committed late, past any number of quick reads, is among what it finds. Times are the database's.
"""

from __future__ import annotations

from dataclasses import dataclass

from fleet.ledger.snapshots import QUICK_OVERLAP_US, THOROUGH_OVERLAP_US


@dataclass(slots=True)
class Cursor:
    """The times of the last read and of the last thorough one; 0: nothing was read."""

    any_us: int = 0
    thorough_us: int = 0

    def since(self, *, thorough: bool) -> int:
        """Return the stamp after which a read looks."""
        return self.thorough_us - THOROUGH_OVERLAP_US if thorough else self.any_us - QUICK_OVERLAP_US

    def advance(self, now_us: int, *, thorough: bool) -> None:
        """Note a read that began at the database's time `now_us`; it never goes back."""
        self.any_us = max(self.any_us, now_us)
        if thorough:
            self.thorough_us = max(self.thorough_us, now_us)
