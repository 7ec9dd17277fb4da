"""The bound on failed authentication: who is over it waits, and nobody else does."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

import pytest
import redis
from limits import RateLimitItem, RateLimitItemPerSecond

from fleet.ledger import namespaces
from fleet.ledger.database import Database, Sql
from fleet.ledger.migrate import migrate
from fleet.model.errors import RateLimited
from fleet.queue.connection import connect
from fleet.services import failed_logins
from fleet.services.failed_logins import (
    ADDRESS_MAX,
    PAIR_MAX,
    REDIS_PAUSE_SECONDS,
    REDIS_SECONDS,
    TOKENS_MAX,
    WINDOW_SECONDS,
    Budget,
    Burst,
    FailedLogins,
)
from tests.servers import RedisServer, free_port, wait_until

HERE, THERE = "192.0.2.1", "192.0.2.2"
Made = Callable[..., FailedLogins]
PATIENT_SECONDS = 10.0
"""What Redis is given where the wait is not the subject: a late answer would be counted in memory, and told apart."""

HANG_SECONDS = 2.0
"""What Redis is given where it hangs, and afterwards, when it must answer: a busy machine takes its time."""


def each_waits(seconds: float) -> float:
    """How long as many failures take at the least if each waits for Redis by itself: the question, and the count."""
    return PAIR_MAX * 2 * seconds


class Told:
    """The bursts, in the order in which they were told."""

    def __init__(self) -> None:
        self.bursts: list[Burst] = []

    def __call__(self, burst: Burst) -> None:
        self.bursts.append(burst)


@pytest.fixture
def told() -> Told:
    return Told()


def counting(client: redis.Redis | None, told: Told) -> FailedLogins:
    return FailedLogins(client, elapsed=time.monotonic, wall_clock=time.time, on_burst=told)


@pytest.fixture(params=["redis", "memory"])
def made(request: pytest.FixtureRequest, told: Told) -> Iterator[Callable[[], FailedLogins]]:
    """Counters of as many processes as asked for; without Redis it is one process's alone."""
    if request.param == "memory":
        one = counting(None, told)
        yield lambda: one
        return
    url = request.getfixturevalue("redis_url")
    yield lambda: counting(connect(url, hasty_seconds=PATIENT_SECONDS), told)


def fail(failures: FailedLogins, times: int, address: str = HERE, namespace: str = "tenant") -> None:
    for _ in range(times):
        failures.refuse(address, namespace)
        failures.login_failed(address, namespace)


def refused(failures: FailedLogins, address: str = HERE, namespace: str = "tenant") -> RateLimited | None:
    try:
        failures.refuse(address, namespace)
    except RateLimited as error:
        return error
    return None


def test_after_so_many_failures_the_next_try_waits_out_the_window(made: Made, told: Told) -> None:
    failures, began = made(), time.monotonic()
    fail(failures, PAIR_MAX)

    error = refused(failures)

    assert error is not None
    # Redis and the answer tell whole seconds.
    least = WINDOW_SECONDS - (time.monotonic() - began) - 2
    assert least <= error.extra["retry_after_seconds"] <= WINDOW_SECONDS
    assert str(error.extra["retry_after_seconds"]) in error.detail
    with pytest.raises(RateLimited):
        failures.refuse_known(HERE, "tenant")


