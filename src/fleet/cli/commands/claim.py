"""`fleet claim`: a namespace's reservation of cluster capacity. Not supported yet; the service says so."""

from __future__ import annotations

from typing import Annotated

import typer

from fleet.cli.commands.asking import shell_of
from fleet.cli.session import segment

app = typer.Typer(help="Capacity claims (not supported yet).", no_args_is_help=True)
Namespace = Annotated[str, typer.Argument(help="The namespace")]
Uuid = Annotated[str, typer.Argument(help="The claim's uuid")]


@app.command("list")
def list_claims(ctx: typer.Context, namespace: Namespace) -> None:
    """List a namespace's claims (not supported yet)."""
    shell_of(ctx).get(f"/auth/namespaces/{segment(namespace)}/claims")


@app.command()
def create(ctx: typer.Context, namespace: Namespace) -> None:
    """Claim capacity (not supported yet)."""
    shell_of(ctx).call("POST", f"/auth/namespaces/{segment(namespace)}/claims", {})


@app.command()
def show(ctx: typer.Context, namespace: Namespace, uuid: Uuid) -> None:
    """Show one claim (not supported yet)."""
    shell_of(ctx).get(f"/auth/namespaces/{segment(namespace)}/claims/{segment(uuid)}")


@app.command()
def update(ctx: typer.Context, namespace: Namespace, uuid: Uuid) -> None:
    """Change a claim (not supported yet)."""
    shell_of(ctx).call("PUT", f"/auth/namespaces/{segment(namespace)}/claims/{segment(uuid)}", {})


@app.command()
def delete(ctx: typer.Context, namespace: Namespace, uuid: Uuid) -> None:
    """Give a claim up (not supported yet)."""
    shell_of(ctx).call("DELETE", f"/auth/namespaces/{segment(namespace)}/claims/{segment(uuid)}")
