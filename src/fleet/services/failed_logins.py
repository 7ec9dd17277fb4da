"""A bound on failed authentication, by address and namespace. Only failures count, and a right key gives nothing back.

Three budgets, each of `WINDOW_SECONDS` from its first failure on:

- `PAIR_MAX` failed logins from one address to one namespace: then that address tries that namespace no more,
- `ADDRESS_MAX` failed logins from one address: then that address logs in nowhere,
- `TOKENS_MAX` bad bearer tokens from one address: then its bad tokens are answered 429 instead of 401.

No budget is a namespace's alone, so nobody far away can lock its owner out; and a good token is always served, since
tokens cannot be guessed and refusing good ones would let one forgotten script stop a whole site. An attempt is judged
before its key is verified and counted after: what all processes verify at the same moment may overshoot.

The counts lie in Redis, for all processes; while that does not answer, in this process's memory. A try waits for Redis
at most `REDIS_SECONDS` a step, and after a failure nobody does for `REDIS_PAUSE_SECONDS`.
"""

from __future__ import annotations

import ipaddress
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Final, TypeVar

import redis
from limits import RateLimitItem, RateLimitItemPerSecond
from limits.storage import MemoryStorage, RedisStorage, Storage

from fleet.ledger import events, namespaces
from fleet.ledger.database import Database
from fleet.model.errors import FleetError, RateLimited
from fleet.model.request import is_name
from fleet.telemetry import get_logger

WINDOW_SECONDS: Final = 60
PAIR_MAX: Final = 10
ADDRESS_MAX: Final = 50
TOKENS_MAX: Final = 100
REDIS_SECONDS: Final = 0.25
REDIS_PAUSE_SECONDS: Final = 5.0
REMEMBERED_MAX: Final = 10_000
KEY_PREFIX: Final = "fleet:failed-logins"
IPV6_PREFIX: Final = 64
"""An IPv6 caller has a whole network of addresses: its first bits are the address."""

UNKNOWN_ADDRESS: Final = "unknown"
TIMELINE: Final = "authentication"
MESSAGE: Final = "too many failed authentications"

T = TypeVar("T")
_log = get_logger(__name__)


class Budget(StrEnum):
    """What is counted; the values are in Redis and in events."""

    PAIR = "logins_to_one_namespace"
    ADDRESS = "logins"
    TOKENS = "tokens"


