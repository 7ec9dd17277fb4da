"""What operators look at: room node by node, in all, and of the cluster, with the ledger's own health beside it.

Every figure comes from the formulas that placement and admission use; what is unknown is null, never zero. Where the
counters cannot be read the rest is still told, every figure that needs them is null, and `capacity_degraded` says so.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

from sqlalchemy.exc import DBAPIError

from fleet.ledger import cluster, nodes
from fleet.ledger.database import Database
from fleet.ledger.nodes import NodeView
from fleet.model import capacity
from fleet.model.cluster_config import ClusterConfig
from fleet.model.errors import BrokenPromise, DatabaseUnavailable
from fleet.model.figures import measured_of, real_or_none, schedulable_of, whole_or_none
from fleet.model.node import NodeState, Scheduling
from fleet.placement.stages.queue_state import WAITING_MAX
from fleet.services import ledger_health
from fleet.telemetry import get_logger

T = TypeVar("T")
NODES_PER_READ: Final = 1000
COUNTED: Final = (
    *("cpu_committed", "cpu_committed_row_present", "cpu_limit", "cpu_available", "expected_demand"),
    *("ram_committed", "sleepy_memory_mb", "wake_risk_mb", "ram_limit", "ram_available"),
    *("disk_committed", "disk_limit", "disk_available", "instances_committed", "instances_limit"),
)
"""What of a node needs the ledger's counters: unknown where they cannot be read."""
TOTALS: Final = ("cpu_available", "ram_available", "disk_available")

_log = get_logger(__name__)


def resources(db: Database, config: ClusterConfig) -> dict[str, Any]:
    """Return the admin's view: each hypervisor, those that take instances in all, the cluster, and the ledger's health.

    Raises:
        DatabaseUnavailable: not even the nodes can be read.
    """
    known, degraded = _all_nodes(db)
    hypervisors = [node for node in known if node.metrics.get("is_hypervisor") is True]
    per_node = {node.name: node_resources(node, config, degraded=degraded) for node in hypervisors}
    taking = [figures for figures in per_node.values() if figures["takes_instances"]]
    of_cluster = _readable(lambda: cluster_capacity(db), "cluster")
    names = {node.node_id: node.name for node in known}
    drift = _readable(lambda: ledger_health.drift(db, names), "drift")
    return {
        "total": dict.fromkeys(TOTALS) if degraded else _totals(taking),
        "nodes": {"hypervisors": len(per_node), "in_total": len(taking)},
        "per_node": per_node,
        "cluster": of_cluster,
        "drift": drift,
        "last_pass": ledger_health.last_pass(db, names),
        "capacity_degraded": degraded or of_cluster is None,
    }


def _all_nodes(db: Database) -> tuple[list[NodeView], bool]:
    """Return every node that is not removed, by name; the second value says that their counters cannot be read."""
    found = _readable(lambda: list(_pages(lambda after: nodes.listing(db, NODES_PER_READ, after))), "nodes")
    if found is not None:
        return found, False
    return list(_pages(lambda after: nodes.listing_bare(db, NODES_PER_READ, after))), True


def _pages(read: Callable[[str], Sequence[NodeView]]) -> Iterator[NodeView]:
    after = ""
    while True:
        page = read(after)
        yield from page
        if len(page) < NODES_PER_READ:
            return
        after = page[-1].name


def _readable(read: Callable[[], T], what: str) -> T | None:
    """Return what is read; None, and a line in the log, where the counters cannot be. An empty table is no failure."""
    try:
        return read()
    except (DatabaseUnavailable, DBAPIError, BrokenPromise) as error:
        _log.error("capacity.unreadable", what=what, error=str(error))
        return None


def _totals(taking: Sequence[Mapping[str, Any]]) -> dict[str, int | None]:
    """Return the sums of what is above zero; null where a node has no limit. What is unknown adds nothing."""
    unlimited = any(figures["cpu_committed_row_present"] and figures["cpu_limit"] is None for figures in taking)
    total = {name: sum(max(0, figures[name] or 0) for figures in taking) for name in TOTALS}
    return {**total, "cpu_available": None if unlimited else total["cpu_available"]}


def node_resources(node: NodeView, config: ClusterConfig, *, degraded: bool = False) -> dict[str, Any]:
    """Return one node's figures. `*_available` may be negative: that is how much the node is over.

    `degraded`: its counters could not be read, which is something else than a node without a row.
    """
    metrics, row = node.metrics, node.row
    hindrance = _hindrance(node, config, degraded=degraded)
    figures = {
        "state": node.state,
        "scheduling": node.scheduling,
        "takes_instances": hindrance is None,
        "takes_none_because": hindrance,
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
        "queue_waiting": whole_or_none(metrics.get("queue_waiting")),
    }
    return figures | dict.fromkeys(COUNTED) if degraded else figures


def _hindrance(node: NodeView, config: ClusterConfig, *, degraded: bool) -> str | None:
    """Return why placement takes no hypervisor of this kind now, whatever is asked for; None: it may.

    A long queue hinders too: load shedding would pass the node by. One that is not told does not.
    """
    if node.state is not NodeState.ACTIVE:
        return str(node.state)
    if node.scheduling is not Scheduling.ENABLED:
        return str(node.scheduling)
    if node.sample_age_seconds is None or node.sample_age_seconds >= config.node_metrics_max_age_seconds:
        return "stale"
    if node.row is None and not degraded and not config.admit_unsized_nodes:
        return "unsized"
    waiting = whole_or_none(node.metrics.get("queue_waiting"))
    return "busy" if waiting is not None and waiting > WAITING_MAX else None


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
        "cpu_schedulable_from_fallback": fell_back,
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
    """Return the cluster's row (a `total_*` or `left_*` of null is unlimited), and what claims hold back unused."""
    found = cluster.view(db)
    parts: tuple[tuple[str, Mapping[str, int | None]], ...] = (
        ("total", found.total),
        ("claimed", found.claimed),
        ("claims_unused", found.claims_unused),
        ("unclaimed_used", found.unclaimed_used),
        ("overage", found.overage),
        ("left", found.left),
    )
    figures = {f"{part}_{name}": value for part, amounts in parts for name, value in amounts.items()}
    return {**figures, "counted_nodes": found.counted_nodes}
