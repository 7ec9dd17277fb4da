"""What a replay ends with: figures for people, JSON for programs, the utilisation curve as CSV and PNG.

Promise: the verdict is judged here alone: a run is good when nothing was oversold, lost or stuck, the ledger's own
verification found no difference, and every call had an answer that means something.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleet.cli.output import tell
from fleet.cli.replay_tally import DIMENSIONS, Tally, UtilisationPoint, percentile

MATPLOTLIB_HINT: Final = "no plot: matplotlib is not installed (pip install 'sf-fleet[plots]')"
UNITS: Final = {"cpus": "CPUs", "memory_mb": "memory", "disk_gb": "disk", "gpus": "GPUs"}
STYLES: Final = {"cpus": "-", "memory_mb": "--", "disk_gb": ":", "gpus": "-."}
REASONS_SHOWN: Final = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLoad:
    """What the arrivals ask of the cards there are; `sharing` of them ask for a share of one: `a_share` card counts."""

    sent: bool
    there: int
    tasks: int
    asked: int
    sharing: int
    a_share: str

    def sentence(self, other_kinds: int) -> str:
        """The load in words; `other_kinds`: how often a task went on to its next kind."""
        if not self.sent:
            return (
                f"not sent (--no-gpus): {self.tasks} tasks ask for {self.asked} GPUs, the nodes have {self.there}; "
                "here they were placed by CPU, memory and disk alone"
            )
        parts = [f"{self.tasks} tasks ask for {self.asked}, the nodes have {self.there}"]
        if self.sharing:
            counted = "a whole one" if self.a_share == "card" else "none"
            parts.append(f"{self.sharing} tasks ask for a share of one, which counts as {counted}")
        if other_kinds:
            parts.append(f"{other_kinds} times a task went on to its next kind")
        return "; ".join(parts)


@dataclass(slots=True, kw_only=True)
class Report:
    """Everything a replay found out."""

    inputs: Mapping[str, Any]
    tally: Tally
    elapsed_s: float
    settle_s: float
    late_s: float
    oversold: Sequence[str] = ()
    lost: Sequence[str] = ()
    stuck: Sequence[str] = ()
    differences: Sequence[Any] = ()
    samples: Mapping[str, Any] = field(default_factory=dict)
    gpus: GpuLoad | None = None

    @property
    def good(self) -> bool:
        """Whether every promise held."""
        return not (self.oversold or self.lost or self.stuck or self.differences or self.tally.problem_count)

    def as_json(self) -> dict[str, Any]:
        """The report for programs."""
        tally = self.tally
        answered = len(tally.create_s)
        return {
            "good": self.good,
            "placed": len(tally.placed),
            "refused": tally.refused_count,
            "departed": tally.departed,
            "oversold": len(self.oversold),
            "lost": len(self.lost),
            "stuck": len(self.stuck),
            "differences": list(self.differences),
            "refused_by_stage": [
                {"code": code, "stage": stage, "count": count} for (code, stage), count in tally.refused.most_common()
            ],
            "nodes_dropped_by_reason": [
                {"stage": stage, "reason": reason, "count": count}
                for (stage, reason), count in tally.reasons.most_common()
            ],
            "create_ms": {f"p{p}": round(percentile(tally.create_s, p) * 1000, 2) for p in (50, 95, 99)},
            "creates_per_second": round(answered / self.elapsed_s, 1) if self.elapsed_s else 0.0,
            "repeats": tally.repeats,
            "elapsed_s": round(self.elapsed_s, 2),
            "settle_s": round(self.settle_s, 2),
            "late_s_max": round(self.late_s, 2),
            "utilisation_percent_peak": {name: round(peak(tally.curve, name), 2) for name in drawn(tally.curve)},
            "problems": tally.problems,
            "problem_count": tally.problem_count,
            "oversold_nodes": list(self.oversold),
            "lost_instances": list(self.lost),
            "stuck_operations": list(self.stuck),
            "samples": dict(self.samples),
            "gpus": None if self.gpus is None else asdict(self.gpus) | {"went_on_to_next_kind": tally.other_kinds},
            "example_refusal": tally.example_refusal,
            "inputs": dict(self.inputs),
        }


def share(used: int, total: int | None) -> float | None:
    """Percent of a total; None where it is unlimited or nothing."""
    return 100 * used / total if total else None


def peak(curve: Sequence[UtilisationPoint], dimension: str) -> float:
    """The highest utilisation of a dimension, in percent."""
    return max((share(point.used[dimension], point.total[dimension]) or 0.0 for point in curve), default=0.0)


def drawn(curve: Sequence[UtilisationPoint]) -> list[str]:
    """The dimensions that a curve has."""
    return [name for name in DIMENSIONS if curve and all(name in point.used for point in curve)]


def write(report: Report, folder: Path) -> list[str]:
    """Write report.json, utilisation.csv and utilisation.png; one line for each file or for why it is not there."""
    folder.mkdir(parents=True, exist_ok=True)
    document = folder / "report.json"
    document.write_text(json.dumps(report.as_json(), indent=1) + "\n")
    table = folder / "utilisation.csv"
    write_csv(report.tally.curve, table)
    picture = folder / "utilisation.png"
    return [str(document), str(table), str(picture) if draw(report, picture) else MATPLOTLIB_HINT]


def write_csv(curve: Sequence[UtilisationPoint], path: Path) -> None:
    """The curve, one line a point; what it does not have is empty."""
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        amounts = [f"{kind}_{name}" for name in DIMENSIONS for kind in ("used", "total")]
        writer.writerow(["trace_s", "elapsed_s", *amounts, "placed", "refused", "departed"])
        for point in curve:
            row = [value for name in DIMENSIONS for value in (point.used.get(name), point.total.get(name))]
            counts = (point.placed, point.refused, point.departed)
            writer.writerow([point.trace_s, f"{point.elapsed_s:.3f}", *row, *counts])


def draw(report: Report, path: Path) -> bool:
    """The curve as a picture: utilisation per dimension above, what became of the requests below."""
    try:
        import matplotlib as mpl
    except ImportError:
        return False
    mpl.use("Agg")
    from matplotlib import pyplot as plt

    curve = report.tally.curve
    fill = report.inputs.get("fill_percent")
    unit, label = (1, "requests drawn") if fill else (86_400, "days of the trace")
    hours = [point.trace_s / unit for point in curve]
    figure, (above, below) = plt.subplots(2, 1, figsize=(10, 7), sharex=True, height_ratios=(3, 2))
    for name in drawn(curve):
        shares = [share(point.used[name], point.total[name]) for point in curve]
        above.plot(
            hours,
            [float("nan") if one is None else one for one in shares],
            STYLES[name],
            label=UNITS[name],
            drawstyle="steps-post",
        )
    if any(peak(curve, name) > 80 for name in drawn(curve)):
        above.axhline(100, color="grey", linewidth=0.8)
    above.set_ylabel("committed, % of the limit")
    above.set_ylim(bottom=0)
    above.legend(loc="upper left")
    above.set_title(_title(report))
    below.plot(hours, [point.placed for point in curve], label="placed")
    below.plot(hours, [point.refused for point in curve], label="refused")
    below.plot(hours, [point.departed for point in curve], "--", label="departed")
    below.set_ylabel("instances, in all")
    below.set_xlabel(label)
    below.legend(loc="upper left")
    for axes in (above, below):
        axes.grid(alpha=0.3)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    plt.close(figure)
    return True


def _title(report: Report) -> str:
    inputs = report.inputs
    return (
        f"{inputs['nodes']} nodes, {len(report.tally.create_s)} creates on {inputs['database']}: "
        f"{len(report.tally.placed)} placed, {report.tally.refused_count} refused, {len(report.oversold)} oversold"
    )


def show(report: Report, console: Console) -> None:
    """The report for people."""
    tally, figures = report.tally, report.as_json()
    table = Table(title="Replay", show_header=False, title_justify="left")
    table.add_column(justify="right")
    table.add_column()
    table.add_row("placed", str(figures["placed"]))
    table.add_row("refused", str(figures["refused"]))
    table.add_row("departed", str(figures["departed"]))
    times = figures["create_ms"]
    table.add_row(
        "a create, as a client sees it", f"p50 {times['p50']} ms, p95 {times['p95']} ms, p99 {times['p99']} ms"
    )
    table.add_row("creates answered", f"{figures['creates_per_second']} a second over {report.elapsed_s:.1f} s")
    table.add_row("asked to come again", f"{tally.repeats} times")
    if report.inputs.get("speed"):
        table.add_row("latest event", f"{report.late_s:.2f} s late")
    peaks = figures["utilisation_percent_peak"]
    table.add_row("peak utilisation", ", ".join(f"{UNITS[name]} {percent} %" for name, percent in peaks.items()))
    table.add_row("samples", ", ".join(f"{value} {name.replace('_', ' ')}" for name, value in report.samples.items()))
    if report.gpus is not None:
        table.add_row("GPUs", report.gpus.sentence(tally.other_kinds))
    for name, found in (("oversold", report.oversold), ("lost", report.lost), ("stuck", report.stuck)):
        table.add_row(name, Text(str(len(found)), "red" if found else "green"))
    table.add_row("ledger verification", _differences(report.differences))
    console.print(table, soft_wrap=False)
    if tally.refused:
        console.print(_refusals(tally), soft_wrap=False)
        console.print(_reasons(tally), soft_wrap=False)
        tell(console, f"The last refusal: {tally.example_refusal}")
    for problem in tally.problems[:5]:
        tell(console, f"unexpected: {problem}", "red")
    for name in [*report.oversold[:5], *report.lost[:5], *report.stuck[:5]]:
        tell(console, name, "red")


def _differences(differences: Sequence[Any]) -> Text:
    if differences:
        return Text(f"{len(differences)} differences: {differences[:3]}", "red")
    return Text("no difference", "green")


def _reasons(tally: Tally) -> Table:
    table = Table(title="What the nodes lacked: where a refused create lost a node, on average", title_justify="left")
    for name in ("stage", "reason", "nodes a refusal"):
        table.add_column(name, justify="right" if name.startswith("nodes") else "left")
    for (stage, reason), count in tally.reasons.most_common(REASONS_SHOWN):
        table.add_row(stage, reason, f"{count / tally.refused_count:.1f}")
    return table


def _refusals(tally: Tally) -> Table:
    table = Table(title="Refused, by the stage that decided", title_justify="left")
    for name in ("stage", "code", "creates"):
        table.add_column(name, justify="right" if name == "creates" else "left")
    for (code, stage), count in tally.refused.most_common(REASONS_SHOWN):
        table.add_row(stage, code, str(count))
    return table
