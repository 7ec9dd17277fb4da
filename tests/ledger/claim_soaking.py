"""What runs in a soak of claims: tenants, claimants, passes, publishers, a killer of sessions, and two observers.

One observer is inside the database and judges every write of the cluster's row: none may promise, or charge to the
unclaimed side, what is not left beyond the claims that cover. It may be below nothing only by what others did (a claim
that is overdrawn in advisory mode, a node that offers less). The other looks from outside, in consistent reads: all
sums are exact at every moment, and no claim of a hard namespace is over its limit.
"""

from __future__ import annotations

import random
import threading
import time
import traceback
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import chain, cycle, repeat
from typing import Any, TypeVar

from sqlalchemy.engine import make_url

from fleet.ledger import claim_grants, leases, moves
from fleet.ledger.ask import NodeAsk
from fleet.ledger.claim_grants import ClaimRefused, Granted
from fleet.ledger.database import Database, Sql
from fleet.ledger.reconcile import reconcile
from fleet.ledger.verify import verify
from fleet.model.admission import Admitted, AlreadyPlaced, Refused
from fleet.model.errors import ClaimDeleteFailed, DatabaseUnavailable
from fleet.model.resources import CLUSTER_DIMENSIONS, Amounts
from tests.ledger import claiming, fleet_of, racing
from tests.ledger.racing import Attempt, Pause
from tests.servers import MariaDBServer

HARD = ("hard-1", "hard-2")
"""Each belongs to one thread, which also makes its claims, so that no charge is on its way while one is granted."""
ADVISORY = ("advisory-1", "advisory-2")
UNCLAIMED = ("unclaimed-1", "unclaimed-2")

HELD_MAX = 10
LEASE_SECONDS = 3600
ANSWER_SECONDS_MAX = 60
KILL_SECONDS = 0.04
CPUS = (30, 30, 26)
"""What a node offers, sample by sample: the total falls and rises under the soak."""
CLAIMED_CPUS = (8, 14, 70)
"""What is claimed at most: little, what its tenants use, most of the cluster."""

R = TypeVar("R")
Grant = Callable[[Database, Pause, str, int], "Granted | ClaimRefused"]

HARD_OVER = Sql(
    "SELECT namespace, uuid FROM namespace_claims WHERE folded = 0 AND namespace LIKE 'hard-%' AND ("
    + " OR ".join(f"used_{name} > limit_{name}" for name in CLUSTER_DIMENSIONS)
    + ")"
)
USE = Sql("""
    SELECT COALESCE(SUM(cpus + ahead_cpus), 0) AS cpus, COALESCE(SUM(memory_mb + ahead_memory_mb), 0) AS memory_mb
    FROM charges WHERE namespace = :namespace AND role = 'primary'
""")
SESSIONS = "SELECT id FROM information_schema.processlist WHERE db = %s AND id <> CONNECTION_ID()"


# --- the observer inside -----------------------------------------------------------------------------------------


def _left(row: str, name: str) -> str:
    """What is left for unclaimed namespaces, and what claims past their end that nobody swept still hold back."""
    left = f"{row}.total_{name} - {row}.claimed_{name} - {row}.unclaimed_used_{name} - {row}.overage_{name}"
    unswept = (
        f"(SELECT COALESCE(SUM(CASE WHEN limit_{name} > used_{name} THEN limit_{name} - used_{name} ELSE 0 END), 0)"
        " FROM namespace_claims WHERE folded = 0 AND expires_at <= {now})"
    )
    return f"({left} + {unswept})"


def _takes_what_is_reserved(name: str) -> str:
    more = f"NEW.unclaimed_used_{name} > OLD.unclaimed_used_{name} OR NEW.claimed_{name} > OLD.claimed_{name}"
    before, after = _left("OLD", name), _left("NEW", name)
    return f"(NEW.unlimited_{name} = 0 AND ({more}) AND {after} < 0 AND {after} < {before})"


JUDGE = Sql(
    "CREATE TRIGGER reserved_is_kept BEFORE UPDATE ON cluster_capacity FOR EACH ROW {begin} "
    + " OR ".join(_takes_what_is_reserved(name) for name in CLUSTER_DIMENSIONS)
    + " {end}",
    mysql_begin="BEGIN IF",
    mysql_end="THEN SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'reserved capacity was taken'; END IF; END",
    sqlite_begin="WHEN",
    sqlite_end="BEGIN SELECT RAISE(ABORT, 'reserved capacity was taken'); END",
)


@contextmanager
def judged(db: Database) -> Iterator[None]:
    """Have every write of the cluster's row judged: one that takes what is reserved fails, and so does its caller."""
    db.unit(JUDGE.run)
    try:
        yield
    finally:
        db.close()
        db.unit(lambda conn: conn.exec_driver_sql("DROP TRIGGER reserved_is_kept"))


# --- what was seen -----------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Seen:
    """What happened, and what should not have."""

    done: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    held: set[str] = field(default_factory=set)
    guard: threading.Lock = field(default_factory=threading.Lock)

    def note(self, what: str) -> None:
        with self.guard:
            self.done[what] += 1


