"""Which nodes' queues a worker serves: one node's, several by name, or all simulated ones', also later ones."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping
from typing import Final

from fleet.ledger import node_names
from fleet.ledger.database import Database
from fleet.model.errors import DatabaseUnavailable
from fleet.services.drivers import SIMULATED
from fleet.telemetry import get_logger

REFRESH_SECONDS: Final = 2.0

_log = get_logger(__name__)


class ServedNodes:
    """Answers quickly from what was read last; a database that is away changes nothing of it."""

    def __init__(
        self,
        database: Database,
        *,
        names: Collection[str] | None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`names` None: all nodes with the backend `simulated`."""
        self._database = database
        self._names = None if names is None else frozenset(names)
        self._monotonic = monotonic
        self._known: Mapping[str, int] = {}
        self._read_at = float("-inf")
        self._absent: frozenset[str] = frozenset()

    def __call__(self) -> list[int]:
        """The ids of the nodes to serve now."""
        if self._monotonic() - self._read_at >= REFRESH_SECONDS:
            self._read()
        return list(self._known.values())

    def _read(self) -> None:
        self._read_at = self._monotonic()
        try:
            known = node_names.ids(self._database, backend=SIMULATED if self._names is None else None)
        except DatabaseUnavailable as error:
            _log.warning("nodes.unknown", reason=error.detail)
            return
        if self._names is not None:
            known = {name: node_id for name, node_id in known.items() if name in self._names}
            self._tell_absent(frozenset(self._names - known.keys()))
        self._known = known

    def _tell_absent(self, absent: frozenset[str]) -> None:
        for name in sorted(absent - self._absent):
            _log.warning("node.not_registered", node=name, hint="register it: fleet node register")
        self._absent = absent
