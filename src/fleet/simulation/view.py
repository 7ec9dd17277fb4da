"""A worker's view of the fleet: the production snapshot, as stale as the scenario says.

Promise: a view knows only what was committed when it last read. Counters are read again when they are older than
`Staleness.counters_us`, or at once when a decision asks for fresh ones; samples every `SCHEDULER_CACHE_TIMEOUT`. The
decision itself is the production engine's.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.model.admission import NOTHING
from fleet.model.cluster_config import ClusterConfig
from fleet.model.decision import Decision
from fleet.model.node import CapacityRow, NodeRecord
from fleet.model.request import PlacementRequest
from fleet.model.resources import Amounts, Limits
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from fleet.simulation.ledger import Ledger
from fleet.simulation.protocol import SECOND_US
from fleet.simulation.scenario import Machine, Staleness

ARCH = "amd64"
BACKEND = "simulated"


class View:
    """One worker's snapshot."""

    def __init__(
        self, ledger: Ledger, machines: Sequence[Machine], config: ClusterConfig, staleness: Staleness
    ) -> None:
        """Read everything, once."""
        self._ledger = ledger
        self._machines = machines
        self._counters_us = staleness.counters_us
        self._cache_us = int(config.scheduler_cache_timeout * SECOND_US)
        self._cursor, self._sample_cursor = len(ledger.log), len(ledger.published)
        self._read_us = self._sampled_us = 0
        self._snapshot = Snapshot.from_records([self._record(node) for node in range(len(machines))], config, 0)

    def decide(self, request: PlacementRequest, seed: int, now_us: int, *, fresh: bool) -> Decision:
        """Decide on what is known; `fresh` reads the counters first, whatever their age."""
        if fresh or now_us - self._read_us >= self._counters_us:
            self._read(now_us)
        if now_us - self._sampled_us >= self._cache_us:
            self._read_samples(now_us)
        self._snapshot.now_us = max(1, self._read_us)
        return decide(request, self._snapshot, seed)

    def _read(self, now_us: int) -> None:
        changed = set(self._ledger.log[self._cursor :])
        self._cursor, self._read_us = len(self._ledger.log), now_us
        if changed:
            rows = self._ledger.rows
            self._snapshot.update_counters([rows[node].seen for node in sorted(changed)])
            holders = [node for node in changed if rows[node].gpus.devices]
            self._snapshot.update_gpus({node + 1: rows[node].seen_gpus for node in sorted(holders)})

    def _read_samples(self, now_us: int) -> None:
        fresh = sorted(set(self._ledger.published[self._sample_cursor :]))
        self._sample_cursor, self._sampled_us = len(self._ledger.published), now_us
        self._snapshot.update_records([self._record(node) for node in fresh])

    def _record(self, node: int) -> NodeRecord:
        machine, row = self._machines[node], self._ledger.rows[node]
        seen = row.seen
        return NodeRecord(
            name=machine.name,
            node_id=node + 1,
            sample_at_us=seen[16],
            arch=ARCH,
            backend=BACKEND,
            sleepy_pool=machine.sleepy_pool,
            max_instances=machine.max_instances,
            metrics=row.metrics,
            capacity=CapacityRow(
                Limits(*seen[1:5]),
                Amounts(*seen[5:9]) if any(seen[5:9]) else NOTHING,
                expected_demand=seen[9],
                pending_memory_mb=seen[10],
                pending_disk_gb=seen[11],
                sleepy_memory_mb=seen[18],
            ),
            gpu=row.seen_gpus,
        )
