"""The snapshot cache: a base is stored once, before anybody refers to it, and nobody else waits for that."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest

from fleet.ledger import decisions
from fleet.ledger import snapshots as rows
from fleet.ledger.database import Database
from fleet.model.errors import DatabaseUnavailable
from fleet.model.gpu_inventory import GpuAsk
from fleet.placement.record import decode
from fleet.services import snapshots
from fleet.services.configuration import Configuration
from fleet.services.cursor import Cursor
from fleet.services.snapshots import SnapshotCache, View
from tests.ledger import fleet_of, gpus_of, past
from tests.ledger.fleet_of import ask

SECONDS = 20.0
LATE = """
    UPDATE node_gpus SET updated_at = {now},
        bound_to = CASE WHEN uuid = 'GPU-1' THEN '00000000-0000-0000-0000-000000000001' END
"""
NEARLY_TOO_LATE_US = rows.THOROUGH_OVERLAP_US - 1000
THREADS = 6
Insert = Callable[[Database, str, str | None, bytes], None]


class Storing:
    """Stands before the storing of bases: counts them, and holds or breaks them while it is told to."""

    def __init__(self, insert: Insert) -> None:
        self._insert = insert
        self.stored: list[str] = []
        self.error: Exception | None = None
        self.began = threading.Event()
        self.may_end = threading.Event()
        self.may_end.set()

    def __call__(self, db: Database, base_id: str, parent: str | None, body: bytes) -> None:
        self.began.set()
        assert self.may_end.wait(SECONDS)
        if self.error is not None:
            raise self.error
        self._insert(db, base_id, parent, body)
        self.stored.append(base_id)


@pytest.fixture
def storing(monkeypatch: pytest.MonkeyPatch) -> Storing:
    made = Storing(decisions.insert_base)
    monkeypatch.setattr(decisions, "insert_base", made)
    return made


@pytest.fixture
def node_id(db: Database) -> int:
    return fleet_of.node(db, "n", cpus=100)


@pytest.fixture
def cache(db: Database, node_id: int) -> SnapshotCache:
    assert node_id
    ids = itertools.count()
    return SnapshotCache(db, Configuration(db, time.monotonic), time.monotonic, lambda: f"base-{next(ids)}")


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(THREADS) as made:
        yield made


def used_cpus(view: View) -> int:
    return int(view.snapshot.frame.used[0][0])


def test_threads_that_need_the_first_base_store_one(
    cache: SnapshotCache, storing: Storing, pool: ThreadPoolExecutor
) -> None:
    storing.may_end.clear()
    asked: list[Future[View]] = [pool.submit(cache.view) for _ in range(THREADS)]
    assert storing.began.wait(SECONDS)
    # Whoever only looks is not kept waiting.
    assert len(cache.peek()) == 1
    assert not any(future.done() for future in asked)
    storing.may_end.set()

    assert {future.result(SECONDS).base_id for future in asked} == {"base-0"}
    assert storing.stored == ["base-0"]


def test_while_the_next_base_is_stored_the_others_decide_on_the_last(
    db: Database,
    node_id: int,
    cache: SnapshotCache,
    storing: Storing,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert cache.view().base_id == "base-0"
    monkeypatch.setattr(snapshots, "CHECKPOINT_ROWS", 0)
    storing.may_end.clear()
    storing.began.clear()
    fleet_of.admitted(db, ask(node_id, cpus=3))
    first = pool.submit(cache.view, fresh_since=time.monotonic())
    assert storing.began.wait(SECONDS)

    others = [cache.view() for _ in range(3)]
    storing.may_end.set()

    assert [(view.base_id, used_cpus(view)) for view in others] == [("base-0", 3)] * 3
    assert (first.result(SECONDS).base_id, used_cpus(first.result())) == ("base-1", 3)
    assert cache.view().base_id == "base-1"
    assert storing.stored == ["base-0", "base-1"]
    for view in (*others, first.result()):
        replayed = decode(*decisions.base(db, view.base_id), view.changes)
        assert np.array_equal(replayed.frame.ledger, view.snapshot.frame.ledger)


def test_a_base_that_could_not_be_stored_is_never_referred_to(cache: SnapshotCache, storing: Storing) -> None:
    storing.error = DatabaseUnavailable("away")
    with pytest.raises(DatabaseUnavailable):
        cache.view()
    storing.error = None

    assert cache.view().base_id == storing.stored[-1]


def test_looking_reads_what_changed_and_not_the_whole_fleet(
    db: Database, node_id: int, cache: SnapshotCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    cache.peek()

    def everything(*_args: Any) -> Any:
        pytest.fail("the whole fleet was read again")

    monkeypatch.setattr(rows, "everything", everything)
    fleet_of.admitted(db, ask(node_id, cpus=5))

    assert int(cache.peek().frame.used[0][0]) == 5


def test_a_burst_of_changes_is_not_read_again_before_every_decision(db: Database) -> None:
    fleet_of.node(db, cpus=4)
    read = rows.changed(db, 0)
    assert len(read.rows) == 1

    assert not rows.changed(db, read.now_us).rows


def test_a_burst_of_gpus_that_change_hands_is_read_once_and_one_that_commits_late_by_a_fresh_look(
    db: Database, cache: SnapshotCache
) -> None:
    with past.ago(db, 60):
        # Nothing else of it is new enough to be read again.
        node_id = gpus_of.node(db, gpus=[gpus_of.card("GPU-1"), gpus_of.card("GPU-2")])

    def free(**asked: float) -> int:
        found = cache.view(gpus=True, **asked).snapshot.frame
        return int(found.gpus.free(GpuAsk(1))[found.roster.by_id[node_id]])

    with past.still(db) as now:
        assert free(fresh_since=time.monotonic()) == 2
        burst = rows.gpus_changed(db, 0)
        assert set(burst.inventories) == {node_id}
        assert not rows.gpus_changed(db, burst.now_us).inventories
    with past.still(db, now - NEARLY_TOO_LATE_US):
        fleet_of.execute(db, LATE)

    with past.still(db, now):
        assert free() == 2
        assert free(fresh_since=time.monotonic()) == 1


def test_what_was_committed_late_is_found_by_the_next_thorough_read_past_any_number_of_quick_ones() -> None:
    cursor = Cursor()
    cursor.advance(100_000_000, thorough=True)
    for second in range(101, 150):
        cursor.advance(second * 1_000_000, thorough=False)

    assert cursor.since(thorough=False) == 149_000_000 - rows.QUICK_OVERLAP_US
    assert cursor.since(thorough=True) == 100_000_000 - rows.THOROUGH_OVERLAP_US
