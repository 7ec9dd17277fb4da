"""`fleet replay NODES.csv TASKS.csv`: drive the real API with a recorded trace, and report what became of it."""

from __future__ import annotations

import contextlib
import os
import secrets
import signal
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer
from rich.console import Console

from fleet.cli import books, output, replay_cards, report
from fleet.cli.caller import Caller, Session, Unexpected, Unreachable
from fleet.cli.control_plane import ControlPlane, Plan, free_port
from fleet.cli.flags import one_of
from fleet.cli.openb import (
    FILL_OF,
    SHARES,
    BadTrace,
    EventKind,
    TraceEvent,
    TraceNode,
    events_of,
    filling_arrivals,
    read_nodes,
    read_tasks,
    scarce,
    without_gpus,
)
from fleet.cli.outcome import Misused
from fleet.cli.processes import StartFailed
from fleet.cli.replay_cards import Cards
from fleet.cli.replay_driver import Driver, Pace
from fleet.cli.replay_samples import SamplePublisher
from fleet.cli.replay_tally import Tally
from fleet.cli.session import SYSTEM, find_key
from fleet.cli.steps import steps

SETTLE_SECONDS_MAX: Final = 120.0
NAMESPACE: Final = "replay"
REFUSED, USAGE, UNREACHABLE = 1, 2, 3
CONFLICT: Final = 409

app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, help="Drive the API with a recorded trace.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What to read of the trace: the flags as given. No `fill_of`: what is scarce."""

    fill: int | None
    fill_of: str
    seed: int
    limit: int | None
    shares: str
    gpus: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Inputs:
    """What to replay, onto what."""

    nodes: Sequence[TraceNode]
    events: Sequence[TraceEvent]
    gpus: report.GpuLoad
    pace: Pace
    config: Mapping[str, str]
    shown: Mapping[str, Any]


@app.command("replay")
def replay_command(
    nodes: Annotated[Path, typer.Argument(help="Machines: CSV with sn, cpu_milli, memory_mib (gpu, model)")],
    tasks: Annotated[
        Path,
        typer.Argument(
            help="Tasks: CSV with name, cpu_milli, memory_mib, creation_time, deletion_time (num_gpu, gpu_milli, "
            "gpu_spec)"
        ),
    ],
    *,
    url: Annotated[str, typer.Option(help="A running service; without it the command starts its own")] = "",
    key_file: Annotated[
        Path | None,
        typer.Option(
            "--key-file", "--admin-key-file", help="With --url: the admin's key; else FLEET_KEY or FLEET_KEY_FILE"
        ),
    ] = None,
    database_url: Annotated[str, typer.Option(help="Its own service on this (empty) database, not on SQLite")] = "",
    redis_url: Annotated[str, typer.Option(help="Its own service on this Redis, not on a private one")] = "",
    speed: Annotated[
        int | None, typer.Option(min=1, help="Trace seconds in a second; without it: as fast as it can")
    ] = None,
    fill: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Arrivals only, until this % of all GPUs or CPUs is asked for")
    ] = None,
    fill_of: Annotated[
        str,
        typer.Option(metavar="gpus|cpus", help="What --fill counts; without it: GPUs if tasks ask for any, else CPUs"),
    ] = "",
    shares: Annotated[
        str, typer.Option(metavar="none|card", help="What a task's share of a GPU asks for: no GPU, or a whole card")
    ] = "none",
    gpus: Annotated[
        bool, typer.Option("--gpus/--no-gpus", help="Whether nodes have cards and tasks ask for them")
    ] = True,
    seed: Annotated[int, typer.Option(help="Draws the arrivals of --fill")] = 0,
    clients: Annotated[int, typer.Option(min=1, max=256, help="Concurrent clients")] = 16,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many tasks")] = None,
    window: Annotated[
        int, typer.Option(min=1, help="Trace seconds in which the clients may overtake each other")
    ] = 3600,
    cpu_ratio: Annotated[str, typer.Option(help="CPU_OVERCOMMIT_RATIO")] = "",
    ram_ratio: Annotated[str, typer.Option(help="RAM_OVERCOMMIT_RATIO")] = "",
    disk_ratio: Annotated[str, typer.Option(help="DISK_OVERCOMMIT_RATIO")] = "",
    strategy: Annotated[str, typer.Option(help="PLACEMENT_STRATEGY")] = "",
    state: Annotated[
        Path | None, typer.Option(help="Keep its own service's files here, not in a temporary folder")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for report.json, utilisation.csv, utilisation.png")] = Path(
        "var/replay"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON on standard output")] = False,
) -> None:
    """Replay a recorded trace through the API: arrivals and departures, then a report with proofs."""
    console = output.console(error=as_json)
    signal.signal(signal.SIGTERM, _interrupt)
    config = {
        "CPU_OVERCOMMIT_RATIO": cpu_ratio,
        "RAM_OVERCOMMIT_RATIO": ram_ratio,
        "DISK_OVERCOMMIT_RATIO": disk_ratio,
        "PLACEMENT_STRATEGY": strategy,
    }
    pace = Pace(clients=clients, window_s=window, speed=speed, namespace=NAMESPACE, run=secrets.token_hex(6))
    asked = Asked(fill=fill, fill_of=fill_of, seed=seed, limit=limit, shares=shares, gpus=gpus)
    try:
        inputs = _read(nodes, tasks, pace, config, asked, database=database_url)
        with contextlib.ExitStack() as stack:
            session = _session(
                stack,
                url=url,
                key_file=key_file,
                database_url=database_url,
                redis_url=redis_url,
                state=state,
                console=console,
            )
            result = run(session, inputs, console, own=not url)
    except (BadTrace, Misused) as fault:
        _fail(console, str(fault), USAGE)
    except (Unreachable, StartFailed) as fault:
        _fail(console, str(fault), UNREACHABLE)
    except Unexpected as fault:
        _fail(console, str(fault), REFUSED)
    except KeyboardInterrupt:
        _fail(console, "stopped before the end; there is no report", 130)
    _publish(result, out, console, as_json=as_json)


