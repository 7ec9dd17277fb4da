"""`fleet resources`: room node by node, in all and of the cluster, and whether the ledger is kept true."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import typer

from fleet.cli.commands.asking import shell_of
from fleet.cli.output import Form, Output, plain
from fleet.model.resources import CLUSTER_DIMENSIONS

FIGURES: Final = (
    *("node", "state", "scheduling", "takes_instances", "takes_none_because", "sample_age_seconds"),
    *("cpu_max_per_instance", "cpu_schedulable", "cpu_schedulable_from_fallback", "cpu_hard_max", "cpu_measured"),
    *("cpu_committed", "cpu_committed_row_present", "cpu_limit", "cpu_available"),
    *("cpu_load_1", "cpu_load_5", "cpu_load_15", "expected_demand"),
    *("memory_reserved_mb", "ram_max_per_instance", "ram_max", "ram_measured", "ram_committed", "ram_limit"),
    *("ram_available", "wake_risk_mb", "disk_committed", "disk_limit", "disk_available"),
    *("instances_total", "instances_active", "queue_waiting"),
)
"""What `--simple` prints of a node."""
SHORT: Final = ("node", "takes", "cpu_left/limit", "ram_gb_left/limit", "disk_gb_left/limit", "load", "queue")
LONG: Final = (
    *("node", "takes", "cpu_left", "cpu_committed", "cpu_measured", "cpu_limit", "cpu_hard_max", "load"),
    *("ram_left_mb", "ram_committed_mb", "ram_measured_mb", "ram_limit_mb", "wake_risk_mb"),
    *("disk_left_gb", "disk_committed_gb", "disk_limit_gb", "instances", "queue"),
)
MIDDLE: Final = tuple(
    name for name in LONG if not name.endswith(("_measured", "_measured_mb", "_hard_max", "instances"))
)
"""What is committed beside what is left, for a line too narrow for all figures."""
CLUSTER: Final = ("cluster", "total", "claimed", "claims_unused", "unclaimed_used", "overage", "left")
ROWS_TOLD: Final = 5
UNLIMITED: Final = "unlimited"


def add_to(app: typer.Typer) -> None:
    """Add the verb to the application."""
    app.command()(resources)


def resources(ctx: typer.Context) -> None:
    """Show room node by node, in all and of the cluster, and whether the ledger's counters are kept true."""
    shell = shell_of(ctx)
    output = shell.output
    found = shell.get("/admin/resources")
    if output.form is Form.JSON:
        output.json(found)
        return
    if output.form is Form.SIMPLE:
        output.listing([{"node": name, **figures} for name, figures in found["per_node"].items()], FIGURES)
        return
    if found["capacity_degraded"]:
        output.say("The ledger's counters cannot be read now: what needs them is shown as -.", style="bold red")
    _show_nodes(output, found)
    _show_cluster(output, found["cluster"])
    output.say("")
    for text, style in [*_of_pass(found["last_pass"]), *_of_drift(found["drift"])]:
        output.say(text, style=style)


def _show_nodes(output: Output, found: Mapping[str, Any]) -> None:
    rows = [_row(name, figures) for name, figures in found["per_node"].items()]
    count, summed = found["nodes"]["hypervisors"], found["nodes"]["in_total"]
    if rows:
        total = found["total"]
        unlimited = not found["capacity_degraded"] and total["cpu_available"] is None
        rows.append(
            {
                "node": "in all",
                "takes": f"{summed}/{count}",
                "cpu_left": UNLIMITED if unlimited else total["cpu_available"],
                "ram_left_mb": total["ram_available"],
                "disk_left_gb": total["disk_available"],
            }
        )
    columns = next((form for form in (LONG, MIDDLE) if output.fits(rows, form)), SHORT)
    if columns is SHORT:
        _abridge(rows)
    output.listing(rows, columns, title="hypervisors")
    if rows and summed < count:
        output.say("In all: of the hypervisors that take instances now.", style="dim")


def _abridge(rows: list[dict[str, Any]]) -> None:
    """Put what is left and its limit into one cell: a narrow line has no room for two columns."""
    for row in rows:
        row["cpu_left/limit"] = _pair(row, "cpu_left", "cpu_limit")
        in_gib: dict[str, Any] = {name: _gib(row.get(name)) for name in ("ram_left_mb", "ram_limit_mb") if name in row}
        row["ram_gb_left/limit"] = _pair(in_gib, "ram_left_mb", "ram_limit_mb")
        row["disk_gb_left/limit"] = _pair(row, "disk_left_gb", "disk_limit_gb")


