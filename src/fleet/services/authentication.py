"""Who is calling: namespaces, their keys, and the tokens a key buys for an hour.

A key is `<its name>.<secret>`, so that exactly one hash is verified whatever is sent; where there is none, a dummy is,
and the answer is the same. The namespace `system` is the admin: its key lies in `ADMIN_KEY_FILE`, bare.
A node's token is `fleet-node.<its node>.<secret>`, for good; `fleet.services.node_tokens` makes it.

**Revoked means revoked everywhere.** A token names the key that bought it. A process that has just looked at that key
remembers the token, for at most `ALIVE_SECONDS` counted from *before* it asked the ledger, so that the next requests
cost no look. Whoever ends a key or a namespace commits that, and answers only `FORGOTTEN_SECONDS` later: by then

- whoever asked the ledger after the commit has seen that the key is gone,
- whoever asked before it has counted its time from before the commit, so that time is over.

So no request that begins after the answer is let in with that key, in no process, and no process has to be told: none
that is slow, cut off from a queue or started meanwhile can miss it. `FORGOTTEN_SECONDS` is longer than `ALIVE_SECONDS`
by more than two machines' clocks drift apart in that time. The time is monotonic and this process's own: nothing that
sets a clock prolongs it. A node calls once a minute, so a node's token is never remembered, and ends with the commit.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import jwt
from argon2 import PasswordHasher
from argon2.exceptions import InvalidHashError, VerificationError

from fleet.ledger import namespaces, node_tokens
from fleet.ledger.database import Database
from fleet.ledger.namespaces import Credential
from fleet.ledger.secrets import shared
from fleet.model.errors import FleetError, Forbidden, NotFound, Unauthenticated
from fleet.model.request import is_name

SYSTEM: Final = "system"
TOKEN_SECONDS: Final = 3600
ALIVE_SECONDS: Final = 1.0
FORGOTTEN_SECONDS: Final = 1.1
TOKENS_CACHED_MAX: Final = 10_000
KEY_CHARACTERS_MAX: Final = 255
FILE_KEY_PREFIX: Final = "admin-file."
NODE_TOKEN_PREFIX: Final = "fleet-node."  # noqa: S105 - what tells a node's token from a namespace's
SELECTOR_CHARACTERS: Final = 8
ALGORITHM: Final = "HS256"

# The secrets are random and 256 bits long, so the cost only has to make a stolen table dull, not to slow down guessing.
_HASHER: Final = PasswordHasher(time_cost=2, memory_cost=19_456, parallelism=1)
_WRONG: Final = "the namespace or its key is wrong"
_NOT_VALID: Final = "the token is missing, not valid or expired; get one from POST /auth"


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who a valid token belongs to, and which of its keys bought it; or the node whose token it is."""

    namespace: str
    key: str = ""
    node: str = ""

    @property
    def by(self) -> str:
        """How an audit event names the caller: `namespace/key`, or `node:name`."""
        return f"node:{self.node}" if self.node else f"{self.namespace}/{self.key}"

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
    """A token whose signature was checked. `good_until` is this process's time when it must be looked at again."""

    caller: Caller
    key_created_us: int
    expires_at: float
    good_until: float


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


def selector_of(key: str) -> str:
    """Return what tells a rotated key's new secret from its former one: too little of a digest to help guessing."""
    return hashlib.sha256(key.encode()).hexdigest()[:SELECTOR_CHARACTERS]


def hashed_token(token: str) -> str:
    """Return what is stored of a node's token: its secret has 256 random bits, so a quick hash is as good as a slow."""
    return "sha256$" + hashlib.sha256(token.encode()).hexdigest()


class Failures(Protocol):
    """The bound on failed tries; `fleet.services.failed_logins` says what it is."""

    def refuse(self, address: str, namespace: str) -> None:
        """Refuse a login whose address failed too often."""

    def login_failed(self, address: str, namespace: str) -> None:
        """Count a failed login."""

    def token_failed(self, address: str) -> None:
        """Count a bad token, or refuse its address."""


class Clock(Protocol):
    """The time that all API processes share, in seconds since 1970."""

    def __call__(self) -> float:
        """Return it; never waits."""

    def refresh(self) -> None:
        """Ask for it where that is due; may wait."""


