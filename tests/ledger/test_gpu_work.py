"""GPUs from the request to the domain: what a decision sees, what the walk gets, what the worker hands over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from fleet.hypervisor import DomainSpec, Fault, HypervisorError, SimulatedHypervisor, simulated_hypervisor
from fleet.ledger import instances, operations
from fleet.ledger import snapshots as rows
from fleet.ledger.database import Database
from fleet.model.errors import InvalidRequest
from fleet.model.gpu_report import ReportedUnit
from fleet.model.request import InstanceRequest
from fleet.services import decisions
from fleet.services.context import Context
from fleet.services.create import Created, create_instance
from fleet.services.decisions import replay
from fleet.services.explain import explain
from fleet.services.heartbeat import Heartbeat
from fleet.services.place import Refusal
from fleet.services.work import Outcome, Workshop, carry_out
from tests.ledger import fleet_of, gpus_of
from tests.ledger.gpus_of import card, slice_of
from tests.ledger.placing import context


def node(db: Database, ctx: Context, name: str, gpus: Sequence[ReportedUnit] | None = None, **declared: Any) -> int:
    node_id = fleet_of.register(db, name, backend="simulated", **declared)
    publish(db, ctx, name, gpus)
    return node_id


def publish(db: Database, ctx: Context, name: str, gpus: Sequence[ReportedUnit] | None, **more: Any) -> None:
    config = ctx.configuration()
    fleet_of.publish(db, name, config=config, gpus=gpus, cpus=64, cpu_max_per_instance=64, **more)


def create(ctx: Context, gpus: int = 1, **asked: Any) -> Created | Refusal:
    request = InstanceRequest.model_validate({"cpus": 1, "memory_mb": 64, "gpus": gpus, **asked})
    return create_instance(ctx, fleet_of.NAMESPACE, request)


def created(ctx: Context, gpus: int = 1, **asked: Any) -> Created:
    outcome = create(ctx, gpus, **asked)
    assert isinstance(outcome, Created), outcome
    return outcome


# --- what a decision sees ----------------------------------------------------------------------------------------


def test_a_decision_for_gpus_sees_what_others_bound_and_one_without_does_not_ask(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    ctx = context(db)
    first, second = (node(db, ctx, name, [card(f"GPU-{name}")]) for name in "ab")
    asked: list[int] = []
    read = rows.gpus_changed

    def noted(db: Database, since: int) -> rows.GpuChanges:
        asked.append(since)
        return read(db, since)

    monkeypatch.setattr(rows, "gpus_changed", noted)
    created(ctx, 0)
    assert asked == []

    # Another process takes the one on each node in turn: no try of ours is refused for it.
    assert fleet_of.admitted(db, gpus_of.ask(first))
    made = created(ctx)
    assert made.node == "b"
    assert gpus_of.bound(db, second) == {"GPU-b": made.uuid}
    refused = create(ctx)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.stage, refused.counts["gpu"]) == ("out_of_capacity", "gpu", {"too_few_gpus": 2})
    assert asked


def test_a_published_or_declared_change_is_seen_by_the_next_decision_for_gpus(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", [])
    refusal = create(ctx)
    assert isinstance(refusal, Refusal)
    assert refusal.code == "no_gpu_nodes"

    publish(db, ctx, "a", [card("GPU-a"), card("GPU-b")])
    whole = created(ctx, gpu_kind="a100")
    assert gpus_of.bound(db) == {"GPU-a": whole.uuid}
    (parent,) = [card("GPU-a", mig_mode=True)]
    publish(db, ctx, "a", [parent], mig_instances=[slice_of(parent, "MIG-a", kind="a100")])
    assert created(ctx, gpu_profile="1g.10gb").node == "a"
    assert isinstance(create(ctx), Refusal)
    fleet_of.assert_exact(db)


def test_a_decision_for_gpus_replays_from_what_is_stored_of_it(db: Database) -> None:
    ctx = context(db)
    for name in "abc":
        node(db, ctx, name, [card(f"GPU-{name}")])
    for _ in range(3):
        made = created(ctx)
        assert replay(ctx.database, decisions.get(ctx, made.decision_id, None)).ranked[0] == made.node


def test_what_is_explained_is_what_is_free_now(db: Database) -> None:
    ctx = context(db)
    node_id = node(db, ctx, "a", [card("GPU-a")])
    request = InstanceRequest(cpus=1, memory_mb=64, gpus=1)
    assert explain(ctx, fleet_of.NAMESPACE, request).decision.ranked == ("a",)
    fleet_of.admitted(db, gpus_of.ask(node_id))
    assert explain(ctx, fleet_of.NAMESPACE, request).decision.ranked == ()


def test_a_guard_that_refuses_for_gpus_is_a_refusal_on_capacity_and_the_walk_goes_on(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The view lags behind: others took the cards between the decision and the guard."""
    ctx = context(db)
    nodes = {name: node(db, ctx, name, [card(f"GPU-{name}")]) for name in "ab"}
    create(ctx, 0)
    monkeypatch.setattr(rows, "gpus_changed", lambda _db, _since: rows.GpuChanges({}, 0))
    monkeypatch.setattr(rows, "declared_since", lambda _db, _cursor: [])
    first = created(ctx).node
    assert created(ctx).node != first

    refused = create(ctx)
    assert isinstance(refused, Refusal)
    assert (refused.code, refused.stage) == ("out_of_capacity", "capacity_guard")
    assert (refused.extra["failing_stage"], refused.extra["dimensions"]) == ("gpu", {"gpus": 2})
    assert len(gpus_of.bound(db)) == len(nodes)


