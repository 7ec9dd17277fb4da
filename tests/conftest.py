"""Fixtures every layer may use: a private MariaDB, a private Redis, and the ledger's two databases."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

import pytest
from hypothesis import HealthCheck, settings

from tests.layers import LayerTimes
from tests.numbered import MARK, VectorCount
from tests.provision import MARIADB, REDIS, required
from tests.servers import MariaDBServer, RedisServer, fresh_database

# Derandomised: the same tree always runs the same examples, so a failure here is a failure everywhere. No example has
# a deadline and none is too slow: how fast this machine is says nothing about what is tested.
settings.register_profile(
    "fleet", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=False
)
settings.load_profile("fleet")


EMPTIED = 1
"""The number of the database of the shared Redis that is emptied before each test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--quick", action="store_true", help="leave out the tests marked slow")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(LayerTimes(), "layer-times")
    if MARK in config.option.markexpr:
        config.pluginmanager.register(VectorCount(Path(__file__).parent), "vector-count")
    # The machine's own FLEET_* variables must not decide a test; those of the test run itself stay.
    own = ("FLEET_TEST_", "FLEET_TRACES")
    for name in [name for name in os.environ if name.startswith("FLEET_") and not name.startswith(own)]:
        del os.environ[name]
    # Whoever ends the run with SIGTERM gets the same clean end as with Ctrl-C.
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("--quick"):
        return
    slow = [item for item in items if item.get_closest_marker("slow")]
    if slow:
        config.hook.pytest_deselected(items=slow)
        items[:] = [item for item in items if item not in slow]


@pytest.fixture(scope="session")
def mariadb() -> Iterator[MariaDBServer]:
    """One MariaDB for the whole run: use ``mariadb_url`` for a database, and ``own_mariadb`` to break a server."""
    with MariaDBServer(required(MARIADB)) as server:
        yield server


@pytest.fixture
def mariadb_url(mariadb: MariaDBServer) -> Iterator[str]:
    """An empty database, dropped afterwards."""
    with fresh_database(mariadb) as url:
        yield url


@pytest.fixture
def own_mariadb() -> Iterator[MariaDBServer]:
    """A MariaDB of this test's own, which it may kill, pause and restart."""
    with MariaDBServer(required(MARIADB)) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server() -> Iterator[RedisServer]:
    """One Redis for the whole run: use ``redis_url`` for an empty one, and ``own_redis`` to break a server."""
    with RedisServer(required(REDIS)) as server:
        yield server


@pytest.fixture
def redis_url(redis_server: RedisServer) -> str:
    """An empty Redis: a database of its own, for those who run longer than one test keep theirs."""
    with contextlib.closing(redis_server.connect(EMPTIED)) as client:
        client.flushdb()
    return redis_server.url(EMPTIED)


@pytest.fixture
def own_redis() -> Iterator[RedisServer]:
    """A Redis of this test's own, which it may kill, pause and restart."""
    with RedisServer(required(REDIS)) as server:
        yield server


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """A SQLite file that is not there yet."""
    return f"sqlite:///{tmp_path / 'ledger.db'}"


@pytest.fixture(params=["sqlite", "mariadb"])
def ledger_url(request: pytest.FixtureRequest) -> str:
    """An empty database, once on each backend: both run the same ledger tests."""
    return str(request.getfixturevalue(f"{request.param}_url"))
