"""`fleet ctl audit`: who did what in the cluster, and from what to what, read on a control node from the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final
from uuid import UUID

import typer

from fleet.cli.commands.asking import shell_of
from fleet.cli.commands.settings import database_of
from fleet.cli.outcome import Misused
from fleet.cli.output import plain
from fleet.cli.told_events import Since, Until, check
from fleet.model.moment import iso

if TYPE_CHECKING:
    from fleet.ledger.database import Database
    from fleet.ledger.events import EventView, Filter

COLUMNS: Final = ("at", "by", "object", "message", "change")
SIMPLE: Final = ("at", "by", "object_type", "object_id", "level", "message", "change")
KINDS: Final = ("instance", "node", "namespace", "claim", "cluster")
PAGE_ITEMS: Final = 500
TOLD_ELSEWHERE: Final = frozenset({"by", "old", "new", "from", "to", "old_is_default", "new_is_default"})


def audit(
    ctx: typer.Context,
    *,
    target: Annotated[
        str | None, typer.Option("--object", metavar="TYPE[:ID]", help="Only of node:hv1, cluster:config, claim, …")
    ] = None,
    by: Annotated[
        str | None,
        typer.Option(
            metavar="WHO",
            help="Only what this one did: system/ops, ctl:ann@host; 'ci/': any key of ci; 'ctl:*': beginning so",
        ),
    ] = None,
    message: Annotated[str | None, typer.Option(help="Only this message; 'node *': beginning so")] = None,
    level: Annotated[str | None, typer.Option(help="info, warning or error")] = None,
    since: Since = None,
    until: Until = None,
    limit: Annotated[int, typer.Option(min=1, max=100_000, help="How many, youngest first")] = 100,
    every: Annotated[bool, typer.Option("--all", help="Also what nobody did: states, corrections, placings")] = False,
    config: Annotated[Path | None, typer.Option(help="The configuration file; default /etc/sf/config")] = None,
) -> None:
    """List administrative acts, youngest first: who did what, and from what to what."""
    from fleet.ledger.events import Filter

    kind, _, key = (target or "").partition(":")
    if kind and kind not in KINDS:
        raise Misused(f"--object {target!r}: write one of {', '.join(KINDS)}, or for example node:hv1")
    if kind in ("instance", "claim") and key and not _is_uuid(key):
        raise Misused(f"--object {target!r}: {key!r} is not a uuid", f"all of them: --object {kind}")
    check(level, since, until)
    wanted = Filter(
        object_type=kind,
        object_id=key,
        message=message or "",
        level=level or "",
        by=by or "",
        has_by=not every,
        since_seconds=since,
        until_seconds=until,
    )
    output = shell_of(ctx).output
    with database_of(config) as database:
        found = list(_youngest(database, wanted, limit + 1))
    if output.form == "json":
        output.json({"items": [_shown(event) for event in found[:limit]], "more": len(found) > limit})
        return
    rows = [_row(event) for event in found[:limit]]
    output.listing(rows, COLUMNS if output.is_human else SIMPLE, title="acts" if not every else "events")
    if len(found) > limit:
        output.say(f"… and older ones; --limit shows more than these {limit}", style="dim")


def _youngest(database: Database, wanted: Filter, most: int) -> Iterator[EventView]:
    """Up to so many events, youngest first; each read of the trail is bounded, whatever it finds."""
    from fleet.ledger import events

    left, cursor = most, None
    while left > 0:
        page = events.search(database, wanted, limit=min(left, PAGE_ITEMS), cursor=cursor)
        yield from page.events
        left, cursor = left - len(page.events), page.next_cursor
        if cursor is None:
            return


def _is_uuid(text: str) -> bool:
    try:
        return bool(UUID(text))
    except ValueError:
        return False


def _shown(event: EventView) -> dict[str, Any]:
    return {
        "id": event.event_id,
        "at": iso(event.at_us),
        "by": event.payload.get("by"),
        "object_type": event.object_type,
        "object_id": event.object_id,
        "level": event.level,
        "message": event.message,
        "payload": event.payload,
    }


def _row(event: EventView) -> dict[str, Any]:
    shown = _shown(event)
    return {**shown, "object": f"{event.object_type} {event.object_id}", "change": "; ".join(_changes(event.payload))}


def _changes(payload: Mapping[str, Any]) -> Iterator[str]:
    """What changed, as `name: old to new`, then the other figures that are known."""
    left = {
        name: value for name, value in payload.items() if name not in TOLD_ELSEWHERE and value not in (None, [], {})
    }
    old, new = payload.get("old"), payload.get("new")
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        yield from (f"{name}: {plain(old.get(name))} to {plain(new.get(name))}" for name in {**old, **new})
    elif "old" in payload and "new" in payload:
        yield f"{left.pop('key', 'value')}: {plain(old)} to {plain(new)}"
    if "from" in payload and "to" in payload:
        yield f"{plain(payload['from'])} to {plain(payload['to'])}"
    yield from (f"{name} {plain(value)}" for name, value in left.items())
