"""The cluster-wide configuration as it is stored: text by key, typed on the way in and on the way out.

A key that is not stored has its default. Rows that this version does not know belong to a newer one and are left alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sqlalchemy import Connection

from fleet.ledger import events
from fleet.ledger.database import Database, Sql
from fleet.model.cluster_config import (
    CLUSTER_KEYS,
    ClusterConfig,
    cluster_key,
    format_cluster_value,
    parse_cluster_value,
)

READ_ALL = Sql("SELECT name, value, updated_at FROM config")
UPSERT = Sql(
    """INSERT INTO config (name, value, updated_at) VALUES (:name, :value, {now}) {otherwise}""",
    mysql_otherwise="ON DUPLICATE KEY UPDATE value = VALUES(value), updated_at = VALUES(updated_at)",
    sqlite_otherwise="ON CONFLICT (name) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One key as an operator sees it; `updated_at_us` None: never set, the default holds."""

    key: str
    value: str
    default: str
    meaning: str
    updated_at_us: int | None


def load(db: Database) -> ClusterConfig:
    """Return the whole configuration, typed."""
    with db.read() as conn:
        return load_in(conn)


def load_in(conn: Connection) -> ClusterConfig:
    """Return the configuration that the caller's connection sees."""
    stored = {row.name: row.value for row in READ_ALL.run(conn) if row.name in CLUSTER_KEYS}
    return ClusterConfig.from_mapping(stored)


def store(db: Database, key: str, value: str) -> ConfigEntry:
    """Set one key from text, with an event; storing the same value twice is harmless.

    Raises:
        ConfigError: the key is not cluster-wide, or the value is not acceptable.
    """
    known = cluster_key(key)
    text = format_cluster_value(parse_cluster_value(key, value))

    def work(conn: Connection) -> None:
        before = _stored(conn).get(known.name)
        UPSERT.run(conn, name=known.name, value=text)
        payload = {"key": known.name, "value": text, "former": before[0] if before else known.default}
        events.record(conn, "cluster", "config", "configuration changed", payload)

    db.unit(work)
    return next(entry for entry in listing(db) if entry.key == known.name)


def listing(db: Database) -> list[ConfigEntry]:
    """Return every cluster-wide key, stored or not, in the table's order."""
    with db.read() as conn:
        stored = _stored(conn)
    entries = []
    for key in CLUSTER_KEYS.values():
        value, updated_at = stored.get(key.name, (key.default, None))
        entries.append(
            ConfigEntry(key=key.name, value=value, default=key.default, meaning=key.meaning, updated_at_us=updated_at)
        )
    return entries


def _stored(conn: Connection) -> Mapping[str, tuple[str, int]]:
    return {row.name: (row.value, row.updated_at) for row in READ_ALL.run(conn)}
