"""Drive the API with the events of a trace.

How the order is kept. As fast as it can: the trace is cut into windows of `window_s` seconds; events of one window are
taken from one queue, in order, by all clients, so two of them can pass each other only while both are in flight; a
window begins when every call of the one before has been answered. A departure is sent only after its own arrival was
answered. Deletes are finished by workers later than they are answered, so a window also waits until at most
`DELETES_OPEN_MAX` of them are open: room that the trace says is free is free, but for those.
At a speed-up every event is sent at its own time, and how late the driver was is reported.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any, Final

from fleet.cli.caller import Answer, Caller, Session, Unexpected, Unreachable
from fleet.cli.openb import EventKind, TraceEvent, TraceTask, windows_of
from fleet.cli.replay_cards import Cards, is_about_gpus
from fleet.cli.replay_tally import GPUS, Tally, UtilisationPoint
from fleet.model.resources import CLUSTER_DIMENSIONS

ANSWER_SECONDS_MAX: Final = 300.0
DELETES_OPEN_MAX: Final = 128
SETTLE_SECONDS_MAX: Final = 900.0
CONFLICT_RETRIES_MAX: Final = 40
CONFLICT_PAUSE_SECONDS: Final = 0.25
POINTS_WANTED: Final = 300
EVENTS_BETWEEN_POINTS_MIN: Final = 4  # for each client
PROBLEMS_MAX: Final = 200
NOT_FOUND: Final = 404
CONFLICT: Final = 409
# A reasoned "no". Anything else (the ledger did not answer, a body was wrong) is a problem of the run.
REFUSALS: Final = frozenset(
    {
        *("out_of_capacity", "placement_busy", "no_schedulable_nodes", "no_nodes", "labels_unmatched"),
        *("pin_ineligible", "affinity_unsatisfied", "affinity_unsatisfiable", "no_gpu_nodes", "claim_exceeded"),
    }
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How fast, by how many. No `speed`: as fast as it can."""

    clients: int
    window_s: int
    speed: int | None
    namespace: str
    run: str


