"""`fleet node`: register nodes, look at them, and say which take instances."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from fleet.cli.commands.asking import DIGITS_MAX, pairs, shell_of
from fleet.cli.commands.settings import settings_of
from fleet.cli.flags import spread
from fleet.cli.outcome import Misused, not_there_yet
from fleet.cli.session import Shell, segment
from fleet.cli.told_events import Wanted, tell, youngest_events
from fleet.cli.typed_values import Commands
from fleet.config import Settings

app = typer.Typer(cls=Commands, help="Register nodes, look at them, say which take instances.", no_args_is_help=True)

COLUMNS: Final = (
    *("name", "state", "scheduling", "sample_age_seconds"),
    *("cpus", "memory_mb", "disk_gb", "instances"),
)
Name = Annotated[str, typer.Argument(help="The node's name")]
Labels = Annotated[list[str] | None, typer.Option("--label", metavar="K=V", help="A label; give all of them")]
MoreLabels = Annotated[
    list[str] | None, typer.Option("--label", metavar="K=V", help="A label to add or change; the others stay")
]
FewerLabels = Annotated[list[str] | None, typer.Option(metavar="K", help="A label to take away")]
CARD_COLUMNS: Final = ("uuid", "model", "memory_mb", "state", "bound_to")
MEASURED: Final = frozenset({"metrics", "failed_collectors", "capacity", "gpus", "mig_instances"})
"""What `fleet node show` tells, and whoever declares something of a node did not ask for."""
SCHEDULING_MAX: Final = 200
SLICE_COLUMNS: Final = ("uuid", "profile", "kind", "parent_gpu_uuid", "state", "bound_to")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """What was typed of a node, but for its labels. A field's annotation is its flag."""

    region: Annotated[str | None, typer.Option(help="The region it belongs to")] = None
    arch: Annotated[str | None, typer.Option(help="amd64 or arm64")] = None
    backend: Annotated[str | None, typer.Option(help="libvirt, qemu, firecracker or simulated")] = None
    sleepy_pool: Annotated[
        bool | None, typer.Option("--sleepy-pool/--no-sleepy-pool", help="For sleepy instances only")
    ] = None
    max_instances: Annotated[str | None, typer.Option(help="How many instances it may hold, or unlimited")] = None
    gpu_kind: Annotated[str | None, typer.Option(help="Kind of its GPUs where the cards do not say")] = None
    gpus: Annotated[
        int | None, typer.Option(min=0, help="How many whole GPUs it may hand out; 0: as many as it has")
    ] = None
    mig_profile: Annotated[
        list[str] | None, typer.Option(metavar="P=N", help="How many slices of a MIG profile; give all of them")
    ] = None

    def body(self) -> dict[str, Any]:
        """Return the fields that were given, as the service takes them."""
        given: dict[str, Any] = {
            "region": self.region,
            "arch": self.arch,
            "backend": self.backend,
            "sleepy_pool": self.sleepy_pool,
            "gpu_kind": self.gpu_kind,
            "gpu_count": self.gpus,
            "mig_profiles": None if self.mig_profile is None else _counts(self.mig_profile),
        }
        body = {name: value for name, value in given.items() if value is not None}
        most = self.max_instances
        if most is not None:
            if most != "unlimited" and not most.isdecimal():
                raise Misused(f"--max-instances {most!r}: a whole number, or unlimited")
            body["max_instances"] = None if most == "unlimited" else int(most)
        return body


@app.command("list")
def list_nodes(ctx: typer.Context) -> None:
    """List nodes with what is committed and what their limits are."""
    shell = shell_of(ctx)
    found = shell.pages("/nodes")
    rows = found if shell.output.form == "json" else [_row(node) for node in found]
    shell.output.listing(rows, COLUMNS, title="nodes")


@app.command()
def show(ctx: typer.Context, name: Name) -> None:
    """Show one node: what was declared, its last sample, its ledger row, and who holds its GPUs."""
    shell = shell_of(ctx)
    _show(shell, shell.get(f"/nodes/{segment(name)}"))


