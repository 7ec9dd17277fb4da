"""Metrics are what the database says at the scrape: nothing of what is gone, the same from every process."""

from __future__ import annotations

import math
import uuid
from collections.abc import Iterator
from decimal import Decimal
from typing import Any

import pytest
from sqlalchemy import Connection

from fleet.ledger import events, figures, leases, nodes, operations, passes, retention, samples
from fleet.ledger.cluster_config import load
from fleet.ledger.database import Database, Sql
from fleet.ledger.figures import EventCounts
from fleet.ledger.nodes import NodeIn
from fleet.ledger.samples import SampleIn
from fleet.model.cluster_config import ClusterConfig
from fleet.model.errors import DatabaseUnavailable
from fleet.model.lifecycle import OperationKind
from fleet.services.gauges import Gauges
from fleet.services.metric_catalogue import COUNTED, COUNTERS, GAUGES
from tests.faults.rig import METRICS
from tests.ledger import fleet_of, past

N1 = "WHERE node_id = (SELECT id FROM nodes WHERE name = 'n1')"
UNLIMITED = Sql(f"UPDATE scheduler_node_capacity SET limit_cpus = NULL {N1}")
DEMAND = Sql(f"UPDATE scheduler_node_capacity SET expected_demand = 1.2 {N1}")
HOUR_SECONDS = 3600

Series = dict[tuple[str, tuple[tuple[str, str], ...]], float]


@pytest.fixture
def db(db_url: str) -> Iterator[Database]:
    database = Database(db_url)
    for name in ("n1", "n2"):
        nodes.register(database, NodeIn(name=name, declared={"backend": "simulated"}))
    publish(database, "n1", "n2")
    yield database
    database.close()


def publish(db: Database, *names: str, healthy: bool = True) -> None:
    batch = [SampleIn(node_name=name, metrics=METRICS, age_seconds=Decimal(30), healthy=healthy) for name in names]
    samples.publish(db, batch, load(db))


def scrape(db: Database, gauges: Gauges | None = None) -> Series:
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for metric in (gauges or Gauges(db)).metrics()
        for sample in metric.samples
    }


def of_node(series: Series, name: str) -> Series:
    return {key: value for key, value in series.items() if ("node", name) in key[1]}


def record(db: Database, message: str, times: int = 1) -> None:
    for _ in range(times):
        db.unit(lambda conn: events.record(conn, "instance", "i", message, {}))


class Watched:
    """A connection that notes how many rows each answer brought."""

    def __init__(self, conn: Connection) -> None:
        self.dialect = conn.dialect
        self.brought: list[int] = []
        self._conn = conn

    def exec_driver_sql(self, *statement: Any) -> Any:
        answer = self._conn.exec_driver_sql(*statement).freeze()
        self.brought.append(len(answer.data))
        return answer()


def test_a_node_shows_limit_use_demand_and_age_of_its_sample(db: Database) -> None:
    db.unit(lambda conn: DEMAND.run(conn).rowcount)
    found = scrape(db)
    node = (("node", "n1"),)

    assert found["scheduler_capacity_node_limit", (("dimension", "cpus"), *node)] == 96
    assert found["scheduler_capacity_node_used", (("dimension", "memory_mb"), *node)] == 0
    assert found["scheduler_capacity_node_expected_demand", node] == 1.2
    assert 30 <= found["node_sample_age_seconds", node] < 60
    assert found["node_resource_health", node] == 1
    assert found["node_state", (*node, ("state", "active"))] == 1
    assert found["scheduler_capacity_cluster_total", (("dimension", "cpus"),)] == 192


def test_no_limit_is_infinite_and_not_zero(db: Database) -> None:
    db.unit(lambda conn: UNLIMITED.run(conn).rowcount)

    assert math.isinf(scrape(db)["scheduler_capacity_node_limit", (("dimension", "cpus"), ("node", "n1"))])


def test_a_node_without_a_sample_has_no_capacity_series(db: Database) -> None:
    nodes.register(db, NodeIn(name="new"))
    names = {name for name, _ in of_node(scrape(db), "new")}

    assert "node_state" in names
    assert not {name for name in names if name.startswith("scheduler_capacity")}
    assert "node_sample_age_seconds" not in names


def test_b61_the_series_of_a_removed_node_are_gone_at_the_next_scrape(db: Database) -> None:
    gauges = Gauges(db)
    assert of_node(scrape(db, gauges), "n2")
    samples.remove_node(db, "n2")

    assert of_node(scrape(db, gauges), "n2") == {}
    assert of_node(scrape(db, gauges), "n1")


def test_b61_every_process_answers_the_same(db: Database) -> None:
    one, other = Gauges(db), Gauges(db)
    scrape(db, one)
    record(db, "instance placed", 3)
    db.unit(lambda conn: passes.record_ended(conn, {"duration_ms": 20}))
    ages = {"node_sample_age_seconds", "scheduler_capacity_last_success_age_seconds"}

    def steady(series: Series) -> Series:
        return {key: value for key, value in series.items() if key[0] not in ages}

    assert steady(scrape(db, one)) == steady(scrape(db, other))


def test_a_node_in_error_is_unhealthy(db: Database) -> None:
    publish(db, "n1", healthy=False)

    assert scrape(db)["node_resource_health", (("node", "n1"),)] == 0


@pytest.mark.parametrize("metric", sorted(COUNTED))
def test_each_counter_counts_its_events_and_nothing_twice(db: Database, metric: str) -> None:
    gauges = Gauges(db)
    [message, *_] = COUNTED[metric].messages
    before = scrape(db, gauges)[f"{metric}_total", ()]
    with past.ago(db, HOUR_SECONDS):
        record(db, message, 2)
        assert scrape(db, gauges)[f"{metric}_total", ()] == before + 2
    assert scrape(db, gauges)[f"{metric}_total", ()] == before + 2
    record(db, message)

    assert scrape(db, gauges)[f"{metric}_total", ()] == before + 3
    assert scrape(db)[f"{metric}_total", ()] == before + 3


