"""Creates, resizes, moves, forks and deletes at once, beside the reconciler: no counter drifts, no limit is passed.

The same as `test_soak.py` one storey higher: what chooses a node is the product's own walk.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from fleet.ledger import moves, namespaces, release
from fleet.ledger.database import Database
from fleet.ledger.verify import verify
from fleet.model.request import InstanceRequest, Reason
from fleet.model.resources import Amounts
from fleet.placement.walk import DEADLINE_SECONDS
from fleet.services.context import Context
from fleet.services.create import Created
from fleet.services.destination import choose_destination
from fleet.services.fork import fork
from fleet.services.place import Refusal
from fleet.services.replacing import Chosen
from fleet.services.resize import resize
from tests.ledger import fleet_of, placing, replacing, ruling, soaking
from tests.ledger.racing import until_known

pytestmark = pytest.mark.slow

SAMPLE: dict[str, Any] = {"cpus": 16, "memory_mb": 4096, "cpu_max_per_instance": 8, "cpu_load_1": 1.0}
SECONDS, SECONDS_MAX, TENANTS, HELD_MAX = 8.0, 100.0, 6, 8
VERBS = {"create", "delete", "fork", "resize at home", "resize away", "move away"}
CODES = {"out_of_capacity", "placement_busy", "affinity_unsatisfied", "no_schedulable_nodes", "pin_ineligible"}
RULES: list[dict[str, Any]] = [{}, {}, ruling.apart("db"), ruling.apart("web", within="rack")]


class Tenant:
    """One who does everything at random, and knows what it was told."""

    def __init__(self, ctx: Context, seed: int) -> None:
        self.ctx, self.draw, self.held, self.done = ctx, random.Random(seed), set[str](), Counter[str]()
        self.codes: Counter[str] = Counter()
        self.namespace = fleet_of.NAMESPACE if seed % 2 else soaking.CLAIMED

    def run(self, enough: Callable[[], bool]) -> Tenant:
        """For some seconds, and on until enough has happened."""
        began = time.monotonic()
        while (seconds := time.monotonic() - began) < SECONDS_MAX and (seconds < SECONDS or not enough()):
            verb = self.draw.choice((self.create, self.create, self.delete, self.resize, self.move, self.fork))
            verb()
        return self

    def create(self) -> None:
        if len(self.held) < HELD_MAX:
            body = {
                "cpus": self.draw.randint(1, 4),
                "memory_mb": 64 * self.draw.randint(1, 6),
                **self.draw.choice(RULES),
            }
            self._keep("create", until_known(lambda: placing.create(self.ctx, body, self.namespace)))

    def fork(self) -> None:
        if self.held and len(self.held) < HELD_MAX:
            request = InstanceRequest.model_validate({"cpus": 1, "memory_mb": 64, "name": "copy"})
            source = self._one()
            self._keep("fork", until_known(lambda: fork(self.ctx, source, request)))

    def resize(self) -> None:
        if self.held:
            uuid = self._one()
            target = Amounts(self.draw.randint(1, 8), 64 * self.draw.randint(1, 8), 0)
            self._end_move("resize", uuid, until_known(lambda: resize(self.ctx, uuid, target)))

    def move(self) -> None:
        if self.held:
            uuid, reason = self._one(), self.draw.choice((Reason.MIGRATE, Reason.EVACUATE))
            self._end_move("move", uuid, until_known(lambda: choose_destination(self.ctx, uuid, reason=reason)))

    def delete(self) -> None:
        if self.held:
            self._drop(self._one())

    def _one(self) -> str:
        return self.draw.choice(sorted(self.held))

    def _keep(self, verb: str, outcome: Created | Refusal) -> None:
        if isinstance(outcome, Refusal):
            self.codes[outcome.code] += 1
            return
        uuid = outcome.uuid
        until_known(lambda: replacing.runs(self.ctx, uuid))
        self.held.add(outcome.uuid)
        self.done[verb] += 1

    def _end_move(self, verb: str, uuid: str, outcome: Chosen | Refusal) -> None:
        if isinstance(outcome, Refusal):
            self.codes[outcome.code] += 1
            return
        self.done[f"{verb} away" if outcome.moves else f"{verb} at home"] += 1
        if not outcome.moves:
            return
        end = self.draw.random()
        if end < 0.2:
            assert until_known(lambda: moves.abort(self.ctx.database, uuid, "given up"))
        elif end < 0.35:
            self._drop(uuid)
        else:
            until_known(lambda: replacing.arrived(self.ctx.database, uuid))

    def _drop(self, uuid: str) -> None:
        assert isinstance(until_known(lambda: fleet_of.delete(self.ctx.database, uuid)), release.Released)
        self.held.discard(uuid)
        self.done["delete"] += 1


def test_everything_that_places_at_once_ends_exact(maria: Database, mariadb_ledger_url: str) -> None:
    ctx = placing.context(maria)
    names = ["a", "b", "c", "d"]
    for at, name in enumerate(names):
        placing.node(maria, ctx, name, {"rack": f"r{at // 2}"}, **SAMPLE)
    fleet_of.claim(maria, limit=(12, 1024, 4), namespace=soaking.CLAIMED)
    namespaces.ensure(maria, soaking.CLAIMED)
    with (
        soaking.keeping(mariadb_ledger_url, names, SAMPLE) as house,
        ruling.racing(mariadb_ledger_url, TENANTS, walk_seconds=DEADLINE_SECONDS) as racers,
    ):
        tenants = [Tenant(own, 40 + at) for at, own in enumerate(racers.contexts)]

        def enough() -> bool:
            return house.busy and all(any(one.done[verb] for one in tenants) for verb in VERBS)

        racers.run(lambda _own, at: tenants[at].run(enough))

    done = sum((one.done for one in tenants), Counter[str]())
    assert [*house.over, *house.corrections, *house.errors, *soaking.corrected(maria)] == []
    checked = verify(maria)
    assert (list(checked.differences), list(checked.over_limit)) == ([], [])
    assert set(fleet_of.charged_to(maria)) == set().union(*(one.held for one in tenants))
    assert set(sum((one.codes for one in tenants), Counter[str]())) <= CODES
    assert set(done) >= VERBS, done
    assert house.busy, house
    # What was decided comes out the same from what was kept of it.
    rows = fleet_of.rows(maria, "SELECT id, reason FROM decisions ORDER BY created_at DESC LIMIT 200")
    assert {row["reason"] for row in rows} >= {"create", "resize", "fork"}
    for row in rows:
        replacing.assert_replays(ctx, row["id"])