class Driver:
    """Sends every event and keeps the tally."""

    def __init__(self, session: Session, pace: Pace, tally: Tally, cards: Cards) -> None:
        """Remember where to send, how fast, and where to count."""
        self._session = session
        self._pace = pace
        self._tally = tally
        self._cards = cards
        self._local = threading.local()
        self._arrivals: dict[int, Future[None]] = {}
        self._open_deletes: deque[str] = deque()
        self._watcher = session.caller()
        self._started = 0.0
        self.elapsed_s = 0.0
        self.late_s = 0.0

    def drive(self, events: Sequence[TraceEvent], done: Callable[[], None]) -> None:
        """Send all events; `done` is called for each. Raises `Unexpected` when too much goes wrong."""
        # A point waits for what is in flight: not so often that the clients stand about.
        every = max(EVENTS_BETWEEN_POINTS_MIN * self._pace.clients, len(events) // POINTS_WANTED)
        self._started = time.monotonic()
        self.note_point(0)
        with ThreadPoolExecutor(self._pace.clients, thread_name_prefix="client") as pool:
            try:
                if self._pace.speed is None:
                    self._in_windows(pool, events, done, every)
                else:
                    self._at_their_times(pool, events, done, every)
            except BaseException:
                pool.shutdown(wait=True, cancel_futures=True)
                raise
        self.elapsed_s = time.monotonic() - self._started
        self.note_point(int(events[-1].at_s) if events else 0)

    def _in_windows(
        self, pool: ThreadPoolExecutor, events: Sequence[TraceEvent], done: Callable[[], None], every: int
    ) -> None:
        since_point = 0
        for window in windows_of(events, self._pace.window_s):
            self._await_deletes()
            for start in range(0, len(window), every):
                part = window[start : start + every]
                for sent in [self._send(pool, event, done) for event in part]:
                    sent.result(ANSWER_SECONDS_MAX)
                since_point += len(part)
                if since_point >= every:
                    since_point = 0
                    self.note_point(int(part[-1].at_s))
            self._stop_when_hopeless()

    def _at_their_times(
        self, pool: ThreadPoolExecutor, events: Sequence[TraceEvent], done: Callable[[], None], every: int
    ) -> None:
        assert self._pace.speed is not None
        sent: list[Future[None]] = []
        for number, event in enumerate(events):
            due = self._started + float(event.at_s) / self._pace.speed
            wait = due - time.monotonic()
            if wait > 0:
                time.sleep(wait)
            sent.append(self._send(pool, event, done, due))
            if number % every == every - 1:
                self.note_point(int(event.at_s))
                self._stop_when_hopeless()
        for one in sent:
            one.result(ANSWER_SECONDS_MAX)

    def _send(
        self, pool: ThreadPoolExecutor, event: TraceEvent, done: Callable[[], None], due: float | None = None
    ) -> Future[None]:
        def work() -> None:
            if due is not None:
                self.late_s = max(self.late_s, time.monotonic() - due)
            try:
                self._arrive(event) if event.kind is EventKind.ARRIVAL else self._depart(event)
            except Unreachable as failure:
                self._tally.note_problem(str(failure))
            done()

        future = pool.submit(work)
        if event.kind is EventKind.ARRIVAL:
            self._arrivals[event.index] = future
        return future

    def _arrive(self, event: TraceEvent) -> None:
        task = event.task
        answer = self._create(event)
        if answer.ok:
            self._tally.note_placed(event.index, task, answer)
            self._cards.look(self._caller, answer.body["uuid"], task.gpus)
        elif isinstance(answer.body, dict) and answer.body.get("code") in REFUSALS:
            self._tally.note_refused(answer)
        else:
            self._tally.note_problem(f"create of {task.name}: {answer.sentence()}")

    def _create(self, event: TraceEvent) -> Answer:
        """Ask for each kind of GPU in turn, as long as it is the GPUs that are refused; the last answer counts."""
        *others, last = event.task.gpu_kinds or ("",)
        key = f"{self._pace.run}-{event.index}"
        for turn, kind in enumerate(others):
            answer = self._caller.call("POST", "/instances", self._body(event.task, kind), key=f"{key}-{turn}")
            if answer.ok or not isinstance(answer.body, dict) or not is_about_gpus(answer.body):
                return answer
            self._tally.note_other_kind(answer)
        return self._caller.call("POST", "/instances", self._body(event.task, last), key=key)

    def _body(self, task: TraceTask, kind: str) -> dict[str, Any]:
        asked: dict[str, Any] = {"gpus": task.gpus} | ({"gpu_kind": kind} if kind else {}) if task.gpus else {}
        return {
            "name": task.name,
            "namespace": self._pace.namespace,
            "cpus": task.cpus,
            "memory_mb": task.memory_mb,
            "disk_gb": task.disk_gb,
            **asked,
        }

    def _depart(self, event: TraceEvent) -> None:
        # Its arrival was taken from the queue before, so this ends.
        self._arrivals[event.index].result(ANSWER_SECONDS_MAX)
        placed = self._tally.placed.get(event.index)
        if placed is None:
            return
        self._cards.let_go(placed.uuid)
        answer = self._delete(placed.uuid)
        if answer.ok:
            self._open_deletes.append(placed.uuid)
            self._tally.note_departed(event.index)
        else:
            self._tally.note_problem(f"delete of {event.task.name} ({placed.uuid}): {answer.sentence()}")

    def _delete(self, uuid: str) -> Answer:
        """An instance whose create is at work right now may ask to come again."""
        answer = self._caller.call("DELETE", f"/instances/{uuid}")
        for _attempt in range(CONFLICT_RETRIES_MAX):
            if answer.status != CONFLICT:
                break
            self._tally.note_repeats(1)
            time.sleep(CONFLICT_PAUSE_SECONDS)
            answer = self._caller.call("DELETE", f"/instances/{uuid}")
        return answer

    def _await_deletes(self) -> None:
        deadline = time.monotonic() + SETTLE_SECONDS_MAX
        while len(self._open_deletes) > DELETES_OPEN_MAX:
            if self._is_gone(self._open_deletes[0]):
                self._open_deletes.popleft()
            elif time.monotonic() > deadline:
                raise Unexpected(f"instance {self._open_deletes[0]} is not deleted after {SETTLE_SECONDS_MAX:.0f} s")
            else:
                time.sleep(0.05)

    def _is_gone(self, uuid: str) -> bool:
        answer = self._watcher.call("GET", f"/instances/{uuid}")
        return answer.status == NOT_FOUND or (answer.ok and answer.body["state"] == "deleted")

    def _stop_when_hopeless(self) -> None:
        if self._tally.problem_count > PROBLEMS_MAX:
            raise Unexpected(
                f"{self._tally.problem_count} calls were answered neither with a node nor with a refusal; "
                f"the first: {self._tally.problems[0]}"
            )

    def note_point(self, trace_s: int) -> None:
        """Add a point to the utilisation curve."""
        capacity: dict[str, Any] = self._watcher.get("/admin/cluster-capacity")
        used = {name: committed(capacity, name) for name in CLUSTER_DIMENSIONS}
        total: dict[str, int | None] = {name: capacity[f"total_{name}"] for name in CLUSTER_DIMENSIONS}
        if self._cards.total:
            used[GPUS], total[GPUS] = self._cards.most_held(), self._cards.total
        self._tally.note_point(
            UtilisationPoint(
                trace_s=trace_s,
                elapsed_s=time.monotonic() - self._started,
                used=used,
                total=total,
                placed=len(self._tally.placed),
                refused=self._tally.refused_count,
                departed=self._tally.departed,
            )
        )

    @property
    def _caller(self) -> Caller:
        caller: Caller | None = getattr(self._local, "caller", None)
        if caller is None:
            caller = self._local.caller = self._session.caller()
        return caller


def committed(capacity: dict[str, Any], dimension: str) -> int:
    """What is sold of the cluster: claims hold theirs, everything else is unclaimed use."""
    claimed, unclaimed = capacity[f"claimed_{dimension}"], capacity[f"unclaimed_used_{dimension}"]
    return int(claimed) + int(unclaimed) + int(capacity[f"overage_{dimension}"])