def persist(action: Callable[[], R]) -> R:
    """Repeat what lost its answer until there is one: every act is safe to repeat under its own key."""
    deadline = time.monotonic() + ANSWER_SECONDS_MAX
    while time.monotonic() < deadline:
        with suppress(DatabaseUnavailable):
            return action()
    raise TimeoutError(f"no answer in {ANSWER_SECONDS_MAX} s")


# --- tenants -----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Tenant:
    """One caller of a namespace that creates, resizes, moves and deletes; one of a hard namespace claims, too."""

    db: Database
    seen: Seen
    draw: random.Random
    namespace: str
    node_ids: Sequence[int]
    attempt: Attempt
    held: dict[str, tuple[int, int]] = field(default_factory=dict)

    @property
    def hard(self) -> bool:
        return self.namespace in HARD

    def turn(self) -> None:
        """Do one thing."""
        acts: list[Callable[[], None]] = [self.create] * 3
        if self.held:
            acts += [self.delete, self.delete, self.grow, self.move, self.settle]
        if self.hard:
            acts += [self.claim]
        self.draw.choice(acts)()

    def ask(self, node_id: int, **more: Any) -> NodeAsk:
        sizes = {"cpus": self.draw.randint(1, 4), "memory_mb": self.draw.choice((64, 128))}
        return fleet_of.ask(node_id, **{**sizes, "namespace": self.namespace, "claim_hard": self.hard, **more})

    def tried(self, what: str, wanted: NodeAsk, attempt: Attempt) -> bool:
        outcome = persist(lambda: racing.until_decided(self.db, lambda: None, attempt, wanted))
        over = isinstance(outcome, Admitted) and bool(outcome.over_claim)
        at = f" refused at {outcome.failing_stage.value}" if isinstance(outcome, Refused) else ""
        self.seen.note(f"{what}{at}{' over its claim' if over else ''}")
        if over and self.hard:
            self.seen.wrong.append(f"a hard claim of {self.namespace} was overdrawn: {outcome}")
        return isinstance(outcome, Admitted | AlreadyPlaced)

    def create(self) -> None:
        if len(self.held) >= HELD_MAX:
            return
        wanted = self.ask(self.draw.choice(self.node_ids))
        if self.tried("create", wanted, self.attempt):
            self.held[wanted.instance_uuid] = (wanted.amounts.cpus, wanted.amounts.memory_mb)

    def delete(self) -> None:
        instance = self.draw.choice(sorted(self.held))
        persist(lambda: fleet_of.delete(self.db, instance))
        del self.held[instance]
        self.seen.note("delete")

    def grow(self) -> None:
        instance, node_id = self.one()
        wanted = self.ask(node_id, instance_uuid=instance)
        if self.tried("resize", wanted, racing.grown):
            self.held[instance] = (wanted.amounts.cpus, wanted.amounts.memory_mb)

    def settle(self) -> None:
        instance, _ = self.one()
        persist(lambda: fleet_of.settle(self.db, instance))

    def move(self) -> None:
        """To another node, and perhaps to another size; some moves are given up, some instances deleted on the way."""
        instance, source = self.one()
        persist(lambda: fleet_of.settle(self.db, instance))
        cpus, memory_mb = self.held[instance]
        held = Amounts(cpus, memory_mb, 0, 1)
        target = self.draw.choice([node_id for node_id in self.node_ids if node_id != source])
        wanted = self.ask(target, instance_uuid=instance, held=held)
        if not self.tried("move", wanted, lambda db, moved, _pause: moves.begin(db, moved)):
            return
        end = self.draw.random()
        if end < 0.3:
            persist(lambda: moves.abort(self.db, instance, "given up"))
        elif end < 0.5:
            persist(lambda: fleet_of.delete(self.db, instance))
            del self.held[instance]
        else:
            arrive = wanted
            persist(lambda: moves.settle(self.db, instance, rows=lambda conn: fleet_of.moved_instance(conn, arrive)))
            self.held[instance] = (wanted.amounts.cpus, wanted.amounts.memory_mb)

    def one(self) -> tuple[str, int]:
        instance = self.draw.choice(sorted(self.held))
        return instance, persist(lambda: fleet_of.charged_to(self.db))[instance]

    def claim(self) -> None:
        """A claim that its use fits into: only what comes later could overdraw it."""
        with_room = persist(self.used) + Amounts(self.draw.randint(0, 8), self.draw.randint(0, 500), 0)
        act_on_claim(self.db, self.seen, self.draw, self.namespace, with_room, product_grant)

    def used(self) -> Amounts:
        with self.db.read() as conn:
            row = USE.run(conn, namespace=self.namespace).one()
        return Amounts(int(row.cpus), int(row.memory_mb), 0)


# --- claimants ---------------------------------------------------------------------------------------------------


def product_grant(db: Database, pause: Pause, namespace: str, cpus: int) -> Granted | ClaimRefused:
    """Only what is passed on to `act_on_claim` to say that no twin grants."""
    raise NotImplementedError


