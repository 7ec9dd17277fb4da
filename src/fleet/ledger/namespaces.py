"""Namespaces and their keys. A deleted namespace keeps its row, so that its name never passes to another owner.

Keys are stored as hashes only; whoever calls made the hash. Times are the database's. A key that was rotated may keep
its former secret for a while; `selector`, a few bits of a digest, tells which of the two a secret is verified against.

Where the answer to a COMMIT is lost, what became of it is read back, with a lock that waits for one still under way:
a key that was made or rotated has a hash that no other has, so its secret is told, and nothing is done a second time.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Final

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from fleet.ledger import events, idempotency
from fleet.ledger.database import Database, Sql
from fleet.ledger.idempotency import Keyed
from fleet.model.errors import Conflict
from fleet.model.moment import iso

EXPIRED_KEPT_SECONDS: Final = 7 * 86_400
"""How long an expired key is still listed; then the reconciler removes it."""

REMOVED_BY: Final = "reconciler"

GET = Sql("SELECT name, created_at, deleted_at FROM namespaces WHERE name = :name")
LOCK = Sql("SELECT name, created_at, deleted_at FROM namespaces WHERE name = :name {for_update}")
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
_KEY = """
    SELECT name, key_hash, created_at, expires_at, expires_at <= {now} AS expired,
        CASE WHEN former_ends_at > {now} THEN former_ends_at END AS former_ends_at
    FROM namespace_keys WHERE namespace = :namespace
"""
KEYS = Sql(f"{_KEY} AND name > :after ORDER BY name LIMIT :limit")
KEY = Sql(f"{_KEY} AND name = :name")
LOCK_KEY = Sql(f"{_KEY} AND name = :name {{for_update}}")
DELETE_EXPIRED_KEY = Sql("""
    DELETE FROM namespace_keys WHERE namespace = :namespace AND name = :name AND expires_at <= {now}
""")
LONG_EXPIRED = Sql("""
    SELECT namespace, name FROM namespace_keys WHERE expires_at < {now} - :age_us ORDER BY expires_at LIMIT :batch
""")
DELETE_LONG_EXPIRED = Sql("""
    DELETE FROM namespace_keys WHERE namespace = :namespace AND name = :name AND expires_at < {now} - :age_us
""")
INSERT_KEY = Sql("""
    INSERT INTO namespace_keys (namespace, name, key_hash, created_at, expires_at)
    VALUES (:namespace, :name, :key_hash, {now}, {now} + :lifetime_us)
""")
REPLACE_KEY = Sql("""
    REPLACE INTO namespace_keys (namespace, name, key_hash, created_at, expires_at)
    VALUES (:namespace, :name, :key_hash, {now}, NULL)
""")
# The former secret never outlives what its key was made for, nor the new one.
ROTATE_KEY = Sql("""
    UPDATE namespace_keys SET key_hash = :key_hash, selector = :selector, created_at = {now},
        expires_at = {now} + :lifetime_us, former_hash = :former_hash, former_created_at = :former_created_at,
        former_ends_at = CASE WHEN :former_expires_at < {now} + :grace_us THEN :former_expires_at
            ELSE {now} + :grace_us END
    WHERE namespace = :namespace AND name = :name
""")
DELETE_KEY = Sql("DELETE FROM namespace_keys WHERE namespace = :namespace AND name = :name")
USABLE_BESIDE = Sql("""
    SELECT COUNT(*) FROM namespace_keys
    WHERE namespace = :namespace AND name <> :name AND (expires_at IS NULL OR expires_at > {now})
""")
# The seconds left are reckoned by the database, whose clock set `expires_at`. NULL: the key does not expire.
CREDENTIALS = Sql("""
    SELECT k.name, k.key_hash, k.created_at, (k.expires_at - {now}) AS left_us, k.selector, k.former_hash,
        k.former_created_at, CASE WHEN k.former_ends_at > {now} THEN k.former_ends_at - {now} END AS former_left_us
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
    """One key, without its secret. `former_ends_at_us`: until when the secret before the last rotation is good too."""

    namespace: str
    name: str
    created_at_us: int
    expires_at_us: int | None
    expired: bool = False
    former_ends_at_us: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Credential:
    """What a key is verified against; `left_us` None: it does not expire.

    `selector` not empty: only a secret with that selector can be this one, or, of a `former` one, cannot.
    """

    name: str
    key_hash: str
    created_at_us: int
    left_us: int | None
    selector: str = ""
    former: bool = False


def get(db: Database, name: str) -> NamespaceView | None:
    """Return a namespace that is not deleted."""
    found = get_or_deleted(db, name)
    return None if found is None or found.deleted_at_us is not None else found


def get_or_deleted(db: Database, name: str) -> NamespaceView | None:
    """Return a namespace, also one that is deleted."""
    with db.read() as conn:
        row = GET.run(conn, name=name).mappings().first()
    return None if row is None else _view(row)


def listing(db: Database, limit: int, after: str = "") -> list[NamespaceView]:
    """Return namespaces by name, from after `after` on."""
    with db.read() as conn:
        return [_view(row) for row in LIST.run(conn, limit=limit, after=after).mappings()]


