"""`fleet decide`, `fleet replay`, `fleet simulate`: decisions from files, traces against the real API, and offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleet.cli.output import Form, Output


def add_to(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    from fleet.cli.commands.simulate import simulate
    from fleet.cli.replay import replay_command

    app.command()(decide)
    app.command("replay")(replay_command)
    app.command()(simulate)


def decide(
    snapshot: Annotated[Path, typer.Option(help="A snapshot: what `fleet ctl snapshot` writes")],
    request: Annotated[Path, typer.Option(help="A request: the body of a create")],
    seed: Annotated[int, typer.Option(help="Where the draws start")] = 0,
    strategy: Annotated[str, typer.Option(help="Beats the request's and the configuration's")] = "",
    as_json: Annotated[bool, typer.Option("--json", help="The decision is always JSON")] = True,
) -> None:
    """Decide from file to file: no service, no clock, the same answer every time."""
    from fleet.cli.decide import decide_files

    document, code = decide_files(str(snapshot), str(request), seed, strategy)
    Output(Form.JSON).json(document)
    raise typer.Exit(code)
