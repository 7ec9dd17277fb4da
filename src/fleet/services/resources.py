"""Measuring and publishing: every 60 s, and at once when the set of domains or of GPUs changes or the health turns.

A sample carries the age of its measurement, so that the database stamps it with the time at which measuring began. A
collector that fails is named in the sample and publishes nothing for its fields. Nodes that are not registered are
skipped with a word about it, and published as soon as they are. How much work waits for a node is what the database
says: counted once a batch, beside what was measured.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Protocol

from fleet.hypervisor.contract import Hypervisor, HypervisorError
from fleet.ledger import node_names, operations, samples
from fleet.ledger.database import Database
from fleet.ledger.samples import SampleIn
from fleet.measure import (
    Machine,
    MachineGpus,
    Paths,
    ProbeResult,
    Reservations,
    Sample,
    SimulatedFleet,
    WriteProbe,
    measure,
    shortened,
)
from fleet.model.cluster_config import ClusterConfig
from fleet.model.errors import DatabaseUnavailable, NodeNotFound
from fleet.telemetry import get_logger

PUBLISH_SECONDS: Final = 60.0
POLL_SECONDS: Final = 5.0
PROBE_SECONDS: Final = 15.0
BATCH: Final = 50
TURN_SECONDS: Final = 0.5

_log = get_logger(__name__)


@dataclass(frozen=True, slots=True)
class Measured:
    """A sample with what the write probes said; None: nothing was probed."""

    sample: Sample
    healthy: bool | None = None
    health_detail: Mapping[str, str] | None = None


class Measurer(Protocol):
    """Measures the nodes of this process."""

    def names(self) -> Sequence[str]:
        """The nodes' names."""

    def measure(self, name: str) -> Measured:
        """Measure one node now."""

    def fingerprint(self, name: str) -> object:
        """What, when it changes, is worth a new sample at once: the domain set, the GPUs, the node's health."""


