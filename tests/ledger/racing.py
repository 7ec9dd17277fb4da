"""Crews that race: threads or processes, each with its own connections, released together by a barrier.

A job is a function that a fresh process can import: `job(db, pause, *args)`. `pause` is the place where a naive
admission waits between its read and its write, until every racer stands there: so the interleaving that breaks it
happens always, not now and then.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import threading
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection as Pipe
from types import TracebackType
from typing import Any, Protocol, Self, TypeVar

from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database
from fleet.model.admission import AdmissionOutcome, Busy
from fleet.model.errors import DatabaseUnavailable
from tests.ledger import fleet_of

MEET_SECONDS_MAX = 30
"""Only a racer that hangs lets the others wait so long: one that has ended keeps nobody."""
ANSWER_SECONDS_MAX = 120
BUSY_SECONDS_MAX = 60
BUSY_SECONDS = 0.002

R = TypeVar("R")
Pause = Callable[[], None]
Attempt = Callable[[Database, NodeAsk, Pause], AdmissionOutcome]
Job = Callable[..., Any]
Answers = list[Any]


class Barrier(Protocol):
    def wait(self, timeout: float | None = None) -> int: ...
    def abort(self) -> None: ...


class Crew(Protocol):
    """Who races: `run` gives each racer one job (or the same one) and returns what each answered or raised."""

    size: int

    def run(self, job: Job, arguments: Sequence[tuple[Any, ...]]) -> Answers: ...


class Threads:
    """Racing threads of this process."""

    def __init__(self, url: str, size: int) -> None:
        self.size = size
        self._databases = [Database(url, pool_size=2) for _ in range(size)]

    def run(self, job: Job, arguments: Sequence[tuple[Any, ...]]) -> Answers:
        assert len(arguments) == self.size
        start, meet = threading.Barrier(self.size), threading.Barrier(self.size)
        answers: Answers = [None] * self.size
        for database in self._databases:
            _connect(database)

        def racer(index: int) -> None:
            start.wait(ANSWER_SECONDS_MAX)
            answers[index] = _answer(job, self._databases[index], meet, arguments[index])

        threads = [threading.Thread(target=racer, args=(index,)) for index in range(self.size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(ANSWER_SECONDS_MAX)
        assert not any(thread.is_alive() for thread in threads), "a racer hangs"
        return answers

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for database in self._databases:
            database.close()


class Processes:
    """Racing processes, started once and given a job a round."""

    def __init__(self, url: str, size: int) -> None:
        self.size = size
        context = multiprocessing.get_context("spawn")
        self._start, self._meet = context.Barrier(size), context.Barrier(size)
        self._pipes: list[Any] = []
        self._processes = []
        for _ in range(size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(url, theirs, self._start, self._meet), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)

    def run(self, job: Job, arguments: Sequence[tuple[Any, ...]]) -> Answers:
        assert len(arguments) == self.size
        if self._meet.broken:
            self._meet.reset()
        for pipe, given in zip(self._pipes, arguments, strict=True):
            pipe.send((job, given))
        return [self._receive(pipe) for pipe in self._pipes]

    @staticmethod
    def _receive(pipe: Any) -> Any:
        assert pipe.poll(ANSWER_SECONDS_MAX), "a racer hangs"
        return pipe.recv()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for pipe in self._pipes:
            with contextlib.suppress(OSError):
                pipe.send(None)
        for process in self._processes:
            process.join(5)
            if process.is_alive():
                process.kill()
                process.join(5)


def serve(url: str, pipe: Pipe, start: Barrier, meet: Barrier) -> None:
    """The life of a racing process."""
    database = Database(url, pool_size=2)
    while (order := pipe.recv()) is not None:
        job, arguments = order
        _connect(database)
        start.wait(ANSWER_SECONDS_MAX)
        pipe.send(_answer(job, database, meet, arguments))
    database.close()


def _connect(db: Database) -> None:
    """Open its connections before the start: who opens them in the race comes late to it."""
    with db.read(), db.engine.connect():
        pass


def _answer(job: Job, db: Database, meet: Barrier, arguments: tuple[Any, ...]) -> Any:
    try:
        return job(db, _pause(meet), *arguments)
    except Exception as error:  # noqa: BLE001  # what reached the caller is the finding
        return f"{type(error).__name__}: {error}"
    finally:
        # All will never meet again: whoever waits for this one goes on.
        meet.abort()


def _pause(meet: Barrier) -> Pause:
    """Wait for all racers; when not all come (some were refused at once, and have ended), go on."""

    def pause() -> None:
        with contextlib.suppress(threading.BrokenBarrierError):
            meet.wait(MEET_SECONDS_MAX)

    return pause


def guarded(db: Database, wanted: NodeAsk, pause: Pause) -> AdmissionOutcome:
    """The product's admission: there is no place to pause."""
    return fleet_of.admit(db, wanted)


def grown(db: Database, wanted: NodeAsk, pause: Pause) -> AdmissionOutcome:
    """The product's growth in place: there is no place to pause either."""
    return fleet_of.grow(db, wanted)


def once(db: Database, pause: Pause, attempt: Attempt, wanted: NodeAsk) -> AdmissionOutcome:
    return attempt(db, wanted, pause)


def until_decided(db: Database, pause: Pause, attempt: Attempt, wanted: NodeAsk) -> AdmissionOutcome:
    """Try one node again while it is busy: a locked row says nothing about room."""
    deadline = time.monotonic() + BUSY_SECONDS_MAX
    outcome = attempt(db, wanted, pause)
    while isinstance(outcome, Busy) and time.monotonic() < deadline:
        time.sleep(BUSY_SECONDS)
        outcome = attempt(db, wanted, pause)
    return outcome


def until_known(action: Callable[[], R]) -> R:
    """Repeat what was rolled back because others held its rows for long, as whoever is told so is told to do.

    A slow machine has longer queues. What may have been done all the same is not repeated: it is raised.
    """
    deadline = time.monotonic() + BUSY_SECONDS_MAX
    while True:
        try:
            return action()
        except DatabaseUnavailable as error:
            if "is not known" in error.detail or time.monotonic() > deadline:
                raise


def walk(
    db: Database, pause: Pause, attempt: Attempt, creates: Sequence[Sequence[NodeAsk]]
) -> list[list[AdmissionOutcome]]:
    """For each create, try its nodes in order until one admits; returns every decided outcome."""
    found = []
    for create in creates:
        outcomes: list[AdmissionOutcome] = []
        for wanted in create:
            outcomes.append(until_decided(db, pause, attempt, wanted))
            if type(outcomes[-1]).__name__ == "Admitted":
                break
        found.append(outcomes)
    return found
