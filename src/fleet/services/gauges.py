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
from fleet.ledger.figures import ClaimFigures, EventCounts, Figures, NodeFigures, OperationFigures
from fleet.ledger.passes import LastPass
from fleet.model.node import NodeState, Scheduling
from fleet.model.resources import CLUSTER_DIMENSIONS
from fleet.services import metric_catalogue as catalogue

UNLIMITED: Final = float("inf")


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
    limit, used = catalogue.NODE_LIMIT.family(), catalogue.NODE_USED.family()
    counted, health = catalogue.NODE_COUNTED.family(), catalogue.NODE_HEALTH.family()
    state, scheduling = catalogue.NODE_STATE.family(), catalogue.NODE_SCHEDULING.family()
    known = {
        "expected_demand": catalogue.NODE_DEMAND.family(),
        "cpu_load_1": catalogue.NODE_LOAD.family(),
        "cpu_schedulable": catalogue.NODE_SCHEDULABLE.family(),
        "sleepy_memory_mb": catalogue.NODE_SLEEPY.family(),
        "wake_risk_mb": catalogue.NODE_RISK.family(),
        "sample_age_seconds": catalogue.NODE_AGE.family(),
    }
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
        for name, gauge in known.items():
            _add_known(gauge, node.name, getattr(node, name))
    return [limit, used, *known.values(), counted, health, state, scheduling]


def _of_the_cluster(found: Figures, last: LastPass | None) -> list[Metric]:
    total = catalogue.CLUSTER_TOTAL.family()
    for name in CLUSTER_DIMENSIONS:
        total.add_metric([name], UNLIMITED if found.unlimited[name] else found.cluster.get(f"total_{name}", 0))
    metrics: list[Metric] = [total]
    for column, description in (
        ("claimed", catalogue.CLUSTER_CLAIMED),
        ("unclaimed_used", catalogue.CLUSTER_UNCLAIMED_USED),
        ("overage", catalogue.CLUSTER_OVERAGE),
    ):
        gauge = description.family()
        for name in CLUSTER_DIMENSIONS:
            gauge.add_metric([name], found.cluster.get(f"{column}_{name}", 0))
        metrics.append(gauge)
    counted = catalogue.CLUSTER_NODES.family()
    counted.add_metric([], found.cluster.get("counted_nodes", 0))
    instances = catalogue.INSTANCES.family()
    for state, count in found.instances.items():
        instances.add_metric([state], count)
    claims = _of_claims(found.claims, found.claims_active)
    return [*metrics, counted, *claims, instances, *_of_passes(last), *_of_operations(found.operations)]


def _of_claims(claims: Iterable[ClaimFigures], active: int) -> list[Metric]:
    count, limit = catalogue.CLAIMS.family(), catalogue.CLAIM_LIMIT.family()
    used, left = catalogue.CLAIM_USED.family(), catalogue.CLAIM_EXPIRES.family()
    count.add_metric([], active)
    for claim in claims:
        for name in CLUSTER_DIMENSIONS:
            limit.add_metric([claim.namespace, name], claim.limits[name])
            used.add_metric([claim.namespace, name], claim.used[name])
        left.add_metric([claim.namespace], claim.seconds_left)
    return [count, limit, used, left]


def _of_passes(last: LastPass | None) -> list[Metric]:
    at, age = catalogue.LAST_SUCCESS_AT.family(), catalogue.LAST_SUCCESS_AGE.family()
    duration, corrections = catalogue.LAST_DURATION.family(), catalogue.LAST_CORRECTIONS.family()
    if last is not None:
        at.add_metric([], last.at_us / 1_000_000)
        age.add_metric([], last.age_seconds)
        _add_known(duration, None, last.duration_seconds)
        _add_known(corrections, None, last.corrections)
    return [at, age, duration, corrections]


def _of_operations(operations: Iterable[OperationFigures]) -> list[Metric]:
    count, oldest = catalogue.OPERATIONS.family(), catalogue.OPERATIONS_OLDEST.family()
    overdue = catalogue.OPERATIONS_OVERDUE.family()
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
    for described in catalogue.COUNTERS:
        counter = CounterMetricFamily(described.name, described.meaning)
        counter.add_metric([], sum(counts.get(message, 0) for message in described.messages))
        metrics.append(counter)
    return metrics


def _add_known(gauge: GaugeMetricFamily, label: str | None, value: object) -> None:
    """Add a figure; an unknown one has no series, for zero would be a lie."""
    if value is not None:
        gauge.add_metric([] if label is None else [label], float(str(value)))
