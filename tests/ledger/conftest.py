"""Fixtures for every test of this layer: ledgers, an injector of errors, and what is logged."""

from __future__ import annotations

import io
import logging
from collections.abc import Iterator

import pytest
import structlog

from fleet.telemetry import configure_logging
from tests.ledger.injecting import injector  # noqa: F401  # pytest finds fixtures by name
from tests.ledger.ledgers import (  # noqa: F401  # as above
    db,
    db_url,
    lease,
    maria,
    mariadb_ledger,
    mariadb_ledger_url,
    sqlite_ledger_url,
    sqlite_template,
)


@pytest.fixture
def log() -> Iterator[io.StringIO]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    stream = io.StringIO()
    configure_logging("info", "json", stream=stream)
    yield stream
    root.handlers[:] = handlers
    root.setLevel(level)
    structlog.reset_defaults()