@app.command()
@spread
def register(
    ctx: typer.Context,
    *,
    name: Annotated[str | None, typer.Argument(help="Its name; left out: this machine, by its /etc/sf/config")] = None,
    label: Labels = None,
    declared: Declared,
    config: Annotated[Path | None, typer.Option(help="This machine's configuration")] = None,
) -> None:
    """Register a node, or set what is given of a registered one. It takes instances after its first sample."""
    shell = shell_of(ctx)
    typed = declared.body()
    if label is not None:
        typed["labels"] = pairs(label, "--label", bare=False)
    body = {"name": name, **typed} if name else {**_of_this_machine(_own_settings(shell, config)), **typed}
    _show(shell, shell.create("/nodes", body), left_out=MEASURED)


@app.command()
@spread
def update(
    ctx: typer.Context,
    *,
    name: Name,
    label: MoreLabels = None,
    unset_label: FewerLabels = None,
    declared: Declared,
) -> None:
    """Set what is given and keep the rest; of the labels too, those that are not named."""
    shell = shell_of(ctx)
    typed = declared.body()
    path = f"/nodes/{segment(name)}"
    if label or unset_label:
        # The service merges them: two that change different labels at once both do.
        typed["label_changes"] = _label_changes(label or [], unset_label or [])
    if not typed:
        raise Misused("nothing is given to change", f"what can be: fleet node update {name} --help")
    # A label that was not there is not there afterwards either: a misspelled one would look like one taken away.
    before = shell.get(path)["labels"] if unset_label and shell.output.is_human else {}
    _show(shell, shell.call("PUT", path, typed), left_out=MEASURED)
    if unset_label and (absent := sorted(set(unset_label) - before.keys())):
        there = ", ".join(sorted(before)) or "none"
        shell.output.say(f"it had no label {', '.join(absent)} to take away; its labels were: {there}")


@app.command()
def remove(ctx: typer.Context, name: Name) -> None:
    """Remove a node that holds no instance."""
    shell = shell_of(ctx)
    shell.call("DELETE", f"/nodes/{segment(name)}")
    shell.output.say(f"node {name} is removed")


@app.command()
@spread
def events(
    ctx: typer.Context,
    name: Name,
    *,
    scheduling: Annotated[
        bool,
        typer.Option("--scheduling", help="Instead, what decisions did with it: where it was dropped, or its rank"),
    ] = False,
    wanted: Wanted,
) -> None:
    """Show what happened to a node, oldest first."""
    shell = shell_of(ctx)
    path, query = f"/nodes/{segment(name)}/events", wanted.query()
    if scheduling:
        most = wanted.limit or SCHEDULING_MAX
        tell(shell.output, youngest_events(shell, path, most=most, scheduling=True, **query))
        return
    tell(shell.output, youngest_events(shell, path, most=wanted.limit, **query))


@app.command()
def cordon(ctx: typer.Context, name: Name) -> None:
    """Take no new instance from now on; what runs there stays."""
    shell = shell_of(ctx)
    _scheduling(ctx, shell.call("POST", f"/nodes/{segment(name)}/cordon"))


@app.command()
def uncordon(ctx: typer.Context, name: Name) -> None:
    """Take new instances again."""
    shell = shell_of(ctx)
    _scheduling(ctx, shell.call("POST", f"/nodes/{segment(name)}/uncordon"))


@app.command()
def drain(ctx: typer.Context, name: Name) -> None:
    """Move everything away (not supported yet)."""
    shell_of(ctx).call("POST", f"/nodes/{segment(name)}/drain", {})


@app.command()
def undrain(ctx: typer.Context, name: Name) -> None:
    """End a drain (not supported yet)."""
    shell_of(ctx).call("POST", f"/nodes/{segment(name)}/undrain", {})


@app.command()
def evacuate(ctx: typer.Context, name: Name) -> None:
    """Place a dead node's instances elsewhere (not supported yet)."""
    shell_of(ctx).call("POST", f"/nodes/{segment(name)}/evacuate", {})


