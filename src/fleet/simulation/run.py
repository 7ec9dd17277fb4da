"""One run: the requests of a scenario placed under one strategy, from the first arrival to the last figure.

Promise: every request ends as exactly one of placed, refused, expired or pending; the four are counted where they
happen and what is pending is what is still there, so that their sum is a proof and not a definition.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from fleet.model.request import PlacementRequest
from fleet.simulation import protocol
from fleet.simulation.books import Books
from fleet.simulation.chance import Chance
from fleet.simulation.engine import Course, Engine
from fleet.simulation.ledger import Charge, Ledger
from fleet.simulation.machines import Domain, Ground, inventory_of
from fleet.simulation.remainder import Popular, Remainder
from fleet.simulation.scenario import Arrival, Scenario
from fleet.simulation.tally import Point, Tally
from fleet.simulation.view import View
from fleet.simulation.walk import PLACEMENT_BUSY, Answer, Effort, NotPlaced, Placed, Placing

LOOKS_MAX: Final = 200
SLEEP_AFTER_SECONDS: Final = 300
"""What a sleepy request says; when it sleeps is drawn."""

MakeLedger = Callable[..., Ledger]


@dataclass(frozen=True, slots=True)
class Result:
    """What one strategy made of one seed."""

    strategy: str
    seed: int
    figures: dict[str, Any]
    points: tuple[Point, ...]

    @property
    def conserved(self) -> bool:
        """Whether every request is accounted for: placed + refused + expired + pending = requested."""
        figures = self.figures
        ends = figures["placed"] + figures["refused"] + figures["expired"] + figures["pending"]
        return bool(ends == figures["requested"])

    @property
    def good(self) -> bool:
        """Whether nothing was oversold and nothing was lost."""
        return self.conserved and not self.figures["oversold"]


@dataclass(slots=True)
class _Open:
    """A request that has no answer yet."""

    arrival: Arrival
    requests: tuple[PlacementRequest, ...]
    tried: int = 0


def simulate(
    scenario: Scenario, strategy: str, *, answered: Callable[[], None] = lambda: None, ledger: MakeLedger = Ledger
) -> Result:
    """Run a scenario under a strategy. `answered` is called for every request that was answered.

    Raises:
        InvalidRequest: there is no strategy of that name.
    """
    return _Run(replace(scenario, config=replace(scenario.config, placement_strategy=strategy)), answered, ledger).go()


class _Run:
    def __init__(self, scenario: Scenario, answered: Callable[[], None], make_ledger: MakeLedger) -> None:
        self._scenario, self._config, self._answered = scenario, scenario.config, answered
        self._engine, self._chance = Engine(), Chance(scenario.seed)
        self._grounds = [Ground(machine, scenario.habits) for machine in scenario.machines]
        self._ledger: Ledger = make_ledger([inventory_of(machine) for machine in scenario.machines], scenario.config)
        for node in range(len(self._grounds)):
            self._publish_now(node)
        views = [
            View(self._ledger, scenario.machines, scenario.config, scenario.staleness) for _ in range(scenario.workers)
        ]
        self._slots = deque(views[number % len(views)] for number in range(scenario.concurrency))
        self._waiting: deque[_Open] = deque()
        self._open: dict[int, _Open] = {}
        self._arriving = 0
        self._leaving = 0
        books = Books(self._grounds, scenario.config)
        empty = Remainder(books.limits, books.used, [row.gpus for row in self._ledger.rows])
        self._tally = Tally(books, Popular.of(scenario.arrivals), empty)

    def go(self) -> Result:
        engine, scenario = self._engine, self._scenario
        period = scenario.staleness.sample_period_us
        for node in range(len(self._grounds)):
            engine.at(1 + self._chance.below(period, "phase", node), partial(self._publish, node))
        engine.at(protocol.SECOND_US * self._config.reconcile_interval_seconds, self._reconcile)
        self._plan_arrival()
        self._plan_looks()
        engine.run(scenario.until_us, while_=self._goes_on)
        figures = self._tally.figures(self._ledger.rows, engine.now_us, len(self._open))
        figures["simulated_seconds"] = round(engine.now_us / protocol.SECOND_US, 3)
        return Result(self._config.placement_strategy, scenario.seed, figures, tuple(self._tally.points))

    def _goes_on(self) -> bool:
        if self._scenario.until_us is not None:
            return True
        return bool(self._open) or self._arriving < len(self._scenario.arrivals) or self._leaving > 0

    # --- arrivals -----------------------------------------------------------------------------------------------

    def _plan_arrival(self) -> None:
        if self._arriving < len(self._scenario.arrivals):
            self._engine.at(self._scenario.arrivals[self._arriving].at_us, self._arrive)

    def _arrive(self) -> None:
        arrival = self._scenario.arrivals[self._arriving]
        self._arriving += 1
        self._plan_arrival()
        self._tally.note_arrival(arrival.shape)
        opened = self._open[arrival.index] = _Open(arrival, _requests_of(arrival))
        self._enqueue(opened)

    def _enqueue(self, opened: _Open) -> None:
        self._waiting.append(opened)
        self._serve()

    def _serve(self) -> None:
        """Give free slots to whoever waits, first come first served."""
        while self._waiting and self._slots:
            opened, view = self._waiting.popleft(), self._slots.popleft()
            self._engine.follow(self._placing(opened, view), partial(self._answer, opened, view))

    def _placing(self, opened: _Open, view: View) -> Course[Answer]:
        """Ask for each kind in turn until one is placed; the last refusal is the answer."""
        effort = Effort()
        answer: Answer = NotPlaced("", "", transient=False)
        for turn, request in enumerate(opened.requests):
            placing = Placing(
                self._engine,
                self._ledger,
                view,
                self._chance,
                request,
                request.gpu_ask,
                partial(self._charge_for, opened.arrival, request),
                ("placing", opened.arrival.index, opened.tried, turn),
                effort,
            )
            answer = yield from placing.course()
            if isinstance(answer, Placed):
                break
        self._tally.note_effort(effort)
        return answer

    def _charge_for(self, arrival: Arrival, request: PlacementRequest, node: int, now_us: int) -> Charge:
        amounts = request.amounts(self._config.instance_overhead_mb)
        return Charge(arrival.index, node, amounts, arrival.shape.sleepy, now_us)

    def _answer(self, opened: _Open, view: View, answer: Answer) -> None:
        self._slots.append(view)
        opened.tried += 1
        arrival, now_us = opened.arrival, self._engine.now_us
        if isinstance(answer, Placed):
            self._close(opened)
            self._tally.pass_time(now_us)
            self._tally.books.place(answer.charge)
            self._tally.note_placed(now_us - arrival.at_us, delayed=opened.tried > 1)
            self._live(arrival, answer.charge)
        else:
            if arrival.shape.gpus and answer.code != PLACEMENT_BUSY:
                self._tally.note_gpu_refusal(arrival.shape, self._ledger.rows)
            self._refuse(opened, answer)
        self._serve()

    def _refuse(self, opened: _Open, answer: NotPlaced) -> None:
        arrival, now_us = opened.arrival, self._engine.now_us
        if not self._scenario.wait_us or not answer.transient:
            self._close(opened)
            self._tally.note_refused(arrival.shape, answer.code, answer.stage)
            return
        again_us = now_us + protocol.QUEUE_RETRY_US
        end_us = arrival.at_us + self._scenario.wait_us
        if again_us <= end_us:
            self._engine.at(again_us, partial(self._enqueue, opened))
        else:
            self._engine.at(end_us, partial(self._expire, opened))

    def _expire(self, opened: _Open) -> None:
        self._close(opened)
        self._tally.note_expired(opened.arrival.shape)

    def _close(self, opened: _Open) -> None:
        del self._open[opened.arrival.index]
        self._answered()

    # --- lives --------------------------------------------------------------------------------------------------

    def _live(self, arrival: Arrival, charge: Charge) -> None:
        engine, habits = self._engine, self._scenario.habits
        engine.at(engine.now_us + habits.boot_us, partial(self._boot, charge))
        if arrival.lifetime_us is not None:
            self._leaving += 1
            engine.at(engine.now_us + arrival.lifetime_us, partial(self._depart, charge))

    def _boot(self, charge: Charge) -> None:
        if self._ledger.rows[charge.node].charges.get(charge.index) is not charge:
            return
        now_us, per_vcpu = self._engine.now_us, self._scenario.habits.load_per_vcpu_max
        load = charge.amounts.cpus * self._chance.between(0.0, per_vcpu, "load", charge.index)
        self._grounds[charge.node].boot(charge.index, Domain(charge.amounts, load), now_us)
        self._ledger.settle(charge, now_us)
        if charge.sleepy:
            self._plan_sleep(charge, 0)

    def _plan_sleep(self, charge: Charge, night: int) -> None:
        after = int(self._chance.exponential(self._scenario.habits.awake_us, "awake", charge.index, night))
        self._engine.at(self._engine.now_us + after, partial(self._sleep, charge, night))

    def _sleep(self, charge: Charge, night: int) -> None:
        ground = self._grounds[charge.node]
        if charge.index in ground.domains:
            ground.sleep(charge.index, self._engine.now_us)
            self._tally.sleeps += 1
            after = int(self._chance.exponential(self._scenario.habits.asleep_us, "asleep", charge.index, night))
            self._engine.at(self._engine.now_us + after, partial(self._wake, charge, night))

    def _wake(self, charge: Charge, night: int) -> None:
        ground = self._grounds[charge.node]
        if charge.index in ground.domains:
            self._tally.note_shortfall(ground.wake(charge.index, self._engine.now_us))
            self._plan_sleep(charge, night + 1)

    def _depart(self, charge: Charge) -> None:
        now_us, row = self._engine.now_us, self._ledger.rows[charge.node]
        if row.locked_until_us > now_us:
            self._engine.at(row.locked_until_us, partial(self._depart, charge))
            return
        self._ledger.release(charge, now_us)
        self._grounds[charge.node].end(charge.index, now_us)
        self._tally.pass_time(now_us)
        self._tally.books.leave(charge)
        self._tally.departed += 1
        self._leaving -= 1

    # --- what goes on beside ------------------------------------------------------------------------------------

    def _publish_now(self, node: int) -> None:
        ground, now_us = self._grounds[node], self._engine.now_us
        self._ledger.publish(node, ground.sample(now_us), now_us, ground.machine.max_instances)

    def _publish(self, node: int) -> None:
        row = self._ledger.rows[node]
        if row.locked_until_us > self._engine.now_us:
            self._engine.at(row.locked_until_us, partial(self._publish, node))
            return
        self._publish_now(node)
        self._engine.at(self._engine.now_us + self._scenario.staleness.sample_period_us, partial(self._publish, node))

    def _reconcile(self) -> None:
        self._ledger.refresh_demand(self._engine.now_us)
        interval_us = protocol.SECOND_US * self._config.reconcile_interval_seconds
        self._engine.at(self._engine.now_us + interval_us, self._reconcile)

    def _plan_looks(self) -> None:
        """Look at the fleet at even distances over the arrivals (or the time that is simulated)."""
        arrivals = self._scenario.arrivals
        span = self._scenario.until_us or (arrivals[-1].at_us if arrivals else 0)
        for number in range(LOOKS_MAX + 1):
            self._engine.at(span * number // LOOKS_MAX, self._look)

    def _look(self) -> None:
        self._tally.look(self._ledger.rows, self._engine.now_us)


def _requests_of(arrival: Arrival) -> tuple[PlacementRequest, ...]:
    shape = arrival.shape
    kinds = dict.fromkeys(shape.gpu_kinds) if shape.gpus else {}
    return tuple(
        PlacementRequest(
            name=f"i{arrival.index}",
            cpus=shape.cpus,
            memory_mb=shape.memory_mb,
            disk_gb=shape.disk_gb,
            gpus=shape.gpus,
            gpu_kind=kind,
            sleep_after_idle_seconds=SLEEP_AFTER_SECONDS if shape.sleepy else 0,
        )
        for kind in kinds or ("",)
    )
