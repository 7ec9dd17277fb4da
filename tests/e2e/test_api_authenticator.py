"""The authenticator on a real ledger, with a clock of the test's: tokens end, and every login does the same work."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import jwt
import pytest
from argon2 import PasswordHasher

from fleet.ledger import cluster, namespaces
from fleet.ledger.database import Database
from fleet.ledger.migrate import migrate
from fleet.model.errors import DatabaseUnavailable, FleetError, Unauthenticated
from fleet.services import authentication
from fleet.services.authentication import (
    ALIVE_SECONDS,
    TOKEN_SECONDS,
    Authenticator,
    ensure_admin_key,
    hashed,
    read_key_file,
    token_secret,
)
from fleet.services.database_clock import DatabaseClock

SECRET = "0123456789" * 4
HERE = "192.0.2.1"


class Clock:
    """Wall time as the test wants it."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now

    def refresh(self) -> None:
        pass


class Counted:
    """What is told of failures; nobody is ever refused."""

    def __init__(self) -> None:
        self.logins: list[tuple[str, str]] = []
        self.tokens: list[str] = []

    def refuse(self, address: str, namespace: str) -> None:
        pass

    def login_failed(self, address: str, namespace: str) -> None:
        self.logins.append((address, namespace))

    def token_failed(self, address: str) -> None:
        self.tokens.append(address)


class Counting(PasswordHasher):
    """How often a hash was verified."""

    verified = 0

    def verify(self, hash: str | bytes, password: str | bytes) -> Literal[True]:  # noqa: A002 - the library's own name
        Counting.verified += 1
        return super().verify(hash, password)


@pytest.fixture
def database(ledger_url: str) -> Iterator[Database]:
    found = Database(ledger_url)
    migrate(found)
    for name in ("tenant", "keyless"):
        namespaces.create(found, name)
    namespaces.create_key(found, "tenant", "k1", hashed("k1.secret"), lifetime_us=None)
    namespaces.create_key(found, "tenant", "k2", hashed("k2.secret"), lifetime_us=None)
    yield found
    found.close()


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def authenticator(database: Database, clock: Clock) -> Authenticator:
    return watched(database, clock)


def watched(
    database: Database, clock: Clock | DatabaseClock, elapsed: Callable[[], float] | None = None, secret: str = SECRET
) -> Authenticator:
    """An authenticator whose clock of the machine is, unless another is given, the test's."""
    own = clock if elapsed is None else elapsed
    return Authenticator(database, secret=secret, clock=clock, elapsed=own, failures=Counted())


def test_a_token_is_good_until_its_hour_is_over_and_never_longer(authenticator: Authenticator, clock: Clock) -> None:
    token = authenticator.login("tenant", "k1.secret", HERE).token
    assert authenticator.verify(token, HERE).namespace == "tenant"

    clock.now += TOKEN_SECONDS - 1
    assert authenticator.verify(token, HERE).namespace == "tenant"
    assert authenticator.remembered(token) is not None
    clock.now += 1
    assert authenticator.remembered(token) is None
    with pytest.raises(Unauthenticated):
        authenticator.verify(token, HERE)


