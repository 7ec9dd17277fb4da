"""Creates through the HTTP API: many clients, one client, beside both floors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

import psutil

from tests.benchmarks import bare_transaction
from tests.benchmarks.figures import Figure
from tests.benchmarks.load import BODY, Bodies, Load, drive, median_of, plain
from tests.benchmarks.stage import ProcessorTime, Stage, serving, token_of, worker_rss_mb
from tests.servers import free_port, wait_until

CLIENTS = 16
GROUP = 8
STOP_SECONDS_MAX = 10
WARM_SECONDS = 1.5
Pace = tuple[int, float]
"""Rounds, and seconds of each."""


def floors(stage: Stage, pace: Pace) -> tuple[list[Figure], float]:
    """The bare transaction and the bare HTTP program with `stage.nodes` nodes; and the latter's creates a second."""
    rounds, seconds = pace
    transactions = max(
        bare_transaction.transactions_per_second(stage.server, clients=CLIENTS, seconds=seconds) for _ in range(rounds)
    )
    with _bare_program(stage) as (port, processes):
        spent = ProcessorTime([*processes, psutil.Process(stage.server.pid)])
        measured = [drive(port, "-", clients=CLIENTS, seconds=seconds, warm_s=0.0) for _ in range(rounds)]
        http, cost = median_of(measured), spent.ms_of_each(measured)
        alone = drive(port, "-", clients=1, seconds=seconds)
    where = f"{stage.nodes:,} nodes"
    return [
        Figure(name=f"floor: bare transaction, {CLIENTS} processes", value=transactions, unit="/s"),
        Figure(
            name=f"floor: bare HTTP, {where}, {CLIENTS} clients", value=http.per_second, unit="/s", detail=str(http)
        ),
        Figure(name=f"floor: bare HTTP, {where}, processor time of a create", value=cost, unit="ms"),
        Figure(name=f"floor: bare HTTP, {where}, one client, p50", value=alone.percentile_ms(50), unit="ms"),
    ], http.per_second


def many_clients(stage: Stage, pace: Pace, *, workers: bool, bars: tuple[float | None, float | None]) -> list[Figure]:
    """Creates a second by sixteen clients; `bars` are the least rate, and the bare program's rate of which a fifth."""
    rounds, seconds = pace
    least, bare = bars
    with stage.service(workers=workers, reconciler=workers) as plane:
        token = token_of(plane.session())
        # Both workers have their view of the fleet before anything counts.
        drive(plane.plan.port, token, clients=CLIENTS, seconds=WARM_SECONDS)
        spent = ProcessorTime([*serving(plane), psutil.Process(stage.server.pid)])
        measured = [drive(plane.plan.port, token, clients=CLIENTS, seconds=seconds, warm_s=0.0) for _ in range(rounds)]
        cost = spent.ms_of_each(measured)
    load = median_of(measured)
    name = f"creates, {stage.nodes:,} nodes, {CLIENTS} clients{', workers on' if workers else ''}"
    found = [
        Figure(name=name, value=load.per_second, unit="/s", at_least=least, detail=str(load), rounds=_rates(measured)),
        Figure(name=f"{name}: processor time of a create", value=cost, unit="ms", detail="API workers and database"),
    ]
    if bare is not None:
        share = load.per_second / bare
        found.append(Figure(name=f"{name}: share of the bare HTTP program", value=share, unit="", at_least=0.2))
    return found


def one_client(stage: Stage, pace: Pace, below_ms: float) -> list[Figure]:
    """The p50 of a create with nobody else there, and what a worker then holds."""
    rounds, seconds = pace
    with stage.service() as plane:
        token = token_of(plane.session())
        drive(plane.plan.port, token, clients=CLIENTS, seconds=WARM_SECONDS)
        measured = [drive(plane.plan.port, token, clients=1, seconds=seconds) for _ in range(rounds)]
        memory = worker_rss_mb(plane)
    load = median_of(measured)
    name = f"create, {stage.nodes:,} nodes, one client, p50"
    return [
        Figure(name=name, value=load.percentile_ms(50), unit="ms", below=below_ms, detail=str(load)),
        Figure(
            name=f"memory of an API worker, {stage.nodes:,} nodes",
            value=memory,
            unit="MB",
            below=250 if stage.nodes >= 10_000 else None,
            detail="resident, after creates",
        ),
    ]


def with_rules(stage: Stage, pace: Pace) -> list[Figure]:
    """Creates that want no other member of their group of eight near, beside creates that want nothing: turn by turn.

    Eight clients make the members of a group at about the same time.
    """
    rounds, seconds = pace
    kinds: dict[str, Bodies] = {"no rule": plain, "apart": _apart(None), "apart within a rack": _apart("rack")}
    measured: dict[str, list[Load]] = {name: [] for name in kinds}
    with stage.service() as plane:
        token = token_of(plane.session())
        drive(plane.plan.port, token, clients=CLIENTS, seconds=WARM_SECONDS)
        for _ in range(rounds):
            for name, bodies in kinds.items():
                load = drive(plane.plan.port, token, clients=CLIENTS, seconds=seconds, warm_s=0.5, bodies=bodies)
                measured[name].append(load)
    rates = {name: median_of(loads) for name, loads in measured.items()}
    without = rates["no rule"].per_second
    return [
        Figure(
            name=f"creates, {stage.nodes:,} nodes, {CLIENTS} clients, {name}: share of creates without a rule",
            value=load.per_second / without,
            unit="",
            at_least=0.5 if name == "apart" else None,
            detail=f"{load}; without {without:.0f}/s",
            rounds=_rates(measured[name]),
        )
        for name, load in rates.items()
        if name != "no rule"
    ]


def _apart(within: str | None) -> Bodies:
    run = uuid4().hex[:8]

    def body(client: int, nth: int) -> dict[str, Any]:
        tags = {"group": f"{run}-{client % (CLIENTS // GROUP)}-{nth}"}
        rule = {"resource": "virtual_machine", "operator": "has_not", "tags": tags}
        return {**BODY, "tags": tags, "placement_rules": [rule if within is None else {**rule, "within": within}]}

    return body


def profiled(stage: Stage, seconds: float) -> Load:
    """One API process under a profiler, and one client: threads that wait for each other would be counted as work."""
    with stage.service(profiled=f"api-{stage.nodes}-nodes") as plane:
        return drive(plane.plan.port, token_of(plane.session()), clients=1, seconds=seconds)


def _rates(measured: list[Load]) -> list[float]:
    return [round(one.per_second, 1) for one in measured]


@contextmanager
def _bare_program(stage: Stage) -> Iterator[tuple[int, list[psutil.Process]]]:
    database, port = stage.server.create_database(), free_port()
    bare_transaction.prepare(stage.server, database)
    command = [sys.executable, "-m", "tests.benchmarks.bare_http"]
    options = {"port": port, "mariadb-port": stage.server.port, "database": database, "nodes": max(stage.nodes, 1000)}
    log = stage.folder / "bare-http.log"
    with log.open("wb") as output:
        program = subprocess.Popen(
            [*command, *(word for name, value in options.items() for word in (f"--{name}", str(value)))],
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_until(lambda: "serving" in log.read_text(), seconds=20, what=f"the bare HTTP program serves: {log}")
        yield port, psutil.Process(program.pid).children(recursive=True)
    finally:
        program.terminate()
        program.wait(STOP_SECONDS_MAX)
        stage.server.drop_database(database)
