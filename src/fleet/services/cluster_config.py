"""The cluster-wide configuration as operators read and set it, over the API and by `fleet ctl`: this one door."""

from __future__ import annotations

from fleet.ledger import cluster_config
from fleet.ledger.cluster_config import ConfigEntry
from fleet.ledger.database import Database
from fleet.model.cluster_config import cluster_key, parse_cluster_value
from fleet.placement.stage import strategy_named
from fleet.services.supported import refuse_unsupported_setting


def listing(db: Database) -> list[ConfigEntry]:
    """Return every key with its value, its default and its meaning."""
    return cluster_config.listing(db)


def get(db: Database, key: str) -> ConfigEntry:
    """Return one key.

    Raises:
        ConfigError: no such key; a node-local one is told where it belongs.
    """
    name = cluster_key(key).name
    return next(entry for entry in cluster_config.listing(db) if entry.key == name)


def put(db: Database, key: str, value: str) -> ConfigEntry:
    """Set one key from text.

    Raises:
        ConfigError: no such key, or a value that is not acceptable.
        InvalidRequest: a strategy that nobody knows.
        NotSupported: the value turns on a feature that is not there yet.
    """
    name, parsed = cluster_key(key).name, parse_cluster_value(key, value)
    refuse_unsupported_setting(name, parsed)
    if name == "PLACEMENT_STRATEGY":
        # The table checks the form; only the strategies themselves know their names.
        strategy_named(str(parsed), name)
    return cluster_config.store(db, key, value)
