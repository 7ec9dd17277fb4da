"""One placing on the virtual clock: decide, then walk the ranked nodes until one admits.

Promise: the walk is the service's own (`placement/walk.py`). What takes time on a real machine lets time pass here, so
others overtake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from fleet.model.admission import Admitted, Busy
from fleet.model.decision import Decision
from fleet.model.gpu_inventory import GpuAsk
from fleet.model.request import PlacementRequest
from fleet.placement.walk import DEADLINE_SECONDS, Look, Try, Walk
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
    """One request's way through decide and admit. `charge_for` makes the charge that a try on a node asks for.

    `looks` counts the attempts that are over; draws are named by it.
    """

    engine: Engine
    ledger: Ledger
    view: View
    chance: Chance
    request: PlacementRequest
    gpus: GpuAsk
    charge_for: Callable[[int, int], Charge]
    event: tuple[object, ...]
    effort: Effort
    looks: int = 0

    def course(self) -> Course[Answer]:
        """Walk until placed, proven full, or out of time."""
        decision = yield from self._decide(fresh=False)
        if decision.refused:
            # A refusal is believed only on counters that were read after the request came.
            decision = yield from self._decide(fresh=True)
        if decision.refused:
            return _refused(decision)
        deadline_us = self.engine.now_us + int(DEADLINE_SECONDS * protocol.SECOND_US)
        walk = Walk(late=lambda: self.engine.now_us >= deadline_us, draw=self._draw)
        self._rank(walk, decision)
        for step in walk.steps():
            if isinstance(step, Look):
                pause = self.chance.uniform(*self.event, "backoff", self.looks)
                yield int(pause * step.pause_seconds * protocol.SECOND_US)
                decision = yield from self._decide(fresh=True)
                self.looks += 1
                if decision.refused:
                    return _refused(decision)
                self._rank(walk, decision)
                continue
            charge, outcome = yield from self._try(step)
            if isinstance(outcome, Admitted):
                return Placed(charge)
            walk.tried(step.index, outcome)
        return NotPlaced(OUT_OF_CAPACITY if walk.proven else PLACEMENT_BUSY, GUARD, transient=True)

    def _decide(self, *, fresh: bool) -> Course[Decision]:
        yield protocol.READ_US
        seed = self.chance.seed_of(*self.event, "decide", self.looks, fresh)
        decision = self.view.decide(self.request, seed, self.engine.now_us, fresh=fresh)
        yield protocol.DECIDE_US
        return decision

    def _rank(self, walk: Walk, decision: Decision) -> None:
        self.effort.walks += 1
        ranked, over = decision.ranked_indices, decision.over_demand
        walk.rank(ranked[~over], ranked[over])

    def _draw(self, count: int, *event: object) -> Sequence[float]:
        return self.chance.uniforms(count, *self.event, *event)

    def _try(self, step: Try) -> Course[tuple[Charge, AdmitOutcome]]:
        node = step.index
        if step.wait:
            yield from self._wait_for(node)
        now_us = self.engine.now_us
        charge = self.charge_for(node, now_us)
        outcome = self.ledger.admit(charge, self.gpus, now_us, waived=step.waived)
        self.effort.tries += 1
        if isinstance(outcome, Admitted):
            self.effort.waived = step.waived
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


def _refused(decision: Decision) -> NotPlaced:
    return NotPlaced(decision.code or OUT_OF_CAPACITY, decision.stage or "", decision.transient)
