"""Retention deletes what is old and nothing else, and only under the leader's lease."""

from __future__ import annotations

from typing import Any

import pytest
from sqlalchemy import Connection

from fleet.ledger import decisions, event_totals, events, idempotency, leases, retention
from fleet.ledger.database import Database
from fleet.ledger.idempotency import Keyed
from fleet.model.cluster_config import ClusterConfig
from fleet.services.create import Created
from tests.ledger import fleet_of, past
from tests.ledger.holding import Other, open_transaction
from tests.ledger.placing import context, create, process

LONG_AGO_SECONDS = 400 * 24 * 3600


def _decision(db: Database, name: str) -> None:
    row = fleet_of.refused_decision(name)
    db.unit(lambda conn: decisions.insert(conn, row))


def _lease(db: Database) -> leases.Lease:
    lease = leases.acquire(db, "reconciler", "here", 60)
    assert lease is not None
    return lease


def test_a_decision_goes_when_its_days_are_over(db: Database) -> None:
    _decision(db, "d1")
    decisions.insert_base(db, "b1", None, b"x")
    config = ClusterConfig(decisions_retention_days=0)

    gone = retention.sweep(db, _lease(db), config)

    assert gone["decisions"] == 1
    assert decisions.get(db, "d1") is None
    # The base outlives the decisions that were made on it by a day.
    assert decisions.base(db, "b1") == (b"x",)


def test_what_is_young_stays(db: Database) -> None:
    _decision(db, "d1")
    fleet_of.node(db, cpus=4)

    gone = retention.sweep(db, _lease(db), ClusterConfig())

    assert gone == {"decisions": 0, "decision_bases": 0, "events": 0, "idempotency_keys": 0, "expired_keys": 0}
    assert decisions.get(db, "d1") is not None


def test_a_former_leader_deletes_nothing(db: Database) -> None:
    _decision(db, "d1")
    former = _lease(db)
    leases.drop(db, former)
    _lease(db)

    with pytest.raises(leases.LeaseLost):
        retention.sweep(db, former, ClusterConfig(decisions_retention_days=0))

    assert decisions.get(db, "d1") is not None


def test_keys_and_events_go_in_as_many_batches_as_they_fill(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 2)

    def happens(key: str) -> None:
        keyed = Keyed(namespace="ns", key=key, digest="d", status=201)
        db.unit(lambda conn: idempotency.keep(conn, keyed, {}))
        db.unit(lambda conn: events.record(conn, "instance", "i", "happened", {}))

    with past.ago(db, LONG_AGO_SECONDS):
        for number in range(1, 5):
            happens(f"k{number}")
    happens("k0")

    gone = retention.sweep(db, _lease(db), ClusterConfig())

    assert (gone["idempotency_keys"], gone["events"]) == (4, 4)
    assert idempotency.find(db, "ns", "k0") is not None
    assert len(events.listing(db, "instance", "i")) == 1


def test_it_waits_for_no_row_that_an_admission_is_writing(maria: Database, mariadb_ledger_url: str) -> None:
    config = ClusterConfig(decisions_retention_days=0)
    _decision(maria, "old")
    with past.ago(maria, LONG_AGO_SECONDS):
        maria.unit(lambda conn: events.record(conn, "instance", "i", "happened", {}))
    lease = _lease(maria)
    with open_transaction(maria) as writing:
        events.record(writing, "instance", "j", "happened", {})
        idempotency.keep(writing, Keyed(namespace="ns", key="k", digest="d", status=201), {})
        gone = Other(mariadb_ledger_url, lambda db: retention.sweep(db, lease, config)).result()

        assert gone == {"decisions": 1, "decision_bases": 0, "events": 1, "idempotency_keys": 0, "expired_keys": 0}


def _old_events(db: Database, doublings: int) -> int:
    """So many events that are past any retention; returns how many."""
    with past.ago(db, LONG_AGO_SECONDS):
        db.unit(lambda conn: events.record(conn, "instance", "old", "happened long ago", {"figure": 1}))
    double = """
        INSERT INTO events (object_type, object_id, at, level, message, payload)
        SELECT object_type, object_id, at, level, message, payload FROM events
    """
    for _ in range(doublings):
        fleet_of.execute(db, double)
    return int(2**doublings)


def _left(db: Database) -> int:
    return int(fleet_of.rows(db, "SELECT COUNT(*) AS n FROM events WHERE object_id = 'old'")[0]["n"])


def test_a_backlog_is_worked_off_over_sweeps_the_oldest_first(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "BATCH", 10)
    monkeypatch.setattr(retention, "BATCHES_MAX", 5)
    assert _old_events(db, 7) == 128
    lease, config = _lease(db), ClusterConfig()
    oldest = fleet_of.rows(db, "SELECT id FROM events ORDER BY at LIMIT 1")[0]["id"]

    swept = [retention.sweep(db, lease, config) for _ in range(3)]

    assert [gone["events"] for gone in swept] == [50, 50, 28]
    assert [retention.is_behind(gone) for gone in swept] == [True, True, False]
    assert oldest not in {row["id"] for row in fleet_of.rows(db, "SELECT id FROM events")}
    assert _left(db) == 0


def test_creates_go_on_while_a_backlog_of_events_is_deleted(
    maria: Database, mariadb_ledger_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retention, "BATCHES_MAX", 3)
    ctx = context(maria)
    fleet_of.node(maria, "n", cpus=100_000, cpu_max_per_instance=8, config=ctx.configuration())
    assert _old_events(maria, 12) == 4096
    lease, forget = _lease(maria), event_totals.forget
    made: list[Created] = []

    def deleting(conn: Connection, binds: dict[str, Any]) -> int:
        """A batch, and before its locks go a create: it ends while they are held, or it was refused for them."""
        gone = forget(conn, binds)
        outcome = Other(mariadb_ledger_url, lambda db: create(process(db))).result()
        assert isinstance(outcome, Created), outcome
        made.append(outcome)
        return gone

    monkeypatch.setattr(event_totals, "forget", deleting)
    swept = [retention.sweep(maria, lease, ClusterConfig())["events"] for _ in range(3)]

    assert (swept, _left(maria)) == ([1500, 1500, 1096], 0)
    assert len(made) == 9
    assert set(fleet_of.charged_to(maria)) == {one.uuid for one in made}
    fleet_of.assert_exact(maria)