def create(db: Database, name: str, keyed: Keyed | None = None, *, by: str = "") -> NamespaceView:
    """Make a namespace.

    Raises:
        Conflict: the name is taken, or belonged to a deleted namespace.
    """
    seen: list[NamespaceView] = []

    def work(conn: Connection) -> NamespaceView:
        INSERT.run(conn, name=name)
        events.record(conn, "namespace", name, "namespace created", {}, by=by)
        made = _view(GET.run(conn, name=name).mappings().one())
        idempotency.keep(conn, keyed, asdict(made))
        seen.append(made)
        return made

    def ours() -> NamespaceView | None:
        standing = _standing(db, name)
        return standing if standing is not None and standing in seen else None

    try:
        return db.unit(work, on_lost=ours)
    except IntegrityError:
        with db.read() as conn:
            row = GET.run(conn, name=name).mappings().first()
        if row is None:
            raise
        raise _taken(name, deleted=row["deleted_at"] is not None) from None


def ensure(db: Database, name: str) -> None:
    """Make a namespace unless it is there."""
    db.unit(lambda conn: INSERT_MISSING.run(conn, name=name).rowcount)


def delete(db: Database, name: str, *, by: str = "") -> bool:
    """Delete a namespace and its keys; False when there is none.

    Raises:
        Conflict: it still holds instances.
    """
    found: list[str] = []

    def work(conn: Connection) -> int:
        if DELETE.run(conn, name=name).rowcount == 1:
            DELETE_KEYS.run(conn, namespace=name)
            events.record(conn, "namespace", name, "namespace deleted", {}, by=by)
            found.append(name)
            return 0
        return int(LIVE_INSTANCES.run(conn, name=name).scalar() or 0) or -1

    def gone() -> int | None:
        standing = _standing(db, name) if found else None
        return 0 if standing is not None and standing.deleted_at_us is not None else None

    left = db.unit(work, on_lost=gone)
    if left > 0:
        held = "1 instance; delete it first" if left == 1 else f"{left} instances; delete them first"
        detail = f"namespace {name} still holds {held}"
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
    by: str = "",
) -> KeyView | None:
    """Store a new key, in the place of an expired one of that name; None when the namespace is gone.

    Raises:
        Conflict: a key of that name is there.
    """

    def work(conn: Connection) -> KeyView | None:
        if TOUCH.run(conn, name=namespace).rowcount == 0:
            return None
        DELETE_EXPIRED_KEY.run(conn, namespace=namespace, name=name)
        INSERT_KEY.run(conn, namespace=namespace, name=name, key_hash=key_hash, lifetime_us=lifetime_us)
        made = _key_view(namespace, KEY.run(conn, namespace=namespace, name=name).mappings().one())
        _record(conn, made, "key created", by)
        idempotency.keep(conn, keyed, asdict(made))
        return made

    try:
        return db.unit(work, on_lost=lambda: _holding(db, namespace, name, key_hash))
    except IntegrityError:
        if key(db, namespace, name) is None:
            raise
        detail = f"namespace {namespace} already has a key named {name}; rotate it for a new secret, or delete it first"
        raise Conflict(detail, state="exists") from None


def key(db: Database, namespace: str, name: str) -> KeyView | None:
    """Return one key, without its secret."""
    with db.read() as conn:
        row = KEY.run(conn, namespace=namespace, name=name).mappings().first()
    return None if row is None else _key_view(namespace, row)


