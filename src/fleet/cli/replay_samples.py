"""Publish the samples of the nodes of a trace, as each node's own daemon would.

Promises: every node is published once before anything is placed and then once every `CADENCE_SECONDS`; a sample shows
what the driver has placed on the node, so memory and disk shrink and load grows as on a real one, and tells the node's
cards, which stay known until a sample lacks one; a round that falls behind is counted, and the oldest age that was
reached is reported.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final, Self

from fleet.cli.caller import Caller, Session, Unexpected, Unreachable
from fleet.cli.openb import TraceNode
from fleet.cli.replay_cards import cards_of
from fleet.cli.replay_tally import Tally

CADENCE_SECONDS: Final = 60.0
# Rounds are planned shorter than the cadence: a busy service stretches them.
ROUND_SECONDS: Final = 45.0
PUBLISHERS: Final = 8
FIRST_PUBLISHERS: Final = 8
LOAD_PER_VCPU: Final = 0.2
STOP_SECONDS_MAX: Final = 60.0


def registration(node: TraceNode) -> dict[str, Any]:
    """The body that registers a node of the trace."""
    return {"name": node.name, "backend": "simulated", "arch": "amd64"}


def metrics_of(node: TraceNode, tally: Tally) -> dict[str, Any]:
    """A node's sample: nothing is held back (the trace says what could be allocated), instances use all they hold."""
    cpus, memory_mb, disk_gb, instances = tally.usage(node.name)
    return {
        "is_hypervisor": True,
        "cpu_threads": node.cpus,
        "cpu_max": node.cpus,
        "cpu_schedulable": node.cpus,
        "cpu_max_per_instance": node.cpus,
        "cpu_load_1": round(LOAD_PER_VCPU * cpus, 3),
        "cpu_load_5": round(LOAD_PER_VCPU * cpus, 3),
        "cpu_load_15": round(LOAD_PER_VCPU * cpus, 3),
        "cpu_total_instance_vcpus": cpus,
        "cpu_foreign_vcpus": 0,
        "memory_max": node.memory_mb,
        "memory_available": max(0, node.memory_mb - memory_mb),
        "memory_reserved_mb": 0,
        "memory_total_instance_actual": memory_mb,
        "memory_foreign_mb": 0,
        "disk_total_gb": node.disk_gb,
        "disk_free_gb": max(0, node.disk_gb - disk_gb),
        "disk_reservation_gb": 0,
        "disk_foreign_gb": 0,
        "disk_busy_ms_per_second": 0.0,
        "queue_waiting": 0,
        "instances_total": instances,
        "instances_active": instances,
    }


def sample_of(node: TraceNode, tally: Tally) -> dict[str, Any]:
    """A node's sample as it is published; a node without cards tells nothing of any."""
    cards = {"gpus": cards_of(node)} if node.gpus else {}
    return {"age_seconds": 0, "metrics": metrics_of(node, tally), **cards}


class SamplePublisher:
    """The nodes' daemons, all in one: a context manager that publishes until it is left."""

    def __init__(self, session: Session, nodes: Sequence[TraceNode], tally: Tally) -> None:
        """Remember whom to publish for."""
        self._session = session
        self._nodes = nodes
        self._tally = tally
        self._stop = threading.Event()
        self._threads: list[threading.Thread] = []
        self._published_at: dict[str, float] = {}
        self.samples = 0
        self.oldest_s = 0.0
        self.failures = 0
        self.last_failure = ""

    def register_all(self, done: Callable[[], None]) -> None:
        """Register every node and publish its first sample; `done` is called for each."""
        callers = [self._session.caller() for _ in range(FIRST_PUBLISHERS)]
        shares = [self._nodes[number::FIRST_PUBLISHERS] for number in range(FIRST_PUBLISHERS)]

        def work(caller: Caller, share: Sequence[TraceNode]) -> None:
            for node in share:
                caller.must("POST", "/nodes", registration(node))
                self._publish(caller, node)
                done()
            caller.close()

        with ThreadPoolExecutor(FIRST_PUBLISHERS) as pool:
            for outcome in [pool.submit(work, caller, share) for caller, share in zip(callers, shares, strict=True)]:
                outcome.result()

    def __enter__(self) -> Self:
        for number in range(PUBLISHERS):
            share = self._nodes[number::PUBLISHERS]
            thread = threading.Thread(target=self._run, args=(share,), name=f"samples-{number}", daemon=True)
            thread.start()
            self._threads.append(thread)
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(STOP_SECONDS_MAX)

    def _run(self, share: Sequence[TraceNode]) -> None:
        caller = self._session.caller()
        pause = ROUND_SECONDS / max(1, len(share))
        next_round = time.monotonic()
        while not self._stop.is_set():
            next_round += CADENCE_SECONDS
            for number, node in enumerate(share):
                due = next_round - CADENCE_SECONDS + number * pause
                if self._stop.wait(max(0.0, due - time.monotonic())):
                    break
                try:
                    self._publish(caller, node)
                except (Unexpected, Unreachable) as failure:
                    # The next round tries again; an age that grows too much is in the report.
                    self.failures += 1
                    self.last_failure = str(failure)
            self._stop.wait(max(0.0, next_round - time.monotonic()))
            next_round = max(next_round, time.monotonic() - CADENCE_SECONDS)
        caller.close()

    def _publish(self, caller: Caller, node: TraceNode) -> None:
        began = time.monotonic()
        body = sample_of(node, self._tally)
        caller.must("PUT", f"/nodes/{node.name}/metrics", body)
        before = self._published_at.get(node.name, began)
        self.oldest_s = max(self.oldest_s, time.monotonic() - before)
        self._published_at[node.name] = began
        self.samples += 1
