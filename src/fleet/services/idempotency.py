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
from fleet.ledger.idempotency import Keyed
from fleet.model.errors import Conflict, IdempotencyMismatch

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
    kept = _kept(db, retry_key)
    if kept is not None:
        return replay(kept)
    keyed = Keyed(namespace=retry_key.namespace, key=retry_key.key, digest=retry_key.digest, status=status)
    try:
        return make(keyed)
    except (Conflict, IntegrityError):
        # Whoever was faster may have been this very request's first try.
        kept = _kept(db, retry_key)
        if kept is None:
            raise
        return replay(kept)


def derived_secret(secret: str, retry_key: RetryKey, *what: str) -> str:
    """Return 256 bits that a retry finds again, and that nobody without `secret` does."""
    parts = [*what, retry_key.namespace, retry_key.key, retry_key.digest]
    digest = hmac.new(secret.encode(), "\0".join(parts).encode(), hashlib.sha256).digest()
    return urlsafe_b64encode(digest).decode().rstrip("=")


def _kept(db: Database, retry_key: RetryKey) -> Mapping[str, Any] | None:
    kept = idempotency.find(db, retry_key.namespace, retry_key.key)
    if kept is None:
        return None
    if kept.digest != retry_key.digest:
        raise IdempotencyMismatch(
            "this Idempotency-Key came with another request before; use a new key for a new request"
        )
    return kept.answer
