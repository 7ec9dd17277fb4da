"""`fleet simulate`: compare strategies offline, on the production engine, with seeds, staleness and contention."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from fleet.cli.flags import one_of
from fleet.cli.openb import FILL_OF, SHARES
from fleet.cli.outcome import REFUSED, Misused

if TYPE_CHECKING:
    # Read when the command runs: `fleet --help` needs no engine.
    from fleet.cli.simulate_inputs import Asked, Inputs

LIVES: Final = ("exponential", "lognormal", "forever")


def simulate(
    *,
    strategies: Annotated[str, typer.Option(help="Names, the first is what the others are compared with; or all")] = (
        "all"
    ),
    seeds: Annotated[int, typer.Option(min=1, max=1000, help="How many seeds each strategy runs on")] = 10,
    seed: Annotated[int, typer.Option(min=0, max=2**31, help="The first seed")] = 0,
    nodes: Annotated[
        str | None, typer.Option(metavar="N|FILE", help="How many equal nodes, or a file of nodes: YAML, JSON or CSV")
    ] = None,
    node_shape: Annotated[
        str, typer.Option(metavar="CPUSxMEMORYxDISK[+GPUS:KIND]", help="Size of the equal nodes")
    ] = "64x262144x4000",
    trace: Annotated[
        tuple[Path, Path] | None, typer.Option(metavar="NODES TASKS", help="Nodes and tasks of a recorded trace")
    ] = None,
    mix: Annotated[
        str, typer.Option(metavar="SHAPE=WEIGHT,…|FILE", help="What is asked for, or a YAML or JSON file of it")
    ] = "2x4096x40=4,4x8192x80=3,8x16384x160=2,16x65536x320=1,32x131072x640=1",
    rate: Annotated[
        float | None, typer.Option(min=0.0001, max=100_000, help="Requests a second; a trace then keeps its order only")
    ] = None,
    duration: Annotated[int | None, typer.Option(min=1, help="Seconds that are simulated")] = None,
    lifetimes: Annotated[
        str, typer.Option(metavar="exponential|lognormal|forever", help="How lifetimes are drawn")
    ] = "exponential",
    lifetime: Annotated[int, typer.Option(min=1, help="Mean lifetime in seconds")] = 600,
    sleepy: Annotated[int, typer.Option(min=0, max=100, help="% of the requests that are sleepy")] = 0,
    sleepy_nodes: Annotated[int, typer.Option(min=0, max=100, help="% of the equal nodes in the sleepy pool")] = 0,
    fill: Annotated[
        int | None, typer.Option(min=1, max=1000, help="Arrivals only, until this % of the nodes is asked for")
    ] = None,
    fill_of: Annotated[str, typer.Option(metavar="cpus|gpus", help="What --fill counts")] = "cpus",
    shares: Annotated[
        str, typer.Option(metavar="none|card", help="What a trace's share of a GPU asks for: no GPU, or a whole card")
    ] = "none",
    speed: Annotated[int | None, typer.Option(min=1, help="Seconds of the trace in a simulated one")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many requests")] = None,
    wait: Annotated[int, typer.Option(min=0, help="wait_for_capacity_seconds of every request")] = 0,
    staleness: Annotated[float, typer.Option(min=0, max=3600, help="Seconds between two reads of the counters")] = 0.01,
    sample_period: Annotated[int, typer.Option(min=1, max=900, help="Seconds between two samples of a node")] = 60,
    concurrency: Annotated[int, typer.Option(min=1, max=10_000, help="Requests placed at a time")] = 16,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes that place, each with its own view")] = 2,
    cpu_ratio: Annotated[str, typer.Option(help="CPU_OVERCOMMIT_RATIO")] = "",
    ram_ratio: Annotated[str, typer.Option(help="RAM_OVERCOMMIT_RATIO")] = "",
    disk_ratio: Annotated[str, typer.Option(help="DISK_OVERCOMMIT_RATIO")] = "",
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Any key of the cluster's configuration, or a NODE_*_RESERVATION*"
        ),
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the comparison into this .png, or all pictures into this folder")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="The report as JSON on standard output")] = False,
) -> None:
    """Compare strategies offline: the production engine, a ledger in memory, a virtual clock, many seeds."""
    from fleet.cli.simulate_inputs import Asked
    from fleet.simulation.load import Lives

    one_of("--lifetimes", lifetimes, LIVES)
    one_of("--fill-of", fill_of, FILL_OF)
    one_of("--shares", shares, SHARES)
    asked = Asked(
        nodes=nodes,
        node_shape=node_shape,
        trace=trace,
        mix=mix,
        rate=rate,
        duration_s=duration,
        lives=Lives(lifetimes),
        lifetime_s=lifetime,
        sleepy_percent=sleepy,
        sleepy_nodes_percent=sleepy_nodes,
        fill=fill,
        fill_of=fill_of,
        shares=shares,
        speed=speed,
        limit=limit,
        wait_s=wait,
        staleness_s=staleness,
        sample_period_s=sample_period,
        concurrency=concurrency,
        workers=workers,
        settings=_settings(settings or [], cpu_ratio, ram_ratio, disk_ratio),
    )
    _run(asked, _strategies(strategies), range(seed, seed + seeds), plot, as_json=as_json)


def _settings(pairs: list[str], cpu: str, ram: str, disk: str) -> dict[str, str]:
    ratios = {"CPU_OVERCOMMIT_RATIO": cpu, "RAM_OVERCOMMIT_RATIO": ram, "DISK_OVERCOMMIT_RATIO": disk}
    found = {key: value for key, value in ratios.items() if value}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals:
            raise Misused(f"--set {pair!r}: write KEY=VALUE")
        found[key.strip().upper()] = value.strip()
    return found


def _strategies(text: str) -> list[str]:
    from fleet.placement.stage import all_strategies

    known = list(all_strategies())
    if text == "all":
        # The product's default is what the others are compared with.
        return sorted(known, key=lambda name: (name != "load-aware", name))
    wanted = list(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    unknown = [name for name in wanted if name not in known]
    if unknown or not wanted:
        raise Misused(f"--strategies {text!r}: no strategy of that name; there is: {', '.join(sorted(known))}")
    return wanted


def _run(asked: Asked, strategies: list[str], seeds: range, plot: Path | None, *, as_json: bool) -> None:
    from fleet.cli import output, simulate_inputs
    from fleet.cli import simulate_report as report
    from fleet.cli.openb import BadTrace

    console = output.console(error=as_json)
    try:
        inputs = simulate_inputs.read(asked)
    except BadTrace as fault:
        raise Misused(str(fault)) from None
    found = report.Report.of(inputs.shown(), _results(inputs, strategies, seeds))
    if as_json:
        print(json.dumps(found.as_json(), indent=1))
    else:
        report.show(found, console)
    if plot is not None:
        from fleet.cli import simulate_plots

        for line in simulate_plots.draw(found, plot):
            output.tell(console, f"  {line}")
    if not found.good:
        raise typer.Exit(REFUSED)


def _results(inputs: Inputs, strategies: list[str], seeds: range) -> list[Any]:
    from fleet.cli import output
    from fleet.cli.steps import steps
    from fleet.simulation.run import simulate as simulate_one

    with steps(output.console(error=True), lines=False) as bars:
        # Drawing alone takes seconds: whoever looks on sees from the first moment that something happens.
        drawn = bars.count("seeds drawn", len(seeds))
        scenarios = []
        for seed in seeds:
            scenarios.append(inputs.scenario(seed))
            drawn()
        total = sum(len(scenario.arrivals) for scenario in scenarios) * len(strategies)
        answered = bars.count("requests answered", total)
        by_strategy = [
            [simulate_one(scenario, strategy, answered=answered) for scenario in scenarios] for strategy in strategies
        ]
    return [result for column in by_strategy for result in column]
