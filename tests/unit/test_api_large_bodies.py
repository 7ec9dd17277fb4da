"""A large body is read aside of the loop that serves everybody, with the same answers; a small one in it."""

from __future__ import annotations

import json
import threading
from types import SimpleNamespace
from typing import Any

import anyio
import pytest
from starlette.types import Message

from fleet.api import bodies
from fleet.api.bodies import ASIDE_BYTES, StrictRequest
from fleet.api.problems import BodyProblem

SECONDS_MAX = 60


def reading(body: bytes, limiter: anyio.CapacityLimiter) -> StrictRequest:
    async def receive() -> Message:
        return {"type": "http.request", "body": body, "more_body": False}

    app = SimpleNamespace(state=SimpleNamespace(large_body_limiter=limiter))
    return StrictRequest({"type": "http", "headers": [], "app": app}, receive)


def test_others_are_served_while_a_large_body_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    served = threading.Event()
    # It ends only when somebody else had a turn.
    monkeypatch.setattr(bodies, "parse", lambda _body: served.wait(SECONDS_MAX))

    async def run() -> Any:
        async def somebody_else() -> None:
            served.set()

        request = reading(b" " * (ASIDE_BYTES + 1), anyio.CapacityLimiter(1))
        async with anyio.create_task_group() as group:
            group.start_soon(somebody_else)
            return await request.json()

    assert anyio.run(run) is True


@pytest.mark.parametrize("size", [10, ASIDE_BYTES + 1])
def test_what_is_acceptable_does_not_depend_on_the_size(size: int) -> None:
    async def read(body: bytes) -> Any:
        return await reading(body, anyio.CapacityLimiter(1)).json()

    filler = " " * size
    assert anyio.run(read, f'{{"a": 1}}{filler}'.encode()) == {"a": 1}
    with pytest.raises(json.JSONDecodeError):
        anyio.run(read, f'{{"a": {filler}'.encode())
    with pytest.raises(BodyProblem, match="stands twice"):
        anyio.run(read, f'{{"a": 1, "a": 2}}{filler}'.encode())
