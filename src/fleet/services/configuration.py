"""The cluster's configuration, live within `SCHEDULER_CACHE_TIMEOUT`: read from the database, kept for that long."""

from __future__ import annotations

import threading
from collections.abc import Callable

from fleet.ledger import cluster_config
from fleet.ledger.database import Database
from fleet.model.cluster_config import ClusterConfig
from fleet.model.errors import DatabaseUnavailable, StrategyUnavailable
from fleet.placement.stage import cluster_strategy
from fleet.telemetry import get_logger

log = get_logger(__name__)


class Configuration:
    """Call it for the present configuration."""

    def __init__(self, db: Database, elapsed: Callable[[], float]) -> None:
        """Read nothing yet."""
        self._db = db
        self._elapsed = elapsed
        self._lock = threading.Lock()
        self._known: ClusterConfig | None = None
        self._read_at = 0.0

    def __call__(self) -> ClusterConfig:
        """Return the configuration, at most `SCHEDULER_CACHE_TIMEOUT` seconds old.

        Raises:
            DatabaseUnavailable: nothing was ever read. Later failures keep the last known configuration.
        """
        known = self._known
        if known is not None and self._elapsed() - self._read_at < float(known.scheduler_cache_timeout):
            return known
        with self._lock:
            return self._read()

    def forget(self) -> None:
        """Read again at the next call: something was changed here."""
        self._read_at = float("-inf")

    def _read(self) -> ClusterConfig:
        known = self._known
        if known is not None and self._elapsed() - self._read_at < float(known.scheduler_cache_timeout):
            return known
        at = self._elapsed()
        try:
            fresh = cluster_config.load(self._db)
        except DatabaseUnavailable:
            if known is None:
                raise
            fresh = known
        if known is None or known.placement_strategy != fresh.placement_strategy:
            problem = strategy_problem(fresh)
            if problem is not None:
                log.error("config.strategy_unknown", problem=problem)
        self._known, self._read_at = fresh, at
        return fresh


def strategy_problem(config: ClusterConfig) -> str | None:
    """Return why this process cannot place by the cluster's strategy, or None.

    It was there when the key was set; what brought it may not be installed on this machine, or not any more.
    """
    try:
        cluster_strategy(config.placement_strategy)
    except StrategyUnavailable as missing:
        return missing.detail
    return None
