"""What runs in a soak: tenants that create, move, settle and delete; a house that publishes, cordons and reconciles."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import cycle
from typing import Any

from fleet.ledger import leases, moves
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database, Sql
from fleet.ledger.reconcile import CORRECTED, reconcile
from fleet.ledger.release import Released
from fleet.ledger.samples import set_scheduling
from fleet.model.admission import AdmissionOutcome, Admitted
from fleet.model.resources import Amounts
from tests.ledger import fleet_of, racing
from tests.ledger.racing import Attempt, Pause, until_known

HELD_MAX = 12
HOUSE_SECONDS_MAX = 120
LEASE_SECONDS = 3600
TURNS_MIN = 5
CLAIMED = "claimed"
"""The namespace that holds a claim: tenants with an even seed belong to it."""

# One statement, so one moment: charges against limits, past every counter.
OVER = Sql("""
    SELECT c.node_id, c.limit_cpus, c.limit_memory_mb, SUM(ch.cpus) AS cpus, SUM(ch.memory_mb) AS memory_mb
    FROM scheduler_node_capacity c JOIN charges ch ON ch.node_id = c.node_id GROUP BY c.node_id
    HAVING SUM(ch.cpus) > c.limit_cpus OR SUM(ch.memory_mb) > c.limit_memory_mb OR SUM(ch.cpus) <> MAX(c.used_cpus)
