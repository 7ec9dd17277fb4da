"""Clients that create instances as fast as they are answered: separate processes, plain http.client, kept alive."""

from __future__ import annotations

import functools
import http.client
import itertools
import json
import multiprocessing
import statistics
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from multiprocessing.synchronize import Barrier, Event
from typing import Any

HOST = "127.0.0.1"
CREATED = 201
ANSWER_SECONDS_MAX = 30
START_SECONDS_MAX = 60
BODY: Mapping[str, Any] = {"name": "bench", "cpus": 2, "memory_mb": 4096, "disk_gb": 20}
Bodies = Callable[[int, int], Mapping[str, Any]]
"""What a client, by its number, asks for at its n-th create."""


@dataclass(frozen=True, slots=True)
class Load:
    """What one round of clients saw. Times are seconds; only answers with 201 count."""

    seconds: float
    times: Sequence[float]
    other: Counter[str] = field(default_factory=Counter)

    @property
    def per_second(self) -> float:
        """Creates a second over the measured time."""
        return len(self.times) / self.seconds

    def percentile_ms(self, percent: int) -> float:
        """Milliseconds of a create, nearest rank."""
        ordered = sorted(self.times)
        return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] * 1000 if ordered else float("nan")

    def __str__(self) -> str:
        others = f", others {dict(self.other)}" if self.other else ""
        return (
            f"{self.per_second:.0f}/s, p50 {self.percentile_ms(50):.2f} ms, p99 {self.percentile_ms(99):.2f} ms{others}"
        )


@dataclass(frozen=True, slots=True)
class _Signals:
    """What the clients share: all start together, all stop together."""

    gate: Barrier
    over: Event
    warm_s: float


def plain(_client: int, _nth: int) -> Mapping[str, Any]:
    """Ask for the same every time, and for nothing but room."""
    return BODY


def drive(port: int, token: str, *, clients: int, seconds: float, warm_s: float = 1.0, bodies: Bodies = plain) -> Load:
    """Run clients for `warm_s` unmeasured and `seconds` measured."""
    context = multiprocessing.get_context("fork")
    signals = _Signals(context.Barrier(clients + 1), context.Event(), warm_s)
    ends: list[Connection] = []
    processes = []
    for number in range(clients):
        ours, theirs = context.Pipe(duplex=False)
        asked = functools.partial(bodies, number)
        process = context.Process(target=_client, args=(port, token, signals, theirs, asked), daemon=True)
        process.start()
        theirs.close()
        ends.append(ours)
        processes.append(process)
    signals.gate.wait(START_SECONDS_MAX)
    time.sleep(warm_s + seconds)
    signals.over.set()
    times: list[float] = []
    other: Counter[str] = Counter()
    for end in ends:
        if not end.poll(ANSWER_SECONDS_MAX * 2):
            raise TimeoutError("a client did not come back")
        found, counted = end.recv()
        times += found
        other.update(counted)
    for process in processes:
        process.join(ANSWER_SECONDS_MAX)
    return Load(seconds, times, other)


def median_of(rounds: Sequence[Load]) -> Load:
    """The round in the middle, by creates a second."""
    middle = statistics.median_low([one.per_second for one in rounds])
    return next(one for one in rounds if one.per_second == middle)


def _client(
    port: int, token: str, signals: _Signals, answers: Connection, asked: Callable[[int], Mapping[str, Any]]
) -> None:
    connection = http.client.HTTPConnection(HOST, port, timeout=ANSWER_SECONDS_MAX)
    nth = itertools.count()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    connection.connect()
    times: list[float] = []
    other: Counter[str] = Counter()
    signals.gate.wait(START_SECONDS_MAX)
    begin = time.perf_counter() + signals.warm_s
    while not signals.over.is_set():
        body = json.dumps(asked(next(nth))).encode()
        started = time.perf_counter()
        connection.request("POST", "/instances", body, headers)
        response = connection.getresponse()
        content = response.read()
        ended = time.perf_counter()
        if started < begin or signals.over.is_set():
            continue
        if response.status == CREATED:
            times.append(ended - started)
        else:
            other[_code(response.status, content)] += 1
    connection.close()
    answers.send((times, other))


def _code(status: int, content: bytes) -> str:
    try:
        return f"{status} {json.loads(content)['code']}"
    except (ValueError, KeyError, TypeError):
        return str(status)
