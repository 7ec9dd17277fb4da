"""Namespaces and their keys. A deleted namespace keeps its row, so that its name never passes to another owner.

Keys are stored as hashes only; whoever calls made the hash. Times are the database's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from fleet.ledger import events, idempotency
from fleet.ledger.database import Database, Sql
from fleet.ledger.idempotency import Keyed
from fleet.model.errors import Conflict

GET = Sql("SELECT name, created_at, deleted_at FROM namespaces WHERE name = :name")
LIST = Sql("""
    SELECT name, created_at, deleted_at FROM namespaces
    WHERE deleted_at IS NULL AND name > :after ORDER BY name LIMIT :limit
""")
INSERT = Sql("INSERT INTO namespaces (name, created_at) VALUES (:name, {now})")
INSERT_MISSING = Sql(
    "{verb} INTO namespaces (name, created_at) VALUES (:name, {now})",
    mysql_verb="INSERT IGNORE",
    sqlite_verb="INSERT OR IGNORE",
)
DELETE = Sql("""
    UPDATE namespaces SET deleted_at = {now} WHERE name = :name AND deleted_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM instances WHERE instances.namespace = :name AND instances.state <> 'deleted')
""")
LIVE_INSTANCES = Sql("SELECT COUNT(*) FROM instances WHERE namespace = :name AND state <> 'deleted'")
DELETE_KEYS = Sql("DELETE FROM namespace_keys WHERE namespace = :namespace")
# The row of the namespace is written first: a key never appears in a namespace that is just being deleted.
TOUCH = Sql("UPDATE namespaces SET created_at = created_at WHERE name = :name AND deleted_at IS NULL")
KEYS = Sql("""
    SELECT name, created_at, expires_at FROM namespace_keys
    WHERE namespace = :namespace AND name > :after ORDER BY name LIMIT :limit
""")
KEY = Sql("SELECT name, created_at, expires_at FROM namespace_keys WHERE namespace = :namespace AND name = :name")
INSERT_KEY = Sql("""
    INSERT INTO namespace_keys (namespace, name, key_hash, created_at, expires_at)
    VALUES (:namespace, :name, :key_hash, {now}, {now} + :lifetime_us)
""")
REPLACE_KEY = Sql("""
    REPLACE INTO namespace_keys (namespace, name, key_hash, created_at, expires_at)
    VALUES (:namespace, :name, :key_hash, {now}, NULL)
""")
DELETE_KEY = Sql("DELETE FROM namespace_keys WHERE namespace = :namespace AND name = :name")
# The seconds left are reckoned by the database, whose clock set `expires_at`. NULL: the key does not expire.
CREDENTIALS = Sql("""
    SELECT k.name, k.key_hash, k.created_at, (k.expires_at - {now}) AS left_us
    FROM namespace_keys k JOIN namespaces n ON n.name = k.namespace
    WHERE k.namespace = :namespace AND n.deleted_at IS NULL AND (k.expires_at IS NULL OR k.expires_at > {now})
    AND (k.name = :name OR k.name LIKE :pattern) ORDER BY k.name LIMIT :limit
""")


@dataclass(frozen=True, slots=True, kw_only=True)
class NamespaceView:
    """One namespace; times are database microseconds."""

    name: str
    created_at_us: int
    deleted_at_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyView:
    """One key, without its secret."""

    namespace: str
    name: str
    created_at_us: int
    expires_at_us: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What a key is verified against; `left_us` None: it does not expire."""

    name: str
    key_hash: str
    created_at_us: int
    left_us: int | None


def get(db: Database, name: str) -> NamespaceView | None:
    """Return a namespace that is not deleted."""
    with db.read() as conn:
        row = GET.run(conn, name=name).mappings().first()
    return None if row is None or row["deleted_at"] is not None else _view(row)


def listing(db: Database, limit: int, after: str = "") -> list[NamespaceView]:
    """Return namespaces by name, from after `after` on."""
    with db.read() as conn:
        return [_view(row) for row in LIST.run(conn, limit=limit, after=after).mappings()]


def create(db: Database, name: str, keyed: Keyed | None = None) -> NamespaceView:
    """Make a namespace.

    Raises:
        Conflict: the name is taken, or belonged to a deleted namespace.
    """

    def work(conn: Connection) -> NamespaceView:
        INSERT.run(conn, name=name)
        events.record(conn, "namespace", name, "namespace created", {})
        made = _view(GET.run(conn, name=name).mappings().one())
        idempotency.keep(conn, keyed, asdict(made))
        return made

    try:
        return db.unit(work)
    except IntegrityError:
        with db.read() as conn:
            row = GET.run(conn, name=name).mappings().first()
        if row is None:
            raise
        raise _taken(name, deleted=row["deleted_at"] is not None) from None


