"""Claims in the middle of everything: the sums are exact at every moment, and nobody takes what is reserved for others.

Creates, resizes, moves and deletes of six namespaces; claims that are made, changed, prolonged, ended and deleted;
passes in a tight loop; samples that change what nodes offer; on MariaDB, sessions that are killed all the while.
"""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import count
from typing import Any

import pytest
from sqlalchemy.exc import DBAPIError

from fleet.ledger import claim_grants, leases, namespaces
from fleet.ledger.database import Database
from fleet.ledger.reconcile import reconcile
from fleet.ledger.verify import verify
from tests.ledger import claim_soaking as soaking
from tests.ledger import claiming, fleet_of, naive, racing
from tests.ledger.claim_soaking import ADVISORY, HARD, UNCLAIMED, Grant, Seen, Tenant
from tests.ledger.fleet_of import ask
from tests.ledger.racing import Attempt
from tests.ledger.soaking import corrected
from tests.servers import MariaDBServer

pytestmark = pytest.mark.slow

SEED = int(os.environ.get("FLEET_TEST_SOAK_SEED", "20261025"))
PHASES, SECONDS_MAX = 3, 150.0
PHASE_SECONDS = 6.0
WANTED = (
    *("create", "move", "resize", "delete", "pass", "look", "claims swept", "create over its claim"),
    *("create refused at node", "create refused at claim", "create refused at cluster"),
    *("grant granted", "grant claim_capacity", "change granted", "change claim_below_usage", "prolong granted"),
    "delete of a claim",
)
"""What must have happened: a machine so slow that it did not gets more phases."""
WANTED_ON_A_SERVER = ("session killed", "no answer")
NODES = ("a", "b", "c")


class Soak:
    """One soak on one ledger, phase by phase."""

    def __init__(self, db: Database, server: MariaDBServer | None, attempt: Attempt, grant: Grant) -> None:
        self.db, self.server, self.attempt, self.grant = db, server, attempt, grant
        self.url = db.url.render_as_string(hide_password=False)
        self.seen = Seen()
        self.tenants: list[Tenant] = []
        for name in (*HARD, *ADVISORY, *UNCLAIMED):
            namespaces.ensure(db, name)
        self.node_ids = [fleet_of.node(db, name, cpus=30, memory_mb=6000) for name in NODES]

    def phase(self, number: int, seconds: float) -> None:
        """Let everybody run for so long, then stop them all."""
        left = self._left_to_a_pass(f"left-to-a-pass-{number}")
        with ExitStack() as stack:

            def own() -> Database:
                # One queue in front of the file; on a server everybody has sessions of his own.
                if self.db.is_sqlite:
                    return self.db
                database = Database(self.url, pool_size=3)
                stack.callback(database.close)
                return database

            soaking.run_together(self.seen, list(self._turns(own, number)), seconds)
        self.db.close()
        # Not taken from what a pass reports: one may lose its session, and its report with it, after it swept.
        self.seen.done["claims swept"] += int(fleet_of.claim_row(self.db, left)["folded"])

    def _left_to_a_pass(self, namespace: str) -> str:
        """A claim that is over and nobody else's: quick claimants end all of theirs, and no pass has one to sweep."""
        # A cluster that offers less than is used has room for no claim, so it offers much for a moment.
        self._offer(cpus=1000, memory_mb=60_000)
        with claiming.long_ago(self.db):
            left = claiming.granted(self.db, namespace, 1, 0, 0).uuid
        self._offer(cpus=30, memory_mb=6000)
        return left

    def _offer(self, **figures: Any) -> None:
        for name in NODES:
            fleet_of.publish(self.db, name, **figures)

    def _turns(self, own: Callable[[], Database], number: int) -> Iterator[Callable[[], None]]:
        draws = (random.Random(f"{SEED} {number} {thread}") for thread in range(1000))
        if not self.tenants:
            owners = [*HARD, *ADVISORY * 2, *UNCLAIMED]
            for name in owners:
                tenant = Tenant(self.db, self.seen, next(draws), name, self.node_ids, self.attempt)
                self.tenants.append(tenant)
        for tenant in self.tenants:
            tenant.db, tenant.draw = own(), next(draws)
            yield tenant.turn
        for name in (*ADVISORY, ADVISORY[0]):
            yield soaking.claimant(own(), self.seen, next(draws), name, self.grant)
        yield soaking.reconciler(own(), self.seen)
        yield soaking.publisher(own(), NODES)
        yield soaking.observer(own(), self.seen)
        if self.server is not None:
            yield soaking.killer(self.server, self.url, self.seen, next(draws))

    def check_at_rest(self) -> None:
        """Everything equals its recomputation, before a pass and after it; what callers hold is what is charged."""
        self.seen.wrong += [f"at rest: {item}" for item in verify(self.db).differences]
        lease = leases.acquire(self.db, "at rest", "soak", 60)
        assert lease is not None
        report = reconcile(self.db, lease, fleet_of.PLAIN)
        leases.drop(self.db, lease)
        self.seen.wrong += [f"the pass at rest corrected {item}" for item in report.corrections]
        self.seen.wrong += [f"after the pass at rest: {item}" for item in verify(self.db).differences]
        self.seen.wrong += [f"some pass corrected {item}" for item in corrected(self.db)]
        told = {instance for tenant in self.tenants for instance in tenant.held}
        held = set(fleet_of.charged_to(self.db))
        self.seen.wrong += [f"told or held, not both: {told ^ held}"] if told != held else []


