"""Interleavings on purpose about a move that grows: whatever comes second, sums are exact, nothing is paid twice.

The first transaction runs the other one in its own rows, where it holds its nodes and charges and not yet its payer.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from sqlalchemy import Connection

from fleet.ledger import leases, moves, reconcile, release
from fleet.ledger.admission import Rows
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database
from fleet.ledger.release import NothingToRelease, Released
from fleet.model.admission import AdmissionOutcome, Admitted, Refused
from tests.ledger import claiming, fleet_of, moving
from tests.ledger.fleet_of import PLAIN
from tests.ledger.growing import placed
from tests.ledger.holding import Other, open_transaction
from tests.ledger.moving import begun, claimed, to

CLAIMED = "claimed"
Work = Callable[[Database], Any]


class Meeting:
    """`rows` of the first transaction: starts the other, and goes on once it waits or is done."""

    def __init__(self, db: Database, url: str, work: Work) -> None:
        self._db, self._url, self._work = db, url, work
        self._other: Other | None = None

    def rows(self, _conn: Connection) -> None:
        if self._other is None:
            self._other = Other(self._url, self._work)
            self._other.stands(self._db)

    def result(self) -> Any:
        assert self._other is not None
        return self._other.result()


def fleet(db: Database, **more: Any) -> tuple[int, int, str, NodeAsk]:
    """Two nodes, an instance on the first, and its move to the second in a larger size."""
    here, there = fleet_of.node(db, "here", cpus=8), fleet_of.node(db, "there", cpus=8)
    instance = placed(db, here, cpus=2, memory_mb=10, **more)
    return here, there, instance, to(db, there, instance, cpus=5, memory_mb=4, **more)


def settling(wanted: NodeAsk) -> Work:
    return lambda db: moving.settled(db, wanted)


def aborting(wanted: NodeAsk) -> Work:
    return lambda db: moves.abort(db, wanted.instance_uuid, "given up")


def deleting(wanted: NodeAsk) -> Work:
    return lambda db: fleet_of.delete(db, wanted.instance_uuid)


def ended(db: Database, wanted: NodeAsk, ends: str, meeting: Meeting) -> bool:
    """The move ends, and is met before its commit."""

    def moved(conn: Connection) -> None:
        fleet_of.moved_instance(conn, wanted)
        meeting.rows(conn)

    if ends == "settle":
        return moves.settle(db, wanted.instance_uuid, rows=moved)
    return moves.abort(db, wanted.instance_uuid, "given up", rows=meeting.rows)


@pytest.mark.parametrize("second", [settling, aborting, deleting])
def test_what_meets_a_settling_move_finds_it_settled(
    maria: Database, mariadb_ledger_url: str, second: Callable[[NodeAsk], Work]
) -> None:
    here, there, _, wanted = fleet(maria)
    begun(maria, wanted)
    meeting = Meeting(maria, mariadb_ledger_url, second(wanted))

    assert ended(maria, wanted, "settle", meeting)
    answer = meeting.result()
    gone = second is deleting
    assert isinstance(answer, Released) if gone else answer is False
    assert fleet_of.used(maria, here) == (0, 0, 0, 0)
    assert fleet_of.used(maria, there)[:2] == ((0, 0) if gone else (5, 4))
    assert fleet_of.unclaimed(maria) == ((0, 0, 0) if gone else (5, 4, 0))
    fleet_of.assert_exact(maria)


@pytest.mark.parametrize("second", [settling, aborting, deleting])
def test_what_meets_an_aborting_move_finds_it_aborted(
    maria: Database, mariadb_ledger_url: str, second: Callable[[NodeAsk], Work]
) -> None:
    here, there, _, wanted = fleet(maria)
    begun(maria, wanted)
    meeting = Meeting(maria, mariadb_ledger_url, second(wanted))

    assert ended(maria, wanted, "abort", meeting)
    answer = meeting.result()
    gone = second is deleting
    assert isinstance(answer, Released) if gone else answer is False
    assert fleet_of.used(maria, there) == (0, 0, 0, 0)
    assert fleet_of.used(maria, here)[:2] == ((0, 0) if gone else (2, 10))
    assert fleet_of.unclaimed(maria) == ((0, 0, 0) if gone else (2, 10, 0))
    fleet_of.assert_exact(maria)


@pytest.mark.parametrize("second", [settling, aborting])
def test_what_meets_a_release_in_mid_move_finds_no_move(
    maria: Database, mariadb_ledger_url: str, second: Callable[[NodeAsk], Work]
) -> None:
    here, there, _, wanted = fleet(maria)
    begun(maria, wanted)
    meeting = Meeting(maria, mariadb_ledger_url, second(wanted))

    def rows(conn: Connection) -> None:
        fleet_of._deleted(conn, wanted.instance_uuid)
        meeting.rows(conn)

    assert isinstance(release.release(maria, wanted.instance_uuid, rows=rows), Released)
    assert meeting.result() is False
    assert fleet_of.used(maria, here) == fleet_of.used(maria, there) == (0, 0, 0, 0)
    assert fleet_of.unclaimed(maria) == (0, 0, 0)
    assert isinstance(fleet_of.delete(maria, wanted.instance_uuid), NothingToRelease)
    fleet_of.assert_exact(maria)


@pytest.mark.parametrize("name", ["here", "there"])
@pytest.mark.parametrize("ends", ["settle", "abort"])
def test_a_publish_that_meets_the_end_of_a_move_counts_what_is_there_then(
    maria: Database, mariadb_ledger_url: str, name: str, ends: str
) -> None:
    _, _, _, wanted = fleet(maria)
    begun(maria, wanted)
    meeting = Meeting(maria, mariadb_ledger_url, lambda db: fleet_of.publish(db, name, cpus=8))

    assert ended(maria, wanted, ends, meeting)
    meeting.result()
    fleet_of.assert_exact(maria)


def test_a_publish_that_waited_for_a_growing_move_counts_all_of_it_as_pending(
    maria: Database, mariadb_ledger_url: str
) -> None:
    _, there, _, wanted = fleet(maria)
    meeting = Meeting(maria, mariadb_ledger_url, lambda db: fleet_of.publish(db, "there", cpus=8))

    assert isinstance(moves.begin(maria, wanted, Rows(changed=meeting.rows)), Admitted)
    meeting.result()
    assert fleet_of.row(maria, there)["pending_memory_mb"] == 4
    fleet_of.assert_exact(maria)


@pytest.mark.parametrize("has_room", [False, True])
def test_a_move_whose_claim_ends_before_its_row_is_locked_is_paid_by_the_cluster(
    db: Database, monkeypatch: pytest.MonkeyPatch, *, has_room: bool
) -> None:
    _, there, _, wanted = fleet(db, namespace=CLAIMED, claim_hard=True)
    with claiming.long_ago(db):
        # A claim that is granted takes the charge over.
        claim = claiming.granted(db, CLAIMED, 8 if has_room else 4, 40, 4).uuid
        assert claimed(db, claim) == (2, 10, 0)
        met = claiming.ending_before_it_pays(monkeypatch, db, claim)

        assert moves.begin(db, wanted) == Admitted(there, payer=None)
    assert met == [claim]
    assert (claimed(db, claim), fleet_of.unclaimed(db)) == ((0, 0, 0), (5, 10, 0))
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("ends", ["settle", "abort"])
def test_a_claim_that_is_folded_while_a_move_ends_gets_nothing_back_and_the_cluster_does(
    maria: Database, mariadb_ledger_url: str, ends: str
) -> None:
    _, _, _, wanted = fleet(maria, namespace=CLAIMED)
    with claiming.long_ago(maria):
        claim = claiming.granted(maria, CLAIMED, 9, 40, 4).uuid
        assert begun(maria, wanted).payer == claim
    assert claimed(maria, claim) == (5, 10, 0)
    lease = leases.acquire(maria, "reconciler", "test", 600)
    assert lease is not None
    meeting = Meeting(maria, mariadb_ledger_url, lambda db: reconcile.reconcile(db, lease, PLAIN))

    assert ended(maria, wanted, ends, meeting)
    report = meeting.result()
    assert (report.claims_expired, report.corrections) == (1, ())
    assert (claimed(maria, claim), fleet_of.unclaimed(maria)) == (
        (0, 0, 0),
        (5, 4, 0) if ends == "settle" else (2, 10, 0),
    )
    fleet_of.assert_exact(maria)


def test_two_growing_moves_of_one_instance_at_once_hold_one_destination(
    maria: Database, mariadb_ledger_url: str
) -> None:
    here, there, instance, wanted = fleet(maria)
    third = fleet_of.node(maria, cpus=8)
    elsewhere = to(maria, third, instance, cpus=7, memory_mb=20)
    meeting = Meeting(maria, mariadb_ledger_url, functools.partial(moves.begin, ask=elsewhere))

    assert isinstance(moves.begin(maria, wanted, Rows(changed=meeting.rows)), Admitted)
    outcome: AdmissionOutcome = meeting.result()
    assert not isinstance(outcome, Admitted | Refused)
    assert [fleet_of.used(maria, node)[0] for node in (here, there, third)] == [2, 5, 0]
    assert fleet_of.unclaimed(maria) == (5, 10, 0)
    fleet_of.assert_exact(maria)


def test_an_abort_that_waited_while_another_move_took_its_place_holds_that_ones_nodes(
    maria: Database, mariadb_ledger_url: str
) -> None:
    here, there, _, wanted = fleet(maria)
    third = fleet_of.node(maria, "third", cpus=8)
    begun(maria, wanted)
    amounts = [name for name in fleet_of.row(maria, here) if name.startswith(("used_", "pending_"))]
    with open_transaction(maria) as conn:
        conn.exec_driver_sql(f"SELECT node_id FROM scheduler_node_capacity WHERE node_id = {here} FOR UPDATE")
        other = Other(mariadb_ledger_url, aborting(wanted))
        other.stands(maria)
        # As one that was aborted, and begun anew to the third node.
        conn.exec_driver_sql(f"UPDATE charges SET node_id = {third} WHERE role = 'incoming'")
        for name in amounts:
            was = fleet_of.row(maria, there)[name]
            conn.exec_driver_sql(f"UPDATE scheduler_node_capacity SET {name} = {was} WHERE node_id = {third}")
            conn.exec_driver_sql(f"UPDATE scheduler_node_capacity SET {name} = 0 WHERE node_id = {there}")
    assert other.result()

    assert [fleet_of.used(maria, node)[0] for node in (here, there, third)] == [2, 0, 0]
    (event,) = fleet_of.events_of(maria, "instance move aborted")
    assert f'"refused_node_id":{third}' in event["payload"]
    fleet_of.assert_exact(maria)


@pytest.mark.parametrize("ends", ["settle", "abort"])
def test_a_move_that_ends_on_a_counter_that_holds_less_names_it(db: Database, ends: str) -> None:
    here, there, instance, wanted = fleet(db)
    begun(db, wanted)
    node_id = here if ends == "settle" else there
    fleet_of.execute(db, "UPDATE scheduler_node_capacity SET used_memory_mb = 1 WHERE node_id = :i", i=node_id)

    assert moving.settled(db, wanted) if ends == "settle" else moves.abort(db, instance, "given up")

    (event,) = fleet_of.events_of(db, "capacity counter clamped at zero")
    assert f"node {node_id} used_memory_mb" in event["payload"]
    fleet_of.assert_exact(db)
