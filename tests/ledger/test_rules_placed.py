"""Rules of an instance, from its create to its end: what counts as a neighbour, what is answered, what is recorded."""

from __future__ import annotations

import json
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import pytest

from fleet.ledger import charges, moves, namespaces, nodes, operations
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database
from fleet.model.admission import AdmissionOutcome, Admitted, Busy, RuleBroken
from fleet.model.request import PlacementRequest
from fleet.placement.rules.enforced import Enforced
from fleet.services import settle
from fleet.services.context import Context
from fleet.services.create import Created
from fleet.services.delete import delete_instance
from fleet.services.redirect import redirect
from tests.ledger import fleet_of, placing, racing, ruling
from tests.ledger.holding import Other, open_transaction
from tests.ledger.placing import create, created, overtaken, refused, walk_of
from tests.ledger.ruling import apart

WITH_WEB = {"affinity": {"require_with_tag": ["role=web"]}}
HOLD = "UPDATE scheduler_node_capacity SET generation = generation WHERE node_id = {node_id}"


def fleet_of_two(db: Database, **config: str) -> tuple[Context, dict[str, int]]:
    ctx = placing.context(db, **config)
    return ctx, {name: placing.node(db, ctx, name, {"rack": "r1" if name == "a" else "r2"}) for name in ("a", "b")}


def finish(db: Database, made: Created) -> None:
    """Its worker has made it."""
    leased = operations.lease(db, made.operation_id, "worker", 60)
    assert leased is not None
    assert settle.settle_create(db, leased)


def test_drafts_count_and_an_instance_that_is_being_deleted_frees_its_place_at_once(db: Database) -> None:
    ctx, _ = fleet_of_two(db)
    first, second = created(ctx, apart("db")), created(ctx, apart("db"))
    assert {first.node, second.node} == {"a", "b"}
    assert refused(create(ctx, apart("db"))).code == "affinity_unsatisfied"
    delete_instance(ctx, first.uuid, None)

    assert created(ctx, apart("db")).node == first.node


def test_instances_of_another_namespace_are_never_seen(db: Database) -> None:
    ctx, _ = fleet_of_two(db)
    namespaces.ensure(db, "other")
    for _ in range(2):
        created(ctx, apart("db"), namespace="other")

    assert {created(ctx, apart("db")).node, created(ctx, apart("db")).node} == {"a", "b"}
    assert refused(create(ctx, {"affinity": {"require_with_tag": ["nobody"]}})).code == "affinity_unsatisfiable"


def test_a_required_neighbour_is_found_on_its_node_and_missed_when_it_is_gone(db: Database) -> None:
    ctx, _ = fleet_of_two(db)
    assert refused(create(ctx, WITH_WEB)).code == "affinity_unsatisfiable"
    web = created(ctx, {"tags": {"role": "web"}})
    assert {created(ctx, WITH_WEB).node for _ in range(4)} == {web.node}
    delete_instance(ctx, web.uuid, None)

    assert refused(create(ctx, WITH_WEB)).code == "affinity_unsatisfiable"


@pytest.mark.vectors
def test_b27_a_node_without_the_label_fails_both_operators_and_the_answer_says_how_many_lack_it(db: Database) -> None:
    ctx = placing.context(db)
    placing.node(db, ctx, "racked", {"rack": "r1"})
    placing.node(db, ctx, "bare")
    has = {
        "placement_rules": [{"resource": "virtual_machine", "operator": "has", "tags": {"a": "b"}, "within": "rack"}]
    }
    assert created(ctx, apart("db", within="rack")).node == "racked"
    last = refused(create(ctx, apart("db", within="rack")))
    assert last.counts["placement_rules"] == {"rule_label_missing": 1, "rules_not_satisfied": 1}
    assert refused(create(ctx, has)).code == "affinity_unsatisfied"
    nodes.update(db, "racked", {"labels": {}})
    outcome = refused(create(ctx, apart("other", within="rack")))

    assert outcome.code == "affinity_unsatisfied"
    assert outcome.counts["placement_rules"] == {"rule_label_missing": 2}
    assert "2 of 2 nodes lack the label rack (bare, racked)" in outcome.detail