def test_what_retention_deletes_stays_counted_in_every_process(db: Database) -> None:
    old = Gauges(db)
    with past.ago(db, HOUR_SECONDS):
        for message in ("instance placed", "operation attempt failed", "instance placed"):
            record(db, message)
    before = scrape(db, old)
    record(db, "instance placed")
    lease = leases.acquire(db, "reconciler", "here", 60)
    assert lease is not None
    config = ClusterConfig(events_retention_days=0)
    gone = retention.sweep(db, lease, config)["events"]
    record(db, "instance placed")

    young = Gauges(db)
    assert gone >= 4
    for gauges in (old, young, Gauges(db)):
        found = scrape(db, gauges)
        assert found["scheduler_placements_total", ()] == 4
        assert found["scheduler_operation_failures_total", ()] == 1
    assert before["scheduler_placements_total", ()] == 2


def test_a_scrape_shows_every_metric_that_is_described_and_no_other(db: Database) -> None:
    described = [one.name for one in GAUGES] + [one.name for one in COUNTERS]

    assert sorted(metric.name for metric in Gauges(db).metrics()) == sorted(described)


def test_an_event_of_two_timelines_is_counted_once_after_its_retention_too(db: Database) -> None:
    message = "placement admitted over namespace capacity claim"
    for object_type in ("instance", "namespace"):
        db.unit(lambda conn, of=object_type: events.record(conn, of, "x", message, {}))  # type: ignore[misc]
    before = scrape(db)["scheduler_capacity_claim_overages_total", ()]
    lease = leases.acquire(db, "reconciler", "here", 60)
    assert lease is not None
    retention.sweep(db, lease, ClusterConfig(events_retention_days=0))

    assert before == scrape(db)["scheduler_capacity_claim_overages_total", ()] == 1


def test_a_claim_shows_its_limit_use_and_end_while_it_is_active(db: Database) -> None:
    fleet_of.claim(db, limit=(4, 64, 8), seconds=3600)
    found = scrape(db)
    cpus = (("dimension", "cpus"), ("namespace", fleet_of.NAMESPACE))

    assert found["scheduler_capacity_claims", ()] == 1
    assert (found["scheduler_capacity_claim_limit", cpus], found["scheduler_capacity_claim_used", cpus]) == (4, 0)
    assert 3500 < found["scheduler_capacity_claim_expires_seconds", (("namespace", fleet_of.NAMESPACE),)] <= 3600
    fleet_of.execute(db, "UPDATE namespace_claims SET coverage_state = 'expired', folded = 1")
    assert not [key for key in scrape(db) if ("namespace", fleet_of.NAMESPACE) in key[1]]
    assert scrape(db)["scheduler_capacity_claims", ()] == 0


def test_claims_are_bounded_and_the_exceeded_ones_are_shown(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "CLAIMS_SHOWN_MAX", 2)
    for name in ("aa", "bb", "cc", "zz"):
        fleet_of.claim(db, limit=(4, 64, 8), namespace=name)
    fleet_of.execute(db, "UPDATE namespace_claims SET used_cpus = 5 WHERE namespace = 'zz'")
    found = scrape(db)

    assert found["scheduler_capacity_claims", ()] == 4
    shown = {dict(labels)["namespace"] for name, labels in found if name == "scheduler_capacity_claim_expires_seconds"}
    assert shown == {"aa", "zz"}


def test_counting_brings_no_event_to_the_process_however_many_there_are(db: Database) -> None:
    with past.ago(db, HOUR_SECONDS):
        for message in ("instance placed", "operation attempt failed"):
            record(db, message, 30)
    record(db, "instance placed", 30)

    with db.read() as conn:
        watched = Watched(conn)
        counts = EventCounts().read(watched)  # type: ignore[arg-type]

    assert (counts["instance placed"], counts["operation attempt failed"]) == (60, 30)
    assert len(watched.brought) == 3
    assert sum(watched.brought) < 20


def test_unfinished_operations_show_their_number_age_and_delay(db: Database) -> None:
    with past.ago(db, 90):
        for kind in (OperationKind.CREATE, OperationKind.CREATE, OperationKind.DELETE):
            db.unit(lambda conn, kind=kind: operations.insert(conn, str(uuid.uuid4()), kind, "i", "ns", 1))  # type: ignore[misc]
    found = scrape(db)

    assert found["scheduler_operations", (("kind", "create"), ("state", "pending"))] == 2
    assert found["scheduler_operations_oldest_pending_age_seconds", (("kind", "delete"),)] >= 90
    assert found["scheduler_operations_overdue_seconds", (("kind", "create"),)] >= 60


def test_the_last_pass_shows_when_it_was(db: Database) -> None:
    assert not [name for name, _ in scrape(db) if name.startswith("scheduler_capacity_last_success")]
    db.unit(lambda conn: passes.record_ended(conn, {"duration_ms": 20}))
    found = scrape(db)

    assert found["scheduler_capacity_last_duration_seconds", ()] == 0.02
    assert ("scheduler_capacity_last_corrections", ()) not in found
    assert 0 <= found["scheduler_capacity_last_success_age_seconds", ()] < 60
    db.unit(lambda conn: passes.record_ended(conn, {"duration_ms": 20, "corrections": 3}))
    assert scrape(db)["scheduler_capacity_last_corrections", ()] == 3


def test_without_the_database_nothing_is_shown() -> None:
    with pytest.raises(DatabaseUnavailable):
        Gauges(Database("mysql+pymysql://root@127.0.0.1:1/nothing")).metrics()
