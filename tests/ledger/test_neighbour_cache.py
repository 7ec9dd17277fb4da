"""The cache of neighbours: bounded, followed by stamps, and right again after what a stamp can miss."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from fleet.ledger import namespaces
from fleet.ledger import neighbours as rows
from fleet.ledger.database import Database
from fleet.ledger.snapshots import THOROUGH_OVERLAP_US
from fleet.model.request import PlacementRequest
from fleet.placement.stages.affinity import VALUE_SHOWN_MAX
from fleet.services import neighbours
from fleet.services.context import Context
from fleet.services.neighbours import NeighbourCache
from fleet.services.snapshots import RELOAD_SECONDS
from tests.documents import a_node
from tests.ledger import fleet_of, past, placing
from tests.ledger.ruling import apart
from tests.unit.placement.asking import snapshot_of


@pytest.fixture
def ctx(db: Database) -> Context:
    made = placing.context(db)
    placing.node(db, made, "n")
    return made


def looking(cache: NeighbourCache, namespace: str = fleet_of.NAMESPACE) -> Callable[..., set[str]]:
    """Look for the instances tagged role=db, on the node of these tests."""
    body = {"cpus": 1, "memory_mb": 64, "namespace": namespace, **apart("db")}
    request = PlacementRequest.model_validate(body)
    frame = snapshot_of(a_node(name="n", node_id=1)).frame

    def seen(*, fresh_since: float | None = None) -> set[str]:
        found = cache.seen(frame, request, fresh_since=fresh_since)
        assert found is not None
        return set(found)

    return seen


def test_an_instance_that_was_committed_late_is_found_by_a_fresh_look(db: Database, ctx: Context) -> None:
    seen = looking(NeighbourCache(db, time.monotonic))
    first = placing.created(ctx, {"tags": {"role": "db"}})
    with past.still(db) as now:
        assert seen() == seen() == {first.uuid}
    with past.still(db, now - THOROUGH_OVERLAP_US + 1000):
        late = placing.created(ctx, {"tags": {"role": "db"}})

    with past.still(db, now):
        assert seen() == {first.uuid}
        assert seen(fresh_since=time.monotonic()) == {first.uuid, late.uuid}


def test_a_burst_of_instances_is_not_read_again_before_every_decision(db: Database, ctx: Context) -> None:
    made = placing.created(ctx, {"tags": {"role": "db"}})
    read = rows.changed(db, fleet_of.NAMESPACE, 0)
    assert [one.uuid for one in read.found] == [made.uuid]

    assert not rows.changed(db, fleet_of.NAMESPACE, read.now_us).found


def test_what_no_stamp_tells_is_found_when_the_namespace_is_read_anew(db: Database, ctx: Context) -> None:
    clock = [0.0]
    seen = looking(NeighbourCache(db, lambda: clock[0]))
    with past.ago(db, 5):
        made = placing.created(ctx, {"tags": {"role": "db"}})
    assert seen() == {made.uuid}
    clock[0] = 1.0
    assert seen() == {made.uuid}
    fleet_of.execute(db, "DELETE FROM charges WHERE instance_uuid = :uuid", uuid=made.uuid)
    clock[0] = RELOAD_SECONDS - 1
    assert seen() == {made.uuid}
    clock[0] = RELOAD_SECONDS

    assert seen() == set()


def test_namespaces_that_nobody_asked_about_for_longest_are_forgotten(
    db: Database, ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(neighbours, "NAMESPACES_MAX", 2)
    cache = NeighbourCache(db, time.monotonic)
    for name in ("one", "two", "one", "three"):
        namespaces.ensure(db, name)
        assert looking(cache, name)() == set()
    assert list(cache._known) == ["one", "three"]

    monkeypatch.setattr(neighbours, "INSTANCES_MAX", 1)
    for _ in range(2):
        placing.created(ctx, {"tags": {"role": "db"}}, namespace="three")
    assert len(looking(cache, "three")()) == 2
    looking(cache, "one")()
    assert list(cache._known) == ["one"]


def test_long_values_that_nothing_is_compared_with_are_told_only_as_far_as_they_are_shown(
    db: Database, ctx: Context, monkeypatch: pytest.MonkeyPatch
) -> None:
    long, asked = "x" * 1000, "y" * 1000
    monkeypatch.setattr(neighbours, "UNCOMPARED_CHARACTERS_MAX", 2 * VALUE_SHOWN_MAX)
    for _ in range(3):
        placing.created(ctx, {"tags": {"role": long, "other": long}})
    placing.created(ctx, {"tags": {"role": asked}})
    body = {"cpus": 1, "memory_mb": 64, "namespace": fleet_of.NAMESPACE}
    frame = snapshot_of(a_node(name="n", node_id=1)).frame

    def tags(*entries: str) -> list[dict[str, str]]:
        request = PlacementRequest.model_validate({**body, "affinity": {"prefer_with_tag": list(entries)}})
        found = NeighbourCache(db, time.monotonic).seen(frame, request)
        assert found is not None
        return sorted((dict(one.tags) for one in found.values()), key=str)

    cut = {"role": "x" * (VALUE_SHOWN_MAX - 1) + "…"}
    assert tags("role", f"role={asked}") == sorted([cut, cut, {"role": "…"}, {"role": asked}], key=str)
    # A value that was left out is none that somebody asks for.
    assert {"role": "……"} in tags("role", "role=…")
    assert tags(f"role={long[:-1]}", "third") == []
