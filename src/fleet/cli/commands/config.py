"""`fleet config`: this machine's configuration, checked and explained."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleet.cli.commands.asking import shell_of
from fleet.cli.commands.settings import settings_of
from fleet.cli.output import console
from fleet.cli.typed_values import Commands

app = typer.Typer(cls=Commands, help="This machine's configuration.", no_args_is_help=True)
File = Annotated[Path | None, typer.Option("--file", "--config", help="The file; default /etc/sf/config")]


@app.command()
def show(ctx: typer.Context, file: File = None) -> None:
    """Print every key, its value, where that came from, and its meaning. Secrets are hidden."""
    shell = shell_of(ctx)
    settings = settings_of(file)
    rows = [
        {"key": line.key, "value": line.value, "origin": line.origin, "scope": str(line.scope), "meaning": line.meaning}
        for line in settings.describe()
    ]
    shell.output.listing(rows, ("key", "value", "origin", "meaning"))
    if shell.output.is_human and not settings.path.exists() and not settings.warnings:
        shell.output.say(f"\n{settings.path} does not exist; name another file with --config or FLEET_CONFIG")
    _warn(settings.warnings)


@app.command()
def check(ctx: typer.Context, file: File = None) -> None:
    """Say what is wrong with the configuration, all of it together."""
    settings = settings_of(file)
    _warn(settings.warnings)
    problems = [str(warning) for warning in settings.warnings]
    output = shell_of(ctx).output
    if output.is_human:
        where = str(settings.path) if settings.path.exists() else f"no {settings.path}: defaults and environment"
        output.say(f"the configuration is good ({where})")
    else:
        output.record({"path": str(settings.path), "warnings": problems})


def _warn(warnings: tuple[object, ...]) -> None:
    err = console(error=True)
    for warning in warnings:
        err.print(f"warning: {warning}", style="yellow")