def _publish(result: report.Report, out: Path, console: Console, *, as_json: bool) -> None:
    files = report.write(result, out)
    report.show(result, console)
    for line in files:
        output.tell(console, f"  {line}")
    if as_json:
        import json

        print(json.dumps(result.as_json(), indent=1))
    if not result.good:
        raise typer.Exit(REFUSED)


def run(session: Session, inputs: Inputs, console: Console, *, own: bool) -> report.Report:
    """Register, place, let go, settle, prove."""
    caller = session.caller()
    strangers = len(caller.pages("/nodes")) if own else 0
    if strangers:
        raise Unexpected(f"the database already holds {strangers} nodes; a replay wants an empty one, or --url")
    _prepare(caller, inputs.config)
    tally = Tally()
    publisher = SamplePublisher(session, inputs.nodes, tally)
    cards = Cards(inputs.nodes)
    driver = Driver(session, inputs.pace, tally, cards)
    with steps(console) as bars:
        publisher.register_all(bars.count("nodes registered", len(inputs.nodes)))
        with publisher:
            driver.drive(inputs.events, bars.count("arrivals and departures", len(inputs.events)))
            settling = time.monotonic()
            stuck = books.settle(caller, SETTLE_SECONDS_MAX, bars.left("operations to finish"))
            settle_s = time.monotonic() - settling
            driver.note_point(int(inputs.events[-1].at_s))
            proofs = _prove(caller, tally, cards, inputs)
    caller.close()
    samples = {"published": publisher.samples, "seconds between two at most": round(publisher.oldest_s, 1)}
    if publisher.failures:
        samples["failed"] = publisher.failures
    return report.Report(
        inputs=inputs.shown,
        tally=tally,
        elapsed_s=driver.elapsed_s,
        settle_s=settle_s,
        late_s=driver.late_s,
        stuck=stuck,
        samples=samples,
        gpus=inputs.gpus,
        **proofs,
    )