def ensure(db: Database, name: str) -> None:
    """Make a namespace unless it is there."""
    db.unit(lambda conn: INSERT_MISSING.run(conn, name=name).rowcount)


def delete(db: Database, name: str) -> bool:
    """Delete a namespace and its keys; False when there is none.

    Raises:
        Conflict: it still holds instances.
    """

    def work(conn: Connection) -> int:
        if DELETE.run(conn, name=name).rowcount == 1:
            DELETE_KEYS.run(conn, namespace=name)
            events.record(conn, "namespace", name, "namespace deleted", {})
            return 0
        return int(LIVE_INSTANCES.run(conn, name=name).scalar() or 0) or -1

    left = db.unit(work)
    if left > 0:
        detail = f"namespace {name} still holds {left} instance(s); delete them first"
        raise Conflict(detail, state="in_use", instances=left)
    return left == 0


def keys(db: Database, namespace: str, limit: int, after: str = "") -> list[KeyView]:
    """Return a namespace's keys by name."""
    with db.read() as conn:
        rows = KEYS.run(conn, namespace=namespace, limit=limit, after=after).mappings()
        return [_key_view(namespace, row) for row in rows]


def create_key(
    db: Database,
    namespace: str,
    name: str,
    key_hash: str,
    *,
    lifetime_us: int | None,
    keyed: Keyed | None = None,
) -> KeyView | None:
    """Store a new key; None when the namespace is gone.

    Raises:
        Conflict: a key of that name is there.
    """

    def work(conn: Connection) -> KeyView | None:
        if TOUCH.run(conn, name=namespace).rowcount == 0:
            return None
        INSERT_KEY.run(conn, namespace=namespace, name=name, key_hash=key_hash, lifetime_us=lifetime_us)
        events.record(conn, "namespace", namespace, "key created", {"key": name})
        made = _key_view(namespace, KEY.run(conn, namespace=namespace, name=name).mappings().one())
        idempotency.keep(conn, keyed, asdict(made))
        return made

    try:
        return db.unit(work)
    except IntegrityError:
        if key(db, namespace, name) is None:
            raise
        detail = f"namespace {namespace} already has a key named {name}; delete it first"
        raise Conflict(detail, state="exists") from None


def key(db: Database, namespace: str, name: str) -> KeyView | None:
    """Return one key, without its secret."""
    with db.read() as conn:
        row = KEY.run(conn, namespace=namespace, name=name).mappings().first()
    return None if row is None else _key_view(namespace, row)


def replace_key(db: Database, namespace: str, name: str, key_hash: str) -> None:
    """Store a key that does not expire, over whatever had its name."""

    def work(conn: Connection) -> None:
        REPLACE_KEY.run(conn, namespace=namespace, name=name, key_hash=key_hash)
        events.record(conn, "namespace", namespace, "key replaced", {"key": name})

    db.unit(work)


def delete_key(db: Database, namespace: str, name: str) -> bool:
    """Delete a key; False when there is none."""

    def work(conn: Connection) -> bool:
        gone = DELETE_KEY.run(conn, namespace=namespace, name=name).rowcount == 1
        if gone:
            events.record(conn, "namespace", namespace, "key deleted", {"key": name})
        return gone

    return db.unit(work)


def credentials(db: Database, namespace: str, name: str, *, pattern: str = "", limit: int = 16) -> list[Credential]:
    """Return the valid keys a secret may belong to: the one called `name`, and those LIKE `pattern` if it is given."""
    with db.read() as conn:
        rows = CREDENTIALS.run(conn, namespace=namespace, name=name, pattern=pattern, limit=limit).mappings()
        return [
            Credential(
                name=row["name"],
                key_hash=row["key_hash"],
                created_at_us=row["created_at"],
                left_us=row["left_us"],
            )
            for row in rows
        ]


def _taken(name: str, *, deleted: bool) -> Conflict:
    if not deleted:
        return Conflict(f"namespace {name} exists already", state="exists")
    detail = (
        f"the name {name} belonged to a namespace that was deleted; it stays reserved, so that the old one's records "
        "never appear under a new owner: choose another name"
    )
    return Conflict(detail, state="deleted")


def _view(row: Any) -> NamespaceView:
    return NamespaceView(name=row["name"], created_at_us=row["created_at"], deleted_at_us=row["deleted_at"])


def _key_view(namespace: str, row: Any) -> KeyView:
    return KeyView(
        namespace=namespace, name=row["name"], created_at_us=row["created_at"], expires_at_us=row["expires_at"]
    )
