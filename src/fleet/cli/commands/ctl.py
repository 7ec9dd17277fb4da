"""`fleet ctl`: on a control node, straight on the database of its configuration (`DATABASE_URL`)."""

from __future__ import annotations

import json
import os
import platform
import pwd
import time
import uuid
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated, Final

import typer

from fleet.cli.commands.asking import shell_of
from fleet.cli.commands.audit import audit
from fleet.cli.commands.settings import database_of
from fleet.cli.outcome import Misused, not_there_yet, reason
from fleet.cli.output import console
from fleet.cli.steps import steps
from fleet.cli.typed_values import Commands

app = typer.Typer(
    cls=Commands, help="On a control node: the cluster's configuration and the ledger itself.", no_args_is_help=True
)
Config = Annotated[Path | None, typer.Option(help="The configuration file; default /etc/sf/config")]
CONFIG_COLUMNS: Final = ("key", "value", "default", "updated_at", "updated_by", "meaning")
Key = Annotated[str, typer.Argument(help="A cluster-wide key")]


@app.callback()
def everywhere(ctx: typer.Context, config: Config = None) -> None:
    """On a control node: the cluster's configuration and the ledger itself."""
    if config is not None:
        # It may stand before the command as well.
        ctx.default_map = {name: {"config": str(config)} for name in getattr(ctx.command, "commands", ())}


app.command()(audit)


# A value may be negative: what begins with a dash and is no option is the value.
@app.command("set-config", context_settings={"ignore_unknown_options": True})
def set_config(
    ctx: typer.Context,
    key: Key,
    value: Annotated[str, typer.Argument(help="Its new value")],
    config: Config = None,
) -> None:
    """Set a cluster-wide key; every process follows within SCHEDULER_CACHE_TIMEOUT seconds."""
    from fleet.services import cluster_config

    with database_of(config) as database:
        shell_of(ctx).output.record(cluster_config.shown(cluster_config.put(database, key, value, by=operator())))


@app.command("unset-config")
def unset_config(ctx: typer.Context, key: Key, config: Config = None) -> None:
    """Let a cluster-wide key have its default again."""
    from fleet.services import cluster_config

    with database_of(config) as database:
        shell_of(ctx).output.record(cluster_config.shown(cluster_config.reset(database, key, by=operator())))


@app.command("get-config")
def get_config(
    ctx: typer.Context,
    key: Annotated[str | None, typer.Argument(help="A cluster-wide key; left out: all of them")] = None,
    config: Config = None,
) -> None:
    """Show the cluster-wide keys, or one: value, default, who changed it last and when."""
    from fleet.services import cluster_config

    output = shell_of(ctx).output
    with database_of(config) as database:
        if key is not None:
            output.record(cluster_config.shown(cluster_config.get(database, key)))
            return
        output.listing([cluster_config.shown(entry) for entry in cluster_config.listing(database)], CONFIG_COLUMNS)


@app.command("migrate-db")
def migrate_db(ctx: typer.Context, config: Config = None) -> None:
    """Bring the database to this version's schema; safe to run again."""
    from fleet.ledger import migrate

    with database_of(config) as database:
        before = migrate.current(database)
        migrate.migrate(database)
        after = migrate.current(database)
    shell_of(ctx).output.record({"before": before, "after": after})


@app.command("verify-ledger")
def verify_ledger(ctx: typer.Context, config: Config = None) -> None:
    """Recompute every counter from the charges and list each difference; change nothing. Exits 1 when there is one."""
    from fleet.ledger.verify import verify

    output = shell_of(ctx).output
    with database_of(config) as database:
        found = asdict(verify(database))
    if output.form == "json":
        output.json(found)
    else:
        output.listing(found["differences"], ("row", "figure", "stored", "recomputed"), title="differences")
        for node in found["over_limit"]:
            output.say(f"over its limit: {node['node']} {node['dimension']} {node['used']} of {node['limit']}")
    if found["differences"]:
        raise typer.Exit(1)


@app.command()
def snapshot(
    ctx: typer.Context,
    out: Annotated[Path | None, typer.Option(help="Write it here; else to standard output")] = None,
    config: Config = None,
) -> None:
    """Save everything a decision may see, as `fleet decide` reads it."""
    from fleet.services.configuration import Configuration
    from fleet.services.saved_snapshot import with_instances
    from fleet.services.snapshots import SnapshotCache

    output = shell_of(ctx).output
    with database_of(config) as database:
        cache = SnapshotCache(
            database, Configuration(database, time.monotonic), time.monotonic, lambda: str(uuid.uuid4())
        )
        document = with_instances(database, cache.peek()).to_json()
    if out is None:
        output.json(document)
        return
    try:
        out.write_text(json.dumps(document, default=float), encoding="utf-8")
    except OSError as error:
        raise Misused(f"{out} cannot be written: {reason(error)}") from None
    output.say(f"{len(document['nodes'])} nodes in {out}")


@app.command("rebuild-ledger")
def rebuild_ledger() -> None:
    """Rebuild the ledger from what runs on the nodes (not supported yet)."""
    raise not_there_yet("ctl rebuild-ledger")


@app.command("replay-decisions")
def replay_decisions(
    ctx: typer.Context,
    last: Annotated[int, typer.Option(min=1, help="How many, youngest first")] = 1000,
    config: Config = None,
) -> None:
    """Decide stored decisions again on what they saw and list each that answers otherwise. Exits 1 when one does."""
    from fleet.services.replaying import replay_last

    output = shell_of(ctx).output
    with database_of(config) as database, steps(console(error=True)) as bars:
        found = replay_last(database, last, progress=partial(bars.count, "decisions"))
    differing = [{"decision": key, "difference": text} for key, text in found.differing.items()]
    figures = {"same": found.same, "not_kept": found.not_kept, "differing": differing}
    if output.form == "json":
        output.json(figures)
    else:
        if differing or not output.is_human:
            output.listing(differing, ("decision", "difference"), title="differing")
        output.say(
            f"{found.same} answer the same, {len(differing)} otherwise; {found.not_kept} are past their retention"
        )
    if differing:
        raise typer.Exit(1)


@app.command("find-weighted-affinity")
def find_weighted_affinity(ctx: typer.Context, config: Config = None) -> None:
    """Find instances that use the deprecated weighted affinity: a line each, its uuid and its weights."""
    from fleet.services import weighted_affinity

    output = shell_of(ctx).output
    with database_of(config) as database:
        found = list(weighted_affinity.find(database))
    if not output.is_human:
        columns = ("uuid", "namespace", "name", "affinity", "mapped_to", "mixed")
        output.listing([asdict(one) for one in found], columns, title="instances")
        return
    for one in found:
        mixed = "  (sizes differ, and do not count: look at the order twice)" if one.mixed else ""
        output.say(f"{one.uuid} {dict(one.affinity)}{mixed}")
    if not found:
        output.say("no instance uses weights")


def operator() -> str:
    """Name the operator in audit events: who logged in, also behind sudo, and where."""
    name = os.environ.get("SUDO_USER", "") if os.getuid() == 0 else ""
    if not name:
        try:
            name = pwd.getpwuid(os.getuid()).pw_name
        except KeyError:
            name = f"uid{os.getuid()}"
    return f"ctl:{name}@{platform.node() or 'localhost'}"