def _pair(row: Mapping[str, Any], left: str, limit: str) -> str:
    """What is left, and of what; the sum of all nodes has no limit of its own."""
    return f"{plain(row[left])}/{plain(row[limit])}" if limit in row else plain(row[left])


def _gib(mib: Any) -> Any:
    """MiB as GiB with one place, rounded down: what is told to be left is there."""
    return mib if not isinstance(mib, int) else mib * 10 // 1024 / 10


def _row(name: str, figures: Mapping[str, Any]) -> dict[str, Any]:
    def limit(figure: str) -> Any:
        return UNLIMITED if figures["cpu_committed_row_present"] and figures[figure] is None else figures[figure]

    return {
        "node": name,
        "takes": "yes" if figures["takes_instances"] else figures["takes_none_because"],
        "cpu_left": UNLIMITED if limit("cpu_limit") == UNLIMITED else figures["cpu_available"],
        "cpu_limit": limit("cpu_limit"),
        "ram_left_mb": figures["ram_available"],
        "ram_limit_mb": limit("ram_limit"),
        "disk_left_gb": figures["disk_available"],
        "disk_limit_gb": limit("disk_limit"),
        "load": figures["cpu_load_1"],
        "queue": figures["queue_waiting"],
        "instances": figures["instances_committed"],
        "wake_risk_mb": figures["wake_risk_mb"],
        **{name: figures[name] for name in ("cpu_committed", "cpu_measured", "cpu_hard_max")},
        **{f"{name}_mb": figures[name] for name in ("ram_committed", "ram_measured")},
        "disk_committed_gb": figures["disk_committed"],
    }


def _show_cluster(output: Output, found: Mapping[str, Any] | None) -> None:
    if found is None:
        return
    rows = []
    for name in CLUSTER_DIMENSIONS:
        figures = {part: found[f"{part}_{name}"] for part in CLUSTER[1:]}
        unlimited = {part: UNLIMITED for part in ("total", "left") if figures[part] is None}
        rows.append({"cluster": name, **figures, **unlimited})
    output.say("")
    output.listing(rows, CLUSTER)
    nodes = found["counted_nodes"]
    counted = f"{nodes} node{'' if nodes == 1 else 's'} counted."
    output.say(f"{counted} Left: for namespaces without a claim, and for new claims.", style="dim")


def _of_pass(found: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Return what to say of the reconciler's passes, and how loudly."""
    most = found["stale_after_seconds"]
    if found["ended_at"] is None:
        yield "No reconcile pass has ended well yet: is sf-reconciler running?", "bold red"
    else:
        took = "" if found["duration_seconds"] is None else f", took {round(found['duration_seconds'] * 1000)} ms"
        told = f"Last pass: {_span(found['age_seconds'])} ago{took}{_corrected(found)}."
        yield told, ""
    if found["ended_at"] is not None and found["stale"]:
        yield f"No pass has ended well for more than {_span(most)}: is sf-reconciler running?", "bold red"
    failure = found["last_failure"]
    if failure is not None and failure["since_last_good"]:
        ago = _span(failure["age_seconds"])
        yield f"A pass failed {ago} ago, and none has ended well since: {failure['error']}", "bold red"


def _corrected(found: Mapping[str, Any]) -> str:
    count = found["corrections"]
    if count is None:
        return ""
    if count == 0:
        return ", corrected nothing"
    told = [f"{one['row']} {one['figure']} {one['old']} to {one['new']}" for one in found["corrected"][:ROWS_TOLD]]
    return f", corrected {count}: {_some(told, count)}"


def _of_drift(found: Mapping[str, Any] | None) -> Iterator[tuple[str, str]]:
    if found is None:
        yield "Whether the counters agree with the charges cannot be said now.", "bold red"
    elif found["count"] == 0:
        yield "Every counter agrees with the charges now.", ""
    else:
        told = [
            f"{one['row']} {one['figure']} is {one['stored']}, should be {one['recomputed']}"
            for one in found["differences"][:ROWS_TOLD]
        ]
        yield f"Drift, {found['count']} now: {_some(told, found['count'])}", "bold red"


def _some(told: list[str], count: int) -> str:
    more = f"; and {count - len(told)} more" if count > len(told) else ""
    return f"{'; '.join(told)}{more}"


def _span(seconds: float) -> str:
    """A stretch of time in its largest fitting unit."""
    for name, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {name}"
    return f"{seconds:.0f} s"
