"""Leadership: of any number of candidates one leads, by a lease in the database whose number fences the others off.

The lease is short and renewed by the working loop itself: a leader that hangs loses it, and what it writes later under
its old number is refused where it is written.
"""

from __future__ import annotations

from typing import Final

from fleet.ledger import leases
from fleet.ledger.database import Database
from fleet.ledger.leases import Lease
from fleet.model.errors import DatabaseUnavailable
from fleet.telemetry import get_logger

LEASE_SECONDS: Final = 15
RENEW_SECONDS: Final = 5.0
RECONCILER: Final = "reconciler"

_log = get_logger(__name__)


class Leadership:
    """One candidate. `lease` None: another leads, or nobody is known to."""

    def __init__(
        self, database: Database, holder: str, *, name: str = RECONCILER, seconds: int = LEASE_SECONDS
    ) -> None:
        self._database = database
        self._holder = holder
        self._name = name
        self._seconds = seconds
        self.lease: Lease | None = None

    def stand(self) -> Lease | None:
        """Renew the lease, or try to get it; return it while this candidate leads."""
        if self.lease is not None and not leases.renew(self._database, self.lease, self._seconds):
            _log.warning("leadership.lost", name=self._name, holder=self._holder, lease_number=self.lease.number)
            self.lease = None
        if self.lease is None:
            self.lease = leases.acquire(self._database, self._name, self._holder, self._seconds)
            if self.lease is not None:
                _log.info("leadership.won", name=self._name, holder=self._holder, lease_number=self.lease.number)
        return self.lease

    def lost(self) -> None:
        """Take note that a write was refused: another leads."""
        self.lease = None

    def resign(self) -> None:
        """Give the lease up, so that the next candidate need not wait for its end."""
        lease, self.lease = self.lease, None
        if lease is None:
            return
        try:
            leases.drop(self._database, lease)
        except DatabaseUnavailable as error:
            _log.warning("leadership.not_resigned", name=self._name, reason=error.detail)
