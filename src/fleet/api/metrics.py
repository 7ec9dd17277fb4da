"""Prometheus figures: the fleet's from the database at scrape time, the processes' from all workers together.

Workers share their counters through files in the folder `PROMETHEUS_MULTIPROC_DIR` names; the daemon sets it before
this module is imported, and without it a process speaks for itself.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from pathlib import Path

from prometheus_client import REGISTRY, CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from fleet.ledger.database import Database
from fleet.model.errors import DatabaseUnavailable
from fleet.services.gauges import Gauges

SHARED_FOLDER = "PROMETHEUS_MULTIPROC_DIR"

LEDGER_UP = "fleet_ledger_up"
LEDGER_UP_MEANING = "Whether the ledger's database answered the scrape."
REQUEST_LABELS = ("method", "path", "status")
REQUEST_SECONDS = Histogram(
    "fleet_http_request_seconds",
    "Time to answer, by method, path template and status.",
    labelnames=REQUEST_LABELS,
    buckets=(0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0),
)
PROBLEM_LABELS = ("code",)
PROBLEMS = Counter(
    "fleet_http_problems",
    "Requests that were refused or failed, by the code of their problem document.",
    labelnames=PROBLEM_LABELS,
)
DECISION_LABELS = ("outcome",)
DECISION_SECONDS = Histogram(
    "fleet_decision_seconds",
    "Time to decide where an instance goes, reading what is known of the fleet included.",
    labelnames=DECISION_LABELS,
    buckets=(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0),
)
OF_THE_PROCESS = (
    (REQUEST_SECONDS, REQUEST_LABELS, "seconds"),
    (PROBLEMS, PROBLEM_LABELS, "requests"),
    (DECISION_SECONDS, DECISION_LABELS, "seconds"),
)
"""What the API's processes count for themselves, with its labels and its unit."""


def decided(seconds: float, outcome: str) -> None:
    """Count a decision."""
    DECISION_SECONDS.labels(outcome).observe(seconds)


class FleetCollector(Collector):
    """The fleet's gauges; when the ledger does not answer, only the fact that it does not."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def collect(self) -> Iterator[Metric]:
        """Read everything now."""
        up = Metric(LEDGER_UP, LEDGER_UP_MEANING, "gauge")
        try:
            found = _gauges(self._database).metrics()
        except DatabaseUnavailable:
            found = []
        up.add_sample(LEDGER_UP, {}, 1.0 if found else 0.0)
        yield from found
        yield up


@functools.cache
def _gauges(database: Database) -> Gauges:
    """One a process: it goes on counting events where the scrape before ended."""
    return Gauges(database)


def process_figures() -> bytes:
    """The counters of this process, or of all workers that share a folder."""
    folder = os.environ.get(SHARED_FOLDER)
    if not folder or not Path(folder).is_dir():
        return generate_latest(REGISTRY)
    registry = CollectorRegistry()
    MultiProcessCollector(registry, path=folder)  # type: ignore[no-untyped-call]
    return generate_latest(registry)