def test_preferred_rules_yield_when_nobody_satisfies_them(db: Database) -> None:
    ctx, _ = fleet_of_two(db, affinity_matching="preferred")
    for _ in range(2):
        created(ctx, apart("db"))

    third = created(ctx, apart("db"))
    assert [step["outcome"] for step in walk_of(db, third.decision_id)] == []


def test_preferred_rules_do_not_yield_for_a_lock(maria: Database) -> None:
    ctx, ids = fleet_of_two(maria, affinity_matching="preferred")
    first = created(ctx, apart("db"))
    free = ids["b" if first.node == "a" else "a"]
    with open_transaction(maria) as conn:
        conn.exec_driver_sql(HOLD.format(node_id=free))
        assert refused(create(ctx, apart("db"))).code == "placement_busy"

    assert fleet_of.charged_to(maria) == {first.uuid: ids[first.node]}


@pytest.mark.parametrize(
    "body", [apart("db"), apart("db", within="rack"), {"affinity": {"require_without_tag": ["x"]}}]
)
def test_enforced_rules_with_every_candidate_locked_are_busy_and_not_unsatisfied(
    maria: Database, body: dict[str, Any]
) -> None:
    ctx, ids = fleet_of_two(maria)
    with open_transaction(maria) as conn:
        for node_id in ids.values():
            conn.exec_driver_sql(HOLD.format(node_id=node_id))
        outcome = refused(create(ctx, body))

    assert (outcome.code, outcome.transient) == ("placement_busy", True)


def test_a_node_of_the_group_that_is_locked_makes_the_try_busy_although_the_candidate_is_free(maria: Database) -> None:
    ctx = placing.context(maria)
    ids = {name: placing.node(maria, ctx, name, {"rack": "r1"}) for name in ("a", "b")}
    enforced = Enforced.of(
        PlacementRequest.model_validate({"cpus": 1, "memory_mb": 1, **apart("db", within="rack")}), ()
    )
    with open_transaction(maria) as conn:
        conn.exec_driver_sql(HOLD.format(node_id=ids["b"]))
        assert isinstance(fleet_of.admit(maria, fleet_of.ask(ids["a"], enforced=enforced)), Busy)

    assert isinstance(fleet_of.admit(maria, fleet_of.ask(ids["a"], enforced=enforced)), Admitted)


def test_a_label_of_the_selector_that_changes_meanwhile_is_seen_under_the_lock_and_by_the_next_attempt(
    db: Database,
) -> None:
    ctx, _ = fleet_of_two(db)
    selector = {"placement": {"labels": {"rack": "r1"}}}

    def relabel() -> None:
        nodes.update(db, "a", {"labels": {"rack": "r3"}})

    outcome = refused(create(overtaken(ctx, relabel), selector))

    assert outcome.code == "labels_unmatched"
    broken = {"node": "a", "outcome": "rulebroken", "rule": "placement.labels rack=r1"}
    assert walk_of(db, outcome.decision_id) == [broken]
    assert created(ctx, {"placement": {"labels": {"rack": "r3"}}}).node == "a"


@pytest.mark.parametrize(
    ("declared", "other", "field"),
    [({"region": "eu"}, {"region": "us"}, "region eu"), ({"arch": "arm64"}, {"arch": "amd64"}, "arch arm64")],
)
def test_a_region_or_architecture_that_changes_meanwhile_is_seen_under_the_lock(
    db: Database, declared: dict[str, str], other: dict[str, str], field: str
) -> None:
    ctx, _ = fleet_of_two(db)
    nodes.update(db, "a", declared)
    ctx.snapshots.view(fresh_since=ctx.elapsed())

    outcome = refused(create(overtaken(ctx, lambda: nodes.update(db, "a", other)), declared))

    assert outcome.code == "out_of_capacity"
    assert {"node": "a", "outcome": "rulebroken", "rule": field} in walk_of(db, outcome.decision_id)


