"""Operations: taken once, fenced by number, due by the database's clock, on both backends."""

from __future__ import annotations

import threading
import uuid

import pytest

from fleet.ledger import operations
from fleet.ledger.database import Database
from fleet.ledger.operations import LeasedOperation
from fleet.model.errors import Conflict, NotFound
from fleet.model.lifecycle import OperationKind, OperationState
from tests.ledger import past
from tests.servers import wait_until

WORKERS = 8
ROUNDS = 15


def add(
    db: Database, *, kind: OperationKind = OperationKind.CREATE, delay_seconds: float = 0, instance: str = ""
) -> str:
    operation = str(uuid.uuid4())
    db.unit(
        lambda conn: operations.insert(
            conn, operation, kind, instance or str(uuid.uuid4()), "ns", 7, delay_seconds=delay_seconds
        )
    )
    return operation


def take(db: Database, operation: str, owner: str = "w", seconds: float = 60) -> LeasedOperation:
    leased = operations.lease(db, operation, owner, seconds)
    assert leased is not None
    return leased


def end_lease(db: Database, leased: LeasedOperation) -> None:
    """Let the lease last no longer, and wait until it has ended by the database's clock."""
    assert operations.heartbeat(db, leased, 0)
    wait_until(
        lambda: leased.uuid in {found.uuid for found in operations.due(db, 10)}, seconds=5, what="the lease has ended"
    )


def state_of(db: Database, operation: str) -> OperationState:
    found = operations.get(db, operation)
    assert found is not None
    return found.state


def test_an_operation_is_leased_once(db: Database) -> None:
    operation = add(db)
    leased = take(db, operation, "first")

    assert (leased.kind, leased.node_id, leased.attempts, leased.number) == (OperationKind.CREATE, 7, 1, 1)
    assert operations.lease(db, operation, "second", 60) is None


def race(db: Database, operation: str, barrier: threading.Barrier, won: list[str]) -> None:
    name = threading.current_thread().name
    barrier.wait()
    if operations.lease(db, operation, name, 60) is not None:
        won.append(name)


