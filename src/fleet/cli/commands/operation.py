"""`fleet operation`: durable work on nodes, and an operator's two levers on it."""

from __future__ import annotations

from typing import Annotated, Final

import typer

from fleet.cli.commands.asking import shell_of, uuid_of
from fleet.cli.typed_values import Commands

app = typer.Typer(cls=Commands, help="Work on nodes: look at it, try it again, end it.", no_args_is_help=True)
COLUMNS: Final = ("uuid", "kind", "state", "instance_uuid", "node", "step", "attempts", "error", "created_at")
Uuid = Annotated[str, typer.Argument(help="The operation's uuid")]


@app.command("list")
def list_operations(
    ctx: typer.Context,
    state: Annotated[str | None, typer.Option(help="pending, running, done, failed or cancelled")] = None,
    instance: Annotated[str | None, typer.Option(help="Only of this instance")] = None,
    node: Annotated[str | None, typer.Option(help="Only on this node")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many")] = None,
) -> None:
    """List operations, newest first."""
    shell = shell_of(ctx)
    found = shell.pages("/operations", limit=limit, state=state, instance=instance, node=node)
    shell.output.listing(found, COLUMNS, title="operations")


@app.command()
def show(ctx: typer.Context, uuid: Uuid) -> None:
    """Show one operation."""
    shell = shell_of(ctx)
    shell.output.record(shell.get(f"/operations/{uuid_of(uuid, 'operation')}"))


@app.command()
def retry(ctx: typer.Context, uuid: Uuid) -> None:
    """Try a failed operation again."""
    shell = shell_of(ctx)
    shell.output.record(shell.call("POST", f"/operations/{uuid_of(uuid, 'operation')}/retry"))


@app.command()
def cancel(ctx: typer.Context, uuid: Uuid) -> None:
    """End an operation that no worker holds."""
    shell = shell_of(ctx)
    shell.output.record(shell.call("POST", f"/operations/{uuid_of(uuid, 'operation')}/cancel"))