def rotate_key(
    db: Database,
    namespace: str,
    name: str,
    key_hash: str,
    *,
    selector: str,
    grace_us: int,
    lifetime_us: int | None,
    same_lifetime: bool,
    keyed: Keyed | None = None,
    by: str = "",
) -> KeyView | None:
    """Give a key a new secret; the former one ends now, or after `grace_us`. None: there is no such key.

    `same_lifetime`: the new secret lives as long as the former one was made for, whatever `lifetime_us` says.

    Raises:
        Conflict: a grace is asked for while the grace of an earlier rotation still runs.
    """

    def work(conn: Connection) -> KeyView | None:
        # Rotations of one key come after each other: each sees what the one before has left.
        known = TOUCH.run(conn, name=namespace).rowcount and KEY.run(conn, namespace=namespace, name=name)
        row = known.mappings().first() if known else None
        if row is None:
            return None
        if grace_us and row["former_ends_at"] is not None:
            raise _still_rotating(namespace, name, iso(row["former_ends_at"]))
        lived = None if row["expires_at"] is None else row["expires_at"] - row["created_at"]
        lives = lived if same_lifetime else lifetime_us
        kept = bool(grace_us) and not row["expired"]
        rotated = ROTATE_KEY.run(
            conn,
            namespace=namespace,
            name=name,
            key_hash=key_hash,
            selector=selector,
            lifetime_us=lives,
            former_hash=row["key_hash"] if kept else "",
            former_created_at=row["created_at"] if kept else None,
            former_expires_at=row["expires_at"],
            grace_us=min(grace_us, grace_us if lives is None else lives) if kept else None,
        )
        if rotated.rowcount == 0:
            return None
        made = _key_view(namespace, KEY.run(conn, namespace=namespace, name=name).mappings().one())
        _record(conn, made, "key rotated", by, grace_seconds=grace_us // 1_000_000)
        idempotency.keep(conn, keyed, asdict(made))
        return made

    return db.unit(work, on_lost=lambda: _holding(db, namespace, name, key_hash))


def replace_key(db: Database, namespace: str, name: str, key_hash: str, *, by: str = "") -> None:
    """Store a key that does not expire, over whatever had its name."""

    def work(conn: Connection) -> None:
        REPLACE_KEY.run(conn, namespace=namespace, name=name, key_hash=key_hash)
        events.record(conn, "namespace", namespace, "key replaced", {"key": name}, by=by)

    db.unit(work)


def delete_key(db: Database, namespace: str, name: str, *, keep_one: bool = False, by: str = "") -> bool:
    """Delete a key; False when there is none.

    Raises:
        Conflict: it is the last usable one, and one is to be kept.
    """
    found: list[str] = []

    def work(conn: Connection) -> bool:
        # Two deletions at once come after each other: the second sees that the other key is gone.
        if keep_one:
            TOUCH.run(conn, name=namespace)
        row = LOCK_KEY.run(conn, namespace=namespace, name=name).first()
        if row is None:
            return False
        if keep_one and not row.expired and not USABLE_BESIDE.run(conn, namespace=namespace, name=name).scalar_one():
            detail = f"key {name} is the last usable one of namespace {namespace}; make another one first"
            raise Conflict(detail, state="last_key")
        DELETE_KEY.run(conn, namespace=namespace, name=name)
        events.record(conn, "namespace", namespace, "key deleted", {"key": name}, by=by)
        found.append(row.key_hash)
        return True

    def gone() -> bool | None:
        # Another of that name may have been made meanwhile: it is not the one that was meant.
        return True if found and _holding(db, namespace, name, found[-1]) is None else None

    return db.unit(work, on_lost=gone)


def _standing(db: Database, name: str) -> NamespaceView | None:
    """Read a namespace back after a lost answer, deleted or not, once nobody is changing it."""
    row = db.unit(lambda conn: LOCK.run(conn, name=name).mappings().first())
    return None if row is None else _view(row)


def _holding(db: Database, namespace: str, name: str, key_hash: str) -> KeyView | None:
    """Read a key back after a lost answer, once nobody is changing it; None: it is not there with this hash."""
    row = db.unit(lambda conn: LOCK_KEY.run(conn, namespace=namespace, name=name).mappings().first())
    return _key_view(namespace, row) if row is not None and row["key_hash"] == key_hash else None


def forget_expired_keys(conn: Connection, binds: dict[str, Any]) -> int:
    """Remove at most `batch` keys that expired `age_us` ago, the oldest first; return how many went."""
    gone = 0
    for row in LONG_EXPIRED.run(conn, binds).all():
        if DELETE_LONG_EXPIRED.run(conn, binds, namespace=row.namespace, name=row.name).rowcount:
            events.record(conn, "namespace", row.namespace, "expired key removed", {"key": row.name}, by=REMOVED_BY)
            gone += 1
    return gone


def credentials(db: Database, namespace: str, name: str, *, pattern: str = "", limit: int = 16) -> list[Credential]:
    """Return the valid keys a secret may belong to: the one called `name`, and those LIKE `pattern` if it is given."""
    with db.read() as conn:
        rows = CREDENTIALS.run(conn, namespace=namespace, name=name, pattern=pattern, limit=limit).mappings()
        return [one for row in rows for one in _credentials(row)]


def _credentials(row: Any) -> list[Credential]:
    """A key as it is, and its former secret while that is good."""
    known = {"name": row["name"], "selector": row["selector"]}
    current = Credential(**known, key_hash=row["key_hash"], created_at_us=row["created_at"], left_us=row["left_us"])
    if row["former_left_us"] is None:
        return [current]
    created, left = row["former_created_at"], row["former_left_us"]
    return [
        current,
        Credential(**known, key_hash=row["former_hash"], created_at_us=created, left_us=left, former=True),
    ]


def _record(conn: Connection, made: KeyView, message: str, by: str, **figures: int) -> None:
    lifetime = None if made.expires_at_us is None else (made.expires_at_us - made.created_at_us) // 1_000_000
    payload = {"key": made.name, "lifetime_seconds": lifetime, **figures}
    events.record(conn, "namespace", made.namespace, message, payload, by=by)


def _still_rotating(namespace: str, name: str, until: str) -> Conflict:
    detail = (
        f"the secret that key {name} of namespace {namespace} had before its last rotation is still good "
        f"until {until}; rotate it without a grace, which ends both, or wait for that"
    )
    return Conflict(detail, state="rotating")


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
        namespace=namespace,
        name=row["name"],
        created_at_us=row["created_at"],
        expires_at_us=row["expires_at"],
        expired=bool(row["expired"]),
        former_ends_at_us=row["former_ends_at"],
    )