@app.command()
def use(name: Name) -> None:
    """Limit listings to one node (not supported yet)."""
    raise not_there_yet("a scope of listings")


def _show(shell: Shell, node: dict[str, Any], *, left_out: frozenset[str] = frozenset()) -> None:
    """Print a node; for people, its GPUs come as tables, and what they did not ask about is left out."""
    if not shell.output.is_human:
        shell.output.record(node)
        return
    lists = {"gpus": CARD_COLUMNS, "mig_instances": SLICE_COLUMNS}
    shell.output.record({name: value for name, value in node.items() if name not in lists and name not in left_out})
    for name, columns in lists.items():
        if node[name] and name not in left_out:
            shell.output.say("")
            shell.output.listing(node[name], columns)


@app.command()
def token(
    ctx: typer.Context,
    name: Name,
    *,
    revoke: Annotated[bool, typer.Option("--revoke", help="End the node's token, without a new one")] = False,
) -> None:
    """Make a node's token, shown this once; its former one stops working.

    With it a hypervisor publishes the node's samples and sees to the node's operations; nothing else.
    """
    shell = shell_of(ctx)
    if revoke:
        shell.call("DELETE", f"/nodes/{segment(name)}/token")
        shell.output.say(f"node {name} has no token any more")
        return
    shell.output.record(shell.create(f"/nodes/{segment(name)}/token", None))


def _scheduling(ctx: typer.Context, node: dict[str, Any]) -> None:
    shell_of(ctx).output.record({"name": node["name"], "state": node["state"], "scheduling": node["scheduling"]})


def _label_changes(added: list[str], taken: list[str]) -> dict[str, str | None]:
    """Return what is to be changed of a node's labels: None takes one away."""
    new = pairs(added, "--label", bare=False)
    both = sorted(new.keys() & set(taken))
    if both:
        raise Misused(f"--label and --unset-label both name {', '.join(both)}")
    return {**new, **dict.fromkeys(taken)}


def _counts(given: list[str]) -> dict[str, int]:
    counts = pairs(given, "--mig-profile", bare=False)
    for profile, text in counts.items():
        if not text.isascii() or not text.isdecimal() or len(text) > DIGITS_MAX:
            raise Misused(f"--mig-profile {profile}={text}: write how many slices there are, such as 1g.10gb=7")
    return {profile: int(text) for profile, text in counts.items()}


def _own_settings(shell: Shell, config: Path | None) -> Settings:
    """This machine's configuration; without one, defaults would overwrite what is declared of this machine."""
    settings = settings_of(config)
    if not settings.path.exists() and not any(name.startswith("FLEET_NODE_") for name in shell.environ):
        raise Misused(
            f"which node? There is no {settings.path} that declares this machine", "name the node, or --config"
        )
    return settings


def _of_this_machine(settings: Settings) -> dict[str, Any]:
    """What the configuration of this machine declares, for a first registration."""
    from fleet.measure.gpu_file import read_gpu_file

    # Kind and counts count at the first registration; the cards themselves come with the samples.
    file = settings.gpu_inventory_file
    declared = read_gpu_file(Path(file)).registration() if file else {}
    return {
        **declared,
        "name": settings.node_name,
        "labels": dict(settings.node_labels),
        "region": settings.node_region,
        "arch": settings.node_arch,
        "backend": settings.node_backend,
        "sleepy_pool": settings.node_sleepy_pool,
        "max_instances": settings.node_max_instances,
        "gpu_kind": settings.node_gpu_kind or declared.get("gpu_kind", ""),
    }


def _row(node: dict[str, Any]) -> dict[str, Any]:
    capacity = node["capacity"]
    figures: dict[str, str | None] = dict.fromkeys(("cpus", "memory_mb", "disk_gb", "instances"))
    if capacity is not None:
        for name in figures:
            limit = capacity["limit"][name]
            figures[name] = f"{capacity['used'][name]}/{'∞' if limit is None else limit}"
    return {**node, **figures}
