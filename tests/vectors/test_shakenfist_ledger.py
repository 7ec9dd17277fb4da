"""The Shaken Fist vectors that concern the ledger, by their numbers, on both backends.

V4, V5 and the fail-open half of V19 are overruled by the product's decisions; V23 and V24 are about claims, V25
is about ranking.
"""

from __future__ import annotations

import json
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest

from fleet.ledger import moves
from fleet.ledger.cluster import now_us
from fleet.ledger.database import Database
from fleet.ledger.ground_truth import Sighting
from fleet.ledger.ground_truth import record as record_sighting
from fleet.model import capacity
from fleet.model.admission import Admitted, Refused, Stage
from fleet.model.resources import Amounts, DimensionFigure
from tests.ledger import fleet_of, past
from tests.ledger.fleet_of import PLAIN, ask

pytestmark = pytest.mark.vectors

PER_VCPU = Decimal("0.6")
HOUR, MINUTE = 3600, 60


@pytest.fixture
def n1(db: Database) -> int:
    """Limit 12/12288/120, used 8/8192/80."""
    node_id = fleet_of.node(
        db, "N1", cpus=12, memory_mb=12288, disk_gb=120, cpu_schedulable=64, cpu_foreign_vcpus=52, cpu_load_1=0.5
    )
    fleet_of.admitted(db, ask(node_id, cpus=8, memory_mb=8192, disk_gb=80))
    return node_id


@pytest.fixture
def n2(db: Database, n1: int) -> int:
    """Limit 64/65536/1000, used 0/0/0."""
    return fleet_of.node(db, "N2", cpus=64, memory_mb=65536, disk_gb=1000, cpu_schedulable=64, cpu_load_1=0.5)


def sizes(row: tuple[int, ...]) -> tuple[int, ...]:
    """cpus, memory_mb, disk_gb; the slots are another product's."""
    return row[:3]


def figure(outcome: Refused, dimension: str) -> DimensionFigure:
    return next(item for item in outcome.figures if item.dimension == dimension)


def refused(outcome: object, stage: Stage) -> Refused:
    assert isinstance(outcome, Refused), outcome
    assert outcome.failing_stage is stage
    return outcome


def exceeded(outcome: Refused) -> list[str]:
    return [item.dimension for item in outcome.figures if item.exceeded]


def state(db: Database, *node_ids: int) -> tuple[Any, ...]:
    return (
        *(sizes(fleet_of.used(db, node_id)) for node_id in node_ids),
        fleet_of.unclaimed(db),
        fleet_of.charged_to(db),
    )


@pytest.mark.parametrize(("used", "fits", "over"), [(40, 2, 3), (0, 42, 43)])
def test_v1_fourteen_schedulable_threads_at_ratio_three_offer_42(db: Database, used: int, fits: int, over: int) -> None:
    assert capacity.limit_cpus(14, Decimal("3.0"), 0) == 42
    config = replace(PLAIN, cpu_overcommit_ratio=Decimal("3.0"))
    node_id = fleet_of.node(db, cpus=14, config=config)
    if used:
        fleet_of.admitted(db, ask(node_id, cpus=used))

    assert exceeded(refused(fleet_of.admit(db, ask(node_id, cpus=over)), Stage.NODE)) == ["cpus"]
    assert isinstance(fleet_of.admit(db, ask(node_id, cpus=fits)), Admitted)


def test_v7_an_exact_fit_is_admitted(db: Database, n1: int) -> None:
    before = Decimal(str(fleet_of.row(db, n1)["expected_demand"]))
    wanted = ask(n1, cpus=4, memory_mb=4096, disk_gb=40, demand=4 * PER_VCPU)

    assert isinstance(fleet_of.admit(db, wanted), Admitted)
    assert sizes(fleet_of.used(db, n1)) == fleet_of.unclaimed(db) == (12, 12288, 120)
    assert Decimal(str(fleet_of.row(db, n1)["expected_demand"])) - before == 4 * PER_VCPU
    charges = fleet_of.rows(db, "SELECT COUNT(*) AS n FROM charges WHERE instance_uuid = :u", u=wanted.instance_uuid)
    assert charges == [{"n": 1}]
    fleet_of.assert_exact(db)


def test_v8_an_overflow_is_denied_with_its_figures_and_changes_nothing(db: Database, n1: int, n2: int) -> None:
    before = state(db, n1, n2)
    denied = refused(fleet_of.admit(db, ask(n1, cpus=8, memory_mb=4096, disk_gb=40)), Stage.NODE)

    assert figure(denied, "cpus") == DimensionFigure("cpus", 12, 8, 8, exceeded=True, shortfall=4)
    assert exceeded(denied) == ["cpus"]
    assert state(db, n1, n2) == before


