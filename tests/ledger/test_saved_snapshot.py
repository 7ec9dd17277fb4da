"""A saved snapshot decides as the service does, rules included; an instance is saved as its charge says."""

from __future__ import annotations

from fleet.ledger.database import Database
from fleet.model.admission import Admitted
from fleet.model.request import parse_placement_request
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from fleet.services.saved_snapshot import with_instances
from tests.ledger import fleet_of, placing
from tests.ledger.placing import create, created, refused
from tests.ledger.ruling import apart


def test_a_saved_snapshot_decides_by_rules_as_the_service_does(db: Database) -> None:
    ctx = placing.context(db)
    for name in ("a", "b"):
        placing.node(db, ctx, name, {"rack": name})
    first = created(ctx, apart("db"))
    request = parse_placement_request({"cpus": 1, "memory_mb": 64, **apart("db"), "namespace": fleet_of.NAMESPACE})

    one_left = Snapshot.from_json(with_instances(db, ctx.snapshots.peek()).to_json())
    assert decide(request, one_left, 1).ranked == tuple({"a", "b"} - {first.node})

    created(ctx, apart("db"))
    none_left = Snapshot.from_json(with_instances(db, ctx.snapshots.peek()).to_json())
    assert decide(request, none_left, 1).code == refused(create(ctx, apart("db"))).code == "affinity_unsatisfied"


def test_an_instance_is_saved_as_its_charge_says(db: Database) -> None:
    ctx = placing.context(db)
    placing.node(db, ctx, "a", {})
    made = created(ctx, apart("db"))

    (saved,) = with_instances(db, ctx.snapshots.peek()).to_json()["instances"]

    assert (saved["uuid"], saved["node"], saved["draft"]) == (made.uuid, "a", True)
    assert saved["tags"] == {"role": "db"}
    assert 0 <= saved["charge_age_seconds"] < 60


def test_what_is_placed_again_starts_from_the_instance_that_is_saved(db: Database) -> None:
    ctx = placing.context(db)
    node_id = placing.node(db, ctx, "a", {})
    made = created(ctx, {"sleep_after_idle_seconds": 60})
    assert fleet_of.settle(db, made.uuid)
    grown = fleet_of.ask(node_id, instance_uuid=made.uuid, memory_mb=64 + 32, sleepy=True)
    assert isinstance(fleet_of.grow(db, grown), Admitted)
    body = {"cpus": 1, "memory_mb": 64, "namespace": fleet_of.NAMESPACE, "reason": "resize", "instance": made.uuid}
    fleet = ctx.snapshots.peek()

    seen = ctx.neighbours.seen(fleet.frame, parse_placement_request(body))
    saved = with_instances(db, fleet).frame.instances

    assert seen is not None
    assert seen.get(made.uuid) == saved.get(made.uuid)
    found = seen.get(made.uuid)
    assert found is not None
    assert (found.grown_memory_mb, found.sleepy, found.draft) == (32, True, False)
