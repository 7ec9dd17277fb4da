"""`fleet explain`, `fleet capacity`, `fleet resources`: what would fit, and what there is."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from fleet.cli.commands.asking import Asked, ask_for, body_of, shell_of, show_decision
from fleet.cli.outcome import Misused

RESOURCES: Final = (
    *("node", "state", "scheduling", "cpu_committed", "cpu_measured", "cpu_limit", "cpu_hard_max", "cpu_available"),
    *("cpu_load_1", "ram_committed", "ram_limit", "ram_available", "wake_risk_mb"),
    *("disk_committed", "disk_limit", "disk_available"),
)


def add_to(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    app.command()(explain)
    app.command()(capacity)
    app.command()(resources)


@ask_for
def explain(ctx: typer.Context, asked: Asked) -> None:
    """Say where an instance would go and why, and why not elsewhere; change nothing."""
    shell = shell_of(ctx)
    show_decision(shell, shell.call("POST", "/placements/explain", body_of(asked)))


def capacity(
    ctx: typer.Context,
    shape: Annotated[str, typer.Option(metavar="CPUSxMEMORYxDISK", help="vCPUs, MiB and GiB: 4x8192x40")],
) -> None:
    """Say how many more of a shape fit (not supported yet)."""
    shell = shell_of(ctx)
    parts = shape.lower().split("x")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise Misused(f"--shape {shape!r}: write vCPUs x MiB x GiB, for example 4x8192x40")
    found = shell.get("/placements/capacity", cpus=parts[0], memory_mb=parts[1], disk_gb=parts[2])
    shell.output.record(found)


def resources(ctx: typer.Context) -> None:
    """Show room node by node, from the same arithmetic as placement."""
    shell = shell_of(ctx)
    found = shell.get("/admin/resources")
    if shell.output.form == "json":
        shell.output.json(found)
        return
    rows = [{"node": name, **figures} for name, figures in found["per_node"].items()]
    shell.output.listing(rows, RESOURCES, title="hypervisors")
    shell.output.say("")
    shell.output.say("available in all: " + ", ".join(f"{name} {value}" for name, value in found["total"].items()))
