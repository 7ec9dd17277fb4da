"""A reconcile pass over a full ledger while creates go on."""

from __future__ import annotations

import statistics
import threading
import time

from fleet.ledger import cluster_config, leases
from fleet.ledger.reconcile import PassReport, reconcile
from tests.benchmarks.figures import Figure
from tests.benchmarks.load import Load, drive
from tests.benchmarks.stage import Stage, token_of

INSTANCES = 10_000
FILL_ROUNDS_MAX = 60
BUSY_CLIENTS = 4
LEASE_SECONDS = 120


def reconcile_pass(stage: Stage, passes: int) -> list[Figure]:
    """Seconds of a pass at `stage.nodes` nodes and at least `INSTANCES` instances, four clients creating meanwhile."""
    with stage.service() as plane:
        token = token_of(plane.session())
        _fill(stage, plane.plan.port, token)
        quiet = _passes(stage, passes)
        load: list[Load] = []
        # Long enough for every pass; the passes wait for the clients to be under way.
        busy = threading.Thread(
            target=lambda: load.append(
                drive(plane.plan.port, token, clients=BUSY_CLIENTS, seconds=2.0 + 1.5 * passes, warm_s=0.5)
            )
        )
        busy.start()
        time.sleep(1.5)
        reports = _passes(stage, passes)
        busy.join(120)
    seconds = statistics.median(report.seconds for report in reports)
    alone = statistics.median(report.seconds for report in quiet)
    drift = sum(len(report.corrections) for report in [*quiet, *reports])
    detail = f"alone {alone:.2f} s; creates meanwhile {load[0] if load else '?'}; {drift} corrections"
    name = f"reconcile pass, {stage.nodes:,} nodes, {instances_in(stage):,} instances, creates going on"
    return [Figure(name=name, value=seconds, unit="s", below=1.0, detail=detail)]


def instances_in(stage: Stage) -> int:
    """How many charges the ledger holds."""
    with stage.database.read() as conn:
        return int(conn.exec_driver_sql("SELECT COUNT(*) FROM charges").scalar_one())


def _fill(stage: Stage, port: int, token: str) -> None:
    for _ in range(FILL_ROUNDS_MAX):
        if instances_in(stage) >= INSTANCES:
            return
        drive(port, token, clients=8, seconds=3.0, warm_s=0.0)
    raise AssertionError(f"only {instances_in(stage)} of {INSTANCES} instances after {FILL_ROUNDS_MAX} rounds")


def _passes(stage: Stage, passes: int) -> list[PassReport]:
    lease = leases.acquire(stage.database, "reconciler", "benchmark", LEASE_SECONDS)
    assert lease is not None, "somebody else leads; no reconciler was started here"
    config = cluster_config.load(stage.database)
    reports = [reconcile(stage.database, lease, config) for _ in range(passes)]
    leases.drop(stage.database, lease)
    return reports
