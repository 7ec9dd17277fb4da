"""Two transactions that meet, one step at a time: what each sees, who waits, who wins."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from sqlalchemy import Connection

from fleet.ledger import admission, charges, moves, nodes, release, samples
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database
from fleet.ledger.held import LOCK_PRIMARY
from fleet.model.admission import Admitted, Busy, Refused
from fleet.model.errors import NodeNotFound
from fleet.model.resources import Amounts
from tests.ledger import claiming, fleet_of
from tests.ledger.fleet_of import PLAIN, ask
from tests.ledger.holding import Other, open_transaction


def sample(name: str, **figures: Any) -> samples.SampleIn:
    return samples.SampleIn(name, fleet_of.figures(**{"cpus": 8, "memory_mb": 8192, **figures}))


def publishing(name: str, **figures: Any) -> Callable[[Connection], None]:
    return lambda conn: samples._publish_batch(conn, [sample(name, **figures)], PLAIN)


def test_an_answered_cordon_lets_no_admission_commit_after_it(maria: Database, mariadb_ledger_url: str) -> None:
    node_id = fleet_of.node(maria, "n", cpus=8)
    with open_transaction(maria) as conn:
        samples._set_scheduling(conn, "n", "cordoned")
        assert fleet_of.admit(maria, ask(node_id)) == Busy(node_id)

    refused = fleet_of.admit(maria, ask(node_id))
    assert isinstance(refused, Refused)
    assert (refused.ineligible, refused.scheduling) == ("scheduling", "cordoned")


def test_a_cordon_waits_for_the_admission_that_came_first(maria: Database, mariadb_ledger_url: str) -> None:
    node_id = fleet_of.node(maria, "n", cpus=8)
    wanted = ask(node_id)
    with open_transaction(maria) as conn:
        conn.exec_driver_sql(f"UPDATE scheduler_node_capacity SET used_cpus = used_cpus WHERE node_id = {node_id}")
        other = Other(mariadb_ledger_url, lambda db: samples.set_scheduling(db, "n", "cordoned"))
        other.stands(maria)
        assert fleet_of.row(maria, node_id)["scheduling"] == "enabled"
    other.result()

    assert fleet_of.row(maria, node_id)["scheduling"] == "cordoned"
    assert isinstance(fleet_of.admit(maria, wanted), Refused)


def test_a_publish_that_waited_for_a_cordon_keeps_it(maria: Database, mariadb_ledger_url: str) -> None:
    node_id = fleet_of.node(maria, "n", cpus=8)
    with open_transaction(maria) as conn:
        samples._set_scheduling(conn, "n", "cordoned")
        other = Other(mariadb_ledger_url, lambda db: fleet_of.publish(db, "n", cpus=8))
        other.stands(maria)
    other.result()

    assert fleet_of.row(maria, node_id)["scheduling"] == "cordoned"


def test_a_cordon_during_the_first_publish_reaches_the_new_row(maria: Database, mariadb_ledger_url: str) -> None:
    node_id = fleet_of.register(maria, "n")
    with open_transaction(maria) as conn:
        publishing("n")(conn)
        other = Other(mariadb_ledger_url, lambda db: samples.set_scheduling(db, "n", "cordoned"))
        other.stands(maria)
    other.result()

    assert fleet_of.row(maria, node_id)["scheduling"] == "cordoned"
    fleet_of.assert_exact(maria)


def test_the_first_publish_during_a_cordon_writes_it_into_the_new_row(maria: Database, mariadb_ledger_url: str) -> None:
    node_id = fleet_of.register(maria, "n")
    with open_transaction(maria) as conn:
        samples._set_scheduling(conn, "n", "cordoned")
        other = Other(mariadb_ledger_url, lambda db: db.unit(publishing("n")))
        other.stands(maria)
    other.result()

    assert fleet_of.row(maria, node_id)["scheduling"] == "cordoned"


def test_two_first_publishes_at_once_both_succeed(
    maria: Database, mariadb_ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_id = fleet_of.register(maria, "n")
    lock_node, others = samples.LOCK_NODE, []

    class Overtaken:
        """The other publish comes between the look for the ledger row, which is not there, and the lock."""

        def run(self, conn: Connection, **binds: Any) -> Any:
            monkeypatch.undo()
            others.append(Other(mariadb_ledger_url, lambda db: fleet_of.publish(db, "n", cpus=9)))
            others[0].stands(maria)
            return lock_node.run(conn, **binds)

    monkeypatch.setattr(samples, "LOCK_NODE", Overtaken())
    fleet_of.publish(maria, "n", cpus=8)
    others[0].result()

    assert fleet_of.row(maria, node_id)["limit_cpus"] in {8, 9}
    assert fleet_of.cluster(maria)["counted_nodes"] == 1
    fleet_of.assert_exact(maria)


@pytest.mark.parametrize("published_before", [True, False])
def test_a_publish_that_waited_for_a_removal_does_not_bring_the_node_back(
    maria: Database, mariadb_ledger_url: str, *, published_before: bool
) -> None:
    node_id = fleet_of.register(maria, "n")
    if published_before:
        fleet_of.publish(maria, "n", cpus=8)
    with open_transaction(maria) as conn:
        samples._remove(conn, *samples._locked(conn, samples._existing(conn, "n")), "test")
        other = Other(mariadb_ledger_url, lambda db: fleet_of.publish(db, "n", cpus=8))
        other.stands(maria)
    with pytest.raises(NodeNotFound):
        other.result()

    gone = nodes.get(maria, "n", deleted=True)
    assert gone is not None
    assert (str(gone.state), gone.row) == ("deleted", None)
    assert isinstance(fleet_of.admit(maria, ask(node_id)), Refused)
    fleet_of.assert_exact(maria)


def test_a_removal_during_the_first_publish_takes_the_new_row_too(maria: Database, mariadb_ledger_url: str) -> None:
    node_id = fleet_of.register(maria, "n")
    with open_transaction(maria) as conn:
        publishing("n")(conn)
        other = Other(mariadb_ledger_url, lambda db: samples.remove_node(db, "n"))
        other.stands(maria)
    other.result()

    gone = nodes.get(maria, "n", deleted=True)
    assert gone is not None
    assert (str(gone.state), gone.row) == ("deleted", None)
    assert fleet_of.cluster(maria)["counted_nodes"] == 0
    assert isinstance(fleet_of.admit(maria, ask(node_id)), Refused)


def test_a_publish_while_a_charge_settles_leaves_pending_exact(maria: Database, mariadb_ledger_url: str) -> None:
    node_id = fleet_of.node(maria, "n", cpus=8)
    instance = fleet_of.admitted(maria, ask(node_id, memory_mb=512))
    with open_transaction(maria) as conn:
        assert charges.settle(conn, instance)
        other = Other(mariadb_ledger_url, lambda db: fleet_of.publish(db, "n", cpus=8))
        other.stands(maria)
    other.result()

    fleet_of.assert_exact(maria)
    fleet_of.publish(maria, "n", cpus=8)
    assert fleet_of.row(maria, node_id)["pending_memory_mb"] == 0
    fleet_of.assert_exact(maria)


def test_a_release_that_a_settle_and_a_publish_overtook_leaves_pending_exact(
    maria: Database, mariadb_ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_id = fleet_of.node(maria, "n", cpus=8)
    instance, stays = (fleet_of.admitted(maria, ask(node_id, memory_mb=512)) for _ in range(2))
    lock_node = release.lock_node

    def overtaken(conn: Connection, node: int) -> Any:
        monkeypatch.undo()
        fleet_of.settle(maria, instance)
        fleet_of.publish(maria, "n", cpus=8)
        return lock_node(conn, node)

    monkeypatch.setattr(release, "lock_node", overtaken)
    fleet_of.delete(maria, instance)

    assert set(fleet_of.charged_to(maria)) == {stays}
    assert fleet_of.row(maria, node_id)["pending_memory_mb"] == 512
    fleet_of.assert_exact(maria)


def test_a_release_follows_a_charge_that_moves_away_under_it(maria: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    here, there = fleet_of.node(maria, cpus=8), fleet_of.node(maria, cpus=8)
    instance = fleet_of.admitted(maria, ask(here))
    lock_node = release.lock_node

    def overtaken(conn: Connection, node: int) -> Any:
        monkeypatch.undo()
        moved = fleet_of.admit(maria, ask(there, instance_uuid=instance, source=here))
        assert isinstance(moved, Admitted)
        return lock_node(conn, node)

    monkeypatch.setattr(release, "lock_node", overtaken)
    assert isinstance(fleet_of.delete(maria, instance), release.Released)

    assert fleet_of.charged_to(maria) == {}
    assert fleet_of.used(maria, here) == fleet_of.used(maria, there) == (0, 0, 0, 0)
    fleet_of.assert_exact(maria)


def test_a_release_while_the_charge_moves_leaves_one_of_two_ends(maria: Database, mariadb_ledger_url: str) -> None:
    here, there = fleet_of.node(maria, cpus=8), fleet_of.node(maria, cpus=8)
    instance = fleet_of.admitted(maria, ask(here))
    with open_transaction(maria) as conn:
        release.release_in(conn, instance, rows=lambda inner: fleet_of._deleted(inner, instance))
        moving = ask(there, instance_uuid=instance, source=here)
        other = Other(mariadb_ledger_url, lambda db: fleet_of.admit(db, moving))
        other.stands(maria)

    assert not isinstance(other.result(), Admitted)
    assert fleet_of.charged_to(maria) == {}
    assert fleet_of.used(maria, here) == fleet_of.used(maria, there) == (0, 0, 0, 0)
    fleet_of.assert_exact(maria)


def test_a_release_and_the_beginning_of_a_move_at_once_leave_no_charge_behind(
    maria: Database, mariadb_ledger_url: str
) -> None:
    here, there = fleet_of.node(maria, cpus=8), fleet_of.node(maria, cpus=8)
    for release_first in (True, False):
        instance = fleet_of.admitted(maria, ask(here))
        moving = ask(there, instance_uuid=instance)
        with open_transaction(maria) as conn:
            if release_first:
                release.release_in(conn, instance, rows=functools.partial(fleet_of._deleted, instance=instance))
                other = Other(mariadb_ledger_url, functools.partial(moves.begin, ask=moving))
            else:
                admission._admit(conn, replace(moving, incoming=True), admission.NO_ROWS)
                LOCK_PRIMARY.run(conn, instance_uuid=instance).first()
                other = Other(mariadb_ledger_url, functools.partial(fleet_of.delete, instance=instance))
            other.stands(maria)
        other.result()

        assert fleet_of.charged_to(maria) == {}
        assert fleet_of.used(maria, here) == fleet_of.used(maria, there) == (0, 0, 0, 0)
        fleet_of.assert_exact(maria)


# --- growth in place ---------------------------------------------------------------------------------------------


def growing(conn: Connection, wanted: NodeAsk, **held: int) -> None:
    """One growth's transaction, not committed yet."""
    based = replace(wanted, held=Amounts(**{"cpus": 1, "memory_mb": 1, "instances": 1, **held}))
    assert isinstance(admission._admit(conn, based, admission.NO_ROWS), Admitted)


