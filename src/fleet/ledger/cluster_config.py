"""The cluster-wide configuration as it is stored: text by key, typed on the way in and on the way out.

A key that is not stored has its default. Rows that this version does not know belong to a newer one and are left alone.
Every change is an event in its own transaction, with the value before it, read under the key's row: of two writers at
once the second one reports the first one's value. Storing what is stored, or resetting what is not, changes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection

from fleet.ledger import events
from fleet.ledger.database import Database, Sql
from fleet.model.cluster_config import (
    CLUSTER_KEYS,
    ClusterConfig,
    ClusterKey,
    cluster_key,
    format_cluster_value,
    parse_cluster_value,
)

OBJECT_TYPE: Final = "cluster"
OBJECT_ID: Final = "config"
CHANGED: Final = "configuration changed"
BY_CHARACTERS_MAX: Final = 255
RESETS_READ_MAX: Final = 1000

READ_ALL = Sql("SELECT name, value, updated_at, updated_by FROM config")
# Takes the row's lock also where there is no row yet. No value is empty: nobody else ever sees this one.
LOCK = Sql(
    """INSERT INTO config (name, value, updated_at, updated_by) VALUES (:name, '', 0, '') {otherwise}""",
    mysql_otherwise="ON DUPLICATE KEY UPDATE name = VALUES(name)",
    sqlite_otherwise="ON CONFLICT (name) DO UPDATE SET name = excluded.name",
)
READ = Sql("SELECT value FROM config WHERE name = :name")
STORE = Sql("UPDATE config SET value = :value, updated_at = {now}, updated_by = :by WHERE name = :name")
DELETE = Sql("DELETE FROM config WHERE name = :name")
CHANGES = Sql("""
    SELECT at, payload FROM events
    WHERE object_type = :object_type AND object_id = :object_id ORDER BY id DESC LIMIT :limit
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigEntry:
    """One key as an operator sees it.

    `is_set` False: the default holds. `updated_at_us` and `updated_by` are the last change, a reset too; None and empty
    where none is known.
    """

    key: str
    value: str
    default: str
    meaning: str
    is_set: bool
    updated_at_us: int | None
    updated_by: str


def load(db: Database) -> ClusterConfig:
    """Return the whole configuration, typed."""
    with db.read() as conn:
        return load_in(conn)


def load_in(conn: Connection) -> ClusterConfig:
    """Return the configuration that the caller's connection sees."""
    stored = {row.name: row.value for row in READ_ALL.run(conn) if row.name in CLUSTER_KEYS}
    return ClusterConfig.from_mapping(stored)


def store(db: Database, key: str, value: str, *, by: str = "") -> ConfigEntry:
    """Set one key from text; `by` is who does it.

    Raises:
        ConfigError: the key is not cluster-wide, or the value is not acceptable.
    """
    known = cluster_key(key)
    text = format_cluster_value(parse_cluster_value(key, value))

    def work(conn: Connection) -> None:
        old = _locked(conn, known.name)
        if old == text:
            return
        STORE.run(conn, name=known.name, value=text, by=by[:BY_CHARACTERS_MAX])
        _record(conn, known, old, text, by)

    db.unit(work)
    return entry(db, known.name)


def reset(db: Database, key: str, *, by: str = "") -> ConfigEntry:
    """Let a key have its default again, also a later version's.

    Raises:
        ConfigError: the key is not cluster-wide.
    """
    known = cluster_key(key)

    def work(conn: Connection) -> None:
        old = _locked(conn, known.name)
        DELETE.run(conn, name=known.name)
        if old is not None:
            _record(conn, known, old, None, by)

    db.unit(work)
    return entry(db, known.name)


def entry(db: Database, key: str) -> ConfigEntry:
    """Return one key.

    Raises:
        ConfigError: the key is not cluster-wide.
    """
    name = cluster_key(key).name
    return next(found for found in listing(db) if found.key == name)


def listing(db: Database) -> list[ConfigEntry]:
    """Return every cluster-wide key, stored or not, in the table's order."""
    with db.read() as conn:
        stored = {row.name: row for row in READ_ALL.run(conn)}
        resets = _resets(conn) if CLUSTER_KEYS.keys() - stored.keys() else {}
    entries = []
    for key in CLUSTER_KEYS.values():
        row = stored.get(key.name)
        at, by = resets.get(key.name, (None, "")) if row is None else (row.updated_at, row.updated_by)
        entries.append(
            ConfigEntry(
                key=key.name,
                value=key.default if row is None else row.value,
                default=key.default,
                meaning=key.meaning,
                is_set=row is not None,
                updated_at_us=at,
                updated_by=by,
            )
        )
    return entries


def _locked(conn: Connection, name: str) -> str | None:
    """Lock a key's row; return its text, None where the default holds."""
    LOCK.run(conn, name=name)
    return READ.run(conn, name=name).scalar_one() or None


def _record(conn: Connection, key: ClusterKey, old: str | None, new: str | None, by: str) -> None:
    """Write the event of a change; None is the default's."""
    payload = {
        "key": key.name,
        "old": key.default if old is None else old,
        "new": key.default if new is None else new,
        "old_is_default": old is None,
        "new_is_default": new is None,
    }
    events.record(conn, OBJECT_TYPE, OBJECT_ID, CHANGED, payload, by=by)


def _resets(conn: Connection) -> Mapping[str, tuple[int, str]]:
    """Return when and by whom each key was changed last, for those that are not stored (any more)."""
    binds = {"object_type": OBJECT_TYPE, "object_id": OBJECT_ID, "limit": RESETS_READ_MAX}
    found: dict[str, tuple[int, str]] = {}
    for row in CHANGES.run(conn, binds):
        payload = json.loads(row.payload)
        found.setdefault(str(payload.get("key")), (int(row.at), str(payload.get("by", ""))))
    return found
