"""Namespaces and their keys: the admin makes and deletes namespaces, an owner keeps the keys of its own."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from dataclasses import dataclass

from fleet.ledger import namespaces
from fleet.ledger.database import Database
from fleet.ledger.idempotency import Keyed
from fleet.ledger.namespaces import KeyView, NamespaceView
from fleet.model.errors import Conflict, NotFound
from fleet.services.authentication import SYSTEM, Caller, hashed, new_secret, require_admin, require_sight
from fleet.services.idempotency import RetryKey, once

NO_NAMESPACE = "no such namespace"
NO_KEY = "no such key"


@dataclass(frozen=True, slots=True, kw_only=True)
class NewKey:
    """A key with its secret, which nothing will ever show again."""

    view: KeyView
    key: str


def create(db: Database, caller: Caller, name: str, retry_key: RetryKey | None) -> NamespaceView:
    """Make a namespace. Admin only."""
    require_admin(caller)
    return once(
        db,
        retry_key,
        make=lambda keyed: namespaces.create(db, name, keyed),
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


def delete(db: Database, caller: Caller, name: str) -> None:
    """Delete a namespace without instances, its keys with it. Admin only; its tokens stop working."""
    require_admin(caller)
    if name == SYSTEM:
        raise Conflict(f"the namespace {SYSTEM} is the admin and cannot be deleted", state="reserved")
    if not namespaces.delete(db, name):
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
    """Make a key. With a retry key its secret is derived from it and `secret`, so a retry can be told it again."""
    get(db, caller, namespace)
    key = f"{name}.{new_secret() if retry_key is None else _derived(secret, namespace, name, retry_key)}"

    def make(keyed: Keyed | None) -> NewKey:
        lifetime_us = None if lifetime_seconds is None else lifetime_seconds * 1_000_000
        view = namespaces.create_key(db, namespace, name, hashed(key), lifetime_us=lifetime_us, keyed=keyed)
        if view is None:
            raise NotFound(NO_NAMESPACE)
        return NewKey(view=view, key=key)

    return once(db, retry_key, make=make, replay=lambda kept: NewKey(view=KeyView(**kept), key=key))


def delete_key(db: Database, caller: Caller, namespace: str, name: str) -> None:
    """Delete a key; the tokens it bought stop working."""
    get(db, caller, namespace)
    if not namespaces.delete_key(db, namespace, name):
        raise NotFound(NO_KEY)


def _derived(secret: str, namespace: str, name: str, retry_key: RetryKey) -> str:
    parts = ["namespace key", namespace, name, retry_key.namespace, retry_key.key, retry_key.digest]
    digest = hmac.new(secret.encode(), "\0".join(parts).encode(), hashlib.sha256).digest()
    return urlsafe_b64encode(digest).decode().rstrip("=")