@pytest.mark.parametrize(
    ("asked", "binds"), [((0, 8192, 0), "memory_mb"), ((0, 0, 80), "disk_gb"), ((5, 0, 0), "cpus")]
)
def test_v9_each_dimension_binds_alone(db: Database, n1: int, asked: tuple[int, int, int], binds: str) -> None:
    cpus, memory_mb, disk_gb = asked
    denied = refused(fleet_of.admit(db, ask(n1, cpus=cpus, memory_mb=memory_mb, disk_gb=disk_gb)), Stage.NODE)
    assert exceeded(denied) == [binds]


def test_v10_the_cluster_denies_what_all_nodes_together_do_not_have(db: Database, n1: int, n2: int) -> None:
    fleet_of.execute(db, "UPDATE cluster_capacity SET unclaimed_used_cpus = 74 WHERE id = 1")
    denied = refused(fleet_of.admit(db, ask(n2, cpus=4)), Stage.CLUSTER)

    assert figure(denied, "cpus").limit == 76
    assert exceeded(denied) == ["cpus"]
    assert sizes(fleet_of.used(db, n2)) == (0, 0, 0)


def test_v11_the_clusters_limit_is_what_is_not_claimed(db: Database, n1: int, n2: int) -> None:
    fleet_of.execute(db, "UPDATE cluster_capacity SET claimed_cpus = 68 WHERE id = 1")
    denied = refused(fleet_of.admit(db, ask(n2, cpus=4)), Stage.CLUSTER)

    assert (figure(denied, "cpus").limit, figure(denied, "cpus").used) == (8, 8)
    assert sizes(fleet_of.used(db, n2)) == (0, 0, 0)


def test_v12_nothing_asked_is_admitted_and_changes_no_amount(db: Database, n1: int) -> None:
    wanted = ask(n1, cpus=0, memory_mb=0, disk_gb=0)

    assert isinstance(fleet_of.admit(db, wanted), Admitted)
    assert sizes(fleet_of.used(db, n1)) == fleet_of.unclaimed(db) == (8, 8192, 80)
    assert wanted.instance_uuid in fleet_of.charged_to(db)


def claimed(db: Database, n2: int, *, limit: int, used: int, seconds: int = 3600) -> str:
    """A claim of `limit` vCPUs (with memory and disk in step) of which an instance uses `used` already."""
    claim = fleet_of.claim(db, limit=(limit, limit * 1024, limit * 10), namespace="claimed", seconds=seconds)
    fleet_of.admitted(db, ask(n2, cpus=used, memory_mb=used * 1024, disk_gb=used * 10, namespace="claimed"))
    return claim


def test_v13_a_claim_pays_and_the_cluster_is_left_alone(db: Database, n2: int) -> None:
    claim = claimed(db, n2, limit=8, used=4)
    before = fleet_of.cluster(db)
    outcome = fleet_of.admit(db, ask(n2, cpus=4, memory_mb=4096, disk_gb=40, namespace="claimed"))

    assert isinstance(outcome, Admitted)
    assert (outcome.payer, outcome.over_claim) == (claim, ())
    row = fleet_of.claim_row(db, claim)
    assert (row["used_cpus"], row["used_memory_mb"], row["used_disk_gb"]) == (8, 8192, 80)
    assert fleet_of.cluster(db) == before
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("hard", [False, True])
def test_v14_over_the_claim_is_told_in_advisory_mode_and_denied_in_hard_mode(
    db: Database, n2: int, *, hard: bool
) -> None:
    claim = claimed(db, n2, limit=8, used=6)
    before = fleet_of.used(db, n2)
    outcome = fleet_of.admit(db, ask(n2, cpus=4, namespace="claimed", claim_hard=hard))
    if hard:
        assert exceeded(refused(outcome, Stage.CLAIM)) == ["cpus"]
        assert fleet_of.used(db, n2) == before
        return

    assert isinstance(outcome, Admitted)
    told = [(item.dimension, item.limit, item.used, item.requested) for item in outcome.over_claim]
    assert told == [("cpus", 8, 6, 4)]
    assert fleet_of.claim_row(db, claim)["used_cpus"] == 10
    assert fleet_of.cluster(db)["overage_cpus"] == 2
    fleet_of.assert_exact(db)


