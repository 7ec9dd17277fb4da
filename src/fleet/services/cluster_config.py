"""The cluster-wide configuration as operators read and set it, over the API and by `fleet ctl`: this one door."""

from __future__ import annotations

from typing import Any

from fleet.ledger import cluster_config
from fleet.ledger.cluster_config import ConfigEntry
from fleet.ledger.database import Database
from fleet.model.cluster_config import cluster_key, parse_cluster_value
from fleet.model.moment import iso
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
    return cluster_config.entry(db, key)


def put(db: Database, key: str, value: str, *, by: str) -> ConfigEntry:
    """Set one key from text, with an event that says who did it; a value that it has already is no event.

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
    return cluster_config.store(db, key, value, by=by)


def reset(db: Database, key: str, *, by: str) -> ConfigEntry:
    """Let one key have its default again, with an event that says who did it.

    Raises:
        ConfigError: no such key.
    """
    return cluster_config.reset(db, key, by=by)


def shown(entry: ConfigEntry) -> dict[str, Any]:
    """Return a key as it is answered."""
    return {
        "key": entry.key,
        "value": entry.value,
        "default": entry.default,
        "is_set": entry.is_set,
        "updated_at": iso(entry.updated_at_us),
        "updated_by": entry.updated_by or None,
        "meaning": entry.meaning,
    }
