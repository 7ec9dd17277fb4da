"""Checking that stored decisions replay: each is decided again on what it saw, and the two answers are compared.

An operator runs it after an upgrade: a decision must answer the same in the version that made it and in later ones. The
answer is what is compared (outcome, code, order, who was dropped where and why), not how a sentence is worded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np

from fleet.ledger import decisions as rows
from fleet.ledger.database import Database
from fleet.ledger.decisions import DecisionSummary
from fleet.model.errors import FleetError, NotFound
from fleet.placement.record import StoredDecision, decode_decision, encode_decision
from fleet.services import decisions

PAGE: Final = 500
ANSWER: Final = ("outcome", "code", "stage", "transient", "strategy", "seed", "node_count", "ranked_count", "counts")


@dataclass(slots=True)
class Replayed:
    """How many decisions gave the same answer again; which did not, and why; which could not be asked any more."""

    same: int = 0
    not_kept: int = 0
    differing: dict[str, str] = field(default_factory=dict)


def replay_last(
    db: Database, last: int, *, progress: Callable[[int], Callable[[], None]] = lambda _total: lambda: None
) -> Replayed:
    """Decide the youngest `last` decisions again. One whose snapshot is past its retention is counted apart.

    `progress` is called with how many there are; what it returns is called after each.

    Raises:
        DatabaseUnavailable: the ledger cannot be read.
    """
    found = Replayed()
    ids = [summary.id for summary in islice(_youngest(db), last)]
    judged = progress(len(ids))
    for key in ids:
        row = rows.get(db, key)
        if row is not None:
            _judge(db, row, found)
        judged()
    return found


def _judge(db: Database, row: rows.DecisionRow, found: Replayed) -> None:
    try:
        again = decode_decision(encode_decision(decisions.replay(db, row)))
    except NotFound:
        found.not_kept += 1
        return
    except FleetError as refused:
        found.differing[row.id] = f"it cannot be asked again: {refused.told}"
        return
    differs = difference(decode_decision(row.record), again)
    if differs:
        found.differing[row.id] = differs
    else:
        found.same += 1


def difference(stored: StoredDecision, again: StoredDecision) -> str:
    """Return what differs between two answers, in words; empty when they are the same."""
    for name in ANSWER:
        was, is_now = getattr(stored, name), getattr(again, name)
        if was != is_now:
            return f"{name} was {was!r} and is {is_now!r}"
    if not np.array_equal(stored.ranked, again.ranked):
        return "the order of the ranked nodes differs"
    for stage, reasons in stored.dropped.items():
        for reason, mask in reasons.items():
            if not np.array_equal(mask, again.dropped[stage][reason]):
                return f"other nodes are dropped at {stage} for {reason}"
    return ""


def _youngest(db: Database) -> Iterator[DecisionSummary]:
    cursor: tuple[int, str] | None = None
    while True:
        page = rows.listing(db, limit=PAGE, cursor=cursor)
        yield from page
        if len(page) < PAGE:
            return
        cursor = page[-1].created_at, page[-1].id