@pytest.mark.parametrize("to", [{"rack": "r1"}, {}])
def test_a_label_that_changes_meanwhile_is_seen_under_the_lock_and_by_the_next_attempt(
    db: Database, to: dict[str, str]
) -> None:
    ctx, _ = fleet_of_two(db)
    first = created(ctx, apart("db", within="rack"))
    free = "b" if first.node == "a" else "a"
    rack = "r1" if first.node == "a" else "r2"
    moved = {"rack": rack} if to else {}
    outcome = refused(
        create(overtaken(ctx, lambda: nodes.update(db, free, {"labels": moved})), apart("db", within="rack"))
    )

    assert outcome.code == "affinity_unsatisfied"
    broken = {"node": free, "outcome": "rulebroken", "rule": "placement_rules[0]"}
    assert broken in walk_of(db, outcome.decision_id)


def test_labels_do_not_change_while_an_admission_holds_the_node(maria: Database) -> None:
    _, ids = fleet_of_two(maria)
    url = maria.url.render_as_string(hide_password=False)
    with open_transaction(maria) as conn:
        conn.exec_driver_sql(HOLD.format(node_id=ids["a"]))
        other = Other(url, lambda db: nodes.update(db, "a", {"labels": {"rack": "r9"}}))
        other.stands(maria)
        assert nodes.get(maria, "a").labels == {"rack": "r1"}  # type: ignore[union-attr]
    other.result()

    assert fleet_of.rows(maria, "SELECT value FROM node_labels WHERE node_id = :id", id=ids["a"]) == [{"value": "r9"}]


def test_labels_given_at_registration_and_given_up_later_are_kept_one_a_row(db: Database) -> None:
    for labels in ({"rack": "r1", "tier": "x"}, {"rack": "r2"}, {}):
        node_id = fleet_of.register(db, "n", labels=labels)
        found = fleet_of.rows(db, "SELECT label, value FROM node_labels WHERE node_id = :id", id=node_id)
        assert {row["label"]: row["value"] for row in found} == labels


def test_a_redirect_breaks_no_rule_and_is_no_neighbour_of_itself(db: Database) -> None:
    ctx = placing.context(db)
    for name, rack in (("a", "r1"), ("b", "r1"), ("c", "r2")):
        placing.node(db, ctx, name, {"rack": rack})
    first = created(ctx, {**apart("db", within="rack"), "placement": {"labels": {"rack": "r1"}}})
    leased = operations.lease(db, first.operation_id, "worker", 60)
    assert leased is not None
    # The other node of the rack: its own draft is still charged to the one it leaves.
    assert redirect(ctx, leased, "unfit") == ({"a", "b"} - {first.node}).pop()
    fleet_of.assert_exact(db)


def test_a_redirect_finds_no_node_where_its_rule_would_break(db: Database) -> None:
    ctx, ids = fleet_of_two(db)
    first, second = created(ctx, apart("db")), created(ctx, apart("db"))
    leased = operations.lease(db, first.operation_id, "worker", 60)
    assert leased is not None
    assert redirect(ctx, leased, "unfit") is None

    assert fleet_of.charged_to(db) == {first.uuid: ids[first.node], second.uuid: ids[second.node]}


def move_of(db: Database, made: Created, to: int, body: dict[str, Any]) -> NodeAsk:
    (charge,) = charges.of_instance(db, made.uuid)
    request = PlacementRequest.model_validate({"cpus": 1, "memory_mb": 64, **body})
    return NodeAsk(
        instance_uuid=made.uuid,
        namespace=fleet_of.NAMESPACE,
        node_id=to,
        amounts=charge.amounts,
        demand=Decimal(0),
        target_load=Decimal(0),
        sample_age_max_seconds=120,
        enforced=Enforced.of(request, ()),
    )


