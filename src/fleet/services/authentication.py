"""Who is calling: namespaces, their keys, and the tokens a key buys for an hour.

A key is `<its name>.<secret>`, so that exactly one hash is verified whatever is sent; where there is none, a dummy is,
and the answer is the same. The namespace `system` is the admin: its key lies in `ADMIN_KEY_FILE`, bare.
A token names the key that bought it, and stops working with that key: at once in the process that deleted it, within
`ALIVE_SECONDS` in the others.
"""

from __future__ import annotations

import os
import secrets
import stat
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import jwt
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from fleet.ledger import namespaces
from fleet.ledger.database import Database
from fleet.ledger.namespaces import Credential
from fleet.ledger.secrets import shared
from fleet.model.errors import FleetError, Forbidden, NotFound, Unauthenticated
from fleet.model.request import is_name

SYSTEM: Final = "system"
TOKEN_SECONDS: Final = 3600
ALIVE_SECONDS: Final = 1.0
TOKENS_CACHED_MAX: Final = 10_000
KEY_CHARACTERS_MAX: Final = 255
FILE_KEY_PREFIX: Final = "admin-file."
ALGORITHM: Final = "HS256"

# The secrets are random and 256 bits long, so the cost only has to make a stolen table dull, not to slow down guessing.
_HASHER: Final = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
_WRONG: Final = "the namespace or its key is wrong"
_NOT_VALID: Final = "the token is missing, not valid or expired; get one from POST /auth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who a valid token belongs to, and which of its keys bought it."""

    namespace: str
    key: str = ""

    @property
    def by(self) -> str:
        """How an audit event names the caller: `namespace/key`."""
        return f"{self.namespace}/{self.key}"

    @property
    def is_admin(self) -> bool:
        """Whether the caller is the namespace `system`."""
        return self.namespace == SYSTEM

    @property
    def scope(self) -> str | None:
        """The namespace that listings are limited to; None: no limit."""
        return None if self.is_admin else self.namespace


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A bearer token and its life in seconds."""

    token: str
    expires_in: int


@dataclass(frozen=True, slots=True)
class _Verified:
    """A token whose signature was checked; `alive_until` is when its key must be looked at again."""

    caller: Caller
    key_created_us: int
    expires_at: float
    alive_until: float


def require_admin(caller: Caller) -> None:
    """Refuse a verb that only the admin may use, before anything is looked up."""
    if not caller.is_admin:
        raise Forbidden(f"only the namespace {SYSTEM} may do this")


def require_sight(caller: Caller, namespace: str, what: str) -> None:
    """Refuse, with the words for a thing that is not there, what belongs to another namespace."""
    if not caller.is_admin and caller.namespace != namespace:
        raise NotFound(what)


def new_secret() -> str:
    """Return 256 random bits as text without a dot."""
    return secrets.token_urlsafe(32)


def hashed(key: str) -> str:
    """Return what is stored of a key."""
    return _HASHER.hash(key)


class Clock(Protocol):
    """The time that all API processes share, in seconds since 1970."""

    def __call__(self) -> float:
        """Return it; never waits."""

    def refresh(self) -> None:
        """Ask for it where that is due; may wait."""


class Authenticator:
    """Sells tokens for keys and recognises them again; one a process."""

    def __init__(self, database: Database, *, secret: str, clock: Clock) -> None:
        """`secret` signs the tokens: the same in every API process."""
        self._database = database
        self._secret = secret
        self._clock = clock
        self._dummy = hashed(new_secret())
        self._verified: dict[str, _Verified] = {}
        self._lock = threading.Lock()

    def login(self, namespace: str, key: str) -> Token:
        """Return a token for a namespace's key.

        Raises:
            Unauthenticated: no such namespace, or not its key: the same words, after about the same time.
        """
        self._clock.refresh()
        found = self._matching(namespace, key)
        if found is None:
            raise Unauthenticated(_WRONG)
        left = TOKEN_SECONDS if found.left_us is None else min(TOKEN_SECONDS, found.left_us // 1_000_000)
        if left < 1:
            raise Unauthenticated(_WRONG)
        expires_at = int(self._clock()) + left
        claims = {"ns": namespace, "key": found.name, "made": found.created_at_us, "exp": expires_at}
        return Token(token=jwt.encode(claims, self._secret, algorithm=ALGORITHM), expires_in=left)

    def remembered(self, token: str) -> Caller | None:
        """Return the caller of a token that was verified a moment ago; never waits."""
        found = self._verified.get(token)
        return found.caller if found is not None and self._clock() < min(found.expires_at, found.alive_until) else None

    def verify(self, token: str) -> Caller:
        """Return the caller of a token.

        Raises:
            Unauthenticated: it is not one of ours, it is expired, or its key or namespace is gone.
        """
        seen = self._verified.get(token) or self._decoded(token)
        self._clock.refresh()
        now = self._clock()
        if now >= seen.expires_at:
            self._forget(token)
            raise Unauthenticated(_NOT_VALID)
        alive = namespaces.credentials(self._database, seen.caller.namespace, seen.caller.key)
        if [(key.name, key.created_at_us) for key in alive] != [(seen.caller.key, seen.key_created_us)]:
            self._forget(token)
            raise Unauthenticated(_NOT_VALID)
        self._remember(
            token,
            _Verified(seen.caller, seen.key_created_us, seen.expires_at, now + ALIVE_SECONDS),
        )
        return seen.caller

    def forget(self, namespace: str) -> None:
        """Look at the keys of a namespace again with the next request of each of its tokens."""
        with self._lock:
            gone = [token for token, seen in self._verified.items() if seen.caller.namespace == namespace]
            for token in gone:
                del self._verified[token]

    def _matching(self, namespace: str, key: str) -> Credential | None:
        name = key.rpartition(".")[0]
        pattern = FILE_KEY_PREFIX.replace("_", r"\_") + "%" if namespace == SYSTEM and not name else ""
        known = is_name(namespace) and len(key) <= KEY_CHARACTERS_MAX
        found = namespaces.credentials(self._database, namespace, name, pattern=pattern) if known else []
        matching = [candidate for candidate in found if _verifies(candidate.key_hash, key)]
        if not found:
            _verifies(self._dummy, key[:KEY_CHARACTERS_MAX])
        return matching[0] if matching else None

    def _decoded(self, token: str) -> _Verified:
        try:
            # The expiry is judged by our own clock, a few lines further on in `verify`.
            claims: dict[str, Any] = jwt.decode(
                token,
                self._secret,
                algorithms=[ALGORITHM],
                options={"verify_exp": False, "require": ["ns", "key", "made", "exp"]},
            )
        except (jwt.PyJWTError, UnicodeError):
            raise Unauthenticated(_NOT_VALID) from None
        # Signed with our secret, but by a program that means something else by these names.
        if [type(claims[name]) for name in ("ns", "key", "made", "exp")] != [str, str, int, int]:
            raise Unauthenticated(_NOT_VALID)
        return _Verified(Caller(namespace=claims["ns"], key=claims["key"]), claims["made"], claims["exp"], 0.0)

    def _remember(self, token: str, seen: _Verified) -> None:
        with self._lock:
            if len(self._verified) >= TOKENS_CACHED_MAX:
                self._verified.clear()
            self._verified[token] = seen

    def _forget(self, token: str) -> None:
        with self._lock:
            self._verified.pop(token, None)


def token_secret(database: Database, configured: str) -> str:
    """Return what signs the tokens: `AUTH_SECRET`, or one made once and kept in the database for all processes."""
    return configured or shared(database, "auth", secrets.token_urlsafe(48))


def ensure_admin_key(database: Database, path: Path, host: str) -> bool:
    """Make the namespace `system` and its key file, or take over the key a file holds; True when it was made now.

    Several processes may do this at once: the file appears whole or not at all, and the first one's key stays.
    """
    made = _make_key_file(path)
    key = read_key_file(path)
    namespaces.ensure(database, SYSTEM)
    name = (FILE_KEY_PREFIX + host)[:63]
    stored = namespaces.credentials(database, SYSTEM, name)
    if not any(_verifies(credential.key_hash, key) for credential in stored):
        namespaces.replace_key(database, SYSTEM, name, hashed(key))
    return made


def read_key_file(path: Path) -> str:
    """Return the bare key a file holds."""
    try:
        key = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeError) as error:
        raise FleetError(f"the admin key file {path} cannot be read: {error}") from None
    if not 16 <= len(key) <= KEY_CHARACTERS_MAX or not key.isprintable() or "." in key:
        raise FleetError(
            f"the admin key file {path} holds no usable key: one line of 16-{KEY_CHARACTERS_MAX} printable characters "
            "without a dot; remove the file to have a new one made"
        )
    return key


def is_private(path: Path) -> bool:
    """Return whether nobody but the owner may read the file."""
    return not path.stat().st_mode & (stat.S_IRWXG | stat.S_IRWXO)


def _make_key_file(path: Path) -> bool:
    if path.exists():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with os.fdopen(descriptor, "w") as handle:
                handle.write(new_secret() + "\n")
                handle.flush()
                os.fsync(handle.fileno())
            return _is_first(draft, path)
        finally:
            draft.unlink(missing_ok=True)
    except OSError as error:
        raise FleetError(f"the admin key file {path} cannot be made: {error}; set ADMIN_KEY_FILE elsewhere") from None


def _is_first(draft: Path, path: Path) -> bool:
    """Put the draft in its place unless somebody was faster: a link fails where a rename would replace."""
    try:
        os.link(draft, path)
    except FileExistsError:
        return False
    return True


def _verifies(key_hash: str, key: str) -> bool:
    try:
        return _HASHER.verify(key_hash, key)
    except (VerificationError, InvalidHashError):
        return False
