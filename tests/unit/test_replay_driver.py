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
from fleet.cli.openb import EventKind, TraceEvent, TraceNode, TraceTask, events_of
from fleet.cli.replay_cards import Cards
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


def drive(
    service: Any, events: list[TraceEvent], *, clients: int = 6, speed: int | None = None, cards: Cards | None = None
) -> Tally:
    tally = Tally()
    pace = Pace(clients=clients, window_s=WINDOW_S, speed=speed, namespace="replay", run="r")
    session: Any = service
    assert not isinstance(session, Session)
    Driver(session, pace, tally, cards or Cards(())).drive(events, lambda: None)
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


T4, P100 = TraceNode("t", 8, 8192, gpus=2, gpu_model="T4"), TraceNode("p", 8, 8192, gpus=1, gpu_model="P100")
TOO_FEW = {"code": "out_of_capacity", "stage": "gpu", "counts": {"gpu": {"no_gpus": 1, "too_few_gpus": 2}}}


class GpuService:
    """Hands out the cards of two nodes in order; `again`: cards that it thinks are free although they are held."""

    def __init__(self, *, again: int = 0) -> None:
        self.free = {"T4": ["GPU-t-0", "GPU-t-1"], "P100": ["GPU-p-0"]}
        self.held: dict[str, list[str]] = {}
        self.asked: list[tuple[str, str]] = []
        self.keys: list[str] = []
        self.again = again

    def caller(self) -> GpuService:
        return self

    def get(self, path: str) -> Any:
        return Service().get(path)

    def call(self, method: str, path: str, body: Any = None, *, key: str = "") -> Answer:
        uuid = path.rpartition("/")[2]
        if method == "GET":
            told = {"uuid": uuid, "node": "t", "state": "running", "gpu_uuids": self.held.get(uuid, [])}
            return Answer(200, told, 0.001)
        if method == "DELETE":
            self.free["T4"] += self.held.pop(uuid, [])
            return Answer(202, {}, 0.001)
        kind = body.get("gpu_kind", "")
        self.asked.append((body["name"], kind))
        self.keys.append(key)
        free = self.free[kind or "T4"]
        if len(free) < body["gpus"]:
            return Answer(507, TOO_FEW, 0.001)
        got = [free.pop(0) for _ in range(body["gpus"])]
        if self.again:
            self.again -= 1
            free += got
        self.held[body["name"]] = got
        return Answer(201, {"uuid": body["name"], "node": "t"}, 0.001)


def gpu_tasks(*kinds: tuple[str, ...], gone: int | None = None) -> list[TraceEvent]:
    deleted = None if gone is None else Fraction(gone)
    return events_of(
        [TraceTask(f"t{at}", 1, 64, Fraction(at), deleted, gpus=1, gpu_kinds=kind) for at, kind in enumerate(kinds)]
    )


def test_each_kind_is_asked_in_turn_and_the_task_counts_once() -> None:
    service = GpuService()
    either = ("P100", "T4")

    tally = drive(service, gpu_tasks(either, either, either, either), clients=1, cards=Cards([T4, P100]))

    assert service.asked == [
        ("t0", "P100"),
        *(("t1", "P100"), ("t1", "T4")),
        *(("t2", "P100"), ("t2", "T4")),
        *(("t3", "P100"), ("t3", "T4")),
    ]
    assert len(set(service.keys)) == len(service.keys)
    assert (len(tally.placed), tally.refused_count, tally.other_kinds) == (3, 1, 3)
    assert (tally.curve[-1].used["gpus"], tally.curve[-1].total["gpus"]) == (3, 3)


def test_a_refusal_that_no_other_kind_could_change_is_the_last_word() -> None:
    refusal = {"code": "out_of_capacity", "stage": "sufficient_idle_cpu", "counts": {"gpu": {"no_gpus": 4}}}
    service = Service(lambda _name: Answer(507, refusal, 0.001))

    tally = drive(service, gpu_tasks(("P100", "T4")), cards=Cards([T4, P100]))

    assert (len(service.log), tally.refused_count, tally.other_kinds) == (1, 1, 0)


def test_cards_that_come_and_go_are_held_once() -> None:
    cards = Cards([T4, P100])

    tally = drive(GpuService(), gpu_tasks(*[()] * 2, gone=5), clients=1, cards=cards)

    assert (tally.departed, cards.faults) == (2, [])
    assert max(point.used["gpus"] for point in tally.curve) == 2
    assert cards.most_held() == 0


def test_a_card_that_is_handed_out_twice_is_found_while_both_hold_it() -> None:
    cards = Cards([T4, P100])

    drive(GpuService(again=1), gpu_tasks((), (), (), gone=50), clients=1, cards=cards)

    assert cards.faults == ["GPU GPU-t-0 is bound twice: to instance t0 and to instance t2"]


class Told:
    """What the service says of each instance, where it is and what it holds."""

    def __init__(self, **instances: Any) -> None:
        self.instances = instances

    def call(self, _method: str, path: str) -> Answer:
        told = self.instances.get(path.rpartition("/")[2])
        if told is None:
            return Answer(404, {"code": "not_found"}, 0.001)
        return Answer(200, {"node": told[0], "state": told[1], "gpu_uuids": list(told[2])}, 0.001)


@pytest.mark.parametrize(
    ("first", "fault"),
    [
        (("t", "running", ("GPU-t-0",)), "GPU GPU-t-0 is bound twice: to instance a and to instance b"),
        (("t", "running", ()), "GPU GPU-t-0 is bound twice: to instance a and to instance b"),
        (None, "GPU GPU-t-0 is bound twice: to instance a and to instance b"),
        (("p", "running", ("GPU-p-0",)), ""),  # moved
        (("elsewhere", "running", ("GPU-9",)), ""),  # moved off the trace's nodes
        (("t", "error", ()), ""),  # lost, and told as that
    ],
)
def test_whoever_held_a_card_before_must_have_left_it(first: Any, fault: str) -> None:
    cards, told = Cards([T4, P100]), Told(a=("t", "running", ("GPU-t-0",)), b=("t", "running", ("GPU-t-0",)))
    caller: Any = told

    cards.look(caller, "a", 1)
    told.instances["a"] = first
    cards.look(caller, "b", 1)

    assert cards.faults == ([fault] if fault else [])


@pytest.mark.parametrize(
    ("asked", "told", "fault"),
    [
        (2, ("t", "running", ("GPU-t-0",)), "instance a asked for 2 GPUs and holds GPU-t-0"),
        (1, None, "instance a asked for 1 GPUs, and which it holds cannot be read"),
        (2, ("elsewhere", "running", ()), ""),  # a node beside the trace's may only count its cards
        (0, None, ""),
    ],
)
def test_an_instance_holds_as_many_cards_as_it_asked_for(asked: int, told: Any, fault: str) -> None:
    cards = Cards([T4])
    caller: Any = Told(a=told)

    cards.look(caller, "a", asked)

    assert cards.faults == ([fault] if fault else [])
