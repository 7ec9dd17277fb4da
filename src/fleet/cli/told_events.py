"""Events as lines for people, below their day: the time, what happened, and its figures.

Long lists and rules of many parts are cut, and say by how much.

Programs read `--json`, which has everything that the service answered.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Final

import typer

from fleet.cli.durations import age, written
from fleet.cli.outcome import Misused
from fleet.cli.output import Output, plain
from fleet.cli.rule_words import is_rule, rule_words
from fleet.cli.session import Shell

SHOWN_MAX: Final = 8
EVENTS_MAX: Final = 1000
LIMIT_MAX: Final = 100_000
LEVELS: Final = ("info", "warning", "error")
COLUMNS: Final = ("at", "level", "message", "payload")


Since = Annotated[
    int | None, typer.Option(parser=age, metavar="DURATION", help="Only what is at most so old: 30d, 12h")
]
Until = Annotated[int | None, typer.Option(parser=age, metavar="DURATION", help="Only what is at least so old")]


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which events of a timeline are asked for. A field's annotation is its flag."""

    level: Annotated[str | None, typer.Option(help="Only of this level: info, warning or error")] = None
    message: Annotated[str | None, typer.Option(help="Only with this message; one that ends in * begins so")] = None
    since: Since = None
    until: Until = None
    limit: Annotated[
        int | None,
        typer.Option(min=1, max=LIMIT_MAX, help="How many, the youngest ones; left out: 1000, of decisions 200"),
    ] = None

    def query(self) -> dict[str, Any]:
        """Return the choice as the service takes it."""
        check(self.level, self.since, self.until)
        given = {
            "level": self.level,
            "message": self.message,
            "since_seconds": self.since,
            "until_seconds": self.until,
        }
        return {name: value for name, value in given.items() if value is not None}


def check(level: str | None, since: int | None, until: int | None) -> None:
    """Refuse a choice that no event can meet.

    Raises:
        Misused: with what would be accepted.
    """
    if level is not None and level not in LEVELS:
        raise Misused(f"--level {level!r}: write one of {', '.join(LEVELS)}")
    if since is not None and until is not None and since < until:
        raise Misused(
            f"nothing is at most {written(since)} old (--since) and at least {written(until)} (--until)",
            f"what lies between: --since {written(until)} --until {written(since)}",
        )


def youngest_events(shell: Shell, path: str, *, most: int | None = None, **query: Any) -> list[dict[str, Any]]:
    """Return the youngest events of a timeline, oldest first; people are told when there are older ones."""
    most = EVENTS_MAX if most is None else most
    found = shell.pages(path, limit=most + 1, newest_first=True, **query)
    if len(found) > most:
        shell.output.say(f"… older events are left out: these are the youngest {most}; --limit shows more", style="dim")
    return found[:most][::-1]


def tell(output: Output, events: Sequence[Mapping[str, Any]]) -> None:
    """Print events in the order given; tables and JSON for programs."""
    if not output.is_human:
        output.listing(events, COLUMNS, title="events")
        return
    if not events:
        output.say("no events", style="dim")
    day = ""
    for event in events:
        date, _, time = event["at"].partition("T")
        if date != day:
            output.say(f"{date} (UTC)", style="dim")
            day = date
        output.say(_line(time.removesuffix("Z"), event))


def _line(time: str, event: Mapping[str, Any]) -> str:
    level = "" if event["level"] == "info" else f" [{event['level']}]"
    figures = "; ".join(_figure(name, value) for name, value in event["payload"].items())
    return f"{time}{level} {event['message']}{': ' if figures else ''}{figures}"


def _figure(name: str, value: Any) -> str:
    if is_rule(value):
        return f"{name}: {rule_words(value)}"
    if isinstance(value, Mapping):
        return f"{name}: {_cut([_entry(key, item) for key, item in value.items()], ', ') or 'none'}"
    if isinstance(value, list):
        return f"{name}: {_cut([_item(item) for item in value], ', ') or 'none'}"
    return f"{name} {plain(value)}"


def _entry(key: str, value: Any) -> str:
    if not isinstance(value, Mapping):
        return f"{key} {_item(value)}"
    # A dropped node's reason is its first word; the figures follow.
    reason = value.get("reason")
    figures = ", ".join(f"{name} {_item(item)}" for name, item in value.items() if name != "reason")
    head = key if reason is None else f"{key} {reason}"
    return f"{head} ({figures})" if figures else head


def _item(value: Any) -> str:
    if is_rule(value):
        return rule_words(value)
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{name} {_item(item)}" for name, item in value.items()) + ")"
    if isinstance(value, list):
        return f"[{_cut([_item(item) for item in value], ', ')}]"
    return plain(value)


def _cut(words: Iterable[str], between: str) -> str:
    all_words = list(words)
    shown = between.join(all_words[:SHOWN_MAX])
    more = len(all_words) - SHOWN_MAX
    return f"{shown}{between}… {more} more, {len(all_words)} in all" if more > 0 else shown