ALLOWED: Final[dict[Budget, RateLimitItem]] = {
    Budget.PAIR: RateLimitItemPerSecond(PAIR_MAX, WINDOW_SECONDS),
    Budget.ADDRESS: RateLimitItemPerSecond(ADDRESS_MAX, WINDOW_SECONDS),
    Budget.TOKENS: RateLimitItemPerSecond(TOKENS_MAX, WINDOW_SECONDS),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Burst:
    """A budget that was just used up. `namespace` is what was tried, empty where many were or a token was sent."""

    budget: Budget
    address: str
    namespace: str
    failures: int
    window_seconds: int = WINDOW_SECONDS


@dataclass(frozen=True, slots=True)
class _Spender:
    budget: Budget
    address: str
    namespace: str = ""


class FailedLogins:
    """The failures of all processes as one of them knows them."""

    def __init__(
        self,
        shared: redis.Redis | None,
        *,
        elapsed: Callable[[], float],
        wall_clock: Callable[[], float],
        on_burst: Callable[[Burst], None],
    ) -> None:
        """`shared` None: this process counts for itself. `on_burst` is told once of each budget that is used up.

        `elapsed` is monotonic; `wall_clock` is what the library itself goes by.
        """
        self._redis = None if shared is None else _storage(shared)
        self._memory = MemoryStorage()
        self._elapsed = elapsed
        self._wall_clock = wall_clock
        self._on_burst = on_burst
        self._redis_after = float("-inf")
        self._spent: dict[_Spender, float] = {}
        self._lock = threading.Lock()

    def refuse_known(self, address: str, namespace: str) -> None:
        """Refuse what was found to be over its budget a moment ago; never waits.

        Raises:
            RateLimited: it is still over it.
        """
        for spender in _login(address, namespace):
            until = self._spent.get(spender)
            if until is not None and self._elapsed() < until:
                raise _limited(spender, until - self._elapsed())

    def refuse(self, address: str, namespace: str) -> None:
        """Refuse a login whose address has used up one of its budgets.

        Raises:
            RateLimited: it has.
        """
        self.refuse_known(address, namespace)
        for spender in _login(address, namespace):
            self._refuse_spent(spender)

    def login_failed(self, address: str, namespace: str) -> None:
        """Count a login with a wrong key, or to a namespace that is not there."""
        for spender in _login(address, namespace):
            self._count(spender)

    def token_failed(self, address: str) -> None:
        """Count a token that is none of ours, or whose key is gone.

        Raises:
            RateLimited: its address had used up that budget before.
        """
        spender = _Spender(Budget.TOKENS, grouped(address))
        until = self._spent.get(spender)
        if until is not None and self._elapsed() < until:
            raise _limited(spender, until - self._elapsed())
        self._refuse_spent(spender)
        self._count(spender)

    def _refuse_spent(self, spender: _Spender) -> None:
        allowed = ALLOWED[spender.budget]
        left = self._ask(lambda storage: self._seconds_left(storage, allowed, _key(spender)))
        if left is None:
            return
        with self._lock:
            if len(self._spent) >= REMEMBERED_MAX:
                self._spent.clear()
            self._spent[spender] = self._elapsed() + left
        raise _limited(spender, left)

    def _count(self, spender: _Spender) -> None:
        allowed = ALLOWED[spender.budget]
        failures = self._ask(lambda storage: storage.incr(_key(spender), allowed.get_expiry()))
        # The counter is one for all: exactly one failure of a window is the one that reaches the bound.
        if failures == allowed.amount:
            self._on_burst(
                Burst(
                    budget=spender.budget,
                    address=spender.address,
                    namespace=spender.namespace,
                    failures=failures,
                )
            )

    def _seconds_left(self, storage: Storage, allowed: RateLimitItem, key: str) -> float | None:
        """How long a used-up budget stays so; None: something is left of it."""
        if storage.get(key) < allowed.amount:
            return None
        return min(float(WINDOW_SECONDS), max(1.0, storage.get_expiry(key) - self._wall_clock()))

    def _ask(self, question: Callable[[Storage], T]) -> T:
        if self._redis is not None and self._elapsed() >= self._redis_after:
            try:
                return question(self._redis)
            except (redis.RedisError, OSError) as error:
                self._redis_after = self._elapsed() + REDIS_PAUSE_SECONDS
                _log.warning("auth.limits_in_memory", reason=type(error).__name__, again_in_seconds=REDIS_PAUSE_SECONDS)
        return question(self._memory)


def grouped(address: str) -> str:
    """Return what stands for an address: itself, or the network that an IPv6 caller has to itself."""
    try:
        known = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return UNKNOWN_ADDRESS
    if isinstance(known, ipaddress.IPv6Address):
        if known.ipv4_mapped is not None:
            return str(known.ipv4_mapped)
        return str(ipaddress.ip_network((known, IPV6_PREFIX), strict=False))
    return str(known)


def recorded_in(db: Database) -> Callable[[Burst], None]:
    """Return what keeps a burst: in the timeline of the namespace that was tried, else in the cluster's.

    A namespace that is there costs as much as one that is not. A ledger that is away keeps nothing, and fails no login.
    """

    def keep(burst: Burst) -> None:
        figures = {"failures": burst.failures, "window_seconds": burst.window_seconds}
        _log.warning("auth.limit_reached", budget=str(burst.budget), address=burst.address, **figures)
        payload = {"budget": str(burst.budget), "namespace": burst.namespace, **figures}
        try:
            known = namespaces.get(db, burst.namespace) is not None
            target = ("namespace", burst.namespace) if known else ("cluster", TIMELINE)
            by = f"address:{burst.address}"
            db.unit(lambda conn: events.record(conn, *target, MESSAGE, payload, "warning", by=by))
        except FleetError as error:
            _log.warning("auth.burst_not_recorded", reason=error.detail)

    return keep


def _login(address: str, namespace: str) -> tuple[_Spender, _Spender]:
    # What is no name is nobody's namespace: all of it together is one.
    name = namespace if is_name(namespace) else ""
    group = grouped(address)
    return _Spender(Budget.PAIR, group, name), _Spender(Budget.ADDRESS, group)


def _key(spender: _Spender) -> str:
    return f"{spender.budget}/{spender.address}/{spender.namespace}"


def _limited(spender: _Spender, seconds: float) -> RateLimited:
    wait = max(1, math.ceil(seconds))
    return RateLimited(f"{_WORDS[spender.budget]}; try again in {wait} seconds", retry_after_seconds=wait)


_WORDS: Final = {
    Budget.PAIR: "too many failed logins to this namespace from this address",
    Budget.ADDRESS: "too many failed logins from this address",
    Budget.TOKENS: "too many tokens from this address were not valid",
}


def _storage(client: redis.Redis) -> RedisStorage:
    return RedisStorage("redis://", connection_pool=client.connection_pool, key_prefix=KEY_PREFIX)
