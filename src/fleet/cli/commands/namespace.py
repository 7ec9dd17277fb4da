"""`fleet namespace` and `fleet key`: who may call."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from fleet.cli.commands.asking import shell_of
from fleet.cli.durations import duration
from fleet.cli.flags import spread
from fleet.cli.outcome import Refused
from fleet.cli.session import Shell, segment
from fleet.cli.told_events import Wanted, tell, youngest_events
from fleet.cli.typed_values import Commands

app = typer.Typer(cls=Commands, help="Namespaces own instances; `system` is the admin.", no_args_is_help=True)
keys = typer.Typer(cls=Commands, help="Keys of a namespace; each buys tokens.", no_args_is_help=True)

Name = Annotated[str, typer.Argument(help="The namespace")]
KeyName = Annotated[str, typer.Argument(help="The key's name")]


@app.command("list")
def list_namespaces(ctx: typer.Context) -> None:
    """List the namespaces you may see."""
    shell = shell_of(ctx)
    shell.output.listing(shell.pages("/auth/namespaces"), ("name", "created_at"), title="namespaces")


@app.command()
def create(ctx: typer.Context, name: Name) -> None:
    """Make a namespace."""
    shell = shell_of(ctx)
    shell.output.record(shell.create("/auth/namespaces", {"name": name}))


@app.command()
def show(ctx: typer.Context, name: Name) -> None:
    """Show one namespace."""
    shell = shell_of(ctx)
    shell.output.record(shell.get(f"/auth/namespaces/{segment(name)}"))


@app.command()
def delete(ctx: typer.Context, name: Name) -> None:
    """Delete a namespace without instances; its keys and tokens stop working. Its claim keeps its capacity a while."""
    shell = shell_of(ctx)
    kept = _kept_by_claims(shell, name) if shell.output.is_human else []
    shell.call("DELETE", f"/auth/namespaces/{segment(name)}")
    shell.output.say(f"namespace {name} is deleted")
    for line in kept:
        shell.output.say(line)


def _kept_by_claims(shell: Shell, name: str) -> list[str]:
    """Say what the claim of a namespace keeps from everybody after its deletion, for how long, and how that ends now.

    Read beforehand: once the namespace is deleted, nothing may make the command fail any more.
    """
    try:
        claims: list[dict[str, Any]] = shell.pages(f"/auth/namespaces/{segment(name)}/claims")
        delay = shell.get("/admin/config/CLEANER_DELAY_SECONDS")["value"] if claims else None
    except Refused:
        # Who is not the admin, or names none, is told so by the deletion.
        return []
    return [
        f"its claim keeps {claim['limit_cpus']} vCPUs, {claim['limit_memory_mb']} MiB of memory and "
        f"{claim['limit_disk_gb']} GiB of disk for {delay} s more (CLEANER_DELAY_SECONDS), or until it ends; "
        f"to have that back now: fleet claim delete {name} {claim['uuid']}"
        for claim in claims
        if claim["coverage_state"] == "active"
    ]


@app.command()
@spread
def events(
    ctx: typer.Context,
    name: Name,
    *,
    wanted: Wanted,
) -> None:
    """Show what happened to a namespace, oldest first."""
    shell = shell_of(ctx)
    path = f"/auth/namespaces/{segment(name)}/events"
    tell(shell.output, youngest_events(shell, path, most=wanted.limit, **wanted.query()))


@keys.command("list")
def list_keys(ctx: typer.Context, namespace: Name) -> None:
    """List a namespace's keys, without their secrets; expired ones are removed after a week."""
    shell = shell_of(ctx)
    found = shell.pages(f"/auth/namespaces/{segment(namespace)}/keys")
    shell.output.listing(found, ("name", "state", "created_at", "expires_at", "former_ends_at"), title="keys")


@keys.command("create")
def create_key(
    ctx: typer.Context,
    namespace: Name,
    name: KeyName,
    expires_in: Annotated[
        int | None, typer.Option(parser=duration, metavar="DURATION", help="Ends by itself after so long: 90d, 12h")
    ] = None,
) -> None:
    """Make a key; its secret is shown this once."""
    shell = shell_of(ctx)
    body = {"name": name} if expires_in is None else {"name": name, "expires_in_seconds": expires_in}
    shell.output.record(shell.create(f"/auth/namespaces/{segment(namespace)}/keys", body))


@keys.command("rotate")
def rotate_key(
    ctx: typer.Context,
    namespace: Name,
    name: KeyName,
    *,
    grace: Annotated[
        int | None,
        typer.Option(parser=duration, metavar="DURATION", help="How long the former secret is good as well: 1h"),
    ] = None,
    expires_in: Annotated[
        int | None,
        typer.Option(parser=duration, metavar="DURATION", help="Ends by itself after so long; left out: as before"),
    ] = None,
) -> None:
    """Give a key a new secret, shown this once; without a grace the former one stops working everywhere."""
    shell = shell_of(ctx)
    given = {"grace_seconds": grace, "expires_in_seconds": expires_in}
    body = {name: value for name, value in given.items() if value is not None}
    shell.output.record(shell.create(f"/auth/namespaces/{segment(namespace)}/keys/{segment(name)}/rotate", body))


@keys.command("delete")
def delete_key(ctx: typer.Context, namespace: Name, name: KeyName) -> None:
    """Delete a key; it and the tokens it bought stop working everywhere before this ends."""
    shell = shell_of(ctx)
    shell.call("DELETE", f"/auth/namespaces/{segment(namespace)}/keys/{segment(name)}")
    shell.output.say(f"key {name} of {namespace} is deleted")
