"""Searching the audit trail: what a filter means, pages that miss and repeat nothing, and a bound on each's work."""

from __future__ import annotations

from typing import Any

import pytest

from fleet.ledger import events
from fleet.ledger.database import Database, Sql
from fleet.ledger.events import EventPage, EventView, Filter
from tests.ledger import fleet_of, past


def written(db: Database, *rows: tuple[str, str, str, str, str]) -> None:
    """Write events: object type, object id, message, level, by."""

    def work(conn: Any) -> None:
        for object_type, object_id, message, level, by in rows:
            events.record(conn, object_type, object_id, message, {"figure": 1}, level, by=by)

    db.unit(work)


@pytest.fixture
def trail(db: Database) -> Database:
    """Six events of five objects."""
    written(
        db,
        ("namespace", "a", "key created", "info", "system/admin"),
        ("namespace", "b", "key created", "info", "b/own"),
        ("instance", "i", "instance placed", "info", ""),
        ("instance", "i", "instance place%_ment denied", "warning", ""),
        ("node", "n", "node cordoned", "info", "system/admin"),
        ("cluster", "reconciler", "reconcile pass failed", "error", ""),
    )
    return db


def messages(page: EventPage) -> list[str]:
    return [event.message for event in page.events]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Filter(), 6),
        (Filter(object_type="namespace"), 2),
        (Filter(object_type="namespace", object_id="a"), 1),
        (Filter(object_id="i"), 2),
        (Filter(message="key created"), 2),
        (Filter(message="key"), 0),
        (Filter(message="key*"), 2),
        (Filter(message="instance place*"), 2),
        (Filter(message="instance place%*"), 1),
        (Filter(message="instance place_*"), 0),
        (Filter(message="KEY*"), 0),
        (Filter(message="*"), 6),
        (Filter(level="warning"), 1),
        (Filter(by="system/admin"), 2),
        (Filter(by="system/admin", object_type="node"), 1),
        (Filter(by="nobody/here"), 0),
        (Filter(by="system/"), 2),
        (Filter(by="system"), 0),
        (Filter(by="SYSTEM/"), 0),
        (Filter(by="syst_m/"), 0),
        (Filter(by="/"), 0),
        (Filter(by="sys*"), 2),
        (Filter(by="system/adm*"), 2),
        (Filter(by="b/*", message="key*"), 1),
        (Filter(by="*"), 3),
        (Filter(has_by=True), 3),
    ],
)
def test_a_filter_means_what_it_says(trail: Database, wanted: Filter, expected: int) -> None:
    assert len(events.search(trail, wanted).events) == expected


def test_events_say_what_they_are_about(trail: Database) -> None:
    (event,) = events.search(trail, Filter(message="node cordoned")).events

    assert (event.object_type, event.object_id, event.level) == ("node", "n", "info")
    assert event.payload == {"figure": 1, "by": "system/admin"}


def test_a_window_is_counted_back_from_the_databases_now(db: Database) -> None:
    for message, hours in (("key created", 5), ("instance placed", 3), ("node cordoned", 0)):
        with past.ago(db, hours * 3600):
            written(db, ("namespace", "a", message, "info", ""))

    def found(**window: int) -> set[str]:
        return {event.message for event in events.search(db, Filter(**window)).events}  # type: ignore[arg-type]

    assert found(until_seconds=3600) == {"instance placed", "key created"}
    assert found(until_seconds=4 * 3600) == {"key created"}
    assert found(since_seconds=4 * 3600, until_seconds=2 * 3600) == {"instance placed"}
    assert "key created" not in found(since_seconds=4 * 3600)
    assert "node cordoned" in found(since_seconds=1800)
    assert found(until_seconds=9 * 3600) == set()


def test_times_and_numbers_may_be_in_another_order_by_a_little(db: Database) -> None:
    with past.still(db) as now:
        written(db, *[("node", "n", "in time", "info", "")] * 5)
    with past.still(db, now - 30_000_000):
        written(db, ("node", "n", "committed late", "info", ""))

    with past.still(db, now):
        assert messages(events.search(db, Filter(until_seconds=20))) == ["committed late"]
        assert messages(events.search(db, Filter(since_seconds=20))) == ["in time"] * 5


def paged(db: Database, wanted: Filter, limit: int, *, newest_first: bool) -> tuple[list[EventView], int]:
    found: list[EventView] = []
    cursor, pages = None, 0
    while True:
        page = events.search(db, wanted, limit=limit, newest_first=newest_first, cursor=cursor)
        found += page.events
        pages += 1
        if page.next_cursor is None:
            return found, pages
        assert page.next_cursor != cursor
        cursor = page.next_cursor


