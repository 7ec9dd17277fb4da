"""Connections to the queue's server from `REDIS_URL`, and what must be checked of that server before work is put there.

Every wait is bounded. A producer's connection gives up early, because an accepted request must not wait for a wake-up
that the sweeper makes up for; a consumer's one waits a little longer than it blocks.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import parse_qs, unquote, urlsplit

import redis
from redis.backoff import ExponentialWithJitterBackoff, NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from fleet.model.errors import InvalidRequest, QueueUnavailable

CONNECT_SECONDS: Final = 1.0
PRODUCER_SECONDS: Final = 1.0
CONSUMER_SECONDS: Final = 10.0
SENTINEL_PORT: Final = 26379
SENTINEL_SCHEME: Final = "redis+sentinel"

_NO_WAY_TO: Final = re.compile(r"Error -?\d+ connecting to (?P<address>\S+)\. (?P<why>.*)")


@dataclass(frozen=True, slots=True)
class Eviction:
    """What the server does when its memory is full. `policy` None: the server does not say."""

    policy: str | None
    memory_max_bytes: int | None

    @property
    def loses_jobs(self) -> bool:
        """Whether the server may drop queued work without an error."""
        return self.policy is not None and self.policy != "noeviction"


def connect(url: str, *, blocking: bool = False, hasty_seconds: float | None = None) -> redis.Redis:
    """Return a client for `url`; nothing is sent yet. `blocking` is for a consumer that waits for work.

    `hasty_seconds` is for who can do without: so long each for connecting and answering, and no second try.

    Accepts `redis://`, `rediss://`, `unix://` and `redis+sentinel://[user:password@]host[:port],…/service[/database]`
    (the query's `sentinel_password` is for the sentinels themselves).
    """
    options: dict[str, Any] = {
        "socket_connect_timeout": CONNECT_SECONDS,
        "socket_timeout": CONSUMER_SECONDS if blocking else PRODUCER_SECONDS,
        "health_check_interval": 30,
        "retry": Retry(ExponentialWithJitterBackoff(cap=0.1, base=0.02), 2 if blocking else 1),
    }
    if hasty_seconds is not None:
        options |= {"socket_connect_timeout": hasty_seconds, "socket_timeout": hasty_seconds}
        options["retry"] = Retry(NoBackoff(), 0)
    if urlsplit(url).scheme == SENTINEL_SCHEME:
        return _by_sentinel(url, options)
    try:
        return redis.Redis.from_url(url, **options)
    except ValueError:
        # The words of the error repeat the value, and that may be a secret.
        raise InvalidRequest(
            "REDIS_URL has an option that cannot be read; accepted: options as redis-py has them"
        ) from None


def _by_sentinel(url: str, options: dict[str, Any]) -> redis.Redis:
    parts = urlsplit(url)
    credentials, _, hosts = parts.netloc.rpartition("@")
    service, _, database = parts.path.strip("/").partition("/")
    if not service or not hosts or not (database or "0").isdecimal():
        raise InvalidRequest(
            "REDIS_URL names no service; accepted: redis+sentinel://[user:password@]host:port,host:port/service/database"
        )
    username, _, password = credentials.partition(":")
    query = parse_qs(parts.query)
    sentinels = [_host_and_port(item) for item in hosts.split(",")]
    login = {"username": unquote(username) or None, "password": unquote(password) or None} if credentials else {}
    sentinel = Sentinel(  # type: ignore[no-untyped-call]
        sentinels,
        sentinel_kwargs={
            "socket_connect_timeout": min(CONNECT_SECONDS, options["socket_connect_timeout"]),
            "socket_timeout": min(CONNECT_SECONDS, options["socket_connect_timeout"]),
            "password": query.get("sentinel_password", [None])[0],
        },
        db=int(database or 0),
        **login,
        **options,
    )
    client: redis.Redis = sentinel.master_for(service)  # type: ignore[no-untyped-call]
    return client


def _host_and_port(text: str) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":")
    if not colon or port.endswith("]"):
        return text.strip().strip("[]"), SENTINEL_PORT
    if not port.isdecimal():
        raise InvalidRequest(f"REDIS_URL has a bad sentinel {text!r}; accepted: host:port, separated by commas")
    return host.strip("[]"), int(port)


def eviction(client: redis.Redis) -> Eviction:
    """Ask the server what it does when its memory is full.

    Raises:
        QueueUnavailable: when the server cannot be reached.
    """
    try:
        answer: dict[Any, Any] = client.config_get("maxmemory-policy", "maxmemory")
    except redis.exceptions.ResponseError:
        # Hosted servers often forbid CONFIG; INFO says it as well.
        answer = {}
    except redis.RedisError as error:
        raise unavailable(error) from error
    if not answer:
        answer = _from_info(client)
    settings = {_text(key): _text(value) for key, value in answer.items()}
    memory = settings.get("maxmemory", "")
    return Eviction(settings.get("maxmemory-policy"), int(memory) if memory.isdecimal() else None)


def _from_info(client: redis.Redis) -> dict[str, object]:
    try:
        memory = client.info("memory")
    except redis.exceptions.ResponseError:
        return {}
    except redis.RedisError as error:
        raise unavailable(error) from error
    known = {"maxmemory-policy": memory.get("maxmemory_policy"), "maxmemory": memory.get("maxmemory")}
    return {key: value for key, value in known.items() if value is not None}


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def ping(client: redis.Redis) -> None:
    """Raise QueueUnavailable when the server does not answer."""
    try:
        client.ping()
    except redis.RedisError as error:
        raise unavailable(error) from error


def unavailable(error: Exception) -> QueueUnavailable:
    """The error a caller sees when the queue's server does not answer."""
    away, outcome = "the queue's server did not answer", "accepted work is kept and will be woken later"
    words = f"{away} ({_in_words(error)}); {outcome}"
    return QueueUnavailable(f"{away} ({error}); {outcome}", told=f"{away}; {outcome}", in_words=words)


def _in_words(error: Exception) -> str:
    """What the driver says, without its numbers."""
    said = str(error).partition("\n")[0]
    away = _NO_WAY_TO.fullmatch(said)
    if away is None:
        return said
    why = away["why"].removesuffix(".")
    return f"{away['address']} cannot be reached: {why[:1].lower()}{why[1:]}"