def test_of_many_workers_exactly_one_gets_the_lease(db: Database) -> None:
    for _ in range(ROUNDS):
        operation = add(db)
        barrier = threading.Barrier(WORKERS)
        won: list[str] = []

        threads = [threading.Thread(target=race, args=(db, operation, barrier, won)) for _ in range(WORKERS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(won) == 1


def test_an_operation_that_is_not_due_is_not_leased(db: Database) -> None:
    operation = add(db, delay_seconds=3600)

    assert operations.lease(db, operation, "w", 60) is None
    assert operations.due(db, 10) == []


def test_a_lease_that_ran_out_goes_to_the_next_worker_and_fences_the_former(db: Database) -> None:
    operation = add(db)
    stale = take(db, operation, "stale")
    end_lease(db, stale)
    fresh = take(db, operation, "fresh")

    assert fresh.number == stale.number + 1
    assert not operations.heartbeat(db, stale, 60)
    assert not operations.step(db, stale, "anything", 60)
    assert not db.unit(lambda conn: operations.finish(conn, stale))
    assert not operations.fail(db, stale, "late", 1)
    assert not operations.fail(db, stale, "late", None)
    assert not db.unit(lambda conn: operations.redirect(conn, stale, 8))
    assert db.unit(lambda conn: operations.finish(conn, fresh))
    assert state_of(db, operation) is OperationState.DONE


def test_a_heartbeat_keeps_the_lease(db: Database) -> None:
    with past.ago(db, 100):
        operation = add(db)
        leased = take(db, operation, seconds=60)
        assert operations.heartbeat(db, leased, 3600)

    assert operations.lease(db, operation, "other", 60) is None


def test_a_failed_attempt_is_due_again_after_its_pause(db: Database) -> None:
    with past.ago(db, 100):
        operation = add(db)
        leased = take(db, operation)
        assert operations.fail(db, leased, "no answer", 60)
        assert operations.due(db, 10) == []
        assert operations.lease(db, operation, "w", 60) is None

    assert [found.uuid for found in operations.due(db, 10)] == [operation]
    again = take(db, operation)
    assert (again.attempts, again.number) == (2, 2)
    found = operations.get(db, operation)
    assert found is not None
    assert found.error == "no answer"


def test_waiting_for_another_operation_costs_no_attempt(db: Database) -> None:
    operation = add(db)
    assert operations.fail(db, take(db, operation), "waits", 0, counted=False)

    assert take(db, operation).attempts == 1


def test_due_lists_pending_and_expired_work_and_nothing_else(db: Database) -> None:
    pending, expired, held, done = (add(db) for _ in range(4))
    end_lease(db, take(db, expired))
    take(db, held)
    finished = take(db, done)
    db.unit(lambda conn: operations.finish(conn, finished))

    assert {item.uuid for item in operations.due(db, 10)} == {pending, expired}


def test_waiting_counts_what_is_due_and_in_nobodys_hands(db: Database) -> None:
    add(db)
    add(db)
    add(db, delay_seconds=60)
    take(db, add(db))

    assert operations.waiting(db, [7, 8]) == {7: 2, 8: 0}
    assert operations.waiting(db, []) == {}


def test_due_is_read_page_by_page_without_a_gap(db: Database) -> None:
    added = {add(db) for _ in range(7)}
    found: list[str] = []
    while page := operations.due(db, 3, after=found[-1] if found else ""):
        found += [item.uuid for item in page]

    assert found == sorted(added)


def test_fresh_work_is_left_to_its_own_wake_up(db: Database) -> None:
    add(db)

    assert operations.due(db, 10, grace_seconds=60) == []


def test_a_redirected_operation_starts_anew_on_the_other_node(db: Database) -> None:
    operation = add(db)
    leased = take(db, operation)
    operations.step(db, leased, "somewhere", 60)
    assert db.unit(lambda conn: operations.redirect(conn, leased, 9))

    again = take(db, operation)
    assert (again.node_id, again.step, again.number) == (9, "", 2)


def test_cancel_ends_unheld_work_and_fences_a_worker_that_lost_its_lease(db: Database) -> None:
    operation = add(db)
    stale = take(db, operation)
    with pytest.raises(Conflict, match="running"):
        operations.cancel(db, operation)
    end_lease(db, stale)

    assert operations.cancel(db, operation).state is OperationState.CANCELLED
    assert not operations.heartbeat(db, stale, 60)
    assert operations.lease(db, operation, "w", 60) is None


def test_a_delete_cannot_be_cancelled(db: Database) -> None:
    operation = add(db, kind=OperationKind.DELETE)

    with pytest.raises(Conflict, match="delete"):
        operations.cancel(db, operation)


def test_only_a_failed_operation_is_tried_again(db: Database) -> None:
    operation = add(db)
    with pytest.raises(Conflict, match="pending"):
        operations.retry(db, operation)
    operations.fail(db, take(db, operation), "for good", None)

    again = operations.retry(db, operation)
    assert (again.state, again.attempts) == (OperationState.PENDING, 0)
    assert take(db, operation).attempts == 1


def test_an_unknown_operation_is_not_found(db: Database) -> None:
    with pytest.raises(NotFound):
        operations.retry(db, str(uuid.uuid4()))
    with pytest.raises(NotFound):
        operations.cancel(db, str(uuid.uuid4()))
    assert operations.get(db, str(uuid.uuid4())) is None


def test_listing_is_newest_first_and_pages(db: Database) -> None:
    added = [add(db) for _ in range(5)]
    first = operations.listing(db, 3)
    rest = operations.listing(db, 3, before=(first[-1].created_at, first[-1].uuid))

    assert {item.uuid for item in [*first, *rest]} == set(added)
    assert [item.created_at for item in [*first, *rest]] == sorted(
        (item.created_at for item in [*first, *rest]), reverse=True
    )
    assert operations.listing(db, 3, namespace="other") == []
    assert operations.listing(db, 3, state=OperationState.DONE) == []


def test_others_on_the_instance_are_those_that_have_not_ended(db: Database) -> None:
    instance = str(uuid.uuid4())
    create = add(db, instance=instance)
    ended = add(db, instance=instance)
    operations.fail(db, take(db, ended), "for good", None)
    delete = take(db, add(db, kind=OperationKind.DELETE, instance=instance))

    with db.read() as conn:
        assert [item.uuid for item in operations.unfinished_others(conn, delete)] == [create]
