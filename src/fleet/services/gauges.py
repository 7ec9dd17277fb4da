"""Prometheus metrics that describe the fleet, read from the database at each scrape: nothing of a node that is gone.

Whichever process is asked, the answer is the same, because none of them remembers a gauge. Counters are counts of audit
events. When the database is away nothing is shown instead of old figures.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from fleet.ledger import figures, passes
from fleet.ledger.database import Database
from fleet.ledger.figures import EventCounts, Figures, NodeFigures, OperationFigures
from fleet.ledger.passes import LastPass
from fleet.model.node import NodeState, Scheduling
from fleet.model.resources import CLUSTER_DIMENSIONS
from fleet.services import waiver

UNLIMITED: Final = float("inf")

COUNTED: Final[Mapping[str, tuple[str, tuple[str, ...]]]] = {
    "scheduler_capacity_passes": ("Reconcile passes that ended well.", (passes.ENDED,)),
    "scheduler_capacity_pass_failures": ("Reconcile passes that failed.", (passes.FAILED,)),
    "scheduler_capacity_corrections": ("Counters that a pass had to set right.", ("capacity counter corrected",)),
    "scheduler_capacity_clamps": (
        "Counters that held less than what was released.",
        ("capacity counter clamped at zero",),
    ),
    "scheduler_capacity_demand_waivers": (
        "Admissions for which the demand clause was waived.",
        (waiver.MESSAGE,),
    ),
    "scheduler_capacity_unguarded_admissions": (
        "Admissions on a node without a ledger row.",
        ("instance placed without capacity guard",),
    ),
    "scheduler_capacity_forced": (
        "Placements recorded although the guard would have refused them.",
        ("placement recorded despite exceeding capacity guard",),
    ),
    "scheduler_capacity_claim_overages": (
        "Placements that took a namespace above its claim.",
        ("placement admitted over namespace capacity claim",),
    ),
    "scheduler_capacity_reservation_clamps": (
        "Reservations that a safety bound replaced.",
        ("reservation clamped",),
    ),
    "scheduler_operation_failures": ("Attempts of operations that failed.", ("operation attempt failed",)),
    "scheduler_create_failures": ("Creates that were given up.", ("instance create failed",)),
    "scheduler_placements": ("Placements, redirects among them.", ("instance placed",)),
}
"""What is counted from events: the metric, what it means, and the events' messages."""


