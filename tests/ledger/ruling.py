"""Rules on a real ledger: processes that place at the same moment, and the naive twin that every race must catch."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from fleet.ledger import locked_rules
from fleet.ledger.database import Database
from fleet.services import place
from fleet.services.context import Context
from fleet.services.create import Created
from fleet.services.place import Refusal
from tests.ledger.placing import Outcome, create, process

MEET_SECONDS_MAX = 60
"""Only a racer that hangs lets the others wait so long: one that has ended keeps nobody."""
ANSWER_SECONDS_MAX = 120
BUSY_SECONDS_MAX = 60
WALK_SECONDS = 60.0
"""For one walk: in a race it is about who comes first, and not about how long this machine takes."""


def apart(role: str, *, within: str | None = None) -> dict[str, Any]:
    """A body tagged `role`, that wants no other one near it."""
    rule: dict[str, Any] = {"resource": "virtual_machine", "operator": "has_not", "tags": {"role": role}}
    if within is not None:
        rule["within"] = within
    return {"tags": {"role": role}, "placement_rules": [rule]}


def until_answered(ctx: Context, body: Mapping[str, Any]) -> Outcome:
    """Create as a caller does that honours `Retry-After`, only faster: busy says nothing."""
    deadline = time.monotonic() + BUSY_SECONDS_MAX
    outcome = create(ctx, body)
    while is_busy(outcome) and time.monotonic() < deadline:
        outcome = create(ctx, body)
    return outcome


def is_busy(outcome: Outcome) -> bool:
    """Whether nothing was proved: the same request may be placed the next time."""
    return isinstance(outcome, Refusal) and outcome.code == "placement_busy"


def creating(body: Mapping[str, Any]) -> Callable[[Context, int], Outcome]:
    """What each of the racers does: create this."""
    return lambda ctx, _at: until_answered(ctx, body)


class Racers:
    """Processes that decide on the same fleet before any of them admits; each has connections and caches of its own."""

    def __init__(self, url: str, size: int) -> None:
        self.size = size
        self._meet = threading.Barrier(size)
        self._databases = [Database(url, pool_size=3) for _ in range(size)]
        self._decided: list[bool] = [False] * size
        self.contexts = [self._overtaken(at, process(db)) for at, db in enumerate(self._databases)]

    def _overtaken(self, at: int, ctx: Context) -> Context:
        def fault(point: str) -> None:
            if point == "place_after_decide" and not self._decided[at]:
                self._decided[at] = True
                with contextlib.suppress(threading.BrokenBarrierError):
                    self._meet.wait(MEET_SECONDS_MAX)

        return replace(ctx, fault=fault)

    def run(self, job: Callable[[Context, int], Any]) -> list[Any]:
        """Return what each answered; what one raised is raised here."""
        self._decided = [False] * self.size
        self._meet.reset()
        answers: list[Any] = [None] * self.size

        def racer(at: int) -> None:
            try:
                answers[at] = job(self.contexts[at], at)
            except BaseException as error:  # noqa: BLE001  # raised by whoever started the race
                answers[at] = error
            finally:
                # All will never meet again: whoever waits for this one goes on.
                self._meet.abort()

        threads = [threading.Thread(target=racer, args=(at,)) for at in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ANSWER_SECONDS_MAX)
        assert not any(thread.is_alive() for thread in threads), "a racer hangs"
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        return answers

    def close(self) -> None:
        for database in self._databases:
            database.close()


@contextlib.contextmanager
def racing(url: str, size: int, *, walk_seconds: float = WALK_SECONDS) -> Iterator[Racers]:
    racers = Racers(url, size)
    try:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(place, "DEADLINE_SECONDS", walk_seconds)
            yield racers
    finally:
        racers.close()


def naively(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let admission believe what the snapshot said: no rule is judged under the locks, no group is held."""
    monkeypatch.setattr(locked_rules, "broken", lambda *_args, **_named: "")


def codes(outcomes: Sequence[Outcome]) -> list[str]:
    """What the refused ones were told."""
    return sorted(one.code for one in outcomes if isinstance(one, Refusal))


def places(outcomes: Sequence[Outcome]) -> list[str]:
    """The nodes of the placed ones."""
    return sorted(one.node for one in outcomes if isinstance(one, Created))
