"""Pictures of a comparison: what the strategies made of the same requests, and how the fleet filled.

Promise: a picture says what it shows without the table: titles, units, seeds, and intervals where there are any.
Colours are told apart by people who see no red and green.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from fleet.cli.report import MATPLOTLIB_HINT
from fleet.cli.simulate_report import Report
from fleet.simulation.compare import Cell
from fleet.simulation.run import Result
from fleet.simulation.tally import BANDS, Point

# Okabe and Ito's colours.
COLOURS: Final = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9", "#F0E442", "#000000")
SHADES: Final = ("#deebf7", "#9ecae1", "#4292c6", "#08519c", "#08306b")
DPI: Final = 110


def draw(report: Report, target: Path) -> list[str]:
    """Draw into a .png, or all pictures into a folder; a line for each file, or why there is none."""
    try:
        import matplotlib as mpl
    except ImportError:
        return [MATPLOTLIB_HINT]
    mpl.use("Agg")
    if target.suffix == ".png":
        target.parent.mkdir(parents=True, exist_ok=True)
        return [_picture(report, target, _comparison)]
    target.mkdir(parents=True, exist_ok=True)
    return [
        _picture(report, target / "comparison.png", _comparison),
        _picture(report, target / "over-time.png", _over_time),
    ]


def _picture(report: Report, path: Path, fill: Callable[[Any, Report], None]) -> str:
    from matplotlib import pyplot as plt

    figure = plt.figure(figsize=(12, 9), layout="constrained")
    fill(figure, report)
    figure.savefig(path, dpi=DPI)
    plt.close(figure)
    return str(path)


def _title(report: Report) -> str:
    inputs = report.inputs
    cells = report.cells["requested"]
    requests = next(iter(cells.values())).mean or 0
    gpus = f" with {inputs['gpus']:,} GPUs" if inputs["gpus"] else ""
    return f"{inputs['nodes']:,} nodes{gpus}, {requests:,.0f} requests ({inputs['load']['kind']})"


def _comparison(figure: Any, report: Report) -> None:
    count = len(report.seeds)
    seeds = f"mean of {count} seeds, bars: 95 % interval" if count > 1 else f"seed {report.seeds[0]}"
    figure.suptitle(f"{_title(report)}; {seeds}", fontsize=12)
    axes = figure.subplots(2, 2)
    _differences(axes[0][0], report)
    _rejected(axes[0][1], report)
    _left_over(axes[1][0], report)
    _bands(axes[1][1], report)


def _differences(axes: Any, report: Report) -> None:
    """Placed requests against the first strategy, paired by seed."""
    first, *others = report.strategies
    row = report.cells["placed"]
    places = range(len(others))
    values = [row[name].difference or 0.0 for name in others]
    widths = [row[name].half_width or 0.0 for name in others] if len(report.seeds) > 1 else None
    axes.barh(places, values, xerr=widths, color=[COLOURS[(at + 1) % len(COLOURS)] for at in places], capsize=4)
    axes.axvline(0, color="black", linewidth=0.8)
    axes.set_yticks(list(places), others)
    axes.invert_yaxis()
    axes.set_title(f"Placed requests, more (+) or fewer (-) than {first}")
    axes.set_xlabel(f"requests ({first}: {row[first].mean:,.1f})")
    axes.grid(axis="x", alpha=0.3)
    axes.set_axisbelow(True)


def _rejected(axes: Any, report: Report) -> None:
    prefix = "rejected_percent_by_class."
    names = [name for name in report.cells if name.startswith(prefix)]
    _grouped(axes, report, names, [name.removeprefix(prefix) for name in names])
    axes.set_title("Rejected requests by size class")
    axes.set_ylabel("% of the class")
    if len(names) > 4:
        axes.tick_params(axis="x", labelrotation=25)


def _left_over(axes: Any, report: Report) -> None:
    chosen = {
        "utilisation_percent_at_end.cpus": "CPUs\nused",
        "utilisation_percent_at_end.memory_mb": "memory\nused",
        "stranded_percent.memory_mb": "memory left\nand stranded",
        "gpus_unallocated_percent": "GPUs\nunallocated",
        "gpu_fragmentation_percent_at_first_refusal": "GPU fragmen-\ntation at the\nfirst refusal",
    }
    present = [name for name in chosen if name in report.cells]
    _grouped(axes, report, present, [chosen[name] for name in present])
    axes.set_title("At the end: what is used, and what is left but of no use")
    axes.set_ylabel("%")


def _grouped(axes: Any, report: Report, names: Sequence[str], labels: Sequence[str]) -> None:
    strategies = report.strategies
    width = 0.8 / len(strategies)
    for at, strategy in enumerate(strategies):
        cells = [report.cells[name][strategy] for name in names]
        places = [group + (at - (len(strategies) - 1) / 2) * width for group in range(len(names))]
        axes.bar(places, [cell.mean or 0.0 for cell in cells], width, label=strategy, color=COLOURS[at % len(COLOURS)])
    axes.set_xticks(range(len(names)), labels)
    axes.margins(y=0.25)
    axes.legend(ncols=3, fontsize=8, loc="upper center")
    axes.grid(axis="y", alpha=0.3)
    axes.set_axisbelow(True)


def _bands(axes: Any, report: Report) -> None:
    strategies = report.strategies
    below = [0.0] * len(strategies)
    for band, shade in zip(BANDS, SHADES, strict=True):
        row: Mapping[str, Cell] = report.cells[f"bands_percent.{band}"]
        values = [row[name].mean or 0.0 for name in strategies]
        axes.bar(strategies, values, bottom=below, color=shade, label=band, edgecolor="white", linewidth=0.4)
        below = [low + value for low, value in zip(below, values, strict=True)]
    axes.set_axisbelow(True)
    axes.set_title("Nodes by band: the worse of load and committed memory")
    axes.set_ylabel("% of the nodes, over time")
    axes.set_ylim(0, 118)
    axes.set_yticks(range(0, 101, 20))
    axes.legend(ncols=5, fontsize=7, loc="upper center", columnspacing=1.0, handlelength=1.4)


def _over_time(figure: Any, report: Report) -> None:
    """How the first seed went: what is used, nodes in use, refusals, each strategy a line."""
    figure.suptitle(f"{_title(report)}; seed {report.seeds[0]}", fontsize=12)
    axes = figure.subplots(2, 2, sharex=True)
    runs = [result for result in report.results if result.seed == report.seeds[0]]
    unit, label = _unit_of(runs)
    gpus = bool(report.inputs["gpus"])
    panels: tuple[tuple[Any, str, str, Callable[[Point], float]], ...] = (
        (axes[0][0], "Memory committed", "% of the limit", lambda point: point.used_percent["memory_mb"]),
        (
            axes[0][1],
            "GPUs bound" if gpus else "CPUs committed",
            "% of the limit",
            lambda point: point.used_percent["gpus" if gpus else "cpus"],
        ),
        (axes[1][0], "Nodes in use", "nodes", lambda point: point.nodes_in_use),
        (axes[1][1], "Refused and expired so far", "requests", lambda point: point.refused),
    )
    for panel, title, what, value in panels:
        for at, run in enumerate(runs):
            times = [point.at_us / unit for point in run.points]
            panel.plot(
                times,
                [value(point) for point in run.points],
                ("-", "--", "-.", ":")[at % 4],
                color=COLOURS[at % len(COLOURS)],
                label=run.strategy,
            )
        panel.set_title(title)
        panel.set_ylabel(what)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
    for panel in axes[1]:
        panel.set_xlabel(label)
    axes[0][0].legend(fontsize=8)


def _unit_of(runs: Sequence[Result]) -> tuple[int, str]:
    last = max((run.points[-1].at_us for run in runs if run.points), default=0)
    for seconds, name in ((86_400, "days"), (3600, "hours"), (60, "minutes")):
        if last > 3 * seconds * 1_000_000:
            return seconds * 1_000_000, f"simulated {name}"
    return 1_000_000, "simulated seconds"
