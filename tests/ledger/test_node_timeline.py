"""What decisions did with a node: told from what is stored of them, one page after the other, and no row a node."""

from __future__ import annotations

import pytest

from fleet.ledger import events
from fleet.ledger.database import Database
from fleet.ledger.events import Filter
from fleet.services import node_timeline, timeline
from fleet.services.context import Context
from fleet.services.node_timeline import NodeEvent
from fleet.services.place import Refusal
from fleet.services.timeline import NOT_KEPT
from tests.ledger import fleet_of
from tests.ledger.fleet_of import ask
from tests.ledger.placing import context, create, created, node, overtaken
from tests.ledger.test_timeline import DENIED, GUARD, WAIVED

FINAL = "schedule final candidates"
ADMITTED = "schedule candidate admitted"
MEMORY = "schedule at stage sufficient_idle_memory"


def whole(ctx: Context, name: str, **more: object) -> list[NodeEvent]:
    page = node_timeline.of_node(ctx, name, limit=1000, newest_first=False, **more)  # type: ignore[arg-type]
    assert page.next_position is None
    return list(page.events)


def messages(found: list[NodeEvent]) -> list[str]:
    return [one.event.message for one in found]


def paged(ctx: Context, name: str, limit: int, *, newest_first: bool, wanted: Filter) -> tuple[list[NodeEvent], int]:
    found: list[NodeEvent] = []
    after, pages = None, 0
    while True:
        page = node_timeline.of_node(ctx, name, limit=limit, newest_first=newest_first, after=after, wanted=wanted)
        assert len(page.events) <= limit
        found += page.events
        pages += 1
        if page.next_position is None:
            return found, pages
        at, decision_id, part = page.next_position.split(".")
        assert (int(at), decision_id, int(part)) != after
        after = (int(at), decision_id, int(part))