def test_growth_never_waits_for_its_node(maria: Database) -> None:
    node_id = fleet_of.node(maria, "n", cpus=8)
    instance = fleet_of.admitted(maria, ask(node_id))
    with open_transaction(maria) as conn:
        samples._set_scheduling(conn, "n", "cordoned")
        assert fleet_of.grow(maria, ask(node_id, cpus=2, instance_uuid=instance)) == Busy(node_id)


def test_a_publish_that_waited_for_a_growth_counts_it_as_pending(maria: Database, mariadb_ledger_url: str) -> None:
    node_id = fleet_of.node(maria, "n", cpus=8)
    instance = fleet_of.admitted(maria, ask(node_id))
    fleet_of.settle(maria, instance)
    fleet_of.publish(maria, "n", cpus=8)
    with open_transaction(maria) as conn:
        growing(conn, ask(node_id, memory_mb=513, instance_uuid=instance))
        other = Other(mariadb_ledger_url, lambda db: fleet_of.publish(db, "n", cpus=8, age=60))
        other.stands(maria)
    other.result()

    fleet_of.assert_exact(maria)
    assert fleet_of.row(maria, node_id)["pending_memory_mb"] == 513
    fleet_of.publish(maria, "n", cpus=8)
    assert fleet_of.row(maria, node_id)["pending_memory_mb"] == 0
    fleet_of.assert_exact(maria)