@pytest.mark.parametrize("limit", [1, 2, 5, 100])
@pytest.mark.parametrize("scanned", [1, 3, 7, 1000])
@pytest.mark.parametrize("wanted", [Filter(), Filter(level="warning"), Filter(object_type="instance", object_id="i7")])
def test_pages_hold_what_is_meant_once_in_both_orders(
    db: Database, monkeypatch: pytest.MonkeyPatch, limit: int, scanned: int, wanted: Filter
) -> None:
    rows = [("instance", f"i{at % 10}", "m", "warning" if at % 4 == 0 else "info", "") for at in range(30)]
    written(db, *rows)
    monkeypatch.setattr(events, "SCANNED_MAX", scanned)

    oldest, _ = paged(db, wanted, limit, newest_first=False)
    newest, _ = paged(db, wanted, limit, newest_first=True)

    expected = {"": 30, "warning": 8}[wanted.level] if not wanted.object_id else 3
    assert len(oldest) == expected
    assert [event.event_id for event in oldest] == sorted(event.event_id for event in oldest)
    assert newest == oldest[::-1]


def test_a_page_looks_through_a_bounded_stretch_and_says_where_to_go_on(
    db: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    written(db, ("instance", "i", "rare", "error", ""), *[("instance", "i", "often", "info", "")] * 30)
    monkeypatch.setattr(events, "SCANNED_MAX", 10)

    first = events.search(db, Filter(message="rare"))
    found, pages = paged(db, Filter(message="rare"), 100, newest_first=True)

    assert (first.events, first.next_cursor is None) == ([], False)
    assert [event.message for event in found] == ["rare"]
    assert pages == 3


DONE = (*("ci/a", "ci/b", "", "cj/a", "ci", ""), *("ci/a", "CI/a", "ci0", "ctl:ann@host"))


@pytest.mark.parametrize("limit", [1, 3, 100])
@pytest.mark.parametrize("most", [(1, 50), (7, 50), (1000, 50), (7, 2), (7, 0)])
@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (Filter(by="ci/a"), 6),
        (Filter(by="ci/"), 9),
        (Filter(by="c*"), 21),
        (Filter(has_by=True), 24),
        (Filter(by="ci/", level="warning"), 3),
        (Filter(by="*", object_type="instance", object_id="i1"), 6),
    ],
)
def test_pages_of_what_some_did_hold_it_once_in_both_orders(
    db: Database, monkeypatch: pytest.MonkeyPatch, limit: int, most: tuple[int, int], wanted: Filter, expected: int
) -> None:
    rows = [
        ("instance", f"i{at % 4}", "m", "warning" if at % 2 else "info", by)
        for at, by in enumerate([*DONE, *DONE, *DONE])
    ]
    written(db, *rows)
    monkeypatch.setattr(events, "SCANNED_MAX", most[0])
    monkeypatch.setattr(events, "DOERS_MAX", most[1])

    oldest, _ = paged(db, wanted, limit, newest_first=False)
    newest, _ = paged(db, wanted, limit, newest_first=True)

    assert len(oldest) == expected
    assert [event.event_id for event in oldest] == sorted({event.event_id for event in oldest})
    assert newest == oldest[::-1]


def test_what_somebody_did_is_found_by_an_index(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not by looking through the trail: what others did, and what merely happened, is never read."""
    monkeypatch.setattr(events, "SCANNED_MAX", 10)
    written(db, ("node", "n", "m", "info", "ci/a"), ("node", "n", "m", "info", "ci/b"))
    written(db, *[("node", "n", "m", "info", "system/admin"), ("instance", "i", "m", "info", "")] * 500)
    if not db.is_sqlite:
        # The server counts what an index holds now and then, in the background: its plan must not hang on when.
        fleet_of.rows(db, "ANALYZE TABLE events")
    for newest_first in (False, True):
        for wanted in (Filter(by="ci/a"), Filter(by="ci/*", message="m"), Filter(by="ci/", level="info")):
            page = events.search(db, wanted, newest_first=newest_first)
            assert (len(page.events), page.next_cursor) == (2 if wanted.by_beginning else 1, None)
        for statement in (
            events._matching(events.OF_DOER, (), newest_first),
            events._matching(events.OF_DOER, ("message",), newest_first),
            events._edge_of(events.OF_DOER, newest_first),
        ):
            plan = explained(db, statement)
            assert "ix_events_done_by_id" in plan, plan
            assert "filesort" not in plan, plan
            assert "B-TREE" not in plan, plan
    assert "ix_events_done_by_id" in explained(db, events.NEXT_DOER)


def explained(db: Database, statement: Sql) -> str:
    """How the server goes about a statement."""
    binds = {"doer": "ci/a", "message": "m", "low": 0, "high": 2**62, "limit": 101, "scanned": 10_000}
    binds |= {"after": "ci/", "end": "ci/z"}
    how = "EXPLAIN QUERY PLAN" if db.is_sqlite else "EXPLAIN"
    with db.read() as conn:
        text = statement.text("sqlite" if db.is_sqlite else "mysql")
        return str(conn.exec_driver_sql(f"{how} {text}", binds).mappings().all())


def test_what_happens_meanwhile_moves_no_page(trail: Database) -> None:
    first = events.search(trail, Filter(), limit=2)
    written(trail, ("node", "n", "later", "info", ""))
    rest = events.search(trail, Filter(), cursor=first.next_cursor)

    assert [*messages(first), *messages(rest)].count("later") == 0
    assert len(first.events) + len(rest.events) == 6
