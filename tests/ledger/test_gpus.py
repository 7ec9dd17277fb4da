"""GPUs in the ledger: given by uuid or by count with the charge, given back exactly, refreshed by uuid."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from fleet.ledger import ground_truth, growth, leases, moves, nodes, samples
from fleet.ledger.database import Database
from fleet.ledger.reconcile import reconcile
from fleet.ledger.verify import verify
from fleet.model.admission import Admitted, AlreadyPlaced, Refused, Stage
from fleet.model.errors import Conflict, InvalidRequest
from fleet.model.gpu_report import ReportedUnit
from tests.ledger import fleet_of, gpus_of
from tests.ledger.gpus_of import ask, card, slice_of

# --- given with the charge ---------------------------------------------------------------------------------------


def admitted(db: Database, wanted: Any) -> Admitted:
    outcome = fleet_of.admit(db, wanted)
    assert isinstance(outcome, Admitted), outcome
    return outcome


def test_an_instance_gets_the_first_free_cards_in_inventory_order(db: Database) -> None:
    node_id = gpus_of.node(db, gpus=[card("GPU-c"), card("GPU-a"), card("GPU-b")])
    wanted = ask(node_id, 2)

    assert admitted(db, wanted).gpu_uuids == ("GPU-c", "GPU-a")
    assert gpus_of.bound(db) == {"GPU-c": wanted.instance_uuid, "GPU-a": wanted.instance_uuid}
    assert admitted(db, ask(node_id)).gpu_uuids == ("GPU-b",)
    fleet_of.assert_exact(db)


def test_too_few_free_gpus_are_a_refusal_on_capacity_with_figures_and_nothing_stands(db: Database) -> None:
    node_id = gpus_of.node(db, gpus=[card(), card()])
    admitted(db, ask(node_id))

    outcome = fleet_of.admit(db, ask(node_id, 2))

    assert isinstance(outcome, Refused)
    assert (outcome.failing_stage, outcome.ineligible) == (Stage.GPU, "")
    (figure,) = outcome.figures
    assert (figure.dimension, figure.limit, figure.used, figure.requested) == ("gpus", 2, 1, 2)
    assert figure.exceeded
    assert fleet_of.used(db, node_id)[3] == 1
    fleet_of.assert_exact(db)


def test_a_node_that_only_counts_gives_so_many(db: Database) -> None:
    node_id = gpus_of.node(db, gpu_count=3, gpu_kind="a100", mig_profiles={"1g.10gb": 2})

    assert admitted(db, ask(node_id, 2, "a100")).gpu_uuids == ()
    admitted(db, ask(node_id, 2, "a100", "1g.10gb"))
    for refused in (ask(node_id, 2), ask(node_id, 1, "A100"), ask(node_id, 1, "", "1g.10gb")):
        outcome = fleet_of.admit(db, refused)
        assert isinstance(outcome, Refused)
        assert outcome.failing_stage is Stage.GPU
    assert (gpus_of.pool(db, node_id), gpus_of.pool(db, node_id, "1g.10gb")) == ((2, 3), (2, 2))
    fleet_of.assert_exact(db)


def test_a_declared_count_keeps_the_other_cards_back(db: Database) -> None:
    node_id = gpus_of.node(db, gpus=[card(), card(), card()], gpu_count=2)
    first = ask(node_id)
    admitted(db, first)

    assert isinstance(fleet_of.admit(db, ask(node_id, 2)), Refused)
    admitted(db, ask(node_id))
    assert isinstance(fleet_of.admit(db, ask(node_id)), Refused)
    fleet_of.delete(db, first.instance_uuid)
    admitted(db, ask(node_id))
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("hindered", [{"mig_mode": True}])
def test_a_card_in_mig_mode_is_no_whole_card(db: Database, hindered: dict[str, Any]) -> None:
    node_id = gpus_of.node(db, gpus=[card("GPU-cut", **hindered), card("GPU-whole")])

    assert admitted(db, ask(node_id)).gpu_uuids == ("GPU-whole",)
    assert isinstance(fleet_of.admit(db, ask(node_id)), Refused)


def test_a_create_that_is_repeated_gets_no_second_card(db: Database) -> None:
    node_id = gpus_of.node(db, gpus=[card(), card()])
    wanted = ask(node_id)
    admitted(db, wanted)

    assert fleet_of.admit(db, wanted) == AlreadyPlaced(node_id)
    assert len(gpus_of.bound(db)) == 1


# --- given back exactly ------------------------------------------------------------------------------------------


def test_two_a100_and_two_instances_release_of_the_first_leaves_exactly_the_seconds(db: Database) -> None:
    node_id = gpus_of.node(db, gpus=[card("GPU-1"), card("GPU-2")])
    first, second = ask(node_id, kind="a100"), ask(node_id, kind="a100")
    admitted(db, first)
    admitted(db, second)

    fleet_of.delete(db, first.instance_uuid)
    fleet_of.delete(db, first.instance_uuid)

    assert gpus_of.bound(db) == {"GPU-2": second.instance_uuid}
    fleet_of.assert_exact(db)
    assert admitted(db, ask(node_id)).gpu_uuids == ("GPU-1",)


def test_a_counted_release_gives_back_what_was_counted_once(db: Database) -> None:
    node_id = gpus_of.node(db, gpu_count=4)
    first, second = ask(node_id, 3), ask(node_id)
    admitted(db, first)
    admitted(db, second)
    for _ in range(2):
        fleet_of.delete(db, first.instance_uuid)
    assert gpus_of.pool(db, node_id) == (1, 4)
    fleet_of.assert_exact(db)


def moving(db: Database) -> tuple[int, int, Any]:
    here, there = (gpus_of.node(db, gpus=[card(f"GPU-{side}-1"), card(f"GPU-{side}-2")]) for side in "ab")
    wanted = ask(here, 1, sleepy=True)
    admitted(db, wanted)
    fleet_of.settle(db, wanted.instance_uuid)
    return here, there, wanted


@pytest.mark.parametrize(("end", "held"), [("settle", "GPU-b-1"), ("abort", "GPU-a-1"), ("release", None)])
def test_a_move_holds_units_on_both_nodes_until_it_ends(db: Database, end: str, held: str | None) -> None:
    here, there, wanted = moving(db)
    uuid = wanted.instance_uuid
    to = ask(there, 1, sleepy=True, instance_uuid=uuid)
    assert isinstance(moves.begin(db, to), Admitted)
    assert gpus_of.bound(db) == {"GPU-a-1": uuid, "GPU-b-1": uuid}
    assert [fleet_of.row(db, node)["sleepy_memory_mb"] for node in (here, there)] == [1, 1]
    fleet_of.assert_exact(db)

    ends: dict[str, Callable[[], Any]] = {
        "settle": lambda: moves.settle(db, uuid, rows=lambda conn: fleet_of.moved_instance(conn, to)),
        "abort": lambda: moves.abort(db, uuid, "no"),
        "release": lambda: fleet_of.delete(db, uuid),
    }
    assert ends[end]()
    assert gpus_of.bound(db) == ({held: uuid} if held else {})
    fleet_of.assert_exact(db)


def test_a_move_that_was_decided_for_other_gpus_is_refused(db: Database) -> None:
    _, there, wanted = moving(db)

    outcome = moves.begin(db, ask(there, 2, sleepy=True, instance_uuid=wanted.instance_uuid))

    assert isinstance(outcome, Refused)
    assert outcome.ineligible == "charge_changed"
    fleet_of.assert_exact(db)


def test_a_move_to_the_node_that_holds_the_instance_is_refused(db: Database) -> None:
    node_id = gpus_of.node(db, gpus=[card("GPU-a"), card("GPU-b")])
    wanted = ask(node_id)
    admitted(db, wanted)

    outcome = moves.begin(db, ask(node_id, instance_uuid=wanted.instance_uuid))

    assert isinstance(outcome, Refused)
    assert outcome.ineligible == "already_there"
    assert gpus_of.bound(db) == {"GPU-a": wanted.instance_uuid}
    fleet_of.assert_exact(db)


@pytest.mark.parametrize("backwards", [False, True])
def test_a_redirect_gives_back_at_the_source_and_binds_anew(db: Database, *, backwards: bool) -> None:
    pair = [gpus_of.node(db, gpus=[card("GPU-a")]), gpus_of.node(db, gpu_count=1)]
    here, there = reversed(pair) if backwards else pair
    wanted = ask(here)
    admitted(db, wanted)

    admitted(db, ask(there, instance_uuid=wanted.instance_uuid, source=here))

    assert len(gpus_of.bound(db)) == int(backwards)
    assert gpus_of.pool(db, pair[1]) == (0 if backwards else 1, 1)
    fleet_of.assert_exact(db)


def test_a_redirect_to_a_node_without_a_free_gpu_changes_nothing(db: Database) -> None:
    here, there = gpus_of.node(db, gpus=[card("GPU-a")]), gpus_of.node(db, gpu_count=1)
    admitted(db, ask(there))
    wanted = ask(here)
    admitted(db, wanted)

    assert isinstance(fleet_of.admit(db, ask(there, instance_uuid=wanted.instance_uuid, source=here)), Refused)
    assert gpus_of.bound(db) == {"GPU-a": wanted.instance_uuid}
    fleet_of.assert_exact(db)


def test_growth_in_place_leaves_gpus_alone_and_counts_what_sleeps(db: Database) -> None:
    node_id = gpus_of.node(db, gpus=[card("GPU-a"), card("GPU-b")])
    wanted = ask(node_id, sleepy=True, memory_mb=8)
    admitted(db, wanted)

    for memory_mb in (32, 4):
        assert isinstance(
            growth.grow(db, fleet_of.ask(node_id, memory_mb=memory_mb, instance_uuid=wanted.instance_uuid)), Admitted
        )
        assert fleet_of.row(db, node_id)["sleepy_memory_mb"] == memory_mb
        assert gpus_of.bound(db) == {"GPU-a": wanted.instance_uuid}
        assert list(verify(db).differences) == []


# --- refreshed by uuid -------------------------------------------------------------------------------------------


def republish(db: Database, name: str, **more: Any) -> None:
    fleet_of.publish(db, name, cpus=1000, **more)


def test_a_sample_that_was_not_probed_leaves_the_inventory_and_an_empty_one_empties_it(db: Database) -> None:
    node_id = gpus_of.node(db, "n", gpus=[card("GPU-a")])
    republish(db, "n")
    assert gpus_of.states(db, node_id) == {"GPU-a": False}
    republish(db, "n", mig_instances=[])
    assert gpus_of.states(db, node_id) == {"GPU-a": False}
    republish(db, "n", gpus=[])
    assert gpus_of.states(db, node_id) == {"GPU-a": True}
    assert isinstance(fleet_of.admit(db, ask(node_id)), Refused)


def test_a_unit_that_is_gone_is_missing_flagged_once_and_itself_again_when_it_returns(db: Database) -> None:
    both = [card("GPU-a"), card("GPU-b")]
    node_id = gpus_of.node(db, "n", gpus=both)
    wanted = ask(node_id)
    admitted(db, wanted)

    for _ in range(2):
        republish(db, "n", gpus=both[1:])
    assert gpus_of.states(db, node_id) == {"GPU-a": True, "GPU-b": False}
    assert gpus_of.bound(db) == {"GPU-a": wanted.instance_uuid}
    gone = fleet_of.events_of(db, "instance bound to a gpu that is gone")
    assert [(event["object_type"], event["object_id"]) for event in gone] == [
        ("instance", wanted.instance_uuid),
        ("node", "n"),
    ]
    assert admitted(db, ask(node_id)).gpu_uuids == ("GPU-b",)
    fleet_of.assert_exact(db)

    republish(db, "n", gpus=both)
    assert gpus_of.states(db, node_id)["GPU-a"] is False
    assert gpus_of.bound(db)["GPU-a"] == wanted.instance_uuid
    assert len(fleet_of.events_of(db, "gpu of an instance is back")) == 2
    assert isinstance(fleet_of.admit(db, ask(node_id)), Refused)


def test_a_missing_unit_that_is_given_back_is_not_free(db: Database) -> None:
    node_id = gpus_of.node(db, "n", gpus=[card("GPU-a")])
    wanted = ask(node_id)
    admitted(db, wanted)
    republish(db, "n", gpus=[])
    fleet_of.delete(db, wanted.instance_uuid)

    assert gpus_of.bound(db) == {}
    assert isinstance(fleet_of.admit(db, ask(node_id)), Refused)
    fleet_of.assert_exact(db)


def test_a_sample_with_a_uuid_twice_keeps_it_once_and_tells_it(db: Database) -> None:
    node_id = gpus_of.node(db, "n", gpus=[])
    for _ in range(2):
        republish(db, "n", gpus=[card("GPU-a"), card("GPU-a", "other"), card(" "), card("GPU-b")])

    assert gpus_of.states(db, node_id) == {"GPU-a": False, "GPU-b": False}
    view = nodes.get(db, "n")
    assert view is not None
    assert "'GPU-a' stands twice" in view.failed["gpus"]
    assert [one.reported.model for one in view.gpus.units] == [gpus_of.A100, gpus_of.A100]
    assert len(fleet_of.events_of(db, "gpus not taken in")) == 1
    with pytest.raises(InvalidRequest, match="GPU-a"):
        republish(db, "n", gpus=[card("GPU-a"), card("GPU-a")], strict_gpus=True)


def test_a_uuid_that_another_node_has_is_skipped_and_the_rest_of_the_sample_is_kept(db: Database) -> None:
    gpus_of.node(db, "a", gpus=[card("GPU-a")])
    node_id = gpus_of.node(db, "b", gpus=[card("GPU-a"), card("GPU-b")])

    assert gpus_of.states(db, node_id) == {"GPU-b": False}
    (event,) = fleet_of.events_of(db, "gpus not taken in")
    assert (event["object_id"], json.loads(event["payload"])["reason"]) == (
        "b",
        "'GPU-a' is node 'a''s; 'b' reports it too",
    )
    assert fleet_of.row(db, node_id)["limit_cpus"] == 1000
    with pytest.raises(Conflict, match=r"'GPU-a' is node 'a''s; 'b' reports it too"):
        republish(db, "b", gpus=[card("GPU-a")], strict_gpus=True)
    assert gpus_of.states(db, node_id) == {"GPU-b": False}


def test_a_card_that_its_node_misses_and_nobody_holds_may_be_another_nodes(db: Database) -> None:
    here = gpus_of.node(db, "a", gpus=[card("GPU-a"), card("GPU-held")])
    holder = ask(here)
    admitted(db, holder)
    bound_uuid = next(iter(gpus_of.bound(db)))
    republish(db, "a", gpus=[])
    there = gpus_of.node(db, "b", gpus=[card("GPU-a"), card("GPU-held")])

    assert gpus_of.states(db, there) == {uuid: False for uuid in ("GPU-a", "GPU-held") if uuid != bound_uuid}
    assert set(gpus_of.states(db, here)) == {bound_uuid}


def test_a_smaller_count_keeps_what_is_used_and_offers_nothing(db: Database) -> None:
    node_id = gpus_of.node(db, "n", gpu_count=4)
    wanted = ask(node_id, 3)
    admitted(db, wanted)

    nodes.update(db, "n", {"gpu_count": 2})

    assert gpus_of.pool(db, node_id) == (3, 2)
    assert isinstance(fleet_of.admit(db, ask(node_id)), Refused)
    found = verify(db)
    assert [(item.node, item.dimension, item.used, item.limit) for item in found.over_limit] == [("n", "gpus", 3, 2)]
    assert found.differences == ()
    fleet_of.delete(db, wanted.instance_uuid)
    admitted(db, ask(node_id, 2))


def test_counted_gpus_are_bound_when_the_node_tells_its_cards(db: Database) -> None:
    node_id = gpus_of.node(db, "n", gpu_count=2, gpu_kind="a100", mig_profiles={"1g.10gb": 2})
    whole, cut = ask(node_id, 1, "a100"), ask(node_id, 1, "a100", "1g.10gb")
    admitted(db, whole)
    admitted(db, cut)

    parent = card("GPU-p", mig_mode=True)
    republish(
        db, "n", gpus=[parent, card("GPU-a"), card("GPU-b")], mig_instances=[slice_of(parent, "MIG-a", kind="a100")]
    )

    assert gpus_of.bound(db) == {"GPU-a": whole.instance_uuid, "MIG-a": cut.instance_uuid}
    assert (gpus_of.pool(db, node_id), gpus_of.pool(db, node_id, "1g.10gb")) == ((0, 2), (0, 2))
    assert isinstance(fleet_of.admit(db, ask(node_id, 1, "", "1g.10gb")), Refused)
    fleet_of.assert_exact(db)
    fleet_of.delete(db, whole.instance_uuid)
    assert gpus_of.bound(db) == {"MIG-a": cut.instance_uuid}
    fleet_of.assert_exact(db)


# --- hypervisors without GPUs, removal -----------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["", "firecracker"])
def test_gpus_need_a_backend_that_serves_them(db: Database, backend: str) -> None:
    for declared in ({"gpu_count": 2}, {"mig_profiles": {"1g.10gb": 1}}):
        with pytest.raises(InvalidRequest, match=r"GPUs"):
            fleet_of.register(db, "n", backend=backend, **declared)
    assert nodes.get(db, "n") is None
    node_id = gpus_of.node(db, "m", gpus=[card("GPU-a")], backend=backend)
    assert gpus_of.states(db, node_id) == {}
    with pytest.raises(InvalidRequest, match=r"GPUs"):
        republish(db, "m", gpus=[card("GPU-a")], strict_gpus=True)
    gpus_of.node(db, "q", gpu_count=1)
    with pytest.raises(InvalidRequest, match=r"GPUs"):
        nodes.update(db, "q", {"backend": backend})


def test_a_removed_node_forgets_its_gpus_and_another_may_have_them(db: Database) -> None:
    node_id = gpus_of.node(db, "a", gpus=[card("GPU-a")], gpu_count=1)
    samples.remove_node(db, "a")

    assert gpus_of.states(db, node_id) == {}
    there = gpus_of.node(db, "b", gpus=[card("GPU-a")])
    assert gpus_of.states(db, there) == {"GPU-a": False}


# --- truth ---------------------------------------------------------------------------------------------------------


def a_pass(db: Database) -> list[tuple[str, int, int]]:
    lease = leases.acquire(db, "reconciler", "test", 600) or leases.Lease("reconciler", "test", 1)
    return [(item.figure, item.old, item.new) for item in reconcile(db, lease, fleet_of.PLAIN).corrections]


def test_what_is_held_against_the_charges_is_found_and_set_right(db: Database) -> None:
    node_id = gpus_of.node(db, gpus=[card("GPU-a"), card("GPU-b"), card("GPU-c")], mig_profiles={"1g.10gb": 4})
    first, second, counted = ask(node_id), ask(node_id), ask(node_id, 1, "", "1g.10gb")
    for wanted in (first, second, counted):
        admitted(db, wanted)
    fleet_of.execute(db, "UPDATE node_gpus SET bound_to = 'nobody' WHERE uuid = 'GPU-a'")
    fleet_of.execute(db, "UPDATE node_gpus SET bound_to = :i WHERE uuid = 'GPU-c'", i=second.instance_uuid)
    fleet_of.execute(db, "UPDATE node_gpu_pools SET used = 3 WHERE profile = '1g.10gb'")

    wrong = {
        f"gpus bound to {first.instance_uuid}": (0, 1),
        f"gpus bound to {second.instance_uuid}": (2, 1),
        "gpus bound to nobody": (1, 0),
        "gpus_used 1g.10gb": (3, 1),
    }
    assert {item.figure: (item.stored, item.recomputed) for item in verify(db).differences} == wrong
    assert {figure: (old, new) for figure, old, new in a_pass(db)} == wrong

    fleet_of.assert_exact(db)
    assert len(fleet_of.events_of(db, "gpus of an instance corrected")) == 3
    assert sorted(gpus_of.bound(db).values()) == sorted([first.instance_uuid, second.instance_uuid])
    assert a_pass(db) == []


def test_what_cannot_be_set_right_stays_a_difference_and_is_told_once(db: Database) -> None:
    node_id = gpus_of.node(db, gpus=[card("GPU-a")])
    wanted = ask(node_id)
    admitted(db, wanted)
    fleet_of.execute(db, "DELETE FROM node_gpus WHERE uuid = 'GPU-a'")

    assert [a_pass(db) for _ in range(2)] == [[], []]
    assert len(fleet_of.events_of(db, "gpus of an instance cannot be bound")) == 1
    assert [item.figure for item in verify(db).differences] == [f"gpus bound to {wanted.instance_uuid}"]


def test_sleeping_memory_is_counted_and_corrected(db: Database) -> None:
    node_id = fleet_of.node(db, cpus=8)
    sleepy = fleet_of.ask(node_id, memory_mb=64, sleepy=True)
    fleet_of.admitted(db, sleepy)
    fleet_of.admitted(db, fleet_of.ask(node_id, memory_mb=8))
    assert fleet_of.row(db, node_id)["sleepy_memory_mb"] == 64

    fleet_of.execute(db, "UPDATE scheduler_node_capacity SET sleepy_memory_mb = 5")
    assert a_pass(db) == [("sleepy_memory_mb", 5, 64)]
    fleet_of.delete(db, sleepy.instance_uuid)
    assert fleet_of.row(db, node_id)["sleepy_memory_mb"] == 0
    fleet_of.assert_exact(db)


def units(*names: str) -> list[ReportedUnit]:
    return [card(name) for name in names]


def test_ground_truth_keeps_what_the_charge_says_of_gpus_and_sleep(db: Database) -> None:
    here, there = gpus_of.node(db, gpus=units("GPU-a")), gpus_of.node(db, gpus=units("GPU-b"))
    wanted = ask(here, sleepy=True, memory_mb=16)
    admitted(db, wanted)

    seen = ground_truth.Sighting(
        instance_uuid=wanted.instance_uuid, namespace=wanted.namespace, node_id=there, amounts=wanted.amounts
    )
    assert ground_truth.record(db, seen).changed

    assert gpus_of.bound(db) == {"GPU-b": wanted.instance_uuid}
    assert fleet_of.row(db, there)["sleepy_memory_mb"] == 16
    fleet_of.assert_exact(db)


def test_ground_truth_charges_only_the_gpus_that_are_there_and_says_so(db: Database) -> None:
    here, there = gpus_of.node(db, gpus=units("GPU-a", "GPU-b")), gpus_of.node(db, gpus=units("GPU-c"))
    wanted = ask(here, 2)
    admitted(db, wanted)

    seen = ground_truth.Sighting(
        instance_uuid=wanted.instance_uuid, namespace=wanted.namespace, node_id=there, amounts=wanted.amounts
    )
    assert ground_truth.record(db, seen).changed

    assert gpus_of.bound(db) == {}
    (event,) = fleet_of.events_of(db, "gpus of an instance are not known where its domain is")
    assert event["level"] == "error"
    fleet_of.assert_exact(db)
