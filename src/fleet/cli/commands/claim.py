"""`fleet claim`: a namespace's reservation of cluster capacity: made, watched, changed, given up. Admin only.

A refusal is told with what would help: what is left, the smallest size that is allowed, the claim that is there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Self

import typer

from fleet.cli.caller import Unreachable
from fleet.cli.commands.asking import Asked, amounts_of, shell_of, uuid_of
from fleet.cli.durations import duration, written
from fleet.cli.flags import spread
from fleet.cli.outcome import Misused, Refused
from fleet.cli.output import Form, Output
from fleet.cli.session import Shell, segment
from fleet.cli.told_events import Wanted, tell, youngest_events
from fleet.cli.typed_values import Commands

app = typer.Typer(
    cls=Commands, help="Capacity that the cluster keeps for a namespace (admin only).", no_args_is_help=True
)

FLAGS: Final = {"cpus": "--cpus", "memory_mb": "--memory", "disk_gb": "--disk"}
COLUMNS: Final = (
    *("uuid", "namespace", "coverage_state"),
    *("cpus_used/limit", "memory_mb_used/limit", "disk_gb_used/limit", "over", "expires_at"),
)
PLAIN: Final = (
    *("uuid", "namespace", "state", "coverage_state"),
    *(f"{part}_{name}" for part in ("limit", "used") for name in FLAGS),
    *("expires_at", "created_at", "updated_at", "namespace_deleted_at"),
)
"""What `--simple` lists."""
NOTHING: Final = "-"
TIMEOUT_SECONDS: Final = 120
TIMEOUT_SECONDS_MAX: Final = 86_400
MAKE_ROOM: Final = (
    "Or make room: shrink or delete another claim (`fleet claim list`), delete instances, add nodes; "
    "`fleet resources` shows what is there."
)

Namespace = Annotated[str, typer.Argument(help="The namespace")]
Uuid = Annotated[str | None, typer.Argument(help="The claim's uuid; it is not guessed")]
Active = Annotated[str | None, typer.Argument(help="The claim's uuid; left out: the one that is active")]
Memory = Annotated[str, typer.Option(help="MiB, or a size such as '32 GB'")]
Disk = Annotated[str, typer.Option(help="GiB, or a size such as '500 GB'")]
EXPIRES_IN: Final = typer.Option(
    parser=duration, metavar="DURATION", help="Covers for so long from now: 30d, 12h, 1d12h, or seconds"
)


@app.command()
def create(
    ctx: typer.Context,
    namespace: Namespace,
    *,
    cpus: Annotated[int, typer.Option(help="vCPUs")],
    memory: Memory,
    disk: Disk,
    expires_in: Annotated[int, EXPIRES_IN],
) -> None:
    """Reserve capacity for a namespace; what it uses already is the claim's from then on."""
    shell = shell_of(ctx)
    body = _body(cpus, memory, disk, expires_in)
    with _Told(shell, namespace, body=body):
        _show(shell.output, shell.create(_path(namespace), body))


@app.command("list")
def list_claims(
    ctx: typer.Context,
    namespace: Annotated[str | None, typer.Argument(help="The namespace; left out: all of them")] = None,
) -> None:
    """List claims, youngest first, expired ones too; without a namespace all of the cluster, by namespace.

    A deleted namespace's claim is listed, and can be deleted, until it goes by itself.
    """
    shell = shell_of(ctx)
    found = shell.pages("/admin/claims") if namespace is None else shell.pages(_path(namespace))
    # Stable: each namespace's claims stay youngest first.
    found.sort(key=lambda claim: str(claim["namespace"]))
    if shell.output.is_human:
        shell.output.listing([_row(claim) for claim in found], COLUMNS, title="claims")
    else:
        shell.output.listing(found, PLAIN, title="claims")


@app.command()
def show(ctx: typer.Context, namespace: Namespace, uuid: Active = None) -> None:
    """Show one claim: what it keeps, what is used of it and what is left."""
    shell = shell_of(ctx)
    with _Told(shell, namespace, uuid):
        _show(shell.output, shell.get(_path(namespace, uuid)) if uuid else _active(shell, namespace))


@app.command()
def update(
    ctx: typer.Context,
    namespace: Namespace,
    uuid: Active = None,
    *,
    cpus: Annotated[int | None, typer.Option(help="vCPUs")] = None,
    memory: Annotated[str | None, typer.Option(help="MiB, or a size such as '32 GB'")] = None,
    disk: Annotated[str | None, typer.Option(help="GiB, or a size such as '500 GB'")] = None,
    expires_in: Annotated[int | None, EXPIRES_IN] = None,
) -> None:
    """Grow, shrink or prolong a claim: only what is given changes, all of it or nothing."""
    shell = shell_of(ctx)
    body = _body(cpus, memory, disk, expires_in)
    if not body:
        raise Misused("nothing is given to change", f"give at least one of {', '.join(FLAGS.values())}, --expires-in")
    with _Told(shell, namespace, uuid, body) as told:
        told.uuid = uuid or str(_active(shell, namespace)["uuid"])
        _show(shell.output, shell.call("PUT", _path(namespace, told.uuid), body))


