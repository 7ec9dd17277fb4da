"""How many more of a shape fit, on a real ledger: the number that is shown is the number that is admitted."""

from __future__ import annotations

from fleet.ledger import samples
from fleet.ledger.database import Database
from fleet.model.node import Scheduling
from fleet.model.request import InstanceRequest
from fleet.services.capacity import capacity
from fleet.services.context import Context
from fleet.services.create import Created
from tests.ledger import fleet_of, placing

MORE_THAN_FIT = 40


def shape(**changes: int) -> InstanceRequest:
    return InstanceRequest.model_validate({"cpus": 2, "memory_mb": 256, "disk_gb": 3, **changes})


def admitted(ctx: Context, asked: InstanceRequest) -> tuple[int, str]:
    """Create until refused; how many were admitted, and the code of the refusal.

    Each create sees the one before: within the few milliseconds for which counters are reused, measured room (which the
    guard does not judge) could be given once more.
    """
    body = asked.model_dump(exclude_defaults=True)
    for count in range(MORE_THAN_FIT):
        ctx.snapshots.refresh()
        outcome = placing.create(ctx, body)
        if not isinstance(outcome, Created):
            return count, outcome.code
    raise AssertionError("nothing was refused")


def test_what_fits_on_nodes_of_different_sizes_is_what_is_admitted(db: Database) -> None:
    ctx = placing.context(db, ram_overcommit_ratio="1.5", instance_overhead_mb="64")
    placing.node(db, ctx, "wide", cpus=9)
    placing.node(db, ctx, "tall", memory_mb=1500)
    placing.node(db, ctx, "deep", disk_gb=10)
    placing.node(db, ctx, "few", max_instances=2)
    placing.node(db, ctx, "closed")
    samples.set_scheduling(db, "closed", Scheduling.CORDONED)

    found = capacity(ctx, fleet_of.NAMESPACE, shape())
    by_name = {item["node"]: (item["fits"], item["binds"]) for item in found.nodes(0, 10)}

    assert by_name == {
        "wide": (4, "cpus"),
        "tall": (6, "memory_mb"),  # the last still sees 1500 - ceil(5 * 320 / 1.5) >= 320
        "deep": (3, "disk_gb"),
        "few": (2, "instances"),
        "closed": (0, "scheduling_state"),
    }
    assert admitted(ctx, shape()) == (found.fits, "out_of_capacity")
    assert capacity(ctx, fleet_of.NAMESPACE, shape()).fits == 0


def test_an_empty_fleet_takes_none(db: Database) -> None:
    found = capacity(placing.context(db), fleet_of.NAMESPACE, shape())

    assert (found.fits, found.binds, list(found.nodes(0, 10))) == (0, None, [])


def test_a_claim_bounds_the_count_only_where_it_is_enforced(db: Database) -> None:
    ctx = placing.context(db, claim_enforcement="hard")
    placing.node(db, ctx, "n1", cpus=20)
    fleet_of.claim(db, limit=(7, 10_000, 1000), used=(0, 0, 0))
    lenient = placing.process(db)

    found = capacity(ctx, fleet_of.NAMESPACE, shape())

    assert (found.fits, found.binds, found.found.total) == (3, "claim cpus", 10)
    assert found.summary()["charged_to"] == {"payer": "claim", "fits": 3, "binds": "cpus"}
    assert admitted(ctx, shape()) == (3, "claim_exceeded")
    assert capacity(lenient, "others", shape()).bound.payer == "cluster"


def test_an_advisory_claim_bounds_nothing(db: Database) -> None:
    ctx = placing.context(db)
    placing.node(db, ctx, "n1", cpus=20)
    fleet_of.claim(db, limit=(7, 10_000, 1000))

    found = capacity(ctx, fleet_of.NAMESPACE, shape())

    assert (found.fits, found.binds, found.bound.fits) == (10, "cpus", None)
    assert admitted(ctx, shape()) == (10, "out_of_capacity")


def test_what_others_claimed_is_not_offered_twice(db: Database) -> None:
    ctx = placing.context(db)
    placing.node(db, ctx, "n1", cpus=20)
    fleet_of.claim(db, limit=(13, 10_000, 500), namespace="others")

    found = capacity(ctx, fleet_of.NAMESPACE, shape())

    assert (found.fits, found.binds) == (3, "cluster cpus")
    assert admitted(ctx, shape()) == (3, "out_of_capacity")