def test_v15_a_claim_past_its_end_that_is_not_swept_pays_nothing(db: Database, n2: int) -> None:
    with past.ago(db, HOUR):
        claim = claimed(db, n2, limit=4, used=2, seconds=HOUR - MINUTE)
    before = fleet_of.claim_row(db, claim)
    assert now_us(db) > before["expires_at"]
    assert (before["coverage_state"], before["used_cpus"]) == ("active", 2)
    outcome = fleet_of.admit(db, ask(n2, cpus=4, namespace="claimed"))

    assert isinstance(outcome, Admitted)
    assert outcome.payer is None
    assert fleet_of.unclaimed(db)[0] == 12
    assert fleet_of.claim_row(db, claim) == before
    fleet_of.assert_exact(db)


def test_v16_a_move_takes_its_charge_along_and_the_cluster_pays_once(db: Database, n1: int, n2: int) -> None:
    wanted = ask(n1, cpus=4, memory_mb=4096, disk_gb=40, demand=4 * PER_VCPU)
    fleet_of.admitted(db, wanted)
    there = ask(
        n2, cpus=4, memory_mb=4096, disk_gb=40, demand=4 * PER_VCPU, instance_uuid=wanted.instance_uuid, source=n1
    )
    fleet_of.admitted(db, there)

    assert (fleet_of.used(db, n1)[0], fleet_of.used(db, n2)[0], fleet_of.unclaimed(db)[0]) == (8, 4, 12)
    assert fleet_of.charged_to(db)[wanted.instance_uuid] == n2
    demands = [Decimal(str(fleet_of.row(db, node_id)["expected_demand"])) for node_id in (n1, n2)]
    assert demands == [4 * PER_VCPU, 4 * PER_VCPU]
    fleet_of.assert_exact(db)


def test_v16_a_settled_instance_moves_with_both_nodes_charged_until_it_arrives(db: Database, n1: int, n2: int) -> None:
    wanted = ask(n1, cpus=4, memory_mb=4096, disk_gb=40)
    fleet_of.admitted(db, wanted)
    fleet_of.settle(db, wanted.instance_uuid)
    there = ask(n2, cpus=4, memory_mb=4096, disk_gb=40, instance_uuid=wanted.instance_uuid)
    assert isinstance(moves.begin(db, there), Admitted)
    assert (fleet_of.used(db, n1)[0], fleet_of.used(db, n2)[0], fleet_of.unclaimed(db)[0]) == (12, 4, 12)
    assert moves.settle(db, wanted.instance_uuid, rows=lambda conn: fleet_of.moved_instance(conn, there))

    assert (fleet_of.used(db, n1)[0], fleet_of.used(db, n2)[0], fleet_of.unclaimed(db)[0]) == (8, 4, 12)
    fleet_of.assert_exact(db)


def test_v17_a_denied_move_leaves_everything_where_it_was(db: Database, n1: int, n2: int) -> None:
    wanted = ask(n1, cpus=4, memory_mb=4096, disk_gb=40)
    fleet_of.admitted(db, wanted)
    before = state(db, n1, n2)
    denied = fleet_of.admit(db, ask(n2, cpus=1000, instance_uuid=wanted.instance_uuid, source=n1))

    assert exceeded(refused(denied, Stage.NODE)) == ["cpus"]
    assert state(db, n1, n2) == before
    assert fleet_of.charged_to(db)[wanted.instance_uuid] == n1


def test_v18_ground_truth_is_written_over_the_limit_and_told(db: Database, n1: int) -> None:
    seen = ask(n1, cpus=100, memory_mb=100000, disk_gb=1000)
    db.unit(lambda conn: fleet_of.new_instance(conn, seen))
    sighting = Sighting(
        instance_uuid=seen.instance_uuid, namespace=seen.namespace, node_id=n1, amounts=Amounts(100, 100000, 1000, 1)
    )
    recorded = record_sighting(db, sighting)

    assert recorded.changed
    assert [item.dimension for item in recorded.over] == ["cpus", "memory_mb", "disk_gb"]
    assert (fleet_of.used(db, n1)[0], fleet_of.unclaimed(db)[0]) == (108, 108)
    events = fleet_of.events_of(db, "placement recorded despite exceeding capacity guard")
    assert {(event["object_type"], event["level"]) for event in events} == {("instance", "error"), ("node", "error")}
    assert json.loads(events[0]["payload"])["node"] == "N1"
    assert not record_sighting(db, sighting).changed
    fleet_of.assert_exact(db, over_limit=["N1"])