class Authenticator:
    """Sells tokens for keys and recognises them again; one a process."""

    def __init__(
        self, database: Database, *, secret: str, clock: Clock, elapsed: Callable[[], float], failures: Failures
    ) -> None:
        """`secret` signs the tokens: the same in every API process. `elapsed` is monotonic, and no other process's."""
        self._database = database
        self._secret = secret
        self._clock = clock
        self._elapsed = elapsed
        self._failures = failures
        self._dummy = hashed(new_secret())
        self._verified: dict[str, _Verified] = {}
        self._lock = threading.Lock()

    def login(self, namespace: str, key: str, address: str) -> Token:
        """Return a token for a namespace's key.

        Raises:
            Unauthenticated: no such namespace, or not its key: the same words, after about the same time.
            RateLimited: `address` failed too often; no key is looked at.
        """
        self._failures.refuse(address, namespace)
        self._clock.refresh()
        found = self._matching(namespace, key)
        if found is None:
            self._failures.login_failed(address, namespace)
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
        return found.caller if found is not None and self._elapsed() < found.good_until else None

    def verify(self, token: str, address: str) -> Caller:
        """Return the caller of a token.

        Raises:
            Unauthenticated: it is not one of ours, it is expired, or its key, namespace or node is gone.
            RateLimited: it is not valid, and too many from `address` were not.
        """
        caller = self._node_of(token) if token.startswith(NODE_TOKEN_PREFIX) else self._key_holder(token)
        if caller is None:
            self._failures.token_failed(address)
            raise Unauthenticated(_NOT_VALID)
        return caller

    def _key_holder(self, token: str) -> Caller | None:
        """Return the caller of a namespace's token, None for one that was never ours or whose key is gone."""
        seen = self._verified.get(token) or self._decoded(token)
        if seen is None:
            return None
        self._clock.refresh()
        # Read before the ledger is asked: see the module's promise.
        asked_at, now = self._elapsed(), self._clock()
        if now >= seen.expires_at:
            # It was bought with a key of ours and its hour is over: nobody has guessed anything.
            self._forget(token)
            raise Unauthenticated(_NOT_VALID)
        alive = namespaces.credentials(self._database, seen.caller.namespace, seen.caller.key)
        ours = [one for one in alive if (one.name, one.created_at_us) == (seen.caller.key, seen.key_created_us)]
        if not ours:
            self._forget(token)
            return None
        left = min([ALIVE_SECONDS, seen.expires_at - now, *(one.left_us / 1e6 for one in ours if one.left_us)])
        self._remember(token, _Verified(seen.caller, seen.key_created_us, seen.expires_at, asked_at + left))
        return seen.caller

    def _node_of(self, token: str) -> Caller | None:
        """Return the node whose token this is; the ledger is asked each time."""
        name = token.removeprefix(NODE_TOKEN_PREFIX).rpartition(".")[0]
        stored = node_tokens.stored_hash(self._database, name) if is_name(name) else ""
        return Caller(namespace="", node=name) if hmac.compare_digest(stored, hashed_token(token)) else None

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
        found = [candidate for candidate in found if _may_be(candidate, key)]
        matching = [candidate for candidate in found if _verifies(candidate.key_hash, key)]
        if not found:
            _verifies(self._dummy, key[:KEY_CHARACTERS_MAX])
        return matching[0] if matching else None

    def _decoded(self, token: str) -> _Verified | None:
        try:
            # The expiry is judged by our own clock, a few lines further on in `verify`.
            claims: dict[str, Any] = jwt.decode(
                token,
                self._secret,
                algorithms=[ALGORITHM],
                options={"verify_exp": False, "require": ["ns", "key", "made", "exp"]},
            )
        except (jwt.PyJWTError, UnicodeError):
            return None
        # Signed with our secret, but by a program that means something else by these names.
        if [type(claims[name]) for name in ("ns", "key", "made", "exp")] != [str, str, int, int]:
            return None
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
        namespaces.replace_key(database, SYSTEM, name, hashed(key), by=f"sf-api@{host}")
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


def _may_be(candidate: Credential, key: str) -> bool:
    """Whether a key that was rotated is to be verified against this one of its two secrets: it is one of them alone."""
    return not candidate.selector or (candidate.selector == selector_of(key)) is not candidate.former


def _verifies(key_hash: str, key: str) -> bool:
    try:
        return _HASHER.verify(key_hash, key)
    except (VerificationError, InvalidHashError):
        return False