class Gauges:
    """One process's door to the metrics; keep it, for it remembers which events it has counted."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._events = EventCounts()
        self._guard = threading.Lock()

    def metrics(self) -> list[Metric]:
        """The metrics as they are now.

        Raises:
            DatabaseUnavailable: nothing can be said now.
        """
        found = figures.read(self._database)
        last = passes.last(self._database)
        with self._guard, self._database.read() as conn:
            counts = self._events.read(conn)
        return [*_of_nodes(found.nodes), *_of_the_cluster(found, last), *_counters(counts)]


def _of_nodes(nodes: Iterable[NodeFigures]) -> list[Metric]:
    limit = _gauge("scheduler_capacity_node_limit", "What a node may hold; +Inf is unlimited.", "node", "dimension")
    used = _gauge("scheduler_capacity_node_used", "What the ledger has charged to a node.", "node", "dimension")
    demand = _gauge("scheduler_capacity_node_expected_demand", "Load still expected of young placements.", "node")
    load = _gauge("scheduler_capacity_node_cpu_load_1", "Load over one minute, as last sampled.", "node")
    counted = _gauge("scheduler_capacity_node_counted", "Whether a node counts in the cluster's totals.", "node")
    sleepy = _gauge("node_sleepy_memory_mb", "Memory of instances that sleep when they are idle.", "node")
    risk = _gauge("node_wake_risk_mb", "Memory that would be missing if all of them woke at once.", "node")
    age = _gauge("node_sample_age_seconds", "Age of a node's last sample, by the database's clock.", "node")
    health = _gauge("node_resource_health", "0 while a node is in error, else 1.", "node")
    state = _gauge("node_state", "1 for the state a node is in.", "node", "state")
    scheduling = _gauge("node_scheduling", "1 for what an operator intends with a node.", "node", "scheduling")
    for node in nodes:
        health.add_metric([node.name], float(node.state != NodeState.ERROR))
        for word in NodeState:
            if word is not NodeState.DELETED:
                state.add_metric([node.name, str(word)], float(node.state == word))
        for intent in Scheduling:
            scheduling.add_metric([node.name, str(intent)], float(node.scheduling == intent))
        if node.limits is None:
            continue
        for name, value in node.limits.items():
            limit.add_metric([node.name, name], UNLIMITED if value is None else value)
            used.add_metric([node.name, name], node.used[name])
        counted.add_metric([node.name], float(node.counted))
        _add_known(demand, node.name, node.expected_demand)
        _add_known(load, node.name, node.cpu_load_1)
        _add_known(sleepy, node.name, node.sleepy_memory_mb)
        _add_known(risk, node.name, node.wake_risk_mb)
        _add_known(age, node.name, node.sample_age_seconds)
    return [limit, used, demand, load, counted, sleepy, risk, age, health, state, scheduling]


def _of_the_cluster(found: Figures, last: LastPass | None) -> list[Metric]:
    total = _gauge("scheduler_capacity_cluster_total", "What the counting nodes may hold together.", "dimension")
    for name in CLUSTER_DIMENSIONS:
        total.add_metric([name], UNLIMITED if found.unlimited[name] else found.cluster.get(f"total_{name}", 0))
    metrics: list[Metric] = [total]
    for column, meaning in (
        ("claimed", "What namespace claims reserve."),
        ("unclaimed_used", "What is used outside of claims."),
        ("overage", "What claims use above their limits."),
    ):
        gauge = _gauge(f"scheduler_capacity_cluster_{column}", meaning, "dimension")
        for name in CLUSTER_DIMENSIONS:
            gauge.add_metric([name], found.cluster.get(f"{column}_{name}", 0))
        metrics.append(gauge)
    counted = _gauge("scheduler_capacity_cluster_counted_nodes", "Nodes that count in the totals.")
    counted.add_metric([], found.cluster.get("counted_nodes", 0))
    instances = _gauge("scheduler_instances", "Instances that are not deleted.", "state")
    for state, count in found.instances.items():
        instances.add_metric([state], count)
    return [*metrics, counted, instances, *_of_passes(last), *_of_operations(found.operations)]


def _of_passes(last: LastPass | None) -> list[Metric]:
    at = _gauge("scheduler_capacity_last_success_timestamp_seconds", "When a reconcile pass last ended well.")
    age = _gauge("scheduler_capacity_last_success_age_seconds", "How long ago that was, by the database's clock.")
    duration = _gauge("scheduler_capacity_last_duration_seconds", "How long that pass took.")
    if last is not None:
        at.add_metric([], last.at_us / 1_000_000)
        age.add_metric([], last.age_seconds)
        _add_known(duration, None, last.duration_seconds)
    return [at, age, duration]


def _of_operations(operations: Iterable[OperationFigures]) -> list[Metric]:
    count = _gauge("scheduler_operations", "Operations that have not ended well (yet).", "kind", "state")
    oldest = _gauge(
        "scheduler_operations_oldest_pending_age_seconds", "Age of the oldest unfinished operation.", "kind"
    )
    overdue = _gauge(
        "scheduler_operations_overdue_seconds", "How long the most overdue pending one has waited.", "kind"
    )
    ages: dict[str, float] = {}
    for figure in operations:
        count.add_metric([figure.kind, figure.state], figure.count)
        if figure.state != "failed":
            ages[figure.kind] = max(ages.get(figure.kind, 0.0), figure.oldest_seconds)
        if figure.state == "pending":
            overdue.add_metric([figure.kind], max(0.0, figure.overdue_seconds))
    for kind, seconds in ages.items():
        oldest.add_metric([kind], seconds)
    return [count, oldest, overdue]


def _counters(counts: Mapping[str, int]) -> list[Metric]:
    metrics: list[Metric] = []
    for name, (meaning, messages) in COUNTED.items():
        counter = CounterMetricFamily(name, meaning)
        counter.add_metric([], sum(counts.get(message, 0) for message in messages))
        metrics.append(counter)
    return metrics


def _gauge(name: str, meaning: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, meaning, labels=labels)


def _add_known(gauge: GaugeMetricFamily, label: str | None, value: object) -> None:
    """Add a figure; an unknown one has no series, for zero would be a lie."""
    if value is not None:
        gauge.add_metric([] if label is None else [label], float(str(value)))
