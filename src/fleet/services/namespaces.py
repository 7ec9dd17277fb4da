"""Namespaces and their keys: the admin makes and deletes namespaces, an owner keeps the keys of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from fleet.ledger import namespaces
from fleet.ledger.database import Database
from fleet.ledger.idempotency import Keyed
from fleet.ledger.namespaces import KeyView, NamespaceView
from fleet.model.errors import Conflict, NotFound
from fleet.services.authentication import (
    FILE_KEY_PREFIX,
    SYSTEM,
    Caller,
    hashed,
    require_admin,
    require_sight,
    selector_of,
)
from fleet.services.idempotency import RetryKey, once, once_secret

NO_NAMESPACE: Final = "no such namespace"
NO_KEY: Final = "no such key"
MICROSECONDS: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key with its secret, which nothing will ever show again."""

    view: KeyView
    key: str


@dataclass(frozen=True, slots=True)
class Lifetime:
    """How long a key lives: so many seconds (None: for ever), or as long as it was made for before."""

    seconds: int | None = None
    same: bool = False


def create(db: Database, caller: Caller, name: str, retry_key: RetryKey | None) -> NamespaceView:
    """Make a namespace. Admin only."""
    require_admin(caller)
    return once(
        db,
        retry_key,
        make=lambda keyed: namespaces.create(db, name, keyed, by=caller.by),
        replay=lambda kept: NamespaceView(**kept),
    )


def listing(db: Database, caller: Caller, limit: int, after: str) -> list[NamespaceView]:
    """Return the namespaces the caller may see."""
    if caller.is_admin:
        return namespaces.listing(db, limit, after)
    own = namespaces.get(db, caller.namespace)
    return [own] if own is not None and own.name > after else []


def get(db: Database, caller: Caller, name: str) -> NamespaceView:
    """Return one namespace.

    Raises:
        NotFound: there is none, or it is another's.
    """
    require_sight(caller, name, NO_NAMESPACE)
    found = namespaces.get(db, name)
    if found is None:
        raise NotFound(NO_NAMESPACE)
    return found


def require_events(db: Database, caller: Caller, name: str) -> None:
    """Refuse who may not read a namespace's events. The admin may read a deleted one's too: its end stands there.

    Raises:
        NotFound: there is none, or it is another's.
    """
    require_sight(caller, name, NO_NAMESPACE)
    find = namespaces.get_or_deleted if caller.is_admin else namespaces.get
    if find(db, name) is None:
        raise NotFound(NO_NAMESPACE)


def delete(db: Database, caller: Caller, name: str) -> None:
    """Delete a namespace without instances, its keys with it. Admin only; its tokens stop working."""
    require_admin(caller)
    if name == SYSTEM:
        raise Conflict(f"the namespace {SYSTEM} is the admin and cannot be deleted", state="reserved")
    if not namespaces.delete(db, name, by=caller.by):
        raise NotFound(NO_NAMESPACE)


def keys(db: Database, caller: Caller, namespace: str, limit: int, after: str) -> list[KeyView]:
    """Return the keys of a namespace, without secrets."""
    get(db, caller, namespace)
    return namespaces.keys(db, namespace, limit, after)


def create_key(
    db: Database,
    caller: Caller,
    namespace: str,
    name: str,
    *,
    lifetime_seconds: int | None,
    retry_key: RetryKey | None,
    secret: str,
) -> NewKey:
    """Make a key. With a retry key a retry is told the same secret again: see `once_secret`."""
    get(db, caller, namespace)

    def make(own: str, keyed: Keyed | None) -> NewKey:
        key = f"{name}.{own}"
        view = namespaces.create_key(
            db, namespace, name, hashed(key), lifetime_us=_microseconds(lifetime_seconds), keyed=keyed, by=caller.by
        )
        if view is None:
            raise NotFound(NO_NAMESPACE)
        return NewKey(view=view, key=key)

    return once_secret(db, retry_key, "namespace key", namespace, name, secret=secret, make=make, replay=_told_again)


def rotate_key(
    db: Database,
    caller: Caller,
    namespace: str,
    name: str,
    *,
    grace_seconds: int,
    lifetime: Lifetime,
    retry_key: RetryKey | None,
    secret: str,
) -> NewKey:
    """Give a key a new secret; the former one, and what it bought, ends after the grace.

    Raises:
        NotFound: there is no such key.
        Conflict: the key lies in a file, or a grace is asked for while one still runs.
    """
    get(db, caller, namespace)
    if namespace == SYSTEM and name.startswith(FILE_KEY_PREFIX):
        host = name.removeprefix(FILE_KEY_PREFIX)
        detail = f"this key lies in the file ADMIN_KEY_FILE of {host}: remove the file there and start sf-api again"
        raise Conflict(detail, state="in_a_file")

    def make(own: str, keyed: Keyed | None) -> NewKey:
        key = f"{name}.{own}"
        view = namespaces.rotate_key(
            db,
            namespace,
            name,
            hashed(key),
            selector=selector_of(key),
            grace_us=grace_seconds * MICROSECONDS,
            lifetime_us=_microseconds(lifetime.seconds),
            same_lifetime=lifetime.same,
            keyed=keyed,
            by=caller.by,
        )
        if view is None:
            raise NotFound(NO_KEY)
        return NewKey(view=view, key=key)

    return once_secret(
        db, retry_key, "rotated namespace key", namespace, name, secret=secret, make=make, replay=_told_again
    )


def delete_key(db: Database, caller: Caller, namespace: str, name: str) -> None:
    """Delete a key; the tokens it bought stop working. One of the admin's stays usable: else nobody could do more.

    Raises:
        NotFound: there is no such key.
        Conflict: it is the admin's last usable one.
    """
    get(db, caller, namespace)
    if not namespaces.delete_key(db, namespace, name, keep_one=namespace == SYSTEM, by=caller.by):
        raise NotFound(NO_KEY)


def _told_again(own: str, kept: Mapping[str, Any]) -> NewKey:
    view = KeyView(**kept)
    return NewKey(view=view, key=f"{view.name}.{own}")


def _microseconds(seconds: int | None) -> int | None:
    return None if seconds is None else seconds * MICROSECONDS