@pytest.mark.vectors
@pytest.mark.parametrize("within", [None, "rack"])
def test_b26_of_two_moves_of_one_group_to_one_node_one_wins(
    maria: Database, mariadb_ledger_url: str, within: str | None
) -> None:
    ctx, _ = fleet_of_two(maria)
    third = placing.node(maria, ctx, "c", {"rack": "r3"})
    for round_ in range(10):
        body = apart(f"db-{round_}", within=within)
        made = [created(ctx, {**body, "placement": {"node": name}}) for name in ("a", "b")]
        for one in made:
            finish(maria, one)
        asks = [move_of(maria, one, third, body) for one in made]
        with ruling.racing(mariadb_ledger_url, 2) as racers:
            outcomes = racers.run(moving(asks))
        assert sorted(type(one).__name__ for one in outcomes) == ["Admitted", "RuleBroken"]
        winner = next(one for one, outcome in zip(made, outcomes, strict=True) if isinstance(outcome, Admitted))
        # A place that is on its way counts for everybody.
        assert refused(create(ctx, {**body, "placement": {"node": "c"}})).code == "affinity_unsatisfied"
        assert moves.abort(maria, winner.uuid, "test")
    fleet_of.assert_exact(maria)


def moving(asks: list[NodeAsk]) -> Callable[[Context, int], AdmissionOutcome]:
    """Begin one of these moves each; a lock is tried again."""

    def begin(db: Database, wanted: NodeAsk, _pause: racing.Pause) -> AdmissionOutcome:
        return moves.begin(db, wanted)

    def move(ctx: Context, at: int) -> AdmissionOutcome:
        return racing.until_decided(ctx.database, lambda: None, begin, asks[at])

    return move


def test_two_moves_that_nobody_judges_again_both_win(maria: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    ruling.naively(monkeypatch)
    ctx, _ = fleet_of_two(maria)
    third = placing.node(maria, ctx, "c")
    # Pinned: one that is on the destination already does not move there.
    made = [created(ctx, {**apart("db"), "placement": {"node": name}}) for name in ("a", "b")]

    assert all(isinstance(moves.begin(maria, move_of(maria, one, third, apart("db"))), Admitted) for one in made)


def test_a_destination_that_an_operator_names_overrides_the_rules_and_is_recorded(db: Database) -> None:
    ctx, ids = fleet_of_two(db)
    first, second = created(ctx, apart("db")), created(ctx, apart("db"))
    wanted = move_of(db, first, ids[second.node], apart("db"))
    assert isinstance(moves.begin(db, wanted), RuleBroken)
    assert isinstance(moves.begin(db, wanted, named=True), Admitted)

    (event,) = fleet_of.events_of(db, moves.OVERRIDDEN)
    assert (event["object_id"], event["level"]) == (first.uuid, "warning")
    fleet_of.assert_exact(db)


def test_a_moving_instance_counts_on_both_nodes_until_the_move_ends(db: Database) -> None:
    ctx, ids = fleet_of_two(db)
    pinned = {name: {**apart("db"), "placement": {"node": name}} for name in ids}
    first = created(ctx, pinned["a"])
    assert isinstance(moves.begin(db, move_of(db, first, ids["b"], apart("db"))), Admitted)
    assert {refused(create(ctx, body)).code for body in pinned.values()} == {"affinity_unsatisfied"}
    assert moves.settle(db, first.uuid)
    assert refused(create(ctx, pinned["b"])).code == "affinity_unsatisfied"

    assert created(ctx, pinned["a"]).node == "a"


def test_weights_are_taken_for_wishes_and_the_instance_says_so(db: Database) -> None:
    ctx, _ = fleet_of_two(db)
    web = created(ctx, {"tags": ["web"]})
    liked = created(ctx, {"metadata": {"affinity": {"web": 100, "noisy": -3}}})
    assert liked.node == web.node

    (event,) = fleet_of.events_of(db, "deprecated weighted affinity specification accepted")
    assert event["object_id"] == liked.uuid
    payload = json.loads(event["payload"])
    assert payload["affinity"] == {"web": 100, "noisy": -3}
    assert payload["mapped_to"] == {"prefer_with_tag": ["web"], "prefer_without_tag": ["noisy"]}
    assert payload["note"]