def test_processes_count_together(made: Made) -> None:
    one, other = made(), made()
    fail(one, PAIR_MAX // 2)
    fail(other, PAIR_MAX - PAIR_MAX // 2)

    assert refused(one) is not None
    assert refused(other) is not None


def test_an_attack_on_one_namespace_locks_out_no_other_and_no_other_address(made: Made) -> None:
    failures = made()
    fail(failures, PAIR_MAX)
    for _ in range(ADDRESS_MAX * 3):
        assert refused(failures) is not None

    assert refused(failures, HERE, "other") is None
    assert refused(failures, THERE, "tenant") is None


def test_the_admin_is_never_locked_out_from_another_address(made: Made) -> None:
    failures = made()
    for at in range(60):
        attacker = f"198.51.100.{at}"
        fail(failures, PAIR_MAX, attacker, "system")
        assert refused(failures, attacker, "system") is not None

    assert refused(failures, THERE, "system") is None


def test_an_address_that_tries_many_namespaces_is_stopped_in_all(made: Made) -> None:
    failures = made()
    for at in range(ADDRESS_MAX):
        fail(failures, 1, HERE, f"ns-{at}")

    assert refused(failures, HERE, "never-tried") is not None
    assert refused(failures, THERE, "never-tried") is None


def test_names_that_are_none_are_one_namespace(made: Made) -> None:
    failures = made()
    for at in range(PAIR_MAX):
        fail(failures, 1, HERE, f"no name {at}")

    assert refused(failures, HERE, "<another>") is not None
    assert refused(failures, HERE, "tenant") is None


def test_bad_tokens_have_a_bound_of_their_own(made: Made) -> None:
    failures = made()
    for _ in range(TOKENS_MAX):
        failures.token_failed(HERE)

    with pytest.raises(RateLimited):
        failures.token_failed(HERE)
    failures.token_failed(THERE)
    assert refused(failures) is None


def test_a_window_ends(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    short: dict[Budget, RateLimitItem] = {budget: RateLimitItemPerSecond(2, 1) for budget in Budget}
    monkeypatch.setattr(failed_logins, "ALLOWED", short)
    failures = made()

    def used_up() -> bool:
        failures.login_failed(HERE, "tenant")
        return refused(failures) is not None

    # On a busy machine a window may be over between two failures: then the next one is tried.
    wait_until(used_up, seconds=60, what="a window is used up")
    wait_until(lambda: refused(failures) is None, seconds=60, what="the window ends")


def test_a_used_up_budget_is_told_once_however_many_tries_follow(made: Made, told: Told) -> None:
    one, other = made(), made()
    for failures in (one, other) * PAIR_MAX:
        # Past the refusal: as when several processes verify at the same moment.
        failures.login_failed(HERE, "tenant")

    assert told.bursts == [Burst(budget=Budget.PAIR, address=HERE, namespace="tenant", failures=PAIR_MAX)]


@pytest.mark.parametrize(
    ("address", "group"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("::ffff:192.0.2.1", "192.0.2.1"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", "unknown"),
        ("testclient", "unknown"),
    ],
)
def test_an_ipv6_caller_is_its_network(address: str, group: str) -> None:
    assert failed_logins.grouped(address) == group


def test_a_redis_that_is_away_costs_a_moment_once_and_no_login(told: Told) -> None:
    failures = counting(connect(f"redis://127.0.0.1:{free_port()}", hasty_seconds=REDIS_SECONDS), told)
    began = time.monotonic()
    fail(failures, PAIR_MAX)

    assert refused(failures) is not None
    assert time.monotonic() - began < each_waits(REDIS_SECONDS)


def answers(server: RedisServer) -> bool:
    with contextlib.closing(server.connect()) as client:
        try:
            return bool(client.ping())
        except redis.RedisError:
            return False


def test_a_redis_that_hangs_is_waited_for_once_and_used_again_later(own_redis: RedisServer, told: Told) -> None:
    now = [1000.0]
    failures = FailedLogins(
        connect(own_redis.url(), hasty_seconds=HANG_SECONDS),
        elapsed=lambda: now[0],
        wall_clock=time.time,
        on_burst=told,
    )
    fail(failures, 1)
    own_redis.pause()
    try:
        began = time.monotonic()
        fail(failures, PAIR_MAX)
        took = time.monotonic() - began
        assert refused(failures) is not None
    finally:
        own_redis.resume()

    assert took < each_waits(HANG_SECONDS)
    wait_until(lambda: answers(own_redis), seconds=60, what="Redis answers again")
    # What was counted in Redis before is not lost, and another process's failures are seen again.
    now[0] += REDIS_PAUSE_SECONDS + WINDOW_SECONDS
    assert refused(failures) is None
    fail(failures, PAIR_MAX - 1)
    assert refused(failures) is not None


def test_redis_holds_no_key_and_no_token(redis_url: str, told: Told) -> None:
    client = connect(redis_url)
    failures = counting(connect(redis_url, hasty_seconds=PATIENT_SECONDS), told)
    fail(failures, 1)
    failures.token_failed(HERE)

    names = sorted(name.decode() for name in client.scan_iter())

    assert names == [
        f"fleet:failed-logins:{kind}"
        for kind in (f"logins/{HERE}/", f"logins_to_one_namespace/{HERE}/tenant", f"tokens/{HERE}/")
    ]
    assert all(0 < client.ttl(name) <= WINDOW_SECONDS for name in names)
    client.close()


def test_a_burst_that_cannot_be_recorded_fails_no_login() -> None:
    database = Database(f"mysql+pymysql://root@127.0.0.1:{free_port()}/nowhere")
    burst = Burst(budget=Budget.PAIR, address=HERE, namespace="tenant", failures=PAIR_MAX)

    failed_logins.recorded_in(database)(burst)

    database.close()


def test_a_burst_on_what_is_not_there_is_on_the_clusters_timeline(ledger_url: str) -> None:
    database = Database(ledger_url)
    migrate(database)
    namespaces.create(database, "tenant")
    keep = failed_logins.recorded_in(database)
    for budget, namespace in ((Budget.PAIR, "tenant"), (Budget.PAIR, "absent"), (Budget.ADDRESS, "")):
        keep(Burst(budget=budget, address=HERE, namespace=namespace, failures=10))

    with database.read() as conn:
        found = Sql("SELECT object_type, object_id FROM events WHERE message = :m ORDER BY id")
        told = [tuple(row) for row in found.run(conn, m=failed_logins.MESSAGE)]
    database.close()

    assert told == [("namespace", "tenant"), *[("cluster", failed_logins.TIMELINE)] * 2]
