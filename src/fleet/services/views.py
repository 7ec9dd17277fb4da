"""What operators look at: resources node by node, and the figures that Prometheus scrapes.

Every figure comes from the formulas that placement and admission use; what is unknown is null, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from fleet.ledger import cluster, nodes
from fleet.ledger.database import Database
from fleet.ledger.nodes import NodeView
from fleet.model import capacity
from fleet.model.cluster_config import ClusterConfig
from fleet.model.figures import measured_of, real_or_none, schedulable_of, whole_or_none
from fleet.model.node import NodeState, Scheduling

NODES_PER_READ: Final = 1000


def all_nodes(db: Database) -> Iterator[NodeView]:
    """Every node that is not removed, by name, read in bounded pieces."""
    after = ""
    while True:
        page = nodes.listing(db, NODES_PER_READ, after)
        yield from page
        if len(page) < NODES_PER_READ:
            return
        after = page[-1].name


def resources(db: Database, config: ClusterConfig) -> dict[str, Any]:
    """Return the admin's view of resources: each hypervisor, and what those that take instances have together."""
    per_node = {node.name: node_resources(node, config) for node in all_nodes(db) if _is_hypervisor(node)}
    taking = [figures for figures in per_node.values() if figures["takes_instances"]]
    return {"total": _totals(taking), "per_node": per_node, "capacity_degraded": False}


def _is_hypervisor(node: NodeView) -> bool:
    return node.metrics.get("is_hypervisor") is True


def _totals(per_node: Iterable[Mapping[str, Any]]) -> dict[str, int | None]:
    figures = list(per_node)
    total: dict[str, int | None] = {}
    for name in ("cpu_available", "ram_available", "disk_available"):
        unlimited = any(
            node[name] is None and node["cpu_limit"] is None and name == "cpu_available" for node in figures
        )
        total[name] = None if unlimited else sum(max(0, node[name] or 0) for node in figures)
    return total


def node_resources(node: NodeView, config: ClusterConfig) -> dict[str, Any]:
    """Return one node's figures. `*_available` may be negative: that is how much the node is over."""
    metrics, row = node.metrics, node.row
    return {
        "state": node.state,
        "scheduling": node.scheduling,
        "takes_instances": node.state is NodeState.ACTIVE and node.scheduling is Scheduling.ENABLED,
        "sample_age_seconds": node.sample_age_seconds,
        "cpu_max_per_instance": whole_or_none(metrics.get("cpu_max_per_instance")),
        **_cpu(node, config),
        **{f"cpu_load_{span}": real_or_none(metrics.get(f"cpu_load_{span}")) for span in (1, 5, 15)},
        "expected_demand": None if row is None else row.expected_demand,
        **_memory(node, config),
        **_disk(node, config),
        "instances_total": whole_or_none(metrics.get("instances_total")),
        "instances_active": whole_or_none(metrics.get("instances_active")),
        "instances_committed": 0 if row is None else row.used.instances,
        "instances_limit": None if row is None else row.limits.instances,
    }


def _cpu(node: NodeView, config: ClusterConfig) -> dict[str, Any]:
    schedulable, fell_back = schedulable_of(node.metrics, config)
    foreign = whole_or_none(node.metrics.get("cpu_foreign_vcpus")) or 0
    ratio = config.cpu_overcommit_ratio
    hard_max = None if schedulable is None else capacity.limit_cpus(schedulable, ratio, foreign)
    measured = whole_or_none(node.metrics.get("cpu_total_instance_vcpus"))
    committed = 0 if node.row is None else node.row.used.cpus
    limit = hard_max if node.row is None else node.row.limits.cpus
    # Without what instances run there, the pipeline drops the node: what is left of its limit is not known either.
    left = None
    if limit is not None and measured is not None:
        left = capacity.ledger_headroom(limit, capacity.charged(measured, committed))
    return {
        "cpu_schedulable": schedulable,
        "cpu_schedulable_fallback": fell_back,
        "cpu_hard_max": hard_max,
        "cpu_measured": measured,
        "cpu_committed": committed,
        "cpu_committed_row_present": node.row is not None,
        "cpu_limit": None if node.row is None else node.row.limits.cpus,
        "cpu_available": left,
    }


