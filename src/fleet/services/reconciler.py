"""The reconciler's loop: one leader keeps the ledger true, the nodes' states honest and accepted work awake.

    every 5 s    stand for leadership
    every 2 s    a pass when the counting nodes or their limits differ from the totals, or when one is due
    every 10 s   nodes whose sample is too old become missing
    every 3 s    operations without a living lease are woken
    every 10 s   claims of namespaces deleted long enough ago are deleted

Only the leader does any of it. When the last pass ran is remembered in the database, so that neither a restart nor a
change of leader skips a pass or doubles it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any, Final

from fleet.ledger import namespace_cleanup, passes, reconcile, retention, samples
from fleet.ledger.database import Database
from fleet.ledger.leases import Lease, LeaseLost
from fleet.ledger.reconcile import PassReport
from fleet.model.cluster_config import ClusterConfig
from fleet.model.errors import DatabaseUnavailable, FleetError
from fleet.queue.jobs import WakeUps
from fleet.services import sweep
from fleet.services.leadership import RENEW_SECONDS, Leadership
from fleet.services.supervision import Every
from fleet.telemetry import get_logger

LOOK_SECONDS: Final = 2.0
MISSING_SECONDS: Final = 10.0
SWEEP_SECONDS: Final = 3.0
CLEAN_SECONDS: Final = 10.0
RETENTION_SECONDS: Final = 600.0
BACKLOG_SECONDS: Final = 5.0
TURN_SECONDS: Final = 0.2
# A difference that a pass cannot mend must not make passes run one after the other.
CHANGED_SECONDS_MIN: Final = 10.0

_log = get_logger(__name__)


class Reconciler:
    """The loop of one process."""

    def __init__(
        self,
        database: Database,
        wake_ups: WakeUps,
        config: Callable[[], ClusterConfig],
        leadership: Leadership,
        *,
        at_start: Callable[[], object] = lambda: None,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        """`config` answers the cluster's configuration now; `at_start` is done once, as soon as its service answers."""
        self._database = database
        self._wake_ups = wake_ups
        self._config = config
        self._leadership = leadership
        self._monotonic = monotonic
        self._changed_after = float("-inf")
        self._forget_seconds = RETENTION_SECONDS
        self._at_start = Every(lambda: float("inf"), at_start, monotonic=monotonic)
        self._stand = Every(lambda: RENEW_SECONDS, leadership.stand, monotonic=monotonic)
        self._tasks = (
            Every(lambda: MISSING_SECONDS, self.mark_missing, monotonic=monotonic),
            Every(lambda: SWEEP_SECONDS, self.sweep, monotonic=monotonic),
            Every(lambda: LOOK_SECONDS, self.pass_if_due, monotonic=monotonic),
            Every(lambda: CLEAN_SECONDS, self.clean_namespaces, monotonic=monotonic),
            Every(lambda: self._forget_seconds, self.forget_old, monotonic=monotonic),
        )

    def run(self, stop: threading.Event, alive: Callable[[], None] = lambda: None) -> None:
        """Turn until `stop` is set, then resign."""
        while not stop.is_set():
            alive()
            self.turn()
            stop.wait(TURN_SECONDS)
        self._leadership.resign()

    def turn(self) -> None:
        """Do what is due; only leadership is sought while another leads."""
        self._at_start.turn()
        self._stand.turn()
        for task in self._tasks:
            if self._leadership.lease is None:
                return
            task.turn()

    def mark_missing(self) -> list[str]:
        """Mark the nodes whose sample is too old."""
        names = samples.mark_missing(self._database, self._config().node_metrics_max_age_seconds)
        for name in names:
            _log.warning("node.missed", node=name)
        return names

    def sweep(self) -> sweep.Swept:
        """Wake what nobody works on."""
        return sweep.sweep_once(self._database, self._wake_ups)

    def clean_namespaces(self) -> int | None:
        """Delete the claims that deleted namespaces left, after the cleaner's delay; None when another leads by now."""
        lease = self._leadership.lease
        if lease is None:
            return None
        try:
            cleaned = namespace_cleanup.clean(self._database, lease, self._config().cleaner_delay_seconds)
        except LeaseLost:
            self._leadership.lost()
            return None
        if cleaned.gone:
            _log.info("namespaces.cleaned", claims=cleaned.gone)
        if cleaned.stuck:
            # Each turn says how many; the first says why, which is mostly that of all.
            first = cleaned.stuck[0]
            told = {"claim": first.uuid, "namespace": first.namespace, "keeps": "its capacity, until it can be deleted"}
            _log.error("namespaces.claims_stay", claims=len(cleaned.stuck), **told, exc_info=first.error)
        return cleaned.gone

    def forget_old(self) -> dict[str, int] | None:
        """Delete what is past its retention; None when another leads by now."""
        lease = self._leadership.lease
        if lease is None:
            return None
        try:
            gone = retention.sweep(self._database, lease, self._config())
        except LeaseLost:
            self._leadership.lost()
            return None
        # A backlog is worked off in steps, so that the leader's other tasks have their turns in between.
        self._forget_seconds = BACKLOG_SECONDS if retention.is_behind(gone) else RETENTION_SECONDS
        if any(gone.values()):
            _log.info("retention.swept", **gone)
        return gone

    def pass_if_due(self) -> PassReport | None:
        """Run a pass when the interval is over, or at once when the totals do not fit the nodes."""
        config = self._config()
        last = passes.last(self._database)
        if last is None or last.age_seconds >= config.reconcile_interval_seconds:
            return self.run_pass("interval")
        if self._monotonic() >= self._changed_after and reconcile.needs_pass(self._database):
            self._changed_after = self._monotonic() + CHANGED_SECONDS_MIN
            return self.run_pass("nodes_changed")
        return None

    def run_pass(self, why: str) -> PassReport | None:
        """Run one pass as the leader; None when this process does not lead (any more), or the pass failed."""
        lease = self._leadership.stand()
        if lease is None:
            return None
        try:
            report = reconcile.reconcile(self._database, lease, self._config())
        except LeaseLost:
            self._leadership.lost()
            return None
        except FleetError as error:
            self._failed(lease, why, error)
            raise
        payload = report_payload(report) | {"why": why, "lease_number": lease.number}
        kept = [
            {"row": one.row, "figure": one.figure, "old": one.old, "new": one.new}
            for one in report.corrections[: passes.CORRECTED_KEPT_MAX]
        ]
        self._database.unit(lambda conn: passes.record_ended(conn, {**payload, "corrected": kept}))
        # These two are for who reads logs; each figure that was set right is an event, and so a line, of its own.
        for node, deltas in reconcile.drift(report).items():
            _log.warning("node drifted", node=node, **deltas)
        _log.info("pass complete", **payload)
        return report

    def _failed(self, lease: Lease, why: str, error: FleetError) -> None:
        payload = {"why": why, "lease_number": lease.number, "code": error.code, "error": error.detail}
        _log.error("reconcile.failed", **payload)
        try:
            self._database.unit(lambda conn: passes.record_failed(conn, payload))
        except DatabaseUnavailable:
            # The same outage; the log has it.
            return


def report_payload(report: PassReport) -> dict[str, Any]:
    """A pass's report as an event's payload."""
    drift = reconcile.drift(report)
    return {
        "nodes": report.nodes,
        "nodes_added": report.nodes_added,
        "nodes_removed": report.nodes_removed,
        "drifted_nodes": len(drift),
        "drift_cpus": sum(abs(deltas["delta_used_cpus"]) for deltas in drift.values()),
        "corrections": len(report.corrections),
        "claims_expired": report.claims_expired,
        "charges_rehomed": report.charges_rehomed,
        "demand_refreshed": report.demand_refreshed,
        "duration": round(report.seconds, 6),
        "duration_ms": round(report.seconds * 1000),
    }
