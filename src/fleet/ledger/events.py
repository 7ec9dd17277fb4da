"""The audit trail: rows, one timeline an object. Every correction, clamp, waiver, fallback and forced write is one.

Each event is also a line of the log, once its transaction has committed: its message is the line's `event`, its payload
are the line's fields. Where a process has no log (a test), there is only the row.

A search reads a bounded stretch for each page, whatever it looks for: of the whole trail, or, through an index, of the
timeline of one object or of what some did. A page may be short, or empty, and still name where the next one begins.
Only a page without a `next_cursor` is the last.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

import structlog
from sqlalchemy import Connection, Row

from fleet.ledger.afterwards import after_commit
from fleet.ledger.database import Batch, Database, Sql
from fleet.telemetry import get_logger

LIST_MAX = 1000
SCANNED_MAX = 10_000
"""So many rows of a timeline, of what some did, or of the whole trail, are looked through for one page."""
DOERS_MAX: Final = 50
"""Of so many who did something each one's rows are found by the index; of more the whole trail is looked through."""
BY_CHARACTERS: Final = 255
LAST_CHARACTER: Final = "\U0010ffff"
ORDER_SLACK_US: Final = 60_000_000
"""The order of times and that of numbers differ by less: clocks are set, and statements overtake each other."""
ANY_ENDING: Final = "*"
ANY_KEY: Final = "/"
"""Ends who did something where every key of a namespace is meant: no key is called by nothing."""
TAKEN: Final = frozenset(
    {
        "event",
        "level",
        "logger",
        "timestamp",
        "exc_info",
        "stack_info",
        "stack",
        "exception",
        "object_type",
        "object_id",
    }
)
"""Names of a line's own fields: those of a payload that are called so get `payload_` before them."""

_log = get_logger(__name__)

INSERT = Sql("""
    INSERT INTO events (object_type, object_id, at, level, message, payload, done_by)
    VALUES (:object_type, :object_id, {now}, :level, :message, :payload, :done_by)
""")
NEWEST = Sql("""
    SELECT id, object_type, object_id, at, level, message, payload FROM events
    WHERE object_type = :object_type AND object_id = :object_id AND id < :cursor ORDER BY id DESC LIMIT :limit
""")
OLDEST = Sql("""
    SELECT id, object_type, object_id, at, level, message, payload FROM events
    WHERE object_type = :object_type AND object_id = :object_id AND id > :cursor ORDER BY id LIMIT :limit
""")
NOW = Sql("SELECT {now} AS now")
LAST_BEFORE = Sql("SELECT id FROM events WHERE at < :at ORDER BY at DESC, id DESC LIMIT 1")
FIRST_AFTER = Sql("SELECT id FROM events WHERE at > :at ORDER BY at, id LIMIT 1")
NEXT_DOER = Sql("""
    SELECT done_by FROM events WHERE done_by > :after AND done_by < :end ORDER BY done_by LIMIT 1
""")
OF_ALL: Final = ""
OF_OBJECT: Final = " AND object_type = :object_type AND object_id = :object_id"
OF_DOER: Final = " AND done_by = :doer"
CONDITIONS: Final[Mapping[str, str]] = {
    "object_type": " AND object_type = :object_type",
    "object_id": " AND object_id = :object_id",
    "level": " AND level = :level",
    "message": " AND message = :message",
    "beginning": " AND SUBSTR(message, 1, :length) = :beginning",
    "since": " AND at >= :since",
    "until": " AND at <= :until",
    "has_by": " AND done_by IS NOT NULL",
    "by": " AND done_by = :by",
    "by_beginning": " AND SUBSTR(done_by, 1, :by_length) = :by_beginning",
}
_SAID_BY: Final[Mapping[str, frozenset[str]]] = {
    OF_ALL: frozenset(),
    OF_OBJECT: frozenset({"object_type", "object_id"}),
    OF_DOER: frozenset({"has_by", "by", "by_beginning"}),
}
"""Which conditions hold of every row of a stretch already."""


