"""No instance is born in a namespace that is being deleted: one of the two wins, whoever comes first."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from fleet import bootstrap
from fleet.config import load_settings
from fleet.ledger import instances, namespaces
from fleet.ledger.database import Database
from fleet.model.errors import Conflict, NotFound
from fleet.model.request import InstanceRequest
from fleet.services.context import Context
from fleet.services.create import Created, create_instance
from tests.ledger import fleet_of

ROUNDS = 15


def _race(db: Database, ctx: Context, name: str) -> tuple[bool, bool]:
    """Create and delete at once; return which of them succeeded."""
    start = threading.Barrier(2)

    def create() -> bool:
        start.wait(10)
        try:
            return isinstance(create_instance(ctx, name, InstanceRequest(cpus=1, memory_mb=64)), Created)
        except NotFound:
            return False

    def delete() -> bool:
        start.wait(10)
        try:
            return namespaces.delete(db, name)
        except Conflict:
            return False

    with ThreadPoolExecutor(2) as pool:
        made, gone = pool.submit(create), pool.submit(delete)
        return made.result(30), gone.result(30)


def test_a_create_in_a_deleted_namespace_leaves_nothing(db: Database) -> None:
    fleet_of.node(db, cpus=8, cpu_max_per_instance=8, memory_mb=65536, disk_gb=1000)
    namespaces.ensure(db, "gone")
    namespaces.delete(db, "gone")
    ctx = bootstrap.with_parts(load_settings(None, {}), db, lambda _wake: None, {})

    with pytest.raises(NotFound):
        create_instance(ctx, "gone", InstanceRequest(cpus=1, memory_mb=64))

    assert instances.counts(db) == {}
    fleet_of.assert_exact(db)


def test_a_create_and_the_deletion_of_its_namespace_never_both_succeed(db: Database) -> None:
    fleet_of.node(db, cpus=1000, cpu_max_per_instance=8, memory_mb=1 << 20, disk_gb=10_000)
    ctx = bootstrap.with_parts(load_settings(None, {}), db, lambda _wake: None, {})
    ctx.snapshots.view()
    for round_number in range(ROUNDS):
        name = f"ns-{round_number}"
        namespaces.ensure(db, name)

        created, deleted = _race(db, ctx, name)

        assert created is not deleted
    fleet_of.assert_exact(db)