class RealNode:
    """The machine this process runs on."""

    def __init__(
        self,
        name: str,
        machine: Machine,
        hypervisor: Hypervisor,
        *,
        paths: Paths,
        reservations: Reservations,
        is_hypervisor: bool,
        gpus: MachineGpus | None = None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._name = name
        self._machine = machine
        self._hypervisor = hypervisor
        self._paths = paths
        self._reservations = reservations
        self._is_hypervisor = is_hypervisor
        # A node that takes no instances hands over no GPUs.
        self._gpus = gpus if is_hypervisor else None
        self._contradictions: tuple[str, ...] = ()
        self._monotonic = monotonic
        # One path given for both is probed once.
        self._probes = [WriteProbe(path) for path in dict.fromkeys((paths.instances, paths.blobs))]
        self._probed_at = float("-inf")
        self._results: list[ProbeResult] = []
        self._rounds = 0
        self._bad_round: int | None = None
        self._previous: Sample | None = None
        self._seen: frozenset[str] | None = None

    def names(self) -> Sequence[str]:
        return (self._name,)

    def measure(self, name: str) -> Measured:
        self._probe_if_due()
        self._previous = measure(
            self._machine,
            self._hypervisor,
            paths=self._paths,
            reservations=self._reservations,
            is_hypervisor=self._is_hypervisor,
            previous=self._previous,
            gpus=None if self._gpus is None else self._gpus.read,
        )
        self._log_contradictions(self._previous)
        bad = {result.path: result.reason for result in self._results if not result.good}
        return Measured(self._previous, healthy=not bad, health_detail=bad)

    def fingerprint(self, name: str) -> object:
        self._probe_if_due()
        bad = frozenset(result.path for result in self._results if not result.good)
        # While something is wrong every round counts: three good ones bring the node back.
        units = None if self._gpus is None else self._gpus.units()
        return (self._domain_set(), units, bad, self._rounds if bad or self._recovering else 0)

    @property
    def _recovering(self) -> bool:
        return self._bad_round is not None and self._rounds - self._bad_round <= samples.GOOD_PROBES_TO_RECOVER

    def _probe_if_due(self) -> None:
        if self._monotonic() - self._probed_at < PROBE_SECONDS:
            return
        self._results = [probe.run() for probe in self._probes]
        self._probed_at = self._monotonic()
        self._rounds += 1
        for result in self._results:
            if not result.good:
                self._bad_round = self._rounds
                _log.error("write_probe.failed", node=self._name, path=result.path, reason=result.reason)

    def _log_contradictions(self, sample: Sample) -> None:
        """Say what the operator's file and the driver tell differently, once a change."""
        if sample.gpus is None or sample.gpus.contradictions is None:
            return
        if sample.gpus.contradictions != self._contradictions:
            self._contradictions = sample.gpus.contradictions
            told = shortened(self._contradictions) or "none any more"
            _log.warning("gpus.contradicted", node=self._name, reason=told, holds="what the file declares")

    def _domain_set(self) -> frozenset[str] | None:
        if not self._is_hypervisor:
            return None
        try:
            self._seen = self._hypervisor.domain_set()
        except HypervisorError as error:
            # Unknown is no change; the sample itself names the collector that fails.
            _log.warning("domains.unknown", node=self._name, reason=error.detail)
        return self._seen


class SimulatedNodes:
    """Many simulated nodes of one file."""

    def __init__(self, fleet: SimulatedFleet, drivers: Callable[[str], Hypervisor]) -> None:
        self._fleet = fleet
        self._drivers = drivers
        self._seen: dict[str, frozenset[str] | None] = {}

    def names(self) -> Sequence[str]:
        return tuple(self._fleet.nodes)

    def measure(self, name: str) -> Measured:
        return Measured(self._fleet.sample(name))

    def fingerprint(self, name: str) -> object:
        try:
            self._seen[name] = self._drivers(name).domain_set()
        except HypervisorError as error:
            _log.warning("domains.unknown", node=name, reason=error.detail)
        return self._seen.get(name)


class Resources:
    """The loop: measure what is due, publish it in batches."""

    def __init__(
        self,
        database: Database,
        config: Callable[[], ClusterConfig],
        measurer: Measurer,
        *,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._database = database
        self._config = config
        self._measurer = measurer
        self._monotonic = monotonic
        self._due: dict[str, float] = {}
        self._fingerprints: dict[str, object] = {}
        self._unregistered: frozenset[str] = frozenset()
        self._next_poll = float("-inf")

    def run(self, stop: threading.Event, alive: Callable[[], None] = lambda: None) -> None:
        """Publish until `stop` is set."""
        while not stop.is_set():
            alive()
            try:
                self.turn(alive)
            except DatabaseUnavailable as error:
                _log.warning("sample.not_published", reason=error.detail)
            stop.wait(TURN_SECONDS)

    def turn(self, alive: Callable[[], None] = lambda: None) -> int:
        """Publish every node that is due or has changed; return how many were."""
        now = self._monotonic()
        names = self._measurer.names()
        worth = [name for name in names if now >= self._due.get(name, float("-inf"))]
        if now >= self._next_poll:
            self._next_poll = now + POLL_SECONDS
            due = frozenset(worth)
            worth += [name for name in names if name not in due and self._has_changed(name)]
        return self.publish(worth, alive)

    def publish(self, names: Iterable[str], alive: Callable[[], None] = lambda: None) -> int:
        """Measure and publish these nodes, those that are registered; return how many were published.

        Raises:
            DatabaseUnavailable: the rest is published at the next turn.
        """
        wanted = self._registered(list(names))
        published = 0
        for start in range(0, len(wanted), BATCH):
            alive()
            published += self._publish_batch(dict(wanted[start : start + BATCH]))
        return published

    def _has_changed(self, name: str) -> bool:
        return self._measurer.fingerprint(name) != self._fingerprints.get(name)

    def _registered(self, names: list[str]) -> list[tuple[str, int]]:
        """Return those that are registered, with their ids."""
        if not names:
            return []
        known = node_names.ids(self._database)
        unregistered = frozenset(name for name in names if name not in known)
        retry_at = self._monotonic() + POLL_SECONDS
        self._due.update(dict.fromkeys(unregistered, retry_at))
        for name in sorted(unregistered - self._unregistered)[:BATCH]:
            _log.warning("node.not_registered", node=name, hint="register it: fleet node register")
        self._unregistered = unregistered
        return [(name, known[name]) for name in names if name in known]

    def _publish_batch(self, nodes: Mapping[str, int]) -> int:
        taken = {name: (self._measurer.fingerprint(name), self._measurer.measure(name)) for name in nodes}
        waiting = self._waiting(nodes)
        batch = [self._sample_in(name, measured, waiting) for name, (_, measured) in taken.items()]
        try:
            samples.publish(self._database, batch, self._config())
        except NodeNotFound as error:
            # Removed a moment ago; the next turn leaves it out.
            _log.warning("sample.refused", reason=error.detail)
            return 0
        now = self._monotonic()
        for index, (name, (fingerprint, _)) in enumerate(taken.items()):
            self._due[name] = now + self._interval(name, index, len(taken))
            self._fingerprints[name] = fingerprint
        return len(batch)

    def _waiting(self, nodes: Mapping[str, int]) -> Mapping[str, int] | str:
        """Return how many operations wait for each node, or why nobody knows."""
        try:
            found = operations.waiting(self._database, nodes.values())
        except DatabaseUnavailable as error:
            return error.detail
        return {name: found[node_id] for name, node_id in nodes.items()}

    def _interval(self, name: str, index: int, of: int) -> float:
        """The full interval; after a node's first sample a part of it, so that not all nodes are due together."""
        return PUBLISH_SECONDS if name in self._fingerprints else PUBLISH_SECONDS * (index + 1) / of

    def _sample_in(self, name: str, measured: Measured, waiting: Mapping[str, int] | str) -> SampleIn:
        sample = measured.sample
        metrics, failed = dict(sample.metrics), dict(sample.failed)
        if isinstance(waiting, str):
            failed["queue"] = waiting
        else:
            metrics["queue_waiting"] = waiting[name]
        for collector, reason in failed.items():
            _log.warning("collector.failed", node=name, collector=collector, reason=reason)
        return SampleIn(
            node_name=name,
            metrics=metrics,
            age_seconds=Decimal(str(round(sample.age_seconds(self._monotonic()), 3))),
            failed=failed,
            healthy=measured.healthy,
            health_detail=measured.health_detail or {},
            gpus=None if sample.gpus is None else sample.gpus.gpus,
            mig_instances=None if sample.gpus is None else sample.gpus.mig_instances,
        )
