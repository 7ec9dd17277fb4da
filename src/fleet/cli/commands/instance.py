"""`fleet instance`: create, look at and delete instances."""

from __future__ import annotations

import contextlib
import time
from typing import Annotated, Any, Final

import typer

from fleet.cli.caller import Unreachable
from fleet.cli.commands.asking import Asked, body_of, shell_of, show_decision, uuid_of
from fleet.cli.durations import duration, written
from fleet.cli.flags import spread
from fleet.cli.outcome import Misused, Refused
from fleet.cli.output import console
from fleet.cli.session import Shell
from fleet.cli.told_events import Wanted, tell, youngest_events
from fleet.cli.typed_values import Commands

app = typer.Typer(cls=Commands, help="Create, look at and delete instances.", no_args_is_help=True)

COLUMNS: Final = ("uuid", "name", "namespace", "state", "node", "cpus", "memory_mb", "disk_gb", "created_at")
POLL_SECONDS: Final = 0.25
WAIT_SECONDS: Final = 300
WAIT_SECONDS_MAX: Final = 86_400
Uuid = Annotated[str, typer.Argument(help="The instance's uuid")]
Wait = Annotated[bool, typer.Option("--wait", help="Wait until it is done, showing progress")]
WaitSeconds = Annotated[
    int | None,
    typer.Option(parser=duration, metavar="DURATION", help="With --wait: for at most so long; 5min when left out"),
]


@app.command()
@spread
def create(
    ctx: typer.Context,
    asked: Asked,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say where it would go and why")] = False,
    wait: Wait = False,
    wait_seconds: WaitSeconds = None,
) -> None:
    """Place a new instance: on the best node that has room for it."""
    shell, patience = shell_of(ctx), _patience(wait, wait_seconds)
    body = body_of(asked)
    if dry_run:
        show_decision(shell, shell.call("POST", "/placements/explain", body))
        return
    try:
        made = shell.create("/instances", body)
    except Refused as no:
        raise _with_remedies(shell, no) from None
    if wait:
        done = _wait_for(shell, made["uuid"], made["operation_id"], {"running"}, patience)
        shell.output.record({**made, "state": done["state"]})
    else:
        shell.output.record(made)


def _with_remedies(shell: Shell, no: Refused) -> Refused:
    """Return a refusal with what would help; a service with too much to do leaves that to whoever asks again."""
    document = no.document
    if "remedies" not in document and document.get("decision_id"):
        with contextlib.suppress(Refused, Unreachable):
            record = shell.get(f"/decisions/{document['decision_id']}")["record"]
            document |= {"remedies": record["remedies"]} if "remedies" in record else {}
    return no