def _prove(caller: Caller, tally: Tally, cards: Cards, inputs: Inputs) -> dict[str, Any]:
    known = books.instances_of(caller, inputs.pace.namespace)
    gone = {event.index for event in inputs.events if event.kind is EventKind.DEPARTURE}
    standing = [placed.uuid for index, placed in tally.placed.items() if index not in gone]
    departed = [placed.uuid for index, placed in tally.placed.items() if index in gone]
    oversold = books.oversold(books.read_nodes(caller), tally.on_node) + cards.faults
    if cards.total:
        asked = {
            tally.placed[event.index].uuid: event.task.gpus for event in inputs.events if event.index in tally.placed
        }
        standing_asked = {uuid: asked[uuid] for uuid in standing}
        oversold += replay_cards.oversold(_nodes_of(caller, inputs), known, standing_asked)
    return {
        "oversold": oversold,
        "lost": books.lost(known, standing=standing, gone=departed),
        "differences": books.differences(caller),
    }


def _nodes_of(caller: Caller, inputs: Inputs) -> list[dict[str, Any]]:
    ours = {node.name for node in inputs.nodes}
    return [node for node in caller.pages("/nodes") if node["name"] in ours]


def _prepare(caller: Caller, config: Mapping[str, str]) -> None:
    for key, value in config.items():
        if value:
            caller.must("PUT", f"/admin/config/{key}", {"value": value})
    made = caller.call("POST", "/auth/namespaces", {"name": NAMESPACE})
    if not made.ok and made.status != CONFLICT:
        raise Unexpected(f"the namespace {NAMESPACE} cannot be made: {made.sentence()}")


def _read(nodes: Path, tasks: Path, pace: Pace, config: Mapping[str, str], asked: Asked, *, database: str) -> Inputs:
    one_of("--fill-of", asked.fill_of or FILL_OF[0], FILL_OF)
    one_of("--shares", asked.shares, SHARES)
    machines, work = read_nodes(nodes), read_tasks(tasks, card_for_a_share=asked.shares == "card")
    fill_of = asked.fill_of or (scarce(machines, work) if asked.gpus else "cpus")
    if asked.fill:
        events = filling_arrivals(work, machines, asked.fill, asked.seed, fill_of)[: asked.limit]
    else:
        events = events_of(work[: asked.limit])
    load = _gpu_load(machines, events, asked)
    if not asked.gpus:
        machines, events = without_gpus(machines, events)
    shown = {
        "nodes": len(machines),
        "tasks": len({event.index for event in events}),
        "events": len(events),
        "speed": pace.speed,
        "fill_percent": asked.fill,
        "fill_of": fill_of if asked.fill else None,
        "seed": asked.seed if asked.fill else None,
        "clients": pace.clients,
        "window_s": pace.window_s,
        "config": {key: value for key, value in config.items() if value},
        "database": "MariaDB" if database.startswith("mysql") else "SQLite",
    }
    return Inputs(nodes=machines, events=events, gpus=load, pace=pace, config=config, shown=shown)


def _gpu_load(nodes: Sequence[TraceNode], events: Sequence[TraceEvent], asked: Asked) -> report.GpuLoad:
    arrivals = [event.task for event in events if event.kind is EventKind.ARRIVAL]
    return report.GpuLoad(
        sent=asked.gpus,
        there=sum(node.gpus for node in nodes),
        tasks=sum(task.gpus > 0 for task in arrivals),
        asked=sum(task.gpus for task in arrivals),
        sharing=sum(task.shares_card for task in arrivals),
        a_share=asked.shares,
    )


def _session(
    stack: contextlib.ExitStack,
    *,
    url: str,
    key_file: Path | None,
    database_url: str,
    redis_url: str,
    state: Path | None,
    console: Console,
) -> Session:
    if url:
        return Session(url.rstrip("/"), find_key(SYSTEM, key_file, os.environ))
    folder = state or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="fleet-replay-")))
    plan = Plan(
        state=folder,
        port=free_port(),
        database_url=database_url,
        redis_url=redis_url,
        this_machine=False,
        log_level="warning",
    )
    plane = stack.enter_context(ControlPlane(plan, lambda text: output.tell(console, f"  {text}")))
    return plane.session()


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _fail(console: Console, text: str, code: int) -> NoReturn:
    output.tell(console, f"fleet replay: {text}", "red")
    raise typer.Exit(code)


if __name__ == "__main__":
    app()
