"""`REDIS_URL` in all its forms, and what a server says of its memory."""

from __future__ import annotations

from typing import Any

import fakeredis
import pytest
import redis
from redis.sentinel import SentinelConnectionPool

from fleet.model.errors import InvalidRequest, QueueUnavailable
from fleet.queue.connection import CONSUMER_SECONDS, PRODUCER_SECONDS, connect, eviction


def options_of(client: redis.Redis) -> dict[str, Any]:
    return dict(client.connection_pool.connection_kwargs)


def test_a_plain_url_names_host_port_and_database() -> None:
    options = options_of(connect("redis://user:pass@127.0.0.1:6380/3"))

    assert (options["host"], options["port"], options["db"]) == ("127.0.0.1", 6380, 3)
    assert (options["username"], options["password"]) == ("user", "pass")


def test_a_url_with_tls_uses_tls() -> None:
    client = connect("rediss://127.0.0.1:6380/0")

    assert client.connection_pool.connection_class is redis.SSLConnection


def test_a_unix_socket_is_a_path() -> None:
    client = connect("unix:///run/redis/redis.sock?db=2")
    options = options_of(client)

    assert client.connection_pool.connection_class is redis.UnixDomainSocketConnection
    assert (options["path"], options["db"]) == ("/run/redis/redis.sock", 2)


@pytest.mark.parametrize(
    ("url", "sentinels", "service", "database"),
    [
        ("redis+sentinel://10.0.0.1:26379,10.0.0.2:26380/main", [("10.0.0.1", 26379), ("10.0.0.2", 26380)], "main", 0),
        ("redis+sentinel://10.0.0.1/main/4", [("10.0.0.1", 26379)], "main", 4),
        ("redis+sentinel://[::1]:26379/main", [("::1", 26379)], "main", 0),
        ("redis+sentinel://[::1]/main", [("::1", 26379)], "main", 0),
    ],
)
def test_sentinels_name_the_service(url: str, sentinels: list[tuple[str, int]], service: str, database: int) -> None:
    pool = connect(url).connection_pool
    assert isinstance(pool, SentinelConnectionPool)
    found = [
        (one.connection_pool.connection_kwargs["host"], one.connection_pool.connection_kwargs["port"])
        for one in pool.sentinel_manager.sentinels
    ]

    assert (found, pool.service_name, pool.connection_kwargs["db"]) == (sentinels, service, database)


def test_credentials_before_sentinels_are_the_servers_own() -> None:
    pool = connect("redis+sentinel://me:p%40ss@10.0.0.1/main?sentinel_password=other").connection_pool
    assert isinstance(pool, SentinelConnectionPool)

    assert (pool.connection_kwargs["username"], pool.connection_kwargs["password"]) == ("me", "p@ss")
    sentinel = pool.sentinel_manager.sentinels[0]
    assert sentinel.connection_pool.connection_kwargs["password"] == "other"


@pytest.mark.parametrize(
    "url",
    ["redis+sentinel://10.0.0.1:26379", "redis+sentinel://10.0.0.1:x/main", "redis+sentinel://10.0.0.1/main/x"],
)
def test_a_sentinel_url_that_says_too_little_is_refused(url: str) -> None:
    with pytest.raises(InvalidRequest, match="REDIS_URL"):
        connect(url)


def test_every_wait_has_a_bound_and_a_consumer_may_block() -> None:
    producer, consumer = connect("redis://127.0.0.1/0"), connect("redis://127.0.0.1/0", blocking=True)

    assert options_of(producer)["socket_timeout"] == PRODUCER_SECONDS
    assert options_of(consumer)["socket_timeout"] == CONSUMER_SECONDS


class Server(fakeredis.FakeStrictRedis):
    """A server that says what it is told to say."""

    config: Any
    memory: Any

    def config_get(self, *args: Any, **kwargs: Any) -> Any:
        if isinstance(self.config, Exception):
            raise self.config
        return self.config

    def info(self, *args: Any, **kwargs: Any) -> Any:
        return self.memory


def server(config: Any, memory: Any = None) -> Server:
    made = Server()
    made.config, made.memory = config, memory or {}
    return made


@pytest.mark.parametrize(
    ("config", "memory", "policy", "loses"),
    [
        ({"maxmemory-policy": "noeviction", "maxmemory": "0"}, None, "noeviction", False),
        ({"maxmemory-policy": "allkeys-lru", "maxmemory": "100"}, None, "allkeys-lru", True),
        ({b"maxmemory-policy": b"volatile-ttl"}, None, "volatile-ttl", True),
        (redis.ResponseError("unknown command"), {"maxmemory_policy": "allkeys-lfu"}, "allkeys-lfu", True),
        (redis.ResponseError("unknown command"), {}, None, False),
    ],
)
def test_b23_the_eviction_policy_is_read_however_the_server_tells_it(
    config: Any, memory: Any, policy: str | None, loses: bool
) -> None:
    found = eviction(server(config, memory))

    assert (found.policy, found.loses_jobs) == (policy, loses)


def test_a_server_that_is_away_is_an_error_in_words() -> None:
    with pytest.raises(QueueUnavailable, match="accepted work is kept"):
        eviction(server(redis.ConnectionError("refused")))


def test_an_option_that_cannot_be_read_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidRequest, match="REDIS_URL has an option") as refused:
        connect("redis://127.0.0.1:6379?socket_timeout=hush")

    assert "hush" not in refused.value.detail


def test_who_can_do_without_waits_a_moment_and_tries_once() -> None:
    options = options_of(connect("redis://127.0.0.1:6380", hasty_seconds=0.25))

    assert (options["socket_connect_timeout"], options["socket_timeout"]) == (0.25, 0.25)
    assert options["retry"].get_retries() == 0