def act_on_claim(db: Database, seen: Seen, draw: random.Random, namespace: str, limits: Amounts, grant: Grant) -> None:
    """Make a claim where there is none; else grow, shrink, prolong or delete the one there is."""
    active = persist(lambda: claiming.active_of(db, namespace))
    if not active:
        if grant is not product_grant:
            seen.note(f"grant {claiming.code(grant(db, lambda: time.sleep(0.01), namespace, limits.cpus))}")
            return
        claim, seconds = str(uuid.uuid4()), draw.choice((1, 1, 2, claiming.HOUR))
        made = persist(lambda: claim_grants.grant(db, namespace, limits, seconds, uuid=claim))
        seen.note(f"grant {claiming.code(made)}")
        return
    what = draw.choice(("change", "change", "prolong", "delete"))
    if what == "delete":
        try:
            gone = persist(lambda: claim_grants.delete(db, active[0]))
        except ClaimDeleteFailed as error:
            # Said of the claim when others held its rows for long; it stands, and the next turn finds it.
            if not isinstance(error.__cause__, DatabaseUnavailable):
                raise
            seen.note("delete of a claim in others' hands")
            return
        seen.note("delete of a claim" if gone is not None else "delete of no claim")
        return
    wanted = {} if what == "prolong" else {"cpus": limits.cpus, "memory_mb": limits.memory_mb}
    changed = persist(lambda: claim_grants.change(db, active[0], wanted, 1 if what == "prolong" else None))
    seen.note(f"{what} {claiming.code(changed)}")


def claimant(db: Database, seen: Seen, draw: random.Random, namespace: str, grant: Grant) -> Callable[[], None]:
    """Whoever may claim for a namespace that others use, and claim for, too."""

    def turn() -> None:
        limits = Amounts(draw.randint(0, draw.choice(CLAIMED_CPUS)), draw.randint(0, 1500), 0)
        act_on_claim(db, seen, draw, namespace, limits, grant)
        time.sleep(draw.random() * 0.2)

    return turn


# --- the house ---------------------------------------------------------------------------------------------------


def reconciler(db: Database, seen: Seen) -> Callable[[], None]:
    """Passes in a tight loop, each under a lease that has not ended; the first one ends in the middle of them."""
    terms = chain((1,), repeat(LEASE_SECONDS))
    lease: leases.Lease | None = None

    def turn() -> None:
        nonlocal lease
        # Each has a name of its own: one whose answer was lost on the way keeps nobody from leading.
        lease = lease or leases.acquire(db, f"reconciler {uuid.uuid4()}", "soak", next(terms))
        if lease is None:
            return
        try:
            report = reconcile(db, lease, fleet_of.PLAIN)
        except leases.LeaseLost:
            lease = None
            return
        seen.note("pass")
        seen.done["charges re-homed"] += report.charges_rehomed
        seen.wrong += [f"a pass corrected {item}" for item in report.corrections]

    return turn


def publisher(db: Database, names: Sequence[str]) -> Callable[[], None]:
    """Samples of all nodes in turn; what a node offers falls and rises."""
    sizes, nodes = cycle(CPUS), cycle(names)

    def turn() -> None:
        fleet_of.publish(db, next(nodes), cpus=next(sizes), memory_mb=6000)
        time.sleep(0.02)

    return turn


def observer(db: Database, seen: Seen) -> Callable[[], None]:
    """From outside, at one moment each."""

    def turn() -> None:
        seen.wrong += [f"seen from outside: {item}" for item in verify(db).differences]
        with db.read() as conn:
            seen.wrong += [f"over its limit: {row}" for row in HARD_OVER.run(conn)]
        seen.note("look")

    return turn


def killer(server: MariaDBServer, url: str, seen: Seen, draw: random.Random) -> Callable[[], None]:
    """End a session of the soak, whoever's it is and whatever it does."""

    def turn() -> None:
        time.sleep(KILL_SECONDS)
        with server.connect() as connection, connection.cursor() as cursor:
            cursor.execute(SESSIONS, (make_url(url).database,))
            found = [int(row[0]) for row in cursor.fetchall()]
            cursor.execute(f"KILL HARD CONNECTION {draw.choice(found)}" if found else "SELECT 1")
        seen.note("session killed")

    return turn


def run_together(seen: Seen, turns: Sequence[Callable[[], None]], seconds: float) -> None:
    """Turn each in a thread of its own until time is up. A lost answer is nobody's fault; all else is wrong."""
    end = time.monotonic() + seconds

    def actor(turn: Callable[[], None]) -> None:
        while time.monotonic() < end:
            try:
                turn()
            except DatabaseUnavailable:
                seen.note("no answer")
            except Exception as error:  # noqa: BLE001  # what reached the caller is the finding
                where = traceback.extract_tb(error.__traceback__)[-12:]
                at = " < ".join(f"{frame.name}:{frame.lineno}" for frame in reversed(where))
                seen.wrong.append(f"{type(error).__name__}: {str(error)[:300]} ({at})")

    threads = [threading.Thread(target=actor, args=(turn,)) for turn in turns]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(seconds + 2 * ANSWER_SECONDS_MAX)
    assert not any(thread.is_alive() for thread in threads), "somebody hangs"
