"""The admin's resources view on a real ledger: the document's figures, the cluster, drift, passes; null, not zero."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from decimal import Decimal
from typing import Any

import pytest
from structlog.testing import capture_logs

from fleet.ledger import leases, passes, samples
from fleet.ledger.cluster import now_us
from fleet.ledger.database import Database
from fleet.model.cluster_config import ClusterConfig
from fleet.model.errors import DatabaseUnavailable
from fleet.services import views
from fleet.services.reconciler import Reconciler
from tests.ledger import fleet_of, past
from tests.ledger.fleet_of import admitted, ask, execute

CONFIG = ClusterConfig()
NODE: dict[str, Any] = {
    "cpus": 14,
    "memory_mb": 65536,
    "disk_gb": 1000,
    "memory_available": 60000,
    "memory_reserved_mb": 4096,
    "disk_reservation_gb": 20,
    "cpu_max_per_instance": 16,
    "cpu_load_1": 0.5,
    "cpu_load_5": 0.4,
    "cpu_load_15": 0.3,
    "instances_total": 3,
    "instances_active": 2,
    "queue_waiting": 4,
}


def node(db: Database, name: str, **figures: Any) -> int:
    return fleet_of.node(db, name, config=CONFIG, **{**NODE, **figures})


def seen(db: Database, config: ClusterConfig = CONFIG) -> dict[str, Any]:
    return views.resources(db, config)


def test_a_nodes_figures_are_the_documents(db: Database) -> None:
    node_id = node(db, "n", cpu_total_instance_vcpus=3, memory_total_instance_actual=3000)
    admitted(db, ask(node_id, cpus=4, memory_mb=2048, disk_gb=30))

    found = seen(db)["per_node"]["n"]

    wanted = {
        "cpu_max_per_instance": 16,
        "cpu_schedulable": 14,
        "cpu_schedulable_from_fallback": False,
        "cpu_hard_max": 42,
        "cpu_measured": 3,
        "cpu_committed": 4,
        "cpu_committed_row_present": True,
        "cpu_limit": 42,
        "cpu_available": 42 - 4,
        "cpu_load_1": Decimal("0.500"),
        "cpu_load_5": Decimal("0.400"),
        "cpu_load_15": Decimal("0.300"),
        "memory_reserved_mb": 4096,
        "ram_max_per_instance": 60000 - 4096,
        "ram_max": 3 * 65536,
        "ram_committed": 2048,
        # The measurement binds: what is pending is discounted by the overcommit ratio, rounded up.
        "ram_available": 60000 - 4096 - 683,
        "disk_available": 1000 - 20 - 30,
        "instances_total": 3,
        "instances_active": 2,
        "queue_waiting": 4,
        "takes_instances": True,
        "takes_none_because": None,
    }
    assert {name: found[name] for name in wanted} == wanted


def test_a_node_over_its_limit_is_below_zero_by_so_much_and_adds_nothing(db: Database) -> None:
    node(db, "over", cpu_total_instance_vcpus=50)
    node(db, "free")

    found = seen(db)

    assert found["per_node"]["over"]["cpu_available"] == 42 - 50
    assert found["total"]["cpu_available"] == 42


def test_a_limit_that_changed_since_the_sample_shows_beside_the_live_one(db: Database) -> None:
    node(db, "n")

    found = seen(db, ClusterConfig(cpu_overcommit_ratio=Decimal(2)))["per_node"]["n"]

    assert (found["cpu_hard_max"], found["cpu_limit"], found["cpu_available"]) == (28, 42, 42)


def test_a_node_that_does_not_tell_its_schedulable_threads_is_marked(db: Database) -> None:
    node(db, "old", cpu_schedulable=None, cpu_threads=16)

    found = seen(db)["per_node"]["old"]

    assert (found["cpu_schedulable"], found["cpu_schedulable_from_fallback"]) == (14, True)


def test_totals_are_of_the_nodes_that_take_instances_now_and_the_others_say_why(db: Database) -> None:
    node(db, "takes", queue_waiting=20)
    node(db, "cordoned")
    node(db, "busy", queue_waiting=21)
    node(db, "stale", age=120)
    node(db, "broken", healthy=False)
    node(db, "control", is_hypervisor=False)
    samples.set_scheduling(db, "cordoned", "cordoned")

    found = seen(db)

    assert {name: figures["takes_none_because"] for name, figures in found["per_node"].items()} == {
        "takes": None,
        "cordoned": "cordoned",
        "busy": "busy",
        "stale": "stale",
        "broken": "error",
    }
    assert found["nodes"] == {"hypervisors": 5, "in_total": 1}
    assert found["total"] == {"cpu_available": 42, "ram_available": 60000 - 4096, "disk_available": 980}


def test_one_node_without_a_limit_makes_the_sum_unlimited(db: Database) -> None:
    unlimited = ClusterConfig(cpu_overcommit_ratio=None)
    fleet_of.node(db, "n", config=unlimited, **NODE)

    found = seen(db, unlimited)

    assert (found["per_node"]["n"]["cpu_limit"], found["total"]["cpu_available"]) == (None, None)
    assert found["total"]["disk_available"] == 980
    assert (found["cluster"]["total_cpus"], found["cluster"]["left_cpus"]) == (None, None)


def test_the_cluster_says_what_is_left_and_what_claims_hold_back(db: Database) -> None:
    node_id = node(db, "n")
    fleet_of.claim(db, limit=(10, 10000, 100), used=(4, 12000, 0), namespace="claimed")
    admitted(db, ask(node_id, cpus=2, memory_mb=1000, disk_gb=10))

    found = seen(db)["cluster"]

    assert (found["total_cpus"], found["claimed_cpus"], found["unclaimed_used_cpus"], found["overage_cpus"]) == (
        42,
        10,
        2,
        0,
    )
    assert (found["left_cpus"], found["claims_unused_cpus"]) == (42 - 10 - 2, 6)
    assert (found["overage_memory_mb"], found["claims_unused_memory_mb"]) == (2000, 0)
    assert found["left_memory_mb"] == found["total_memory_mb"] - 10000 - 1000 - 2000
    assert found["counted_nodes"] == 1
    assert found == views.cluster_capacity(db)


@contextmanager
def without(db: Database, table: str) -> Iterator[None]:
    """A table that cannot be read, as one that the server has marked as broken."""
    execute(db, f"ALTER TABLE {table} RENAME TO away")
    try:
        yield
    finally:
        execute(db, f"ALTER TABLE away RENAME TO {table}")


def test_counters_that_cannot_be_read_are_null_and_the_rest_is_told(db: Database) -> None:
    node(db, "n", cpu_total_instance_vcpus=3)

    with without(db, "scheduler_node_capacity"), capture_logs() as said:
        found = seen(db)

    figures = found["per_node"]["n"]
    assert found["capacity_degraded"] is True
    assert {name: figures[name] for name in views.COUNTED} == dict.fromkeys(views.COUNTED)
    assert found["total"] == {"cpu_available": None, "ram_available": None, "disk_available": None}
    assert (figures["cpu_schedulable"], figures["cpu_measured"], figures["cpu_hard_max"]) == (14, 3, 42)
    assert figures["takes_instances"] is True
    assert found["drift"] is None
    assert found["cluster"]["total_cpus"] == 42
    assert "nodes" in [entry["what"] for entry in said if entry["event"] == "capacity.unreadable"]


def test_a_clusters_row_that_cannot_be_read_leaves_the_nodes_as_they_are(db: Database) -> None:
    node(db, "n")

    with without(db, "cluster_capacity"):
        found = seen(db)

    assert (found["capacity_degraded"], found["cluster"]) == (True, None)
    assert found["per_node"]["n"]["cpu_limit"] == 42
    assert found["total"]["cpu_available"] == 42


def test_an_empty_ledger_is_no_failed_read(db: Database) -> None:
    fleet_of.register(db, "n")

    found = seen(db)

    assert (found["capacity_degraded"], found["per_node"]) == (False, {})
    assert found["nodes"] == {"hypervisors": 0, "in_total": 0}
    assert found["total"] == {"cpu_available": 0, "ram_available": 0, "disk_available": 0}
    assert found["drift"] == {"count": 0, "differences": []}


def test_a_database_that_is_away_is_no_degraded_view() -> None:
    with pytest.raises(DatabaseUnavailable):
        seen(Database("mysql+pymysql://nobody@127.0.0.1:1/none"))


class Alone:
    """Leadership without anybody else."""

    def __init__(self, db: Database) -> None:
        self.lease = leases.acquire(db, "reconciler", "test", 600)

    def stand(self) -> leases.Lease | None:
        return self.lease

    def lost(self) -> None:
        self.lease = None

    def resign(self) -> None:
        self.lease = None


def one_pass(db: Database) -> None:
    alone = Alone(db)
    leading: Any = alone
    wake_ups: Any = None
    assert Reconciler(db, wake_ups, lambda: CONFIG, leading).run_pass("test") is not None
    assert alone.lease is not None
    leases.drop(db, alone.lease)


def test_drift_is_seen_by_name_gone_after_a_pass_and_told_as_corrected(db: Database) -> None:
    node_id = node(db, "hv-1")
    admitted(db, ask(node_id, cpus=4))
    execute(db, "UPDATE scheduler_node_capacity SET used_cpus = 9")

    before = seen(db)
    one_pass(db)
    after = seen(db)

    assert before["drift"] == {
        "count": 1,
        "differences": [{"row": "node hv-1", "figure": "used_cpus", "stored": 9, "recomputed": 4}],
    }
    assert after["drift"] == {"count": 0, "differences": []}
    assert after["last_pass"]["corrections"] == 1
    assert after["last_pass"]["corrected"] == [{"row": "node hv-1", "figure": "used_cpus", "old": 9, "new": 4}]
    assert after["per_node"]["hv-1"]["cpu_committed"] == 4


def test_without_a_good_pass_the_ledger_is_stale(db: Database) -> None:
    found = seen(db)["last_pass"]

    assert (found["ended_at"], found["age_seconds"], found["stale"]) == (None, None, True)
    assert (found["corrections"], found["last_failure"]) == (None, None)


@pytest.mark.parametrize(("seconds", "stale"), [(0, False), (900, False), (901, True)])
def test_a_good_pass_is_stale_after_900_seconds(db: Database, seconds: int, *, stale: bool) -> None:
    now = now_us(db)
    with past.still(db, now - seconds * 1_000_000):
        one_pass(db)

    with past.still(db, now):
        found = seen(db)["last_pass"]

    assert found["stale"] is stale
    assert found["age_seconds"] == seconds
    assert found["duration_seconds"] is not None


def test_a_failure_is_told_and_whether_a_good_pass_followed(db: Database) -> None:
    payload = {"code": "database_unavailable", "error": "it did not answer"}
    one_pass(db)
    fleet_of.tick(db)
    db.unit(lambda conn: passes.record_failed(conn, payload))

    failed = seen(db)["last_pass"]["last_failure"]
    fleet_of.tick(db)
    one_pass(db)
    healed = seen(db)["last_pass"]["last_failure"]

    assert (failed["since_last_good"], failed["code"], failed["error"]) == (True, *payload.values())
    assert (healed["since_last_good"], healed["at"]) == (False, failed["at"])
