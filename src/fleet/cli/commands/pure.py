"""`fleet decide`, `fleet replay`, `fleet simulate`: decisions from files, traces against the real API, and offline."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from fleet.cli.outcome import Misused, Refused
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
    summary: Annotated[bool, typer.Option("--summary", help="As sentences, those of `fleet decision show`")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="As JSON, which it is without --summary")] = False,
) -> None:
    """Decide from file to file: no service, no clock, the same answer every time. Exits 1 when it is a refusal."""
    from fleet.cli.commands.decision import tell_stored
    from fleet.cli.decide import Wrong, decide_files, stored_form

    asked = (str(snapshot), str(request), seed, strategy)
    if not summary:
        document, code = decide_files(*asked)
        Output(Form.JSON).json(document)
        raise typer.Exit(code)
    if as_json:
        raise Misused("--summary and --json: keep one of them")
    try:
        document, code = stored_form(*asked)
    except Wrong as wrong:
        raise Refused({"code": wrong.document["code"]}, told=str(wrong)) from None
    tell_stored(Output(Form.HUMAN), document)
    raise typer.Exit(code)
