"""Claims and overage against a plain reading of the formulas: everything summed anew from a list, nothing carried on.

Random acts are done to the ledger and to the reading alike. Each must be answered by both in the same way, and the
cluster's row and the claims must hold what the list adds up to.
"""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from fleet.ledger import claim_grants, namespaces
from fleet.ledger.claim_grants import ClaimRefused
from fleet.ledger.database import Database
from fleet.model.admission import Admitted, Refused
from fleet.model.resources import CLUSTER_DIMENSIONS, Amounts
from tests.ledger import fleet_of
from tests.ledger.fleet_of import ask

TOTAL = (12, 40, 30)
ACTS = ("create", "create", "create", "hard create", "delete", "grant", "grant", "change", "give up")
NAMES = ("a", "b", "c", "d")
STEPS = 300
Sizes = tuple[int, ...]


@dataclass
class Charge:
    namespace: str
    sizes: Sizes
    payer: str | None


@dataclass
class Reading:
    """Who holds what, and what is promised to whom."""

    charges: dict[str, Charge] = field(default_factory=dict)
    claims: dict[str, tuple[str, Sizes]] = field(default_factory=dict)

    def used_of(self, claim: str | None) -> Sizes:
        """What a claim pays, or, for None, what nobody's claim does."""
        paid = [
            one.sizes for one in self.charges.values() if (one.payer if one.payer in self.claims else None) == claim
        ]
        return tuple(map(sum, zip((0, 0, 0), *paid, strict=True)))

    @property
    def claimed(self) -> Sizes:
        return tuple(map(sum, zip((0, 0, 0), *(limits for _, limits in self.claims.values()), strict=True)))

    @property
    def overage(self) -> Sizes:
        over = [self._beyond(self.used_of(claim), limits) for claim, (_, limits) in self.claims.items()]
        return tuple(map(sum, zip((0, 0, 0), *over, strict=True)))

    @staticmethod
    def _beyond(used: Sizes, limits: Sizes) -> Sizes:
        return tuple(max(0, one - limit) for one, limit in zip(used, limits, strict=True))

    def claim_of(self, namespace: str) -> str | None:
        return next((claim for claim, (owner, _) in self.claims.items() if owner == namespace), None)

    def create(self, instance: str, namespace: str, sizes: Sizes, *, hard: bool) -> str:
        claim = self.claim_of(namespace)
        for at, asked in enumerate(sizes):
            if sum(one.sizes[at] for one in self.charges.values()) + asked > TOTAL[at]:
                return "node"
        for at, asked in enumerate(sizes):
            if claim is not None and hard and self.used_of(claim)[at] + asked > self.claims[claim][1][at]:
                return "claim"
            if claim is None and self.used_of(None)[at] + self.overage[at] + asked > TOTAL[at] - self.claimed[at]:
                return "cluster"
        self.charges[instance] = Charge(namespace, sizes, claim)
        return "done"

    def grant(self, claim: str, namespace: str, limits: Sizes) -> str:
        if self.claim_of(namespace) is not None:
            return "claim_exists"
        mine = [one for one in self.charges.values() if one.namespace == namespace]
        for at, limit in enumerate(limits):
            migrated = sum(one.sizes[at] for one in mine)
            others = max(0, self.used_of(None)[at] - migrated)
            if self.claimed[at] + limit + self.overage[at] + max(0, migrated - limit) + others > TOTAL[at]:
                return "claim_capacity"
        self.claims[claim] = (namespace, limits)
        for one in mine:
            one.payer = claim
        return "done"

    def change(self, claim: str, limits: Sizes) -> str:
        namespace, old = self.claims[claim]
        used = self.used_of(claim)
        if any(new < was and new < held for new, was, held in zip(limits, old, used, strict=True)):
            return "claim_below_usage"
        for at, new in enumerate(limits):
            removed = max(0, used[at] - old[at]) - max(0, used[at] - new)
            after = self.claimed[at] + new - old[at] + self.used_of(None)[at] + self.overage[at] - removed
            if new > old[at] and after > TOTAL[at]:
                return "claim_capacity"
        self.claims[claim] = (namespace, limits)
        return "done"