def test_growth_that_a_publish_overtook_charges_against_the_new_sample(
    maria: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_id = fleet_of.node(maria, "n", cpus=8)
    instance = fleet_of.admitted(maria, ask(node_id))
    fleet_of.settle(maria, instance)
    assert isinstance(fleet_of.grow(maria, ask(node_id, memory_mb=101, instance_uuid=instance)), Admitted)
    admit = admission.admit

    def overtaken(db: Database, wanted: NodeAsk, rows: admission.Rows) -> Any:
        fleet_of.publish(maria, "n", cpus=8)
        return admit(db, wanted, rows)

    monkeypatch.setattr(admission, "admit", overtaken)
    assert isinstance(fleet_of.grow(maria, ask(node_id, memory_mb=201, instance_uuid=instance)), Admitted)

    assert fleet_of.row(maria, node_id)["pending_memory_mb"] == 100
    fleet_of.assert_exact(maria)


def test_a_release_that_waited_for_a_growth_gives_the_grown_amounts_back(
    maria: Database, mariadb_ledger_url: str
) -> None:
    node_id = fleet_of.node(maria, cpus=8)
    instance = fleet_of.admitted(maria, ask(node_id))
    with open_transaction(maria) as conn:
        growing(conn, ask(node_id, cpus=5, memory_mb=64, instance_uuid=instance))
        other = Other(mariadb_ledger_url, functools.partial(fleet_of.delete, instance=instance))
        other.stands(maria)
    released = other.result()

    assert [charge.amounts for charge in released.charges] == [Amounts(5, 64, 0, 1)]
    assert fleet_of.used(maria, node_id) == (0, 0, 0, 0)
    assert fleet_of.unclaimed(maria) == (0, 0, 0)
    fleet_of.assert_exact(maria)


def test_growth_during_a_release_is_busy_and_finds_no_charge_after_it(maria: Database) -> None:
    node_id = fleet_of.node(maria, cpus=8)
    instance = fleet_of.admitted(maria, ask(node_id))
    wanted = ask(node_id, cpus=5, instance_uuid=instance)
    with open_transaction(maria) as conn:
        release.release_in(conn, instance, rows=functools.partial(fleet_of._deleted, instance=instance))
        assert fleet_of.grow(maria, wanted) == Busy(node_id)

    # One that read the charge before it was released, and one that reads now.
    for outcome in (admission.admit(maria, replace(wanted, held=Amounts(1, 1, 0, 1))), fleet_of.grow(maria, wanted)):
        assert isinstance(outcome, Refused)
        assert outcome.ineligible == "no_charge"
    assert fleet_of.used(maria, node_id) == (0, 0, 0, 0)
    fleet_of.assert_exact(maria)


@pytest.mark.parametrize("growth_first", [True, False])
def test_growth_and_the_beginning_of_a_move_at_once_leave_one_size(
    maria: Database, mariadb_ledger_url: str, *, growth_first: bool
) -> None:
    here, there = fleet_of.node(maria, cpus=8), fleet_of.node(maria, cpus=8)
    instance = fleet_of.admitted(maria, ask(here))
    fleet_of.settle(maria, instance)
    wanted, moving = ask(here, cpus=5, instance_uuid=instance), ask(there, instance_uuid=instance)
    with open_transaction(maria) as conn:
        if growth_first:
            growing(conn, wanted)
            other = Other(mariadb_ledger_url, functools.partial(moves.begin, ask=moving))
        else:
            admission._admit(conn, replace(moving, incoming=True), admission.NO_ROWS)
            LOCK_PRIMARY.run(conn, instance_uuid=instance).first()
            other = Other(mariadb_ledger_url, functools.partial(fleet_of.grow, wanted=wanted))
        other.stands(maria)
    outcome = other.result()

    assert isinstance(outcome, Refused)
    assert outcome.ineligible == ("charge_changed" if growth_first else "charge_moving")
    assert fleet_of.used(maria, here)[0] == (5 if growth_first else 1)
    fleet_of.assert_exact(maria)


def test_growth_while_a_move_settles_finds_the_charge_elsewhere(maria: Database, mariadb_ledger_url: str) -> None:
    here, there = fleet_of.node(maria, cpus=8), fleet_of.node(maria, cpus=8)
    instance = fleet_of.admitted(maria, ask(here))
    fleet_of.settle(maria, instance)
    moving = ask(there, instance_uuid=instance)
    assert isinstance(moves.begin(maria, moving), Admitted)
    wanted = ask(here, cpus=5, instance_uuid=instance)
    # It has read the charge where it was, and meets the settling at its own lock.
    based = replace(wanted, held=Amounts(1, 1, 0, 1))

    def settling(db: Database) -> bool:
        return moves.settle(db, instance, rows=lambda conn: fleet_of.moved_instance(conn, moving))

    with open_transaction(maria) as conn:
        conn.exec_driver_sql(f"UPDATE scheduler_node_capacity SET used_cpus = used_cpus WHERE node_id = {there}")
        other = Other(mariadb_ledger_url, settling)
        other.stands(maria)
        assert admission.admit(maria, based) == Busy(here)
    assert other.result()

    outcome = admission.admit(maria, based)
    assert isinstance(outcome, Refused)
    assert outcome.ineligible == "charge_elsewhere"
    assert (fleet_of.used(maria, here)[0], fleet_of.used(maria, there)[0]) == (0, 1)
    fleet_of.assert_exact(maria)


def test_growth_whose_claim_ends_before_its_row_is_locked_is_paid_by_the_cluster(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    node_id = fleet_of.node(db, cpus=16)
    with claiming.long_ago(db):
        claim = fleet_of.claim(db, limit=(4, 40, 4), namespace="claimed")
        instance = fleet_of.admitted(db, ask(node_id, cpus=2, namespace="claimed"))
        wanted = ask(node_id, cpus=3, namespace="claimed", claim_hard=True, instance_uuid=instance)
        assert fleet_of.claim_row(db, claim)["used_cpus"] == 2
        met = claiming.ending_before_it_pays(monkeypatch, db, claim)

        assert fleet_of.grow(db, wanted) == Admitted(node_id, payer=None)
    assert met == [claim]
    assert (fleet_of.claim_row(db, claim)["used_cpus"], fleet_of.unclaimed(db)[0]) == (0, 3)
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("forced", [False, True])
def test_a_first_sample_waits_for_what_is_being_charged_to_its_node_and_counts_it(
    maria: Database, mariadb_ledger_url: str, *, forced: bool
) -> None:
    fleet_of.node(maria, "big", cpus=64)
    node_id = fleet_of.register(maria, "new")
    wanted = ask(node_id, cpus=2, admit_unsized=True, enforce=not forced)
    others: list[Other] = []

    def meanwhile(_conn: Connection) -> None:
        others.append(Other(mariadb_ledger_url, lambda db: fleet_of.publish(db, "new", cpus=8)))
        others[0].stands(maria)

    rows = admission.Rows(changed=meanwhile, new=lambda batch: fleet_of.new_instance(batch, wanted))
    outcome = admission.admit(maria, wanted, rows)
    others[0].result()

    assert isinstance(outcome, Admitted)
    assert outcome.unguarded
    assert fleet_of.used(maria, node_id)[0] == 2
    fleet_of.assert_exact(maria)


@pytest.mark.parametrize("forced", [False, True])
def test_what_is_charged_while_a_first_sample_is_written_waits_and_finds_its_row(
    maria: Database, mariadb_ledger_url: str, *, forced: bool
) -> None:
    fleet_of.node(maria, "big", cpus=64)
    node_id = fleet_of.register(maria, "new")
    wanted = ask(node_id, cpus=2, admit_unsized=True, enforce=not forced)
    with open_transaction(maria) as conn:
        conn.exec_driver_sql(f"SELECT id FROM nodes WHERE id = {node_id} FOR UPDATE")
        other = Other(mariadb_ledger_url, lambda db: fleet_of.admit(db, wanted))
        other.stands(maria)
        publishing("new")(conn)
    outcome = other.result()

    if forced:
        assert isinstance(outcome, Admitted)
        assert not outcome.unguarded
        assert fleet_of.used(maria, node_id)[0] == 2
    else:
        # It was no node without a row any more; the next try is judged by it.
        assert isinstance(outcome, Refused)
        assert isinstance(fleet_of.admit(maria, wanted), Admitted)
    fleet_of.assert_exact(maria)
