"""sf-reconciler: keeps the ledger true, the nodes' states honest and accepted work awake. Any number; one leads."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict

from fleet import bootstrap
from fleet.config import Settings
from fleet.queue.connection import connect, eviction
from fleet.queue.jobs import WakeUps
from fleet.services.daemon import BROKEN, DONE, Daemon, Life
from fleet.services.leadership import Leadership
from fleet.services.reconciler import Reconciler, report_payload
from fleet.services.wake import record_eviction


def serve(settings: Settings, life: Life) -> int:
    """Lead, or stand by, until told to stop."""
    context = bootstrap.build(settings, life.environ)
    client = connect(settings.redis_url)
    leadership = Leadership(context.database, life.holder)
    reconciler = Reconciler(
        context.database,
        WakeUps(client),
        context.configuration,
        leadership,
        # Not waited for: the ledger must be kept true while the queue's server is away.
        at_start=lambda: record_eviction(context.database, eviction(client)),
    )
    if not life.wait_for_database(context.database):
        return DONE
    if life.once:
        return _once(reconciler, leadership)
    life.notifier.ready()
    reconciler.run(life.stop, life.notifier.alive)
    return DONE


def _once(reconciler: Reconciler, leadership: Leadership) -> int:
    """One pass, its report on standard output as JSON."""
    try:
        missing = reconciler.mark_missing()
        report = reconciler.run_pass("once")
    finally:
        leadership.resign()
    if report is None:
        sys.stderr.write("sf-reconciler: another reconciler leads; it runs the passes\n")
        return BROKEN
    details = {"corrections": [asdict(item) | {"difference": item.difference} for item in report.corrections]}
    sys.stdout.write(json.dumps(report_payload(report) | details | {"missing": missing}, indent=2) + "\n")
    return DONE


DAEMON = Daemon(
    name="sf-reconciler",
    summary="Reconciles the ledger, marks missing nodes and wakes work that nobody holds.",
    needs=("DATABASE_URL", "REDIS_URL"),
    serve=serve,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the daemon."""
    return DAEMON.main(arguments, os.environ)


if __name__ == "__main__":
    raise SystemExit(main())
