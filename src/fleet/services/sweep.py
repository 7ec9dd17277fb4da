"""The sweeper: wakes every operation that is due and that no living lease holds. Work is never lost with the queue.

It looks at all of them each time, in the order of their uuids, so that work on a node that is away cannot hide work on
one that is there; what waits in the queue already is not put twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from fleet.ledger import operations
from fleet.ledger.database import Database
from fleet.queue.jobs import WakeUp, WakeUps
from fleet.telemetry import get_logger

BATCH: Final = 500
# The wake-up sent after a commit needs a moment; sweeping it up at once would only double it.
GRACE_SECONDS: Final = 2.0

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Swept:
    """How many operations were found without a living lease, and how many of them had to be woken."""

    due: int
    woken: int


def sweep_once(db: Database, wake_ups: WakeUps, *, grace_seconds: float = GRACE_SECONDS) -> Swept:
    """Wake what is due and has no living lease.

    Raises:
        QueueUnavailable: the queue's server is away; the next sweep tries again.
        DatabaseUnavailable: the ledger is away.
    """
    found = woken = 0
    after = ""
    while True:
        batch = operations.due(db, BATCH, after=after, grace_seconds=grace_seconds)
        woken += wake_ups.put_missing([WakeUp(item.uuid, item.node_id, item.lease_number) for item in batch])
        found += len(batch)
        if len(batch) < BATCH:
            break
        after = batch[-1].uuid
    if woken:
        _log.info("operations.swept", due=found, woken=woken)
    return Swept(found, woken)
