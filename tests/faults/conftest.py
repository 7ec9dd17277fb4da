"""Fixtures for every test of this layer: a fleet of processes, its APIs, and a ledger on MariaDB without them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.faults.rig import Rig
from tests.faults.soak import StartApi, apis_of
from tests.ledger.injecting import injector  # noqa: F401  # pytest finds fixtures by name
from tests.ledger.ledgers import maria, mariadb_ledger, mariadb_ledger_url  # noqa: F401  # as above


@pytest.fixture
def rig(tmp_path: Path, mariadb_url: str, redis_url: str) -> Iterator[Rig]:
    made = Rig(tmp_path, mariadb_url, redis_url)
    yield made
    made.close()


@pytest.fixture
def start_api(rig: Rig) -> Iterator[StartApi]:
    with apis_of(rig) as start:
        yield start