# --- what the worker hands over ----------------------------------------------------------------------------------


class Site:
    """The hypervisors of simulated nodes, in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, name: str) -> SimulatedHypervisor:
        return simulated_hypervisor(self.folder, name)


def work(db: Database, ctx: Context, site: Site, operation: str) -> Outcome:
    with Heartbeat(db) as heartbeat:
        return carry_out(Workshop(ctx, site, heartbeat, "worker"), operation)


def test_the_domain_gets_exactly_the_units_that_were_bound(db: Database, tmp_path: Path) -> None:
    ctx, site = context(db), Site(tmp_path)
    node(db, ctx, "a", [card("GPU-1"), card("GPU-2"), card("GPU-3")])
    others = created(ctx)
    made = created(ctx, 2)

    assert work(db, ctx, site, made.operation_id) is Outcome.DONE
    (domain,) = site("a").domains()
    view = instances.get(db, made.uuid)
    assert view is not None
    assert domain.gpu_uuids == view.gpu_uuids == ("GPU-2", "GPU-3")
    assert work(db, ctx, site, others.operation_id) is Outcome.DONE
    assert {one.uuid: one.gpu_uuids for one in site("a").domains()}[others.uuid] == ("GPU-1",)


@pytest.mark.parametrize("elsewhere", [True, False])
def test_a_unit_that_is_gone_before_the_domain_is_made_sends_the_create_elsewhere(
    db: Database, tmp_path: Path, *, elsewhere: bool
) -> None:
    ctx, site = context(db), Site(tmp_path)
    node(db, ctx, "a", [card("GPU-a")])
    made = created(ctx)
    publish(db, ctx, "a", [])
    if elsewhere:
        node(db, ctx, "b", [card("GPU-b")])

    outcome = work(db, ctx, site, made.operation_id)

    operation = operations.get(db, made.operation_id)
    assert operation is not None
    if elsewhere:
        assert (outcome, operation.node) == (Outcome.REDIRECTED, "b")
        assert gpus_of.bound(db) == {"GPU-b": made.uuid}
        assert work(db, ctx, site, made.operation_id) is Outcome.DONE
        assert [domain.gpu_uuids for domain in site("b").domains()] == [("GPU-b",)]
    else:
        assert operation.node == "a"
        assert gpus_of.bound(db) == {"GPU-a": made.uuid}
    fleet_of.assert_exact(db)


def test_a_domain_with_other_units_is_not_taken_for_the_one_that_was_asked_for(tmp_path: Path) -> None:
    driver = Site(tmp_path)("a")
    spec = DomainSpec(uuid="i", name="n", cpus=1, memory_mb=1, disk_gb=1, gpus=1, gpu_uuids=("GPU-1",))
    driver.create(spec)
    driver.create(spec)

    with pytest.raises(HypervisorError, match="GPU-1") as caught:
        driver.create(DomainSpec(**{**asdict(spec), "gpu_uuids": ("GPU-2",)}))
    assert caught.value.fault is Fault.DOMAIN_DIFFERS


def test_a_request_that_sleeps_is_counted_with_its_overhead(db: Database) -> None:
    ctx = context(db, instance_overhead_mb="32")
    node_id = node(db, ctx, "a")
    created(ctx, 0, sleep_after_idle_seconds=60)
    created(ctx, 0)
    assert fleet_of.row(db, node_id)["sleepy_memory_mb"] == 64 + 32
    (record,) = rows.some(db, [node_id])
    assert record.capacity is not None
    assert record.capacity.sleepy_memory_mb == 96
    fleet_of.assert_exact(db)


def test_a_kind_that_has_no_slices_is_refused_before_any_decision(db: Database) -> None:
    with pytest.raises((InvalidRequest, ValueError), match="gpu_profile"):
        create(context(db), 1, gpu_kind="l40s", gpu_profile="1g.10gb")