def test_v19_a_node_without_a_row_is_refused_by_name_and_admitted_only_when_configured(db: Database, n1: int) -> None:
    n3 = fleet_of.register(db, "N3")
    denied = refused(fleet_of.admit(db, ask(n3, cpus=1000)), Stage.NODE)
    assert denied.ineligible == "no_capacity_row"
    outcome = fleet_of.admit(db, ask(n3, cpus=1000, admit_unsized=True))

    assert isinstance(outcome, Admitted)
    assert outcome.unguarded
    assert fleet_of.unclaimed(db)[0] == 1008
    assert fleet_of.rows(db, "SELECT * FROM scheduler_node_capacity WHERE node_id = :i", i=n3) == []
    fleet_of.assert_exact(db)


TARGET = Decimal("0.75")


@pytest.mark.parametrize(
    ("load", "schedulable", "target", "admits"),
    [
        (45.0, 64, TARGET, True),
        (48.0, 64, TARGET, True),
        (48.001, 64, TARGET, False),
        (49.0, 64, TARGET, False),
        (49.0, None, TARGET, True),
        (None, 64, TARGET, True),
        (49.0, 64, Decimal(0), True),
        (49.0, 64, Decimal(-1), True),
    ],
)
def test_v20_the_demand_clause_asks_whether_the_node_is_over_its_target_already(
    db: Database, n2: int, load: float | None, schedulable: int | None, target: Decimal, *, admits: bool
) -> None:
    fleet_of.execute(
        db,
        "UPDATE scheduler_node_capacity SET cpu_load_1 = :load, cpu_schedulable = :s WHERE node_id = :i",
        load=load,
        s=schedulable,
        i=n2,
    )
    outcome = fleet_of.admit(db, ask(n2, cpus=16, demand=16 * PER_VCPU, target_load=target))

    assert isinstance(outcome, Admitted) is admits
    if isinstance(outcome, Refused):
        assert outcome.demand_only
        demand = figure(outcome, "demand")
        assert (demand.limit, demand.used, demand.requested) == (48.0, load, 9.6)
        assert (demand.cpu_load_1, demand.expected_demand) == (load, 0.0)


def test_a_refusal_on_demand_tells_what_was_measured_from_what_is_expected(db: Database, n2: int) -> None:
    fleet_of.execute(
        db,
        "UPDATE scheduler_node_capacity SET cpu_load_1 = 47.5, expected_demand = 2.25, cpu_schedulable = 64 "
        "WHERE node_id = :i",
        i=n2,
    )
    outcome = refused(fleet_of.admit(db, ask(n2, cpus=1, demand=PER_VCPU, target_load=TARGET)), Stage.NODE)

    demand = figure(outcome, "demand")
    assert (demand.used, demand.cpu_load_1, demand.expected_demand) == (49.75, 47.5, 2.25)
    assert DimensionFigure.read(demand.as_dict()) == demand
    assert {"cpu_load_1": 47.5, "expected_demand": 2.25}.items() <= demand.as_dict().items()
    assert figure(outcome, "cpus").as_dict().keys().isdisjoint({"cpu_load_1", "expected_demand"})


@pytest.mark.parametrize("per_vcpu", [Decimal("0.6"), Decimal("2.5")])
def test_v21_an_idle_node_of_any_size_is_never_over_its_target(db: Database, per_vcpu: Decimal) -> None:
    admitted = 0
    for schedulable in range(1, 17):
        node_id = fleet_of.node(db, cpus=schedulable)
        fleet_of.execute(db, "UPDATE scheduler_node_capacity SET limit_cpus = NULL WHERE node_id = :i", i=node_id)
        fleet_of.execute(db, "UPDATE cluster_capacity SET unlimited_cpus = 1")
        for cpus in (1, 2, 4, 8, 16):
            wanted = ask(node_id, cpus=cpus, demand=cpus * per_vcpu, target_load=TARGET)
            admitted += isinstance(fleet_of.admit(db, wanted), Admitted)
            fleet_of.execute(db, "UPDATE scheduler_node_capacity SET expected_demand = 0")
    assert admitted == 80


def test_v22_demand_is_absorbed_until_the_target_and_then_waived(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=12, cpu_load_1=0.0)
    fleet_of.execute(db, "UPDATE scheduler_node_capacity SET limit_cpus = 100")
    fleet_of.execute(db, "UPDATE cluster_capacity SET total_cpus = 100")

    def one(target: Decimal) -> object:
        return fleet_of.admit(db, ask(node_id, demand=PER_VCPU, target_load=target))

    assert all(isinstance(one(TARGET), Admitted) for _ in range(16))
    seventeenth = refused(one(TARGET), Stage.NODE)
    assert seventeenth.demand_only
    assert isinstance(one(Decimal(0)), Admitted)
    assert Decimal(str(fleet_of.row(db, node_id)["expected_demand"])) == 17 * PER_VCPU
