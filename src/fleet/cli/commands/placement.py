"""`fleet explain`, `fleet capacity`: where something would go, and how much more fits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import typer

from fleet.cli.commands.asking import (
    Asked,
    amounts_of,
    body_of,
    shell_of,
    show_decision,
    uuid_of,
    vars_of,
)
from fleet.cli.flags import spread
from fleet.cli.outcome import Misused
from fleet.cli.output import Form, Output

NODES_SHOWN: Final = 20
REASONS: Final = ("resize", "migrate", "evacuate")
AGAIN: Final = frozenset({"cpus", "memory", "disk", "node"})
NODES_AT_ONCE: Final = 1000
BINDS: Final = {
    "cpus": "vCPUs bind",
    "memory_mb": "memory binds",
    "disk_gb": "disk binds",
    "instances": "slots bind",
    "gpus": "GPUs bind",
}
"""What may bind, in words. Whatever else an answer names is the stage that keeps nodes out."""


def add_to(app: typer.Typer) -> None:
    """Add the verbs to the application."""
    app.command()(explain)
    app.command()(capacity)


@spread
def explain(
    ctx: typer.Context,
    asked: Asked,
    instance: Annotated[str | None, typer.Option(metavar="UUID", help="One that there is already")] = None,
    reason: Annotated[str | None, typer.Option(help="With --instance: resize, migrate or evacuate")] = None,
    destination: Annotated[
        list[str] | None, typer.Option(metavar="NODE", help="With --instance: a move only to this node; repeat it")
    ] = None,
) -> None:
    """Say where an instance would go and why, and why not elsewhere; change nothing.

    With --instance: where one that there is already would go when it is resized (--cpus, --memory, --disk) or moved
    (--node: named by an operator).
    """
    shell = shell_of(ctx)
    if instance is None and (reason is not None or destination):
        raise Misused("--reason and --destination ask about an instance that there is already: add --instance UUID")
    body = body_of(asked) if instance is None else _again(asked, instance, reason, destination)
    show_decision(shell, shell.call("POST", "/placements/explain", body))


def _again(asked: Asked, instance: str, reason: str | None, destinations: list[str] | None) -> dict[str, Any]:
    """Return the body about an instance that there is already. The service judges it."""
    if reason not in REASONS:
        raise Misused(f"--instance needs --reason {', '.join(REASONS)}")
    others = [name for name, value in vars_of(asked).items() if value is not None and name not in AGAIN]
    if others:
        flags = ", ".join(f"--{name.replace('_', '-')}" for name in others)
        raise Misused(f"{flags}: an instance that there is already keeps what it was made with")
    given: dict[str, Any] = {**amounts_of(asked), "node": asked.node, "destinations": destinations or None}
    body = {name: value for name, value in given.items() if value is not None}
    return {"instance": uuid_of(instance, "instance"), "reason": reason, **body}


def capacity(
    ctx: typer.Context,
    *,
    shape: Annotated[str, typer.Option(metavar="CPUSxMEMORYxDISK", help="vCPUs, MiB and GiB: 4x8192x40")],
    label: Annotated[list[str] | None, typer.Option(metavar="K=V", help="Only on nodes with this label")] = None,
    region: Annotated[str | None, typer.Option(help="Only in this region")] = None,
    arch: Annotated[str | None, typer.Option(help="amd64 or arm64")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs, or MIG slices, of each")] = None,
    gpu_kind: Annotated[str | None, typer.Option(help="Kind of GPU")] = None,
    gpu_profile: Annotated[str | None, typer.Option(help="MIG profile")] = None,
    namespace: Annotated[str | None, typer.Option(help="For another namespace (admin only)")] = None,
    every: Annotated[bool, typer.Option("--all", help="Every node, not only those with the most room")] = False,
) -> None:
    """Say how many more of a shape fit now, on each node and in all, and what binds."""
    shell = shell_of(ctx)
    parts = shape.lower().split("x")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise Misused(f"--shape {shape!r}: write vCPUs x MiB x GiB, for example 4x8192x40")
    asked: dict[str, Any] = {
        "cpus": parts[0],
        "memory_mb": parts[1],
        "disk_gb": parts[2],
        "label": label,
        "region": region,
    }
    asked |= {"arch": arch, "gpus": gpus, "gpu_kind": gpu_kind, "gpu_profile": gpu_profile, "namespace": namespace}
    found = shell.get("/placements/capacity", limit=NODES_AT_ONCE if every else NODES_SHOWN, **asked)
    while every and found["next_cursor"] is not None:
        page = shell.get("/placements/capacity", limit=NODES_AT_ONCE, cursor=found["next_cursor"], **asked)
        found = {**page, "items": [*found["items"], *page["items"]]}
    _show_capacity(shell.output, shape, found)


def _show_capacity(output: Output, shape: str, found: Mapping[str, Any]) -> None:
    if output.form is Form.JSON:
        output.json(found)
        return
    output.say(f"{found['fits']} more of {shape} fit", style="bold")
    payer, fits = found["charged_to"]["payer"], found["charged_to"]["fits"]
    if fits is not None and fits < found["on_nodes"]:
        whose = "the namespace's claim bears" if payer == "claim" else "the cluster's unclaimed side bears"
        output.say(f"{found['on_nodes']} on the nodes, but {whose} {fits}: {BINDS[found['charged_to']['binds']]}")
    elif found["binds"]:
        binds = BINDS.get(found["binds"])
        output.say(f"{binds} on most nodes" if binds else f"{found['binds']} keeps most nodes out")
    output.say(f"{found['nodes_with_room']} of {found['nodes']} nodes have room")
    output.listing(found["items"], ("node", "fits", "binds", "reason"), title="nodes")
    if found["next_cursor"] is not None:
        output.say(f"… and {found['nodes'] - len(found['items'])} more nodes; --all shows them")