def _memory(node: NodeView, config: ClusterConfig) -> dict[str, Any]:
    sample, row = measured_of(node.metrics, config), node.row
    available = whole_or_none(node.metrics.get("memory_available"))
    actual = whole_or_none(node.metrics.get("memory_total_instance_actual"))
    reserved = sample.memory_reserved_mb
    sleepy = 0 if row is None else row.sleepy_memory_mb
    headroom = None
    if available is not None and reserved is not None:
        pending = 0 if row is None else row.pending_memory_mb
        ratio = capacity.to_milli(config.ram_overcommit_ratio)
        headroom = capacity.measured_headroom(available, reserved, pending, ratio)
    limit = None if row is None else row.limits.memory_mb
    left = None
    if limit is not None and row is not None:
        left = None if actual is None else capacity.ledger_headroom(limit, capacity.charged(actual, row.used.memory_mb))
        headroom = None if actual is None else headroom
    return {
        "memory_reserved_mb": reserved,
        "memory_max": sample.memory_max,
        "memory_available": available,
        "ram_max_per_instance": None if available is None or reserved is None else available - reserved,
        "ram_max": None
        if sample.memory_max is None
        else capacity.floored_product(sample.memory_max, config.ram_overcommit_ratio),
        "ram_measured": actual,
        "ram_committed": 0 if row is None else row.used.memory_mb,
        "sleepy_memory_mb": sleepy,
        "wake_risk_mb": capacity.wake_risk_mb(sleepy, available, reserved),
        "ram_limit": limit,
        "ram_available": _smaller(left, headroom),
    }


def _disk(node: NodeView, config: ClusterConfig) -> dict[str, Any]:
    sample, row = measured_of(node.metrics, config), node.row
    free = whole_or_none(node.metrics.get("disk_free_gb"))
    headroom = None
    if free is not None and sample.disk_reservation_gb is not None:
        pending = 0 if row is None else row.pending_disk_gb
        ratio = capacity.to_milli(config.disk_overcommit_ratio)
        # A reservation may be a fraction of a GiB: the part that is begun is kept whole.
        reserved = math.ceil(sample.disk_reservation_gb)
        headroom = capacity.measured_headroom(free, reserved, pending, ratio)
    limit = None if row is None else row.limits.disk_gb
    ledger = None if limit is None or row is None else capacity.ledger_headroom(limit, row.used.disk_gb)
    return {
        "disk_total_gb": sample.disk_total_gb,
        "disk_free_gb": free,
        "disk_reservation_gb": sample.disk_reservation_gb,
        "disk_committed": 0 if row is None else row.used.disk_gb,
        "disk_limit": limit,
        "disk_available": _smaller(ledger, headroom),
    }


def _smaller(ledger: int | None, measured: int | None) -> int | None:
    """The smaller of both headrooms. Without a measurement nothing is known to be there."""
    if measured is None:
        return None
    return measured if ledger is None else min(ledger, measured)


def cluster_capacity(db: Database) -> dict[str, Any]:
    """Return the cluster's row: `total_*` (null: unlimited), `claimed_*`, `unclaimed_used_*`, `overage_*`."""
    found = cluster.view(db)
    parts: tuple[tuple[str, Mapping[str, int | None]], ...] = (
        ("total", found.total),
        ("claimed", found.claimed),
        ("unclaimed_used", found.unclaimed_used),
        ("overage", found.overage),
    )
    figures = {f"{part}_{name}": value for part, amounts in parts for name, value in amounts.items()}
    return {**figures, "counted_nodes": found.counted_nodes}