@app.command()
def delete(ctx: typer.Context, namespace: Namespace, uuid: Uuid = None) -> None:
    """Give a claim up, at once; its capacity is everybody's again. Shows it as it was. The uuid must be given."""
    shell = shell_of(ctx)
    if uuid is None:
        with _Told(shell, namespace):
            found = shell.pages(_path(namespace))
        there = ", ".join(f"{claim['uuid']} ({claim['coverage_state']})" for claim in found)
        raise Misused(
            "which claim? What is deleted is named by its uuid, so that it is the one that was meant",
            f"fleet claim delete {namespace} UUID; {namespace} has {there or 'no claim'}",
        )
    with _Told(shell, namespace, uuid):
        gone = shell.call("DELETE", _path(namespace, uuid))
    shell.output.say(f"claim {gone['uuid']} is deleted; it was:")
    _show(shell.output, gone)


@app.command()
@spread
def events(
    ctx: typer.Context,
    namespace: Namespace,
    uuid: Active = None,
    *,
    wanted: Wanted,
) -> None:
    """Show what happened to a claim, oldest first; a deleted claim is named by its uuid."""
    shell = shell_of(ctx)
    with _Told(shell, namespace, uuid):
        of = uuid or str(_active(shell, namespace)["uuid"])
        path = f"{_path(namespace, of)}/events"
        tell(shell.output, youngest_events(shell, path, most=wanted.limit, **wanted.query()))


@app.command()
def exercise(
    ctx: typer.Context,
    *,
    no_instances: Annotated[bool, typer.Option("--no-instances", help="Only what needs no instance")] = False,
    no_expiry: Annotated[bool, typer.Option("--no-expiry", help="Do not wait for a claim's end")] = False,
    timeout: Annotated[
        int | None,
        typer.Option(
            parser=duration,
            metavar="DURATION",
            help="At most so long for an instance, the cleaning up, and beyond the reconciler's interval; else 2min",
        ),
    ] = None,
) -> None:
    """Check the whole of claims on this cluster, in namespaces made for it and removed; it takes real capacity."""
    from fleet.cli.exercise.run import exercise as run

    timeout = TIMEOUT_SECONDS if timeout is None else timeout
    if not 1 <= timeout <= TIMEOUT_SECONDS_MAX:
        raise Misused(f"--timeout {written(timeout)}: at least 1s, at most {written(TIMEOUT_SECONDS_MAX)}")
    code = run(shell_of(ctx), instances=not no_instances, expiry=not no_expiry, timeout=timeout)
    raise typer.Exit(code)


def _path(namespace: str, uuid: str | None = None) -> str:
    return f"/auth/namespaces/{segment(namespace)}/claims" + ("" if uuid is None else f"/{uuid_of(uuid, 'claim')}")


def _body(cpus: int | None, memory: str | None, disk: str | None, expires_in: int | None) -> dict[str, int]:
    """Return what was given, under the names of a body; the service judges the amounts."""
    amounts = amounts_of(Asked(cpus=cpus, memory=memory, disk=disk))
    body = {f"limit_{name}": value for name, value in amounts.items() if value is not None}
    if expires_in is not None:
        body["expires_in_seconds"] = expires_in
    return body


def _active(shell: Shell, namespace: str) -> dict[str, Any]:
    """Return the namespace's active claim; there is at most one.

    Raises:
        Refused: there is none.
    """
    found = shell.pages(_path(namespace))
    for claim in found:
        if claim["coverage_state"] == "active":
            return dict(claim)
    expired = f", only expired ones: {', '.join(claim['uuid'] for claim in found)}" if found else ""
    raise Refused(
        {"code": "not_found", "detail": f"the namespace {namespace} has no active claim{expired}"},
        hints=[f"Which claims there are: fleet claim list {namespace}; of all namespaces: fleet claim list."],
    )


# --- what people are shown ---------------------------------------------------------------------------------------


def _over(claim: Mapping[str, Any]) -> str:
    """Return by how much which dimensions are used beyond the claim."""
    by = {name: claim[f"used_{name}"] - claim[f"limit_{name}"] for name in FLAGS}
    return ", ".join(f"{name} +{amount}" for name, amount in by.items() if amount > 0) or NOTHING


def _row(claim: Mapping[str, Any]) -> dict[str, Any]:
    amounts = {f"{name}_used/limit": f"{claim[f'used_{name}']}/{claim[f'limit_{name}']}" for name in FLAGS}
    deleted = " (deleted)" if claim["namespace_deleted_at"] else ""
    return {**claim, **amounts, "namespace": f"{claim['namespace']}{deleted}", "over": _over(claim)}


