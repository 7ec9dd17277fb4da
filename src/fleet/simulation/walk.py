"""One placing on the virtual clock: decide, then walk the ranked nodes until one admits.

Promise: the same protocol as the service's, with its numbers: skip locked rows, shuffle after the first, walk again on
a fresh view, leave nodes over their demand target for the second round, wait for one busy row at the very end, and say
"out of capacity" only when that is proven. What takes time on a real machine lets time pass here, so others overtake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from fleet.model.admission import Admitted, Busy, Refused
from fleet.model.decision import Decision
from fleet.model.gpu_inventory import GpuAsk
from fleet.model.request import PlacementRequest
from fleet.simulation import protocol
from fleet.simulation.chance import Chance
from fleet.simulation.engine import Course, Engine
from fleet.simulation.ledger import AdmitOutcome, Charge, Ledger
from fleet.simulation.view import View

OUT_OF_CAPACITY: Final = "out_of_capacity"
PLACEMENT_BUSY: Final = "placement_busy"
GUARD: Final = "capacity_guard"


@dataclass(slots=True)
class Effort:
    """What placing one request took: walks, tries by outcome, whether the demand clause was waived."""

    walks: int = 0
    tries: int = 0
    refused_tries: int = 0
    busy_tries: int = 0
    waived: bool = False


@dataclass(frozen=True, slots=True)
class Placed:
    """The charge is committed."""

    charge: Charge


@dataclass(frozen=True, slots=True)
class NotPlaced:
    """Why not: the code that a client gets, the stage that decided, and whether trying again later may help."""

    code: str
    stage: str
    transient: bool


Answer = Placed | NotPlaced


@dataclass(slots=True)
class Placing:
    """One request's way through decide and admit. `charge_for` makes the charge that a try on a node asks for."""

    engine: Engine
    ledger: Ledger
    view: View
    chance: Chance
    request: PlacementRequest
    gpus: GpuAsk
    charge_for: Callable[[int, int], Charge]
    event: tuple[object, ...]
    effort: Effort
    deadline_us: int = 0
    attempt: int = 0
    probes: int = 0
    refused: int = 0
    demand_only: list[int] = field(default_factory=list)
    skipped: list[int] = field(default_factory=list)
    busy: set[int] = field(default_factory=set)

    def course(self) -> Course[Answer]:
        """Walk until placed, proven full, or out of time."""
        decision = yield from self._decide(fresh=False)
        if decision.refused:
            # A refusal is believed only on counters that were read after the request came.
            decision = yield from self._decide(fresh=True)
        self.deadline_us = self.engine.now_us + protocol.DEADLINE_US
        for self.attempt in range(protocol.ATTEMPTS_MAX):
            if decision.refused:
                return NotPlaced(decision.code or OUT_OF_CAPACITY, decision.stage or "", decision.transient)
            last = self.attempt == protocol.ATTEMPTS_MAX - 1
            placed = yield from self._walk(decision, last=last)
            if placed is not None:
                return placed
            if last or self._proven() or self._out_of_time():
                break
            pause = self.chance.uniform(*self.event, "backoff", self.attempt)
            yield int(pause * protocol.BACKOFF_US * 2**self.attempt)
            decision = yield from self._decide(fresh=True)
        return (yield from self._last_waived_try())

    def _decide(self, *, fresh: bool) -> Course[Decision]:
        yield protocol.READ_US
        seed = self.chance.seed_of(*self.event, "decide", self.attempt, fresh)
        decision = self.view.decide(self.request, seed, self.engine.now_us, fresh=fresh)
        yield protocol.DECIDE_US
        return decision

    def _walk(self, decision: Decision, *, last: bool) -> Course[Placed | None]:
        self.effort.walks += 1
        self.probes = self.refused = 0
        self.demand_only, self.skipped, self.busy = [], [], set()
        ranked, over = decision.ranked_indices, decision.over_demand
        left_out: list[int] = ranked[over].tolist()
        self.skipped = left_out[:1]
        placed = yield from self._try_all(ranked[~over].tolist(), waived=False, last=last)
        if placed is not None or (last and self._out_of_time()):
            return placed
        second = [*left_out, *self.demand_only]
        if second and not self._limits_reached(last=last):
            self.demand_only, self.skipped = [], []
            placed = yield from self._try_all(second, waived=True, last=last)
            if placed is not None:
                return placed
        if last and self.busy:
            return (yield from self._final_wait())
        return None

    def _try_all(self, order: Sequence[int], *, waived: bool, last: bool) -> Course[Placed | None]:
        """Try nodes in order; after the first busy one the rest comes in random order."""
        at, shuffled = 0, False
        while at < len(order) and not self._limits_reached(last=last):
            node = order[at]
            at += 1
            charge, outcome = yield from self._try(node, waived=waived)
            if isinstance(outcome, Admitted):
                return Placed(charge)
            if isinstance(outcome, Busy):
                self.probes += 1
                self.busy.add(node)
                if not shuffled:
                    order, at, shuffled = self._shuffled(order[at:], waived=waived), 0, True
            else:
                self._note(node, outcome)
        return None

    def _shuffled(self, rest: Sequence[int], *, waived: bool) -> list[int]:
        drawn = protocol.LOCK_PROBES_MAX + protocol.CAPACITY_REFUSALS_MAX
        event = (*self.event, "shuffle", self.attempt, waived)
        return [rest[place] for place in self.chance.shuffled(len(rest), drawn, *event)]

    def _note(self, node: int, refused: Refused) -> None:
        if refused.demand_only:
            self.demand_only.append(node)
        else:
            self.refused += 1

    def _try(self, node: int, *, waived: bool, wait: bool = False) -> Course[tuple[Charge, AdmitOutcome]]:
        if wait:
            yield from self._wait_for(node)
        now_us = self.engine.now_us
        charge = self.charge_for(node, now_us)
        outcome = self.ledger.admit(charge, self.gpus, now_us, waived=waived)
        self.effort.tries += 1
        if isinstance(outcome, Admitted):
            self.effort.waived = waived
            yield self.ledger.rows[node].locked_until_us - now_us
            self.ledger.commit(node)
        elif isinstance(outcome, Busy):
            self.effort.busy_tries += 1
            yield protocol.BUSY_US
        else:
            self.effort.refused_tries += 1
            yield protocol.REFUSED_US
        return charge, outcome

    def _wait_for(self, node: int) -> Course[None]:
        """Wait for a node's row, but not for ever; whoever is first when it is free gets it."""
        give_up_us = self.engine.now_us + protocol.FINAL_WAIT_US
        while (free_us := self.ledger.rows[node].locked_until_us) > self.engine.now_us:
            yield min(free_us, give_up_us) - self.engine.now_us
            if self.engine.now_us >= give_up_us:
                return

    def _limits_reached(self, *, last: bool) -> bool:
        if self.probes >= protocol.LOCK_PROBES_MAX or self._out_of_time():
            return True
        return not last and self.refused >= protocol.CAPACITY_REFUSALS_MAX

    def _final_wait(self) -> Course[Placed | None]:
        """Wait for one busy node, picked at random, at the end of the last attempt."""
        busy = sorted(self.busy)
        node = busy[self.chance.below(len(busy), *self.event, "wait")]
        charge, outcome = yield from self._try(node, waived=False, wait=True)
        if isinstance(outcome, Admitted):
            return Placed(charge)
        if isinstance(outcome, Refused):
            self._note(node, outcome)
            self.busy.discard(node)
        return None

    def _last_waived_try(self) -> Course[Answer]:
        """Demand alone never fails a create: when a node was left out for it alone, try once waived."""
        for node in [*self.demand_only, *self.skipped][:1]:
            charge, outcome = yield from self._try(node, waived=True, wait=True)
            if isinstance(outcome, Admitted):
                return Placed(charge)
            if isinstance(outcome, Refused):
                self._note(node, outcome)
            else:
                self.busy.add(node)
        full = self.refused and not self.busy and not self.demand_only and not self._out_of_time()
        return NotPlaced(OUT_OF_CAPACITY if full else PLACEMENT_BUSY, GUARD, transient=True)

    def _out_of_time(self) -> bool:
        return self.engine.now_us >= self.deadline_us

    def _proven(self) -> bool:
        """Whether the walk on a fresh view proved the fleet full: everyone refused, nobody busy, nobody skipped."""
        unproven = self.busy or self.demand_only or self.refused >= protocol.CAPACITY_REFUSALS_MAX
        return self.attempt > 0 and not unproven and not self._out_of_time()