def test_a_node_that_was_dropped_reads_the_stage_and_its_figures(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    node(db, ctx, "b", cpus=4, memory_mb=32)
    made = created(ctx, memory_mb=64)

    (dropped,) = whole(ctx, "b")
    (asked,) = [
        one.event
        for one in timeline.of_instance(ctx, made.uuid, limit=99, newest_first=False).events
        if one.event.message == MEMORY
    ]
    assert (dropped.decision_id, dropped.event.message) == (made.decision_id, MEMORY)
    assert dropped.event.payload["dropped"] == asked.payload["dropped"]
    assert (dropped.event.payload["instance"], dropped.event.payload["namespace"]) == (made.uuid, fleet_of.NAMESPACE)
    assert (dropped.event.payload["reason"], dropped.event.payload["outcome"]) == ("create", "placed")


def test_the_chosen_node_reads_its_rank_its_weight_and_that_it_was_chosen(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    node(db, ctx, "b", cpus=4, cpu_load_1=3.0)
    made = created(ctx)
    other = {"a": "b", "b": "a"}[made.node]

    ranked, chosen = whole(ctx, made.node)
    (passed_over,) = whole(ctx, other)
    assert (ranked.event.message, chosen.event.message) == (FINAL, ADMITTED)
    assert (ranked.event.payload["rank"], ranked.event.payload["candidates_total"]) == (1, 2)
    assert ranked.event.payload["weights"][made.node] > 0
    assert "cpu_load_1" in ranked.event.payload["order_detail"][made.node]
    assert chosen.event.payload["enforce_demand"] is True
    assert (passed_over.event.message, passed_over.event.payload["rank"]) == (FINAL, 2)


def test_a_node_that_the_guard_refused_reads_why(db: Database) -> None:
    ctx = context(db)
    full = node(db, ctx, "x", cpus=4)
    node(db, ctx, "y", cpus=4, cpu_load_1=2.0)
    created(overtaken(ctx, lambda: fleet_of.admitted(db, ask(full, cpus=4))))

    found = whole(ctx, "x")
    assert messages(found) == [FINAL, DENIED, GUARD]
    assert found[-1].event.payload["failing_stage"] == "node"
    assert messages(whole(ctx, "y")) == [FINAL, ADMITTED]


def test_a_node_that_was_preferred_less_reads_its_score(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    node(db, ctx, "b", cpus=4)
    first = created(ctx, tags={"web": ""})
    other = {"a": "b", "b": "a"}[first.node]
    ctx.snapshots.view(fresh_since=ctx.elapsed())
    created(ctx, affinity={"prefer_with_tag": ["web"]})

    last = whole(ctx, other)[-1]
    assert last.event.message == "schedule have highest affinity"
    assert last.event.payload["highest_affinity"] == 1
    assert last.event.payload["affinity_detail"][other]["score"] == 0


def test_a_refused_decision_is_told_on_every_node_it_judged(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    node(db, ctx, "b", cpus=4)
    refused = create(ctx, cpus=5)
    assert isinstance(refused, Refusal)

    for name in ("a", "b"):
        (dropped,) = whole(ctx, name)
        assert dropped.event.message == "schedule at stage sufficient_idle_cpu"
        assert dropped.event.payload["code"] == "out_of_capacity"


def test_a_node_that_came_later_was_no_candidate(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    created(ctx)
    node(db, ctx, "later", cpus=4)

    assert whole(ctx, "later") == []
    assert whole(ctx, "nowhere") == []


def test_decisions_write_no_row_for_their_candidates(db: Database) -> None:
    ctx = context(db)
    for name in ("a", "b", "c"):
        node(db, ctx, name, cpus=4)
    before = len(events.search(db, Filter(object_type="node")).events)
    created(ctx)

    assert len(events.search(db, Filter(object_type="node")).events) == before


@pytest.mark.parametrize("bounds", [(100, 10), (1, 10), (2, 10), (100, 1)])
@pytest.mark.parametrize("at_once", [2, 25])
def test_pages_hold_each_event_once_in_both_orders(
    db: Database, monkeypatch: pytest.MonkeyPatch, bounds: tuple[int, int], at_once: int
) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=100)
    for turn in range(7):
        created(ctx)
        if turn % 3 == 2:
            # Another node is another layout, and so another base.
            node(db, ctx, f"n{turn}", cpus=1, memory_mb=1)
    expected = whole(ctx, "a")
    monkeypatch.setattr(node_timeline, "DECISIONS_MAX", bounds[0])
    monkeypatch.setattr(node_timeline, "BASES_MAX", bounds[1])
    monkeypatch.setattr(node_timeline, "_ROWS_AT_ONCE", at_once)

    assert messages(expected).count(ADMITTED) == 7
    for wanted in (Filter(), Filter(message=ADMITTED), Filter(level="error"), Filter(since_seconds=3600)):
        meant = [one for one in expected if wanted.admits(one.event.level, one.event.message)]
        for limit in (1, 3, 100):
            assert paged(ctx, "a", limit, newest_first=False, wanted=wanted)[0] == meant
            assert paged(ctx, "a", limit, newest_first=True, wanted=wanted)[0] == meant[::-1]
    assert paged(ctx, "a", 100, newest_first=True, wanted=Filter(until_seconds=3600)) == ([], 1)


def test_a_page_looks_at_a_bounded_number_of_decisions(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=100)
    for _ in range(5):
        created(ctx)
    monkeypatch.setattr(node_timeline, "DECISIONS_MAX", 2)
    found, pages = paged(ctx, "a", 100, newest_first=True, wanted=Filter(message="nothing like it"))

    assert (found, pages) == ([], 3)


def test_without_the_snapshot_nobody_can_say_whether_it_was_a_candidate_but_that_it_was_chosen(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    created(ctx)
    fleet_of.execute(db, "DELETE FROM decision_bases")

    assert messages(whole(ctx, "a")) == [NOT_KEPT, ADMITTED]


def test_where_this_version_decides_otherwise_the_record_speaks(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    node(db, ctx, "b", cpus=4, memory_mb=32)
    created(ctx)
    fleet_of.execute(db, "UPDATE decisions SET request = :body", body='{"cpus": 1, "memory_mb": 999999999}')

    (dropped,) = whole(ctx, "b")
    ranked = whole(ctx, "a")[0]
    assert dropped.event.payload["dropped"]["b"].keys() == {"reason"}
    assert "decides otherwise" in dropped.event.payload["not_kept"]
    assert (ranked.event.payload["rank"], ranked.event.payload["weights"]) == (1, None)


def test_a_waived_placement_says_so_on_its_node(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "n", cpus=8, cpu_load_1=8.0)
    created(ctx)

    found = whole(ctx, "n")
    assert messages(found) == [FINAL, ADMITTED]
    assert found[-1].event.payload["enforce_demand"] is False
    assert WAIVED not in messages(found)
