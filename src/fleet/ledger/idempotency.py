"""Idempotency keys: a row in the transaction of the change it names, so that a retry gets the first answer.

Only successes are kept, for a day. A key belongs to the namespace of its caller.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import DBAPIError, IntegrityError

from fleet.ledger.database import LOCK_WAIT_TIMEOUT, Database, Sql, error_number
from fleet.model.errors import RequestInProgress

KEPT_SECONDS = 86_400
_SALT = "salt of its secret"
FIND = Sql(f"""
    SELECT digest, status, answer FROM idempotency_keys
    WHERE namespace = :namespace AND idempotency_key = :key AND created_at > {{now}} - {KEPT_SECONDS * 1_000_000}
""")  # a constant of this module
ANSWER = Sql("""
    UPDATE idempotency_keys SET answer = :answer WHERE namespace = :namespace AND idempotency_key = :key
""")
# A duplicate waits for a first one that is still running, but not long: it holds locks that others need.
_BOUNDED = "SET STATEMENT innodb_lock_wait_timeout = 1 FOR"
FORGET_OLD = Sql(
    f"""
    {{bounded}} DELETE FROM idempotency_keys
    WHERE namespace = :namespace AND idempotency_key = :key AND created_at <= {{now}} - {KEPT_SECONDS * 1_000_000}
    """,  # a constant of this module
    mysql_bounded=_BOUNDED,
)
INSERT = Sql(
    """
    {bounded} INSERT INTO idempotency_keys (namespace, idempotency_key, digest, status, answer, created_at)
    VALUES (:namespace, :key, :digest, :status, :answer, {now})
    """,
    mysql_bounded=_BOUNDED,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keyed:
    """A caller's key with the digest of what it came with; `status` is what a success is answered with.

    `salt`, where there is one, is kept beside the answer: what is told again is derived from it again.
    """

    namespace: str
    key: str
    digest: str
    status: int
    salt: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptAnswer:
    """What was answered the first time."""

    digest: str
    status: int
    answer: Mapping[str, Any]
    salt: str = ""


def find(db: Database, namespace: str, key: str) -> KeptAnswer | None:
    """Return the answer that stands for a key."""
    with db.read() as conn:
        row = FIND.run(conn, namespace=namespace, key=key).mappings().first()
    if row is None:
        return None
    answer = json.loads(row["answer"])
    salt = answer.pop(_SALT, "")
    return KeptAnswer(digest=row["digest"], status=row["status"], answer=answer, salt=salt)


def keep(conn: Connection, keyed: Keyed | None, answer: Mapping[str, Any]) -> None:
    """Write the key and its answer inside the caller's transaction; a key in use raises the driver's IntegrityError.

    Raises:
        RequestInProgress: the first request with this key is still running after a second.
    """
    if keyed is None:
        return
    binds = {
        "namespace": keyed.namespace,
        "key": keyed.key,
        "digest": keyed.digest,
        "status": keyed.status,
        "answer": _text(keyed, answer),
    }
    try:
        _insert(conn, binds)
    except DBAPIError as error:
        if error_number(error) != LOCK_WAIT_TIMEOUT:
            raise
        raise RequestInProgress(
            "the first request with this Idempotency-Key has not ended yet; try again in a second"
        ) from error


def answered(conn: Connection, keyed: Keyed | None, answer: Mapping[str, Any]) -> None:
    """Write the answer that was not known yet when `keep` took the key, in the same transaction."""
    if keyed is not None:
        ANSWER.run(conn, namespace=keyed.namespace, key=keyed.key, answer=_text(keyed, answer))


def _text(keyed: Keyed, answer: Mapping[str, Any]) -> str:
    return json.dumps({**answer, **({_SALT: keyed.salt} if keyed.salt else {})}, separators=(",", ":"))


def _insert(conn: Connection, binds: Mapping[str, Any]) -> None:
    """Write the row; only where the key was used before is it looked at whether its day is over.

    That is read without a lock: several duplicates at once share the row, and none could get it for itself.
    """
    try:
        INSERT.run(conn, binds)
    except IntegrityError:
        if FIND.run(conn, binds).first() is not None:
            raise
        FORGET_OLD.run(conn, binds)
        INSERT.run(conn, binds)
