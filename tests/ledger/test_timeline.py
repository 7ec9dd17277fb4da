"""The timeline of an instance: every stage of its placings, in pages that miss and repeat nothing, and no more rows."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from fleet import bootstrap
from fleet.config import load_settings
from fleet.ledger import events
from fleet.ledger.database import Database
from fleet.ledger.events import Filter
from fleet.services import decisions, timeline
from fleet.services.context import Context
from fleet.services.place import Refusal
from fleet.services.timeline import TimelineEvent
from tests.ledger import fleet_of
from tests.ledger.fleet_of import ask
from tests.ledger.placing import context, create, created, node, overtaken, redirected

WAIVED = "no candidate admitted and some refused on demand alone, waiving demand guard"
DENIED = "instance placement denied"
GUARD = "schedule candidate refused by capacity guard"


def whole(ctx: Context, uuid: str, **more: Any) -> list[TimelineEvent]:
    page = timeline.of_instance(ctx, uuid, limit=1000, newest_first=False, **more)
    assert page.next_position is None
    return list(page.events)


def messages(found: list[TimelineEvent]) -> list[str]:
    return [one.event.message for one in found]


def payload(found: list[TimelineEvent], message: str) -> dict[str, Any]:
    (event,) = (one.event for one in found if one.event.message == message)
    return json.loads(json.dumps(dict(event.payload), default=float))  # type: ignore[no-any-return]


def paged(ctx: Context, uuid: str, limit: int, *, newest_first: bool, **more: Any) -> list[TimelineEvent]:
    """The whole timeline, in pages, as a caller reads it: until a page names none that follows."""
    found: list[TimelineEvent] = []
    after = None
    while True:
        page = timeline.of_instance(ctx, uuid, limit=limit, newest_first=newest_first, after=after, **more)
        assert len(page.events) <= limit
        found += page.events
        if page.next_position is None:
            return found
        row, part = map(int, page.next_position.split("."))
        assert (row, part) != after
        after = (row, part)


def test_a_create_is_told_from_its_start_to_its_placing(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    node(db, ctx, "b", cpus=4, memory_mb=32)
    made = created(ctx, disk_gb=5)
    found = whole(ctx, made.uuid)

    assert messages(found)[:3] == ["started scheduling", "schedule inputs", "schedule initial candidates"]
    assert messages(found)[-2:] == ["schedule final candidates", "instance placed"]
    assert list(payload(found, "schedule at stage sufficient_idle_memory")["dropped"]) == ["b"]
    assert len({one.at_us for one in found[:-1]}) == 1
    assert [one.at_us for one in found] == sorted(one.at_us for one in found)
    assert [one.part for one in found] == [*range(1, len(found)), 0]


def test_the_placing_has_the_keys_that_operators_know(db: Database) -> None:
    ctx = context(db, scheduler_demand_per_vcpu="0.6")
    node(db, ctx, "a", cpus=4)
    first = created(ctx, cpus=1, memory_mb=64, disk_gb=5)
    # Decisions of the same few milliseconds may share what was read before the first of them.
    ctx.snapshots.view(fresh_since=ctx.elapsed())
    made = created(ctx, cpus=2, memory_mb=100, disk_gb=7)
    placed = payload(whole(ctx, made.uuid), "instance placed")

    keys = {"node", "previous_node", "placement_attempts", "enforce", "enforce_demand", "cpus", "memory_mb"}
    assert keys <= set(placed)
    assert (placed["node"], placed["previous_node"], placed["placement_attempts"]) == (first.node, None, 1)
    assert (placed["node_used_cpus"], placed["node_used_memory_mb"], placed["node_used_disk_gb"]) == (3, 164, 12)
    assert (placed["node_expected_demand"], placed["node_used_as_of"]) == (1.8, "decision")


def test_a_create_writes_one_event_row_whatever_its_timeline_shows(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    made = created(ctx, affinity={"prefer_with_tag": ["web"]})

    assert [row.message for row in events.listing(db, "instance", made.uuid)] == ["instance placed"]
    assert len(whole(ctx, made.uuid)) > 15


def test_weights_leave_an_event_of_their_own(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    made = created(ctx, affinity={"web": 10, "noisy": -3, "nothing": 0})
    found = whole(ctx, made.uuid)

    assert messages(found)[0] == "deprecated weighted affinity specification accepted"
    event = payload(found, "deprecated weighted affinity specification accepted")
    assert event["affinity"] == {"web": 10, "noisy": -3, "nothing": 0}
    assert event["mapped_to"] == {"prefer_with_tag": ["web"], "prefer_without_tag": ["noisy"]}
    assert event["note"]


@pytest.mark.parametrize("limit", [1, 2, 7, 16, 17, 18, 100])
def test_pages_hold_the_whole_timeline_once_in_both_orders(db: Database, limit: int) -> None:
    ctx = context(db)
    for name in ("a", "b", "c"):
        node(db, ctx, name, cpus=4)
    made = created(ctx)
    db.unit(lambda conn: events.record(conn, "instance", made.uuid, "something else", {}))
    assert redirected(db, ctx, made) is not None
    assert redirected(db, ctx, made) is not None
    expected = whole(ctx, made.uuid)

    assert messages(expected).count("instance placed") == 3
    assert messages(expected).count("started scheduling") == 3
    assert paged(ctx, made.uuid, limit, newest_first=False) == expected
    assert paged(ctx, made.uuid, limit, newest_first=True) == expected[::-1]


def test_what_happens_meanwhile_moves_no_page(db: Database) -> None:
    ctx = context(db)
    for name in ("a", "b"):
        node(db, ctx, name, cpus=4)
    made = created(ctx)
    expected = whole(ctx, made.uuid)
    newest = timeline.of_instance(ctx, made.uuid, limit=3, newest_first=True).events
    oldest = timeline.of_instance(ctx, made.uuid, limit=3, newest_first=False).events
    assert redirected(db, ctx, made) is not None

    def rest(page: Sequence[TimelineEvent], *, newest_first: bool) -> Sequence[TimelineEvent]:
        after = page[2].row, page[2].part
        return timeline.of_instance(ctx, made.uuid, limit=1000, newest_first=newest_first, after=after).events

    assert [*newest[:3], *rest(newest, newest_first=True)] == expected[::-1]
    later = [*oldest[:3], *rest(oldest, newest_first=False)]
    assert later[: len(expected)] == expected
    assert messages(later)[-1] == "instance placed"


def test_a_redirect_says_where_from_and_whom_it_never_tried(db: Database) -> None:
    ctx = context(db)
    for name in ("a", "b"):
        node(db, ctx, name, cpus=4)
    made = created(ctx)
    second = redirected(db, ctx, made)
    found = whole(ctx, made.uuid)
    last = found[messages(found).index("instance placed") + 1 :]

    placed = payload(last, "instance placed")
    assert (placed["node"], placed["previous_node"], placed["placement_attempts"]) == (second, made.node, 2)
    assert payload(last, "schedule final candidates")["left_out"] == [made.node]


def test_a_redirect_that_finds_nobody_leaves_its_stages_too(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    made = created(ctx)
    fleet_of.execute(db, "UPDATE nodes SET state = 'error'")
    fleet_of.execute(db, "UPDATE scheduler_node_capacity SET state = 'error'")
    ctx = bootstrap.with_parts(load_settings(None, {}), db, lambda _wake: None, {})
    assert redirected(db, ctx, made) is None
    found = whole(ctx, made.uuid)

    assert messages(found)[-2:] == [
        "schedule has no candidates at stage node_state, aborting",
        "schedule failed, no eligible node",
    ]
    assert messages(found).count("schedule failed, no eligible node") == 1
    assert payload(found, "schedule failed, no eligible node")["code"] == "no_schedulable_nodes"
    assert paged(ctx, made.uuid, 4, newest_first=True) == found[::-1]


def test_what_the_guard_refused_stands_between_ranking_and_placing(db: Database) -> None:
    ctx = context(db)
    full = node(db, ctx, "x", cpus=4)
    node(db, ctx, "y", cpus=4, cpu_load_1=2.0)
    made = created(overtaken(ctx, lambda: fleet_of.admitted(db, ask(full, cpus=4))))
    found = whole(ctx, made.uuid)

    assert messages(found)[-4:] == ["schedule final candidates", DENIED, GUARD, "instance placed"]
    refused = payload(found, GUARD)
    assert set(refused) == {"node", "failing_stage", "dimensions", "enforce_demand"}
    assert (refused["node"], refused["failing_stage"], refused["enforce_demand"]) == ("x", "node", True)
    assert [figure["dimension"] for figure in refused["dimensions"]] == ["cpus"]


def test_the_waiver_stands_once_and_where_it_happened(db: Database) -> None:
    ctx = context(db)
    node_id = node(db, ctx, "n", cpus=8)
    late = "UPDATE scheduler_node_capacity SET expected_demand = 100 WHERE node_id = :node_id"
    made = created(overtaken(ctx, lambda: fleet_of.execute(db, late, node_id=node_id)))
    found = whole(ctx, made.uuid)

    assert messages(found)[-5:] == ["schedule final candidates", DENIED, GUARD, WAIVED, "instance placed"]
    assert messages(found).count("started scheduling") == 1
    event = payload(found, WAIVED)
    assert {"candidates", "denials"} <= set(event)
    assert event["candidates"] == ["n"]
    assert set(event["denials"]["n"]) == {"failing_stage", "dimensions", "demand_only"}
    assert event["denials"]["n"]["demand_only"] is True
    assert payload(found, "instance placed")["enforce_demand"] is False
    assert paged(ctx, made.uuid, 2, newest_first=True) == found[::-1]


def test_a_node_over_its_target_is_told_as_left_for_last(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "n", cpus=8, cpu_load_1=8.0)
    found = whole(ctx, created(ctx).uuid)

    assert messages(found)[-3:] == [
        "schedule candidates over the load target left for last",
        WAIVED,
        "instance placed",
    ]
    assert payload(found, WAIVED)["candidates"] == ["n"]


def test_a_refusal_without_an_instance_tells_its_stages_by_its_decision(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    outcome = create(ctx, cpus=5)
    assert isinstance(outcome, Refusal)
    assert outcome.decision_id is not None
    told = timeline.of_decision(ctx, decisions.get(ctx, outcome.decision_id, None)).events

    assert [event.message for event in told[-3:]] == [
        "schedule at stage sufficient_idle_cpu",
        "schedule has no candidates at stage sufficient_idle_cpu, aborting",
        "schedule failed, insufficient resources",
    ]
    assert told[-1].payload["message"] == outcome.detail
    assert (told[-1].payload["stage"], told[-1].payload["transient"]) == ("sufficient_idle_cpu", outcome.transient)


def test_a_refusal_by_the_guard_tells_every_denial(db: Database) -> None:
    ctx = context(db)
    ids = [node(db, ctx, name, cpus=4) for name in ("a", "b")]
    ask_all = [ask(node_id, cpus=4) for node_id in ids]
    outcome = create(overtaken(ctx, lambda: [fleet_of.admitted(db, one) for one in ask_all]))
    assert isinstance(outcome, Refusal)
    assert outcome.decision_id is not None
    told = timeline.of_decision(ctx, decisions.get(ctx, outcome.decision_id, None)).events

    assert [event.message for event in told].count(GUARD) == 2
    assert told[-1].message.startswith("schedule failed, ")
    assert {event.payload["node"] for event in told if event.message == GUARD} == {"a", "b"}


def test_without_the_snapshot_the_record_speaks_and_says_so(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    node(db, ctx, "b", cpus=4, memory_mb=32)
    made = created(ctx)
    fleet_of.execute(db, "DELETE FROM decision_bases")
    found = whole(ctx, made.uuid)

    assert "not kept" in payload(found, "schedule inputs")["not_kept"]
    stage = payload(found, "schedule at stage sufficient_idle_memory")
    assert (stage["dropped"], stage["dropped_total"], stage["candidates_total"]) == (None, 1, 1)
    assert messages(found)[-2:] == ["schedule final candidates", "instance placed"]
    assert "node_used_cpus" not in payload(found, "instance placed")
    assert paged(ctx, made.uuid, 2, newest_first=True) == found[::-1]


def test_without_the_decision_the_row_stands_and_one_event_says_so(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    made = created(ctx)
    fleet_of.execute(db, "DELETE FROM decisions")

    assert messages(whole(ctx, made.uuid)) == ["schedule events are not kept any more", "instance placed"]


def test_a_decision_that_this_version_makes_otherwise_is_not_told_as_if_it_had_been_so(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    node(db, ctx, "b", cpus=4)
    made = created(ctx)
    fleet_of.execute(db, "UPDATE decisions SET request = :body", body='{"cpus": 1, "memory_mb": 999999999}')

    assert "decides otherwise" in payload(whole(ctx, made.uuid), "schedule inputs")["not_kept"]


def test_another_instances_decision_is_never_told(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    first, second = created(ctx), created(ctx)
    told = {"decision": first.decision_id}
    db.unit(lambda conn: events.record(conn, "instance", second.uuid, "instance placed", told))

    assert messages(whole(ctx, second.uuid))[-2:] == ["schedule events are not kept any more", "instance placed"]


WHAT_IS_MEANT = [
    (Filter(message="schedule inputs"), 3),
    (Filter(message="schedule *"), None),
    (Filter(message="instance placed"), 3),
    (Filter(message="something else"), 1),
    (Filter(message="something"), 0),
    (Filter(level="warning"), 1),
    (Filter(since_seconds=3600), None),
    (Filter(until_seconds=3600), 0),
]


@pytest.mark.parametrize("bounds", [(1000, 60), (1, 60), (1000, 1)])
def test_a_filter_means_rendered_events_too_and_pages_stay_whole(
    db: Database, monkeypatch: pytest.MonkeyPatch, bounds: tuple[int, int]
) -> None:
    ctx = context(db)
    for name in ("a", "b", "c"):
        node(db, ctx, name, cpus=4)
    made = created(ctx)
    db.unit(lambda conn: events.record(conn, "instance", made.uuid, "something else", {}, "warning"))
    assert redirected(db, ctx, made) is not None
    assert redirected(db, ctx, made) is not None
    everything = whole(ctx, made.uuid)
    monkeypatch.setattr(timeline, "ROWS_MAX", bounds[0])
    monkeypatch.setattr(timeline, "DECISIONS_MAX", bounds[1])

    for wanted, expected in WHAT_IS_MEANT:
        meant = [one for one in everything if wanted.admits(one.event.level, one.event.message)]
        meant = [] if wanted.until_seconds else meant
        assert expected is None or len(meant) == expected
        for limit in (2, 100):
            assert paged(ctx, made.uuid, limit, newest_first=False, wanted=wanted) == meant, wanted
            assert paged(ctx, made.uuid, limit, newest_first=True, wanted=wanted) == meant[::-1], wanted


def test_a_page_renders_a_bounded_number_of_decisions(db: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    ctx = context(db)
    for name in ("a", "b", "c"):
        node(db, ctx, name, cpus=4)
    made = created(ctx)
    assert redirected(db, ctx, made) is not None
    assert redirected(db, ctx, made) is not None
    monkeypatch.setattr(timeline, "DECISIONS_MAX", 1)
    page = timeline.of_instance(ctx, made.uuid, limit=1000, newest_first=False)

    assert messages(list(page.events)).count("started scheduling") == 1
    assert page.next_position is not None