@app.command("list")
def list_instances(
    ctx: typer.Context,
    state: Annotated[str | None, typer.Option(help="Only in this state; `deleted` shows the deleted ones")] = None,
    node: Annotated[str | None, typer.Option(help="Only on this node")] = None,
    name: Annotated[str | None, typer.Option(help="Only of this name")] = None,
    namespace: Annotated[str | None, typer.Option(help="Only of this namespace")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first so many")] = None,
) -> None:
    """List instances, youngest first."""
    shell = shell_of(ctx)
    found = shell.pages("/instances", limit=limit, state=state, node=node, name=name, namespace=namespace)
    shell.output.listing(found, COLUMNS, title="instances")


@app.command()
def show(ctx: typer.Context, uuid: Uuid) -> None:
    """Show one instance."""
    shell = shell_of(ctx)
    shell.output.record(shell.get(f"/instances/{uuid_of(uuid, 'instance')}"))


@app.command()
@spread
def events(
    ctx: typer.Context,
    uuid: Uuid,
    *,
    why: Annotated[
        bool, typer.Option("--why", help="Only the answer: was affinity ignored, or was there no choice?")
    ] = False,
    expected: Annotated[
        str | None, typer.Option(metavar="NODE", help="With --why: the node that you expected it on")
    ] = None,
    wanted: Wanted,
) -> None:
    """Show what happened to an instance, oldest first, each stage of its placings included; --json has all figures."""
    shell = shell_of(ctx)
    path = f"/instances/{uuid_of(uuid, 'instance')}"
    query = wanted.query()
    if why and (query or wanted.limit is not None):
        raise Misused("--why goes with no choice of events", f"fleet instance events {uuid} --why")
    if why:
        _tell_why(shell, path, expected)
        return
    if expected is not None:
        raise Misused("--expected goes with --why", f"fleet instance events {uuid} --why --expected {expected}")
    tell(shell.output, youngest_events(shell, f"{path}/events", most=wanted.limit, **query))


def _tell_why(shell: Shell, path: str, expected: str | None) -> None:
    """Print the answer, a sentence a line."""
    found = shell.get(f"{path}/why", expected=expected)
    if not shell.output.is_human:
        shell.output.record(found)
        return
    for sentence in found["sentences"]:
        shell.output.say(sentence)


@app.command()
def delete(
    ctx: typer.Context,
    uuid: Uuid,
    wait: Wait = False,
    wait_seconds: WaitSeconds = None,
) -> None:
    """Delete an instance; its room is free again when its node has done it."""
    shell, patience = shell_of(ctx), _patience(wait, wait_seconds)
    accepted = shell.call("DELETE", f"/instances/{uuid_of(uuid, 'instance')}")
    if wait:
        done = _wait_for(shell, uuid, accepted["operation_id"], {"deleted"}, patience)
        accepted = {**accepted, "state": done["state"]}
    shell.output.record(accepted)


@app.command()
def start(ctx: typer.Context, uuid: Uuid) -> None:
    """Start a stopped instance (not supported yet)."""
    shell_of(ctx).call("POST", f"/instances/{uuid_of(uuid, 'instance')}/start")


@app.command()
def stop(ctx: typer.Context, uuid: Uuid) -> None:
    """Stop a running instance (not supported yet)."""
    shell_of(ctx).call("POST", f"/instances/{uuid_of(uuid, 'instance')}/stop")


@app.command()
def migrate(
    ctx: typer.Context, uuid: Uuid, to: Annotated[str | None, typer.Option(help="The node to move to")] = None
) -> None:
    """Move an instance to another node (not supported yet)."""
    shell_of(ctx).call("POST", f"/instances/{uuid_of(uuid, 'instance')}/migrate", {"node": to} if to else {})


@app.command()
def resize(ctx: typer.Context, uuid: Uuid) -> None:
    """Give an instance another size (not supported yet)."""
    shell_of(ctx).call("POST", f"/instances/{uuid_of(uuid, 'instance')}/resize", {})


@app.command()
def fork(ctx: typer.Context, uuid: Uuid) -> None:
    """Copy an instance on its node (not supported yet)."""
    shell_of(ctx).call("POST", f"/instances/{uuid_of(uuid, 'instance')}/fork", {})


def _patience(wait: bool, seconds: int | None) -> int:
    """Return how many seconds to wait at most, if at all."""
    if seconds is None:
        return WAIT_SECONDS
    if not wait:
        raise Misused("--wait-seconds goes with --wait", f"--wait --wait-seconds {written(seconds)}")
    if not 1 <= seconds <= WAIT_SECONDS_MAX:
        raise Misused(f"--wait-seconds {written(seconds)}: at least 1s, at most {written(WAIT_SECONDS_MAX)}")
    return seconds


def _wait_for(shell: Shell, uuid: str, operation: str, wanted: set[str], seconds: int) -> dict[str, Any]:
    """Poll until the instance is in a wanted state; an error is a refusal with the operation's words."""
    deadline = time.monotonic() + seconds
    with console(error=True).status(f"waiting for {uuid}") as status:
        while True:
            found: dict[str, Any] = shell.get(f"/instances/{uuid}")
            if found["state"] in wanted:
                return found
            work = shell.get(f"/operations/{operation}")
            if found["state"] == "error" or work["state"] in {"failed", "cancelled"}:
                reason = found["error"] or work["error"] or work["state"]
                raise Refused({"code": "failed", "detail": f"instance {uuid} is {found['state']}: {reason}"})
            if time.monotonic() > deadline:
                detail = f"instance {uuid} is still {found['state']} after {seconds} s; its work goes on"
                raise Refused({"code": "timeout", "detail": detail})
            step = f", {work['step']}" if work["step"] else ""
            status.update(f"{found['name']} on {found['node']}: {found['state']} ({work['state']}{step})")
            time.sleep(POLL_SECONDS)
