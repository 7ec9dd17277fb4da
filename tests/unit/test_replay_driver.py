"""The driver keeps the order that it promises, whatever the service's answers take."""

from __future__ import annotations

import itertools
import random
import threading
import time
from fractions import Fraction
from typing import Any

import pytest

from fleet.cli.caller import Answer, Session, Unexpected
from fleet.cli.openb import EventKind, TraceEvent, TraceTask, events_of
from fleet.cli.replay_driver import PROBLEMS_MAX, Driver, Pace
from fleet.cli.replay_tally import Tally

WINDOW_S = 100


class Service:
    """Stands in for the API: answers after a moment, and remembers when each call began and ended."""

    def __init__(self, create: Any = None) -> None:
        self.create = create or (lambda name: Answer(201, {"uuid": name, "node": "n1"}, 0.001))
        self.log: list[tuple[float, float, str, str]] = []
        self.in_flight = self.in_flight_max = 0
        self._lock = threading.Lock()
        self._draw = random.Random(5)

    def caller(self) -> Service:
        return self

    def get(self, path: str) -> Any:
        assert path == "/admin/cluster-capacity"
        kinds = ("total", "claimed", "unclaimed_used", "overage")
        return {f"{kind}_{name}": 0 for kind in kinds for name in ("cpus", "memory_mb", "disk_gb")}

    def call(self, method: str, path: str, body: Any = None, *, key: str = "") -> Answer:
        began = time.monotonic()
        if method == "GET":
            return Answer(404, {}, 0.0)
        with self._lock:
            self.in_flight += 1
            self.in_flight_max = max(self.in_flight_max, self.in_flight)
            pause = self._draw.random() * 0.004
        time.sleep(pause)
        name = body["name"] if method == "POST" else path.rpartition("/")[2]
        answer: Answer = self.create(name) if method == "POST" else Answer(202, {}, 0.001)
        with self._lock:
            self.in_flight -= 1
            self.log.append((began, time.monotonic(), method, name))
        return answer


def a_trace(count: int) -> list[TraceEvent]:
    draw = random.Random(3)
    tasks = []
    for number in range(count):
        begin = draw.randrange(1000)
        gone = Fraction(begin + draw.randrange(300))
        tasks.append(TraceTask(f"t{number}", 1, 1024, Fraction(begin), gone))
    return events_of(tasks)


def drive(service: Service, events: list[TraceEvent], *, clients: int = 6, speed: int | None = None) -> Tally:
    tally = Tally()
    pace = Pace(clients=clients, window_s=WINDOW_S, speed=speed, namespace="replay", run="r")
    session: Any = service
    assert not isinstance(session, Session)
    Driver(session, pace, tally).drive(events, lambda: None)
    return tally


def test_every_event_is_sent_once_and_no_more_clients_than_asked_for() -> None:
    service = Service()

    tally = drive(service, a_trace(80))

    assert len(service.log) == 160
    assert (len(tally.placed), tally.departed, tally.problem_count) == (80, 80, 0)
    assert 1 < service.in_flight_max <= 6


def test_a_departure_begins_after_its_own_arrival_was_answered() -> None:
    service = Service()

    drive(service, a_trace(80))

    answered = {name: ended for _began, ended, method, name in service.log if method == "POST"}
    assert all(began >= answered[name] for began, _ended, method, name in service.log if method == "DELETE")


def test_a_window_begins_when_the_one_before_is_answered() -> None:
    service, events = Service(), a_trace(80)
    window = {
        (event.task.name, "POST" if event.kind is EventKind.ARRIVAL else "DELETE"): int(event.at_s // WINDOW_S)
        for event in events
    }

    drive(service, events)

    ended: dict[int, float] = {}
    begun: dict[int, float] = {}
    for began, end, method, name in service.log:
        number = window[(name, method)]
        ended[number] = max(ended.get(number, 0.0), end)
        begun[number] = min(begun.get(number, end), began)
    order = sorted(begun)
    assert len(order) > 3
    assert all(begun[later] >= ended[earlier] for earlier, later in itertools.pairwise(order))


def test_a_refused_task_has_no_departure() -> None:
    refusal = Answer(507, {"code": "out_of_capacity", "stage": "sufficient_idle_cpu", "detail": "no"}, 0.001)
    service = Service(lambda name: refusal if name == "t0" else Answer(201, {"uuid": name, "node": "n1"}, 0.001))

    tally = drive(service, a_trace(10))

    assert tally.refused_count == 1
    assert (len(tally.placed), tally.departed) == (9, 9)
    assert "t0" not in {name for _began, _ended, method, name in service.log if method == "DELETE"}


@pytest.mark.parametrize(
    "answer",
    [
        Answer(500, {"code": "internal_error"}, 0.0),
        Answer(503, {"code": "database_unavailable"}, 0.0),
        Answer(400, "?", 0.0),
    ],
)
def test_an_answer_that_is_no_refusal_is_a_problem(answer: Answer) -> None:
    tally = drive(Service(lambda _name: answer), a_trace(5))

    assert (tally.problem_count, tally.refused_count, len(tally.placed)) == (5, 0, 0)


def test_a_hopeless_run_ends_early() -> None:
    service = Service(lambda _name: Answer(500, {"code": "internal_error"}, 0.0))

    with pytest.raises(Unexpected, match="neither with a node nor with a refusal"):
        drive(service, a_trace(3 * PROBLEMS_MAX))


def test_a_speed_up_sends_nothing_before_its_time() -> None:
    service, events = Service(), a_trace(10)
    started = time.monotonic()

    drive(service, events, speed=2000)

    due = {
        (event.task.name, "POST" if event.kind is EventKind.ARRIVAL else "DELETE"): float(event.at_s) / 2000
        for event in events
    }
    assert all(began - started >= due[(name, method)] for began, _ended, method, name in service.log)