class Elapsed:
    """Monotonic time as the test wants it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_a_token_lives_by_the_databases_time_whatever_the_machines_clock_says(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "time", lambda: 4_000_000_000.0)
    elapsed = Elapsed()
    one = watched(database, DatabaseClock(database, elapsed), elapsed)
    other = watched(database, DatabaseClock(database, Elapsed()), Elapsed())
    token = one.login("tenant", "k1.secret", HERE).token
    ends_at = jwt.decode(token, options={"verify_signature": False})["exp"]

    assert abs(ends_at - TOKEN_SECONDS - cluster.now_us(database) / 1_000_000) < 60
    assert other.verify(token, HERE).namespace == "tenant"
    # The machine slept past the hour, but the database did not: it is asked again after a minute.
    elapsed.now += TOKEN_SECONDS + 1
    assert one.verify(token, HERE).namespace == "tenant"


def test_the_databases_clock_goes_on_while_the_database_is_away(
    database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    elapsed = Elapsed()
    monkeypatch.setattr(cluster, "now_us", lambda _database: 5_000_000)
    clock = DatabaseClock(database, elapsed)
    clock.refresh()
    assert clock() == 5.0

    def away(_database: Database) -> int:
        raise DatabaseUnavailable("away")

    monkeypatch.setattr(cluster, "now_us", away)
    elapsed.now += 61
    clock.refresh()
    assert clock() == 66.0
    monkeypatch.setattr(cluster, "now_us", lambda _database: 100_000_000)
    elapsed.now += 61
    clock.refresh()
    assert clock() == 100.0
    monkeypatch.setattr(cluster, "now_us", away)
    with pytest.raises(DatabaseUnavailable):
        DatabaseClock(database, elapsed).refresh()


def test_a_remembered_token_is_looked_at_again_after_a_moment(
    authenticator: Authenticator, database: Database, clock: Clock
) -> None:
    token = authenticator.login("tenant", "k1.secret", HERE).token
    authenticator.verify(token, HERE)
    namespaces.delete_key(database, "tenant", "k1")

    assert authenticator.remembered(token) is not None
    clock.now += ALIVE_SECONDS
    assert authenticator.remembered(token) is None
    with pytest.raises(Unauthenticated):
        authenticator.verify(token, HERE)


def test_where_the_key_was_deleted_it_stops_at_once(authenticator: Authenticator, database: Database) -> None:
    token = authenticator.login("tenant", "k1.secret", HERE).token
    authenticator.verify(token, HERE)
    namespaces.delete_key(database, "tenant", "k1")

    authenticator.forget("tenant")

    assert authenticator.remembered(token) is None


def test_another_processs_secret_makes_another_token(authenticator: Authenticator, database: Database) -> None:
    other = watched(database, Clock(), secret="x" * 40)

    with pytest.raises(Unauthenticated):
        other.verify(authenticator.login("tenant", "k1.secret", HERE).token, HERE)


@pytest.mark.parametrize(
    "meant",
    [{"ns": ["system"]}, {"ns": None}, {"key": 1}, {"made": "1"}, {"made": 1.0}, {"exp": "9999999999"}, {"exp": True}],
)
def test_a_token_whose_claims_mean_something_else_is_no_token(
    authenticator: Authenticator, meant: dict[str, Any]
) -> None:
    claims = jwt.decode(authenticator.login("tenant", "k1.secret", HERE).token, options={"verify_signature": False})

    with pytest.raises(Unauthenticated):
        authenticator.verify(jwt.encode({**claims, **meant}, SECRET, algorithm="HS256"), HERE)


@pytest.mark.parametrize(
    ("namespace", "key"),
    [
        ("tenant", "k1.wrong"),
        ("tenant", "absent.secret"),
        ("tenant", "k2"),
        ("keyless", "k1.secret"),
        ("absent", "k1.secret"),
        ("a b", "k1.secret"),
        ("absent", "x" * 10_000),
    ],
)
def test_every_failed_login_verifies_exactly_one_hash(
    authenticator: Authenticator, monkeypatch: pytest.MonkeyPatch, namespace: str, key: str
) -> None:
    monkeypatch.setattr(authentication, "_HASHER", Counting(time_cost=1, memory_cost=8, parallelism=1))
    before = Counting.verified

    with pytest.raises(Unauthenticated) as refused:
        authenticator.login(namespace, key, HERE)

    assert Counting.verified - before == 1
    assert refused.value.detail == "the namespace or its key is wrong"


def test_keys_are_stored_as_argon2id_hashes(database: Database) -> None:
    (stored,) = namespaces.credentials(database, "tenant", "k1")

    assert stored.key_hash.startswith("$argon2id$")
    assert "secret" not in stored.key_hash


def test_the_secret_of_tokens_is_made_once_for_all_processes(database: Database, ledger_url: str) -> None:
    other = Database(ledger_url)

    first, second = token_secret(database, ""), token_secret(other, "")
    other.close()

    assert first == second
    assert len(first) >= 40
    assert token_secret(database, "configured" * 4) == "configured" * 4


def test_the_admin_key_file_is_made_once_and_kept(database: Database, tmp_path: Path, clock: Clock) -> None:
    path = tmp_path / "deep" / "admin.key"

    made = ensure_admin_key(database, path, "host-a")
    kept = ensure_admin_key(database, path, "host-a")

    assert (made, kept) == (True, False)
    assert path.stat().st_mode & 0o777 == 0o600
    authenticator = watched(database, clock)
    token = authenticator.login("system", read_key_file(path), HERE).token
    assert authenticator.verify(token, HERE).is_admin


def test_each_machine_may_have_a_key_file_of_its_own(database: Database, tmp_path: Path, clock: Clock) -> None:
    ensure_admin_key(database, tmp_path / "a.key", "host-a")
    ensure_admin_key(database, tmp_path / "b.key", "host-b")

    authenticator = watched(database, clock)
    for name in ("a.key", "b.key"):
        assert authenticator.login("system", read_key_file(tmp_path / name), HERE).expires_in == TOKEN_SECONDS


@pytest.mark.parametrize(
    "content", ["", "short", "with.a.dot.in.a.long.key", "two\nlines of sixteen characters", "x" * 300]
)
def test_a_key_file_that_holds_no_usable_key_is_told(database: Database, tmp_path: Path, content: str) -> None:
    path = tmp_path / "admin.key"
    path.write_text(content)

    with pytest.raises(FleetError, match="holds no usable key"):
        ensure_admin_key(database, path, "host")


def test_a_key_file_that_cannot_be_made_is_told(database: Database, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")

    with pytest.raises(FleetError, match="ADMIN_KEY_FILE"):
        ensure_admin_key(database, tmp_path / "file" / "admin.key", "host")
