"""One answer for one key: a retry with the same `Idempotency-Key` and body gets the first answer again."""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64encode
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy.exc import IntegrityError

from fleet.ledger import idempotency
from fleet.ledger.database import Database
from fleet.ledger.idempotency import KeptAnswer, Keyed
from fleet.model.errors import Conflict, IdempotencyMismatch
from fleet.services.authentication import new_secret

R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryKey:
    """What a caller sent: `digest` is over the verb, the path and the body."""

    namespace: str
    key: str
    digest: str


def once(
    db: Database,
    retry_key: RetryKey | None,
    make: Callable[[Keyed | None], R],
    replay: Callable[[Mapping[str, Any]], R],
    *,
    status: int = 201,
) -> R:
    """Make something, or answer what a request with the same key made before.

    Raises:
        IdempotencyMismatch: the key came with another body.
    """
    if retry_key is None:
        return make(None)
    return _once(db, retry_key, make, lambda kept: replay(kept.answer), status=status, salt="")


def once_secret(
    db: Database,
    retry_key: RetryKey | None,
    *what: str,
    secret: str,
    make: Callable[[str, Keyed | None], R],
    replay: Callable[[str, Mapping[str, Any]], R],
) -> R:
    """Do as `once` with what holds a secret of its own, which both functions are handed.

    It is nowhere: a retry derives it again from the retry key, `secret` and a salt that is kept with the answer. The
    salt is fresh for each new answer, so whoever uses a retry key again when its day is over gets another secret, and
    none that was revoked or rotated away meanwhile.

    Raises:
        IdempotencyMismatch: the key came with another body.
    """
    if retry_key is None:
        return make(new_secret(), None)
    salt = new_secret()
    return _once(
        db,
        retry_key,
        lambda keyed: make(_derived(secret, retry_key, salt, *what), keyed),
        lambda kept: replay(_derived(secret, retry_key, kept.salt, *what), kept.answer),
        status=201,
        salt=salt,
    )


def _once(
    db: Database,
    retry_key: RetryKey,
    make: Callable[[Keyed], R],
    replay: Callable[[KeptAnswer], R],
    *,
    status: int,
    salt: str,
) -> R:
    kept = _kept(db, retry_key)
    if kept is not None:
        return replay(kept)
    keyed = Keyed(namespace=retry_key.namespace, key=retry_key.key, digest=retry_key.digest, status=status, salt=salt)
    try:
        return make(keyed)
    except (Conflict, IntegrityError):
        # Whoever was faster may have been this very request's first try.
        kept = _kept(db, retry_key)
        if kept is None:
            raise
        return replay(kept)


def _derived(secret: str, retry_key: RetryKey, *what: str) -> str:
    """Return 256 bits that a retry finds again, and that nobody without `secret` does."""
    parts = [*what, retry_key.namespace, retry_key.key, retry_key.digest]
    digest = hmac.new(secret.encode(), "\0".join(parts).encode(), hashlib.sha256).digest()
    return urlsafe_b64encode(digest).decode().rstrip("=")


def _kept(db: Database, retry_key: RetryKey) -> KeptAnswer | None:
    kept = idempotency.find(db, retry_key.namespace, retry_key.key)
    if kept is None:
        return None
    if kept.digest != retry_key.digest:
        raise IdempotencyMismatch(
            "this Idempotency-Key came with another request before; use a new key for a new request"
        )
    return kept