def some(rng: random.Random, chief: int) -> Sizes:
    """Sizes, mostly of one dimension alone: each is to be what binds."""
    return tuple(
        rng.randint(0, int(total * 0.3)) * (at == chief or rng.random() < 0.2) for at, total in enumerate(TOTAL)
    )


def acted(db: Database, node_id: int, reading: Reading, seed: int) -> Iterator[tuple[str, str, str]]:
    """Do acts to both; yield what each was, and the two answers."""
    rng, chief = random.Random(seed), seed % len(TOTAL)
    for _ in range(STEPS):
        act, namespace, fresh = rng.choice(ACTS), rng.choice(NAMES), str(uuid.UUID(int=rng.getrandbits(128)))
        sizes, limits = some(rng, chief), some(rng, chief)
        if act.endswith("create"):
            hard = act.startswith("hard")
            cpus, memory_mb, disk_gb = sizes
            wanted = ask(
                node_id, cpus=cpus, memory_mb=memory_mb, disk_gb=disk_gb, namespace=namespace, instance_uuid=fresh,
                claim_hard=hard,
            )  # fmt: skip
            outcome = fleet_of.admit(db, wanted)
            assert isinstance(outcome, Admitted | Refused), outcome
            told = str(outcome.failing_stage) if isinstance(outcome, Refused) else "done"
            yield f"{act} {namespace} {sizes}", told, reading.create(fresh, namespace, sizes, hard=hard)
        elif act == "grant":
            given = claim_grants.grant(db, namespace, Amounts(*limits), 3600, uuid=fresh)
            yield f"{act} {namespace} {limits}", code(given), reading.grant(fresh, namespace, limits)
        elif act == "delete" and reading.charges:
            gone = rng.choice(list(reading.charges))
            fleet_of.delete(db, gone)
            del reading.charges[gone]
        elif act in {"change", "give up"} and reading.claims:
            claim = rng.choice(list(reading.claims))
            if act == "change":
                changed = claim_grants.change(db, claim, dict(zip(CLUSTER_DIMENSIONS, limits, strict=True)))
                yield f"{act} {reading.claims[claim]} to {limits}", code(changed), reading.change(claim, limits)
            elif rng.random() < 0.3:
                assert claim_grants.delete(db, claim) is not None
                del reading.claims[claim]


def code(outcome: object) -> str:
    return outcome.code if isinstance(outcome, ClaimRefused) else "done"


def of(row: dict[str, int], part: str) -> Sizes:
    return tuple(row[f"{part}_{name}"] for name in CLUSTER_DIMENSIONS)


@pytest.mark.parametrize("seed", range(1, 7))
def test_the_ledger_answers_and_holds_what_a_plain_reading_says(db: Database, seed: int) -> None:
    node_id = fleet_of.node(db, cpus=TOTAL[0], memory_mb=TOTAL[1], disk_gb=TOTAL[2])
    for name in NAMES:
        namespaces.ensure(db, name)
    reading, answers = Reading(), set[str]()
    for act, told, expected in acted(db, node_id, reading, seed):
        assert told == expected, act
        answers.add(told)
        row = fleet_of.cluster(db)
        assert (of(row, "claimed"), of(row, "unclaimed_used"), of(row, "overage")) == (
            reading.claimed,
            reading.used_of(None),
            reading.overage,
        ), act
        for claim in reading.claims:
            assert of(fleet_of.claim_row(db, claim), "used") == reading.used_of(claim), act
    fleet_of.assert_exact(db)
    assert answers >= {"done", "claim", "cluster", "claim_exists", "claim_capacity", "claim_below_usage"}, answers
