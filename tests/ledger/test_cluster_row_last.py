"""The cluster's row is the one that every writer meets: whoever writes it writes it last, and commits.

Looked at on SQLite, where each statement of a batch passes by; the statements and their order are the same on MariaDB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from fleet.ledger import claim_grants, leases
from fleet.ledger.database import Database
from fleet.ledger.reconcile import reconcile
from fleet.ledger.verify import verify
from tests.ledger import fleet_of, moving
from tests.ledger.claiming import granted, until_past
from tests.ledger.fleet_of import NAMESPACE, PLAIN, ask

HOT = re.compile(r"UPDATE cluster_capacity\b")


@pytest.fixture
def db(sqlite_ledger_url: str) -> Iterator[Database]:
    database = Database(sqlite_ledger_url)
    yield database
    database.close()


@contextmanager
def units_of(db: Database) -> Iterator[list[list[str]]]:
    """Collect the statements of each unit in order; one whose own condition keeps it from the cluster's row is none."""
    units: list[list[str]] = []

    def note(_conn: Any, cursor: Any, statement: str, *_more: Any) -> None:
        if statement.startswith("BEGIN"):
            units.append([])
        if cursor.rowcount or not HOT.search(statement):
            units[-1].append(statement)

    event.listen(db.engine, "after_cursor_execute", note)
    try:
        yield units
    finally:
        event.remove(db.engine, "after_cursor_execute", note)


def over_its_claim(db: Database) -> Callable[[], object]:
    node_id = fleet_of.node(db, cpus=40)
    granted(db, NAMESPACE, 2, 10)
    return lambda: fleet_of.admitted(db, ask(node_id, cpus=3))


def paid_by_the_cluster(db: Database) -> Callable[[], object]:
    node_id = fleet_of.node(db, cpus=40)
    return lambda: fleet_of.admitted(db, ask(node_id, cpus=3))


def released(db: Database) -> Callable[[], object]:
    instance = fleet_of.admitted(db, ask(fleet_of.node(db, cpus=40), cpus=3))
    return lambda: fleet_of.delete(db, instance)


def released_to_an_overdrawn_claim(db: Database) -> Callable[[], object]:
    instance = str(over_its_claim(db)())
    return lambda: fleet_of.delete(db, instance)


def moved_and_smaller(db: Database) -> Callable[[], object]:
    here, there = fleet_of.node(db, cpus=40), fleet_of.node(db, cpus=40)
    instance = fleet_of.admitted(db, ask(here, cpus=3))
    fleet_of.settle(db, instance)
    wanted = moving.to(db, there, instance, cpus=1)
    moving.begun(db, wanted)
    return lambda: moving.settled(db, wanted)


def claim_made(db: Database) -> Callable[[], object]:
    fleet_of.admitted(db, ask(fleet_of.node(db, cpus=40), cpus=3))
    return lambda: granted(db, NAMESPACE, 2, 10)


def claim_grown(db: Database) -> Callable[[], object]:
    fleet_of.node(db, cpus=40)
    made = granted(db, NAMESPACE, 2, 10)
    return lambda: claim_grants.change(db, made.uuid, {"cpus": 5})


def claim_deleted(db: Database) -> Callable[[], object]:
    fleet_of.node(db, cpus=40)
    made = granted(db, NAMESPACE, 2, 10)
    return lambda: claim_grants.delete(db, made.uuid)


def ended_claim_deleted(db: Database) -> Callable[[], object]:
    fleet_of.node(db, cpus=40)
    made = granted(db, NAMESPACE, 2, 10, seconds=1)
    until_past(db, made)
    return lambda: claim_grants.delete(db, made.uuid)


def ended_claim_folded(db: Database) -> Callable[[], object]:
    fleet_of.node(db, cpus=40)
    until_past(db, granted(db, NAMESPACE, 2, 10, seconds=1))
    lease = leases.acquire(db, "reconciler", "test", 60)
    assert lease is not None
    return lambda: reconcile(db, lease, PLAIN)


@pytest.mark.parametrize(
    "prepared",
    [
        over_its_claim,
        paid_by_the_cluster,
        released,
        released_to_an_overdrawn_claim,
        moved_and_smaller,
        claim_made,
        claim_grown,
        claim_deleted,
        ended_claim_deleted,
        ended_claim_folded,
    ],
    ids=lambda prepared: prepared.__name__,
)
def test_what_writes_the_clusters_row_writes_nothing_after_it(
    db: Database, prepared: Callable[[Database], Callable[[], object]]
) -> None:
    act = prepared(db)
    with units_of(db) as units:
        act()

    touching = [unit for unit in units if any(HOT.search(statement) for statement in unit)]
    assert touching
    for unit in touching:
        first = next(at for at, statement in enumerate(unit) if HOT.search(statement))
        assert [statement for statement in unit[first:] if not HOT.search(statement)] == []
    assert not verify(db).differences