""")


@dataclass(slots=True)
class Acknowledged:
    """What one tenant was told: the instances it holds, by node, those it deleted, and how much it did."""

    seed: int
    held: dict[str, int] = field(default_factory=dict)
    drafts: set[str] = field(default_factory=set)
    deleted: set[str] = field(default_factory=set)
    done: int = 0

    @property
    def namespace(self) -> str:
        return fleet_of.NAMESPACE if self.seed % 2 else CLAIMED


def tenant(
    db: Database,
    pause: Pause,
    attempt: Attempt,
    mine: Acknowledged,
    node_ids: Sequence[int],
    seconds: float,
) -> Acknowledged:
    """Create, move, settle and delete at random until time is up, on top of what it was told so far."""
    draw = random.Random(f"{mine.seed} {mine.done}")
    # The first create of all tenants is on one node at once.
    _create(db, pause, attempt, draw, mine, node_ids[:1])
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        what = draw.choice(("create", "create", "create", "delete", "move", "settle", "migrate", "grow"))
        if what == "create" and len(mine.held) < HELD_MAX:
            _create(db, pause, attempt, draw, mine, draw.sample(list(node_ids), len(node_ids)))
        elif what == "delete" and mine.held:
            _delete(db, draw, mine)
        elif what == "move" and mine.drafts:
            _move(db, pause, draw, mine, node_ids)
        elif what == "settle" and mine.drafts:
            _settle(db, draw, mine)
        elif what == "migrate" and set(mine.held) - mine.drafts:
            _migrate(db, draw, mine, node_ids)
        elif what == "grow" and mine.held:
            _grow(db, pause, draw, mine)
        mine.done += 1
    return mine


def _create(
    db: Database, pause: Pause, attempt: Attempt, draw: random.Random, mine: Acknowledged, order: Sequence[int]
) -> None:
    cpus, memory_mb = draw.randint(1, 3), draw.choice((64, 128, 256))
    wanted = [fleet_of.ask(node_id, cpus=cpus, memory_mb=memory_mb, namespace=mine.namespace) for node_id in order]
    for item in wanted:
        if isinstance(_decided(db, pause, attempt, item), Admitted):
            mine.held[item.instance_uuid] = item.node_id
            mine.drafts.add(item.instance_uuid)
            return


def _decided(db: Database, pause: Pause, attempt: Attempt, wanted: NodeAsk) -> AdmissionOutcome:
    return until_known(lambda: racing.until_decided(db, pause, attempt, wanted))


def _settle(db: Database, draw: random.Random, mine: Acknowledged) -> None:
    instance = draw.choice(sorted(mine.drafts))
    assert until_known(lambda: fleet_of.settle(db, instance))
    mine.drafts.discard(instance)


def _delete(db: Database, draw: random.Random, mine: Acknowledged) -> None:
    _drop(db, mine, draw.choice(sorted(mine.held)))


def _drop(db: Database, mine: Acknowledged, instance: str) -> None:
    assert isinstance(until_known(lambda: fleet_of.delete(db, instance)), Released)
    del mine.held[instance]
    mine.drafts.discard(instance)
    mine.deleted.add(instance)


def _move(db: Database, pause: Pause, draw: random.Random, mine: Acknowledged, node_ids: Sequence[int]) -> None:
    instance = draw.choice(sorted(mine.drafts))
    source = mine.held[instance]
    target = draw.choice([node_id for node_id in node_ids if node_id != source])
    wanted = _elsewhere(db, mine, instance, target, source=source)
    if isinstance(_decided(db, pause, racing.guarded, wanted), Admitted):
        mine.held[instance] = target


def _migrate(db: Database, draw: random.Random, mine: Acknowledged, node_ids: Sequence[int]) -> None:
    """A move of a settled instance: both nodes are charged until it settles, or is given up."""
    instance = draw.choice(sorted(set(mine.held) - mine.drafts))
    target = draw.choice([node_id for node_id in node_ids if node_id != mine.held[instance]])
    wanted = _elsewhere(db, mine, instance, target)
    if draw.random() < 0.5:
        size = Amounts(draw.randint(1, 3), draw.choice((64, 128, 256)), 0, 1)
        wanted = replace(wanted, held=wanted.amounts, amounts=size)
    begun = wanted
    if not isinstance(until_known(lambda: moves.begin(db, begun)), Admitted):
        return
    if draw.random() < 0.3:
        assert until_known(lambda: moves.abort(db, instance, "given up"))
        return
    if draw.random() < 0.2:
        # Deleted in mid-move: both nodes and the growth go back at once.
        _drop(db, mine, instance)
        return
    assert until_known(lambda: moves.settle(db, instance, rows=lambda conn: fleet_of.moved_instance(conn, begun)))
    mine.held[instance] = target


def _grow(db: Database, pause: Pause, draw: random.Random, mine: Acknowledged) -> None:
    """Another size where it is; what is acknowledged stands."""
    instance = draw.choice(sorted(mine.held))
    cpus, memory_mb = draw.randint(1, 3), draw.choice((64, 128, 256))
    wanted = fleet_of.ask(
        mine.held[instance], cpus=cpus, memory_mb=memory_mb, instance_uuid=instance, namespace=mine.namespace
    )
    if isinstance(_decided(db, pause, racing.grown, wanted), Admitted):
        held = _size(db, instance)
        assert (held["cpus"], held["memory_mb"]) == (cpus, memory_mb)


def _elsewhere(db: Database, mine: Acknowledged, instance: str, target: int, **how: Any) -> NodeAsk:
    held = _size(db, instance)
    return fleet_of.ask(
        target,
        cpus=held["cpus"],
        memory_mb=held["memory_mb"],
        instance_uuid=instance,
        namespace=mine.namespace,
        **how,
    )


def _size(db: Database, instance: str) -> dict[str, Any]:
    statement = "SELECT cpus, memory_mb FROM charges WHERE instance_uuid = :uuid"
    return until_known(lambda: fleet_of.rows(db, statement, uuid=instance))[0]


@dataclass(slots=True)
class House:
    """What the fleet's own processes did and saw while the tenants worked.

    `busy` says whether they did enough to have been in the way: passes and looks fall between the acts of others.
    """

    passes: int = 0
    looks: int = 0
    corrections: list[str] = field(default_factory=list)
    over: list[str] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)

    @property
    def busy(self) -> bool:
        return min(self.passes, self.looks) > TURNS_MIN


def corrected(db: Database) -> list[str]:
    """What any pass set right, also one that has lost its own report."""
    return [str(event) for event in fleet_of.events_of(db, CORRECTED)]


@contextmanager
def keeping(url: str, names: Sequence[str], sample: dict[str, Any]) -> Iterator[House]:
    """Publish, cordon, reconcile and watch, each in its own thread, until the block ends."""
    house, stop = House(), threading.Event()
    publishing, cordoned = cycle(names), cycle((*names, ""))

    def publish(db: Database) -> None:
        fleet_of.publish(db, next(publishing), **sample)

    def cordon(db: Database) -> None:
        name = next(cordoned)
        if name:
            set_scheduling(db, name, "cordoned")
            stop.wait(0.05)
            set_scheduling(db, name, "enabled")

    def watch(db: Database) -> None:
        with db.read() as conn:
            house.over += [str(row) for row in OVER.run(conn)]
        house.looks += 1

    actors: list[Callable[[Database], None]] = [publish, cordon, watch, _reconciler(house)]
    threads = [threading.Thread(target=_repeat, args=(url, actor, house, stop)) for actor in actors]
    for thread in threads:
        thread.start()
    try:
        yield house
    finally:
        stop.set()
        for thread in threads:
            thread.join(HOUSE_SECONDS_MAX)
        house.errors += ["one of the house hangs"] if any(thread.is_alive() for thread in threads) else []


def _reconciler(house: House) -> Callable[[Database], None]:
    lease: list[leases.Lease] = []

    def once(db: Database) -> None:
        if not lease:
            taken = leases.acquire(db, "reconciler", "soak", LEASE_SECONDS)
            assert taken is not None
            lease.append(taken)
        report = reconcile(db, lease[0], fleet_of.PLAIN)
        house.passes += 1
        house.corrections += [str(item) for item in report.corrections]

    return once


def _repeat(url: str, actor: Callable[[Database], None], house: House, stop: threading.Event) -> None:
    db = Database(url, pool_size=2)
    try:
        while not stop.wait(0.005):
            until_known(lambda: actor(db))
    except Exception as error:  # noqa: BLE001  # what reached the caller is the finding
        house.errors.append(f"{getattr(actor, '__name__', actor)}: {type(error).__name__}: {error}")
    finally:
        db.close()