def _show(output: Output, claim: Mapping[str, Any]) -> None:
    """Print a claim: for people with a row for each dimension."""
    if not output.is_human:
        output.record(claim)
        return
    told = {name: value for name, value in claim.items() if not name.startswith(("limit_", "used_"))}
    deleted_at = told.pop("namespace_deleted_at")
    output.record({**told, "namespace_deleted_at": deleted_at} if deleted_at else told)
    output.say("")
    output.listing([_dimension(claim, name) for name in FLAGS], ("dimension", "limit", "used", "left", "over"))
    if claim["coverage_state"] == "expired":
        output.say("It has expired: it covers nothing and keeps nothing.", style="bold red")


def _dimension(claim: Mapping[str, Any], name: str) -> dict[str, Any]:
    limit, used = claim[f"limit_{name}"], claim[f"used_{name}"]
    row = {"dimension": name, "limit": limit, "used": used}
    covers = claim["coverage_state"] == "active"
    return {**row, "left": max(0, limit - used) if covers else None, "over": max(0, used - limit) if covers else None}


# --- refusals ----------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Told:
    """A block whose refusals are told to people with what would help; programs get the document as it came."""

    shell: Shell
    namespace: str
    uuid: str | None = None
    body: Mapping[str, int] = field(default_factory=dict)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        find = HELP.get(str(error.document.get("code"))) if isinstance(error, Refused) else None
        if isinstance(error, Refused) and find is not None and self.shell.output.form is not Form.JSON:
            raise Refused(error.document, told=str(error), hints=error.hints or find(error.document, self)) from None

    @property
    def claim(self) -> str:
        """The claim as the next command names it."""
        return f"{self.namespace} {self.uuid or 'UUID'}"


def _exceeded(document: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    found: Sequence[Mapping[str, Any]] = document.get("dimensions") or []
    return [figure for figure in found if figure["exceeded"]]


def _largest(document: Mapping[str, Any], told: _Told) -> list[str]:
    """A claim that does not fit: how large it may be, in what is too much of it."""
    flags, grown = [], []
    for figure in _exceeded(document):
        name = figure["dimension"]
        # What is requested of the cluster is the growth; a new claim grows from nothing.
        former = told.body.get(f"limit_{name}", 0) - int(figure["requested"])
        flags.append(f"{FLAGS[name]} {former + max(0, int(figure['limit']) - int(figure['used']))}")
        if former > 0:
            grown.append(f"Requested is the growth: {FLAGS[name]} {former + int(figure['requested'])}, from {former}.")
    return [*grown, f"The largest it may be now: {' '.join(flags)}.", MAKE_ROOM]


def _smallest(document: Mapping[str, Any], told: _Told) -> list[str]:
    """A claim in use beyond the new size: how small it may be. One that is over its limit may stay as it is."""
    stands: Mapping[str, Any] = {}
    if told.uuid is not None:
        with contextlib.suppress(Refused, Unreachable):
            stands = told.shell.get(_path(told.namespace, told.uuid))
    figures = {figure["dimension"]: int(figure["used"]) for figure in _exceeded(document)}
    least = {name: min(used, int(stands.get(f"limit_{name}", used))) for name, used in figures.items()}
    flags = " ".join(f"{FLAGS[name]} {amount}" for name, amount in least.items())
    return [f"The smallest it may be now: {flags}.", f"Or delete instances of {told.namespace} first."]


def _existing(document: Mapping[str, Any], told: _Told) -> list[str]:
    there = f"{told.namespace} {document.get('claim', 'UUID')}"
    return [
        f"Look at it: fleet claim show {there}",
        f"Change it: fleet claim update {there} --cpus … --memory … --disk … --expires-in …",
        f"Or replace it: fleet claim delete {there}, then create again.",
    ]


def _replaced(document: Mapping[str, Any], told: _Told) -> list[str]:
    return [f"Replace it: fleet claim delete {told.claim}, then fleet claim create {told.namespace} …"]


def _listed(document: Mapping[str, Any], told: _Told) -> list[str]:
    namespaces = "Which namespaces there are: fleet namespace list."
    if told.uuid is None:
        # No claim was named: it is the namespace that is not there.
        return [namespaces]
    return [
        f"Which claims there are: fleet claim list {told.namespace}; of all namespaces: fleet claim list.",
        namespaces,
    ]


HELP: Final[Mapping[str, Callable[[Mapping[str, Any], _Told], list[str]]]] = {
    "claim_capacity": _largest,
    "claim_below_usage": _smallest,
    "claim_exists": _existing,
    "claim_not_active": _replaced,
    "not_found": _listed,
}