@dataclass(frozen=True, slots=True)
class EventView:
    """One event of a timeline. `at_us` is the database's time, microseconds UTC."""

    event_id: int
    at_us: int
    level: str
    message: str
    payload: Mapping[str, Any]
    object_type: str
    object_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which events are meant; what is left empty asks for nothing.

    A `message` that ends in `*` is the beginning of one. `since_seconds` and `until_seconds` are counted back from now
    by the database's clock: events that are at most, and at least, so old. `by` is who did it; one that ends in `*` is
    the beginning of one, and `ci/` means every key of the namespace `ci`. `has_by` is that somebody did.
    """

    object_type: str = ""
    object_id: str = ""
    message: str = ""
    level: str = ""
    by: str = ""
    has_by: bool = False
    since_seconds: int | None = None
    until_seconds: int | None = None

    @property
    def has_window(self) -> bool:
        """Return whether it asks for a stretch of time."""
        return self.since_seconds is not None or self.until_seconds is not None

    @property
    def beginning(self) -> str:
        """Return what the message begins with, when it is not given whole."""
        return self.message.removesuffix(ANY_ENDING) if self.message.endswith(ANY_ENDING) else ""

    @property
    def by_beginning(self) -> str:
        """Return what the name of who did it begins with, when it is not given whole."""
        return self.by.removesuffix(ANY_ENDING) if self.by.endswith((ANY_ENDING, ANY_KEY)) else ""

    def within(self, now_us: int) -> Window:
        """Return its two ends in time."""
        since, until = self.since_seconds, self.until_seconds
        return Window(
            None if since is None else now_us - since * 1_000_000, None if until is None else now_us - until * 1_000_000
        )

    def admits(self, level: str, message: str) -> bool:
        """Return whether an event of this level and message is meant, as far as these two say."""
        if self.level and level != self.level:
            return False
        if self.message.endswith(ANY_ENDING):
            return message.startswith(self.beginning)
        return not self.message or message == self.message


EVERYTHING: Final = Filter()


@dataclass(frozen=True, slots=True)
class Window:
    """A stretch of time, both ends included; None: no end."""

    since_us: int | None = None
    until_us: int | None = None

    def holds(self, at_us: int) -> bool:
        """Return whether a moment lies in it."""
        return (self.since_us is None or at_us >= self.since_us) and (self.until_us is None or at_us <= self.until_us)


@dataclass(frozen=True, slots=True)
class EventPage:
    """What one page found, and where the next one begins; `next_cursor` None: there is no more."""

    events: list[EventView]
    next_cursor: int | None


def record(
    target: Connection | Batch,
    object_type: str,
    object_id: str,
    message: str,
    payload: Mapping[str, Any],
    level: str = "info",
    *,
    by: str = "",
) -> None:
    """Write an event in the caller's transaction. `object_type` is instance, node, namespace, claim or cluster.

    `by`: who did it, where somebody did; it stands in the payload, and trails are searched by it.
    """
    told = {**payload, "by": by} if by else dict(payload)
    INSERT.into(
        target,
        object_type=object_type,
        object_id=object_id,
        level=level,
        message=message,
        payload=json.dumps(told, separators=(",", ":")),
        done_by=by[:BY_CHARACTERS] or None,
    )
    conn = target.connection if isinstance(target, Batch) else target
    after_commit(conn, partial(tell, object_type, object_id, message, told, level))


def tell(object_type: str, object_id: str, message: str, payload: Mapping[str, Any], level: str = "info") -> None:
    """Write an event to the log, now: for what no row can be kept of, and for `record` after its commit."""
    if not structlog.is_configured():
        return
    fields = {f"payload_{name}" if name in TAKEN else name: value for name, value in payload.items()}
    getattr(_log, level)(message, object_type=object_type, object_id=object_id, **fields)


def listing(
    db: Database,
    object_type: str,
    object_id: str,
    *,
    limit: int = 100,
    newest_first: bool = True,
    cursor: int | None = None,
) -> list[EventView]:
    """Return up to `limit` (at most `LIST_MAX`) events of an object, from `cursor` on."""
    statement, start = (NEWEST, 2**62) if newest_first else (OLDEST, 0)
    with db.read() as conn:
        rows = statement.run(
            conn,
            object_type=object_type,
            object_id=object_id,
            cursor=start if cursor is None else cursor,
            limit=min(limit, LIST_MAX),
        )
        return [_view(row) for row in rows]


def _view(row: Row[Any]) -> EventView:
    payload = json.loads(row.payload)
    return EventView(row.id, row.at, row.level, row.message, payload, row.object_type, row.object_id)


def search(
    db: Database, wanted: Filter, *, limit: int = 100, newest_first: bool = True, cursor: int | None = None
) -> EventPage:
    """Return a page of up to `limit` (at most `LIST_MAX`) events of any object that the filter means.

    At most `SCANNED_MAX` rows are looked through; `cursor` is the page before's `next_cursor`.
    """
    limit = min(limit, LIST_MAX)
    with db.read() as conn:
        window = wanted.within(int(NOW.run(conn).scalar_one()))
        low, high = _ends(conn, window)
        if cursor is not None:
            low, high = (low, min(high, cursor - 1)) if newest_first else (max(low, cursor + 1), high)
        binds = _binds(wanted, window)
        stretch, parts = _stretch(conn, wanted)
        asked = tuple(name for name in CONDITIONS if name in binds and name not in _SAID_BY[stretch])
        binds |= {"length": len(wanted.beginning), "by_length": len(wanted.by_beginning), "limit": limit + 1}
        # Where every row of a stretch is meant, a page is full before it has looked through many.
        edge = _edge(conn, stretch, parts, binds, (low, high), newest_first=newest_first) if asked else None
        if edge is not None:
            low, high = (edge, high) if newest_first else (low, edge)
        matching = _matching(stretch, asked, newest_first)
        rows = [row for part in parts for row in matching.run(conn, binds, **part, low=low, high=high)]
    found = sorted(map(_view, rows), key=lambda event: event.event_id, reverse=newest_first)
    return EventPage(found[:limit], found[limit - 1].event_id if len(found) > limit else edge)


def _binds(wanted: Filter, window: Window) -> dict[str, Any]:
    """Return what a filter asks for, by the names of the conditions."""
    given = {
        "object_type": wanted.object_type,
        "object_id": wanted.object_id,
        "level": wanted.level,
        "message": "" if wanted.message.endswith(ANY_ENDING) else wanted.message,
        "beginning": wanted.beginning,
        "since": window.since_us,
        "until": window.until_us,
        "has_by": wanted.has_by or wanted.by == ANY_ENDING,
        "by": "" if wanted.by.endswith((ANY_ENDING, ANY_KEY)) else wanted.by,
        "by_beginning": wanted.by_beginning,
    }
    return {name: value for name, value in given.items() if value not in {None, "", False}}


def _stretch(conn: Connection, wanted: Filter) -> tuple[str, Sequence[Mapping[str, str]]]:
    """Return which rows are looked through, found by an index where one helps, and the binds of each part of them."""
    if wanted.object_type and wanted.object_id:
        return OF_OBJECT, [{}]
    if not (wanted.by or wanted.has_by):
        return OF_ALL, [{}]
    doers = _doers(conn, wanted)
    return (OF_ALL, [{}]) if len(doers) > DOERS_MAX else (OF_DOER, [{"doer": doer} for doer in doers])


def _doers(conn: Connection, wanted: Filter) -> list[str]:
    """Return who is meant; of those with a common beginning one more than `DOERS_MAX` at most, each a look-up."""
    if wanted.by and not wanted.by.endswith((ANY_ENDING, ANY_KEY)):
        return [wanted.by[:BY_CHARACTERS]]
    beginning = wanted.by_beginning
    doers = [beginning] if beginning else []
    last = beginning
    while len(doers) <= DOERS_MAX:
        found = NEXT_DOER.run(conn, after=last, end=beginning + LAST_CHARACTER).scalar()
        if found is None:
            break
        last = str(found)
        doers.append(last)
    return doers


def _ends(conn: Connection, window: Window) -> tuple[int, int]:
    """Return numbers between which every row of a window lies, and few others."""
    before = after = None
    if window.since_us is not None:
        before = LAST_BEFORE.run(conn, at=window.since_us - ORDER_SLACK_US).scalar()
    if window.until_us is not None:
        after = FIRST_AFTER.run(conn, at=window.until_us + ORDER_SLACK_US).scalar()
    return (0 if before is None else int(before)), (2**62 if after is None else int(after))


def _edge(
    conn: Connection,
    stretch: str,
    parts: Sequence[Mapping[str, str]],
    binds: Mapping[str, Any],
    ends: tuple[int, int],
    *,
    newest_first: bool,
) -> int | None:
    """Return the row at which a page stops looking, if there are so many: the parts together are bounded."""
    statement, scanned = _edge_of(stretch, newest_first), SCANNED_MAX // max(len(parts), 1)
    found = [statement.run(conn, binds, **part, low=ends[0], high=ends[1], scanned=scanned).scalar() for part in parts]
    edges = [int(edge) for edge in found if edge is not None]
    return (max if newest_first else min)(edges, default=None)


@lru_cache
def _edge_of(stretch: str, newest_first: bool) -> Sql:  # noqa: FBT001  # keys of a cache
    """Return the statement that finds the row so many rows on."""
    order = "DESC" if newest_first else ""
    return Sql(
        f"SELECT id FROM events WHERE id >= :low AND id <= :high{stretch} ORDER BY id {order} LIMIT 1 OFFSET :scanned"
    )


@lru_cache
def _matching(stretch: str, asked: tuple[str, ...], newest_first: bool) -> Sql:  # noqa: FBT001  # keys of a cache
    """Return the statement that finds what is meant within a stretch of rows."""
    where = stretch + "".join(CONDITIONS[name] for name in asked)
    order = "DESC" if newest_first else ""
    return Sql(
        "SELECT id, object_type, object_id, at, level, message, payload FROM events "
        f"WHERE id >= :low AND id <= :high{where} ORDER BY id {order} LIMIT :limit"
    )
