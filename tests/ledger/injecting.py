"""Errors raised at the driver, at a chosen step of a unit: before a statement, in its answer, at COMMIT or after it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pymysql
import pytest
from pymysql.connections import Connection

Fault = Callable[[Connection, Callable[[], Any]], Any]
"""Gets the connection and what would have been done; does it or not, and raises or not."""


def error(number: int) -> Fault:
    """The server answers with this error, and the statement did nothing."""

    def fault(connection: Connection, proceed: Callable[[], Any]) -> Any:
        raise pymysql.err.OperationalError(number, f"injected {number}")

    return fault


def lost(*, after: bool) -> Fault:
    """The connection breaks before the statement is sent, or after the server carried it out."""

    def fault(connection: Connection, proceed: Callable[[], Any]) -> Any:
        if after:
            proceed()
        connection._force_close()  # type: ignore[attr-defined]  # the stubs leave it out
        raise pymysql.err.OperationalError(2013, "injected: lost connection during query")

    return fault


class Injector:
    """Counts the steps of every connection while armed, and puts one fault at one of them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.steps: list[str] = []
        self.struck = False
        self._armed = False
        self._at: int | None = None
        self._fault: Fault | None = None
        for name in ("query", "commit", "next_result"):
            self._wrap(monkeypatch, name)

    def _wrap(self, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
        real = getattr(Connection, name)

        def wrapped(connection: Connection, *args: Any, **options: Any) -> Any:
            what = str(args[0])[:60] if args else name
            return self._step(connection, what, lambda: real(connection, *args, **options))

        monkeypatch.setattr(Connection, name, wrapped)

    def _step(self, connection: Connection, what: str, proceed: Callable[[], Any]) -> Any:
        # Setting up a session is no step of a unit, and its reading back must not be struck a second time.
        if not self._armed or self.struck or what.startswith(("SET SESSION", "SELECT @@", "SET AUTOCOMMIT")):
            return proceed()
        self.steps.append(what)
        if len(self.steps) - 1 != self._at or self._fault is None:
            return proceed()
        self.struck = True
        return self._fault(connection, proceed)

    @contextmanager
    def at(self, step: int | None, fault: Fault | None = None) -> Iterator[None]:
        self.steps, self.struck, self._at, self._fault, self._armed = [], False, step, fault, True
        try:
            yield
        finally:
            self._armed = False

    def count(self, action: Callable[[], Any]) -> int:
        """How many steps an action takes when nothing goes wrong."""
        with self.at(None):
            action()
        return len(self.steps)

    def commit_step(self, action: Callable[[], Any]) -> int:
        """Which step of an action is its COMMIT."""
        self.count(action)
        return self.steps.index("commit")


@pytest.fixture
def injector(monkeypatch: pytest.MonkeyPatch) -> Injector:
    return Injector(monkeypatch)