@pytest.mark.parametrize("backend", ["sqlite", "mariadb"])
def test_claims_are_exact_and_keep_what_they_reserve_in_a_soak(
    request: pytest.FixtureRequest, backend: str, mariadb: MariaDBServer
) -> None:
    print(f"FLEET_TEST_SOAK_SEED={SEED}")
    db = Database(str(request.getfixturevalue(f"{backend}_ledger_url")))
    soak = Soak(db, mariadb if backend == "mariadb" else None, racing.guarded, soaking.product_grant)
    wanted = [*WANTED, *(WANTED_ON_A_SERVER if backend == "mariadb" else ())]
    end = time.monotonic() + SECONDS_MAX
    with soaking.judged(db):
        for number in count():
            soak.phase(number, PHASE_SECONDS)
            soak.check_at_rest()
            assert soak.seen.wrong == [], (SEED, soak.seen.done)
            all_happened = all(soak.seen.done[what] for what in wanted)
            if number + 1 >= PHASES and (all_happened or time.monotonic() > end):
                break
    db.close()

    print(dict(soak.seen.done))
    assert [what for what in wanted if not soak.seen.done[what]] == [], soak.seen.done


def test_the_observer_inside_stops_what_takes_from_a_claim_and_nothing_else(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=10)
    fleet_of.node(db, cpus=10)
    with soaking.judged(db):
        with claiming.long_ago(db):
            claim = claiming.granted(db, "tenant", 16, 1000)
            fleet_of.admitted(db, ask(node_id, cpus=4, namespace="unclaimed"))
            with pytest.raises(DBAPIError, match="reserved capacity was taken"):
                fleet_of.admit(db, ask(node_id, cpus=1, namespace="unclaimed", enforce=False))
            # What its own namespace overdraws, and what comes back when it has ended, is taken from nobody.
            over = fleet_of.admitted(db, ask(node_id, cpus=6, namespace="tenant"))
        claiming.until_past(db, claim)
        assert claim_grants.delete(db, claim.uuid) is not None
        fleet_of.delete(db, over)
    fleet_of.assert_exact(db)


@pytest.mark.parametrize(
    ("attempt", "grant"), [(racing.guarded, claiming.naive_grant), (naive.admit, soaking.product_grant)]
)
def test_the_soak_catches_naive_grants_and_a_naive_admission(maria: Database, attempt: Attempt, grant: Grant) -> None:
    soak = Soak(maria, None, attempt, grant)
    end = time.monotonic() + SECONDS_MAX
    with soaking.judged(maria):
        for number in count():
            soak.phase(number, 2.0)
            soak.check_at_rest()
            if soak.seen.wrong or time.monotonic() > end:
                break
    assert soak.seen.wrong != []
