"""Where nodes were ranked and a guard said no: what is said to help does, and a stored decision says the same."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fleet.ledger import claim_grants, namespaces
from fleet.ledger.claim_grants import Granted
from fleet.ledger.database import Database, Sql
from fleet.ledger.samples import set_scheduling
from fleet.model.request import InstanceRequest, Reason
from fleet.model.resources import Amounts
from fleet.services import decisions
from fleet.services.capacity import capacity
from fleet.services.context import Context
from fleet.services.create import Created, create_instance
from fleet.services.explain import explain, explain_again
from fleet.services.fork import fork
from fleet.services.place import Refusal
from fleet.services.resize import resize
from tests.ledger import fleet_of, placing
from tests.ledger.fleet_of import ask
from tests.ledger.replacing import running

LOCK = Sql("SELECT node_id FROM scheduler_node_capacity WHERE node_id = :node_id FOR UPDATE")


@pytest.fixture
def ctx(db: Database) -> Context:
    return placing.context(db, claim_enforcement="hard")


def create(ctx: Context, **body: Any) -> Created | Refusal:
    request = InstanceRequest.model_validate({"cpus": 1, "memory_mb": 64, **body})
    return create_instance(ctx, fleet_of.NAMESPACE, request)


def told(ctx: Context, outcome: object) -> tuple[str, list[dict[str, Any]]]:
    """The code of a refusal and its remedies, which reading the decision shows too."""
    assert isinstance(outcome, Refusal), outcome
    assert outcome.remedies is not None
    assert outcome.decision_id is not None
    found = [one.as_dict() for one in outcome.remedies()]
    row = decisions.get(ctx, outcome.decision_id, None)
    assert decisions.record(ctx, row)["remedies"] == found
    return outcome.code, found


def fields(remedy: Mapping[str, Any]) -> dict[str, Any]:
    return {change["field"]: change["to"] for change in remedy["change"]}


def actions(found: list[dict[str, Any]]) -> list[str]:
    return [one["change"][0].get("action", "ask") for one in found]


def test_a_claim_that_is_full_says_how_much_less_fits_and_how_far_it_must_grow(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=8)
    claim = claim_grants.grant(db, fleet_of.NAMESPACE, Amounts(3, 128, 10), 3600, uuid="c" * 36)
    assert isinstance(claim, Granted)
    assert isinstance(create(ctx), Created)

    code, found = told(ctx, create(ctx, cpus=3, memory_mb=96))

    assert (code, actions(found)) == ("claim_exceeded", ["ask", "grow-claim", "wait"])
    less, grow, wait = found
    assert fields(less) == {"cpus": 2, "memory_mb": 64}
    assert less["text"] == ("Ask for 2 vCPUs instead of 3 and 64 MiB of memory instead of 96: then a fits.")
    assert fields(grow) == {"limit_cpus": 4, "limit_memory_mb": 160}
    assert [one["by"] for one in found] == ["caller", "operator", "time"]
    assert wait["change"] == [{"action": "wait", "payer": "claim", "frees": {"cpus": 1, "memory_mb": 32}}]
    # One more of either is still refused; the claim that grew takes what was asked.
    assert isinstance(create(ctx, cpus=2, memory_mb=65), Refusal)
    assert isinstance(create(ctx, cpus=3, memory_mb=64), Refusal)
    assert isinstance(claim_grants.change(db, claim.uuid, {"cpus": 4, "memory_mb": 160}), Granted)
    assert isinstance(create(ctx, cpus=3, memory_mb=96), Created)


def test_less_than_a_claim_takes_fits(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=8)
    fleet_of.claim(db, limit=(2, 1024, 10))

    _, found = told(ctx, create(ctx, cpus=3))

    # What was asked is more than the claim: no waiting helps.
    assert actions(found) == ["ask", "grow-claim"]
    assert isinstance(create(ctx, **fields(found[0])), Created)


def test_a_claim_that_cannot_grow_for_want_of_capacity_is_not_said_to(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=8)
    fleet_of.claim(db, limit=(2, 1024, 10))
    fleet_of.claim(db, limit=(6, 1024, 10), namespace="others")

    _, found = told(ctx, create(ctx, cpus=3))

    assert actions(found) == ["ask"]


def test_a_cluster_whose_rest_is_promised_says_what_is_left_and_what_to_add(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=8)
    namespaces.ensure(db, "others")
    claim = fleet_of.claim(db, limit=(6, 1024, 10), namespace="others")

    code, found = told(ctx, create(ctx, cpus=3))

    assert (code, actions(found)) == ("out_of_capacity", ["ask", "shrink-claims", "register"])
    assert fields(found[0]) == {"cpus": 2}
    assert found[1]["text"] == "Shrink or delete claims by 1 vCPU: that much of what they reserve is not used."
    assert found[2]["change"][0]["shape"] == {"cpus": 3, "memory_mb": 64, "disk_gb": 0}
    explained = explain(ctx, fleet_of.NAMESPACE, InstanceRequest(cpus=3, memory_mb=64)).as_dict()
    assert explained["remedies"] == found
    assert isinstance(claim_grants.change(db, claim, {"cpus": 5}), Granted)
    assert isinstance(create(ctx, cpus=3), Created)
    placing.node(db, ctx, "b", cpus=3, memory_mb=64)
    assert isinstance(create(ctx, cpus=3), Created)


def test_what_others_claims_hold_back_is_no_ones_to_read(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=8)
    fleet_of.claim(db, limit=(6, 1024, 10), namespace="others")

    outcome = create(ctx, cpus=3)

    assert isinstance(outcome, Refusal)
    row = decisions.get(ctx, outcome.decision_id or "", fleet_of.NAMESPACE)
    assert [note["idle"] for note in row.walk] == [{"cpus": 1}]
    assert "idle" not in outcome.extra


def test_claims_that_are_used_are_not_said_to_shrink(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=8)
    fleet_of.claim(db, limit=(6, 1024, 10), used=(6, 64, 0), namespace="others")

    assert actions(told(ctx, create(ctx, cpus=3))[1]) == ["ask", "register"]


def test_what_will_leave_is_waited_for(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=8)
    fleet_of.claim(db, limit=(6, 1024, 10), namespace="others")
    first = create(ctx, cpus=2)
    assert isinstance(first, Created)

    _, found = told(ctx, create(ctx))

    assert actions(found) == ["shrink-claims", "wait", "register"]
    assert found[1]["text"] == "Wait until instances of namespaces without a claim that hold 1 vCPU have gone."
    fleet_of.delete(db, first.uuid)
    assert isinstance(create(ctx), Created)


def test_a_fleet_that_filled_meanwhile_is_answered_by_a_decision_that_saw_it(db: Database, ctx: Context) -> None:
    ids = [placing.node(db, ctx, name, cpus=4) for name in ("a", "b", "c")]

    def fill() -> None:
        for node_id in ids:
            fleet_of.admitted(db, ask(node_id, cpus=3))

    outcome = create(placing.overtaken(ctx, fill), cpus=2)
    code, found = told(ctx, outcome)

    assert isinstance(outcome, Refusal)
    assert (code, outcome.stage) == ("out_of_capacity", "sufficient_idle_cpu")
    assert fields(found[0]) == {"cpus": 1}
    assert isinstance(create(ctx, cpus=1), Created)


def test_locks_prove_nothing_and_the_answer_says_who_has_room(maria: Database) -> None:
    ctx = placing.context(maria)
    node_id = placing.node(maria, ctx, "a", cpus=4)
    with maria.engine.begin() as other:
        LOCK.run(other, node_id=node_id)
        code, found = told(ctx, create(ctx))

    assert code == "placement_busy"
    assert [one["text"] for one in found] == ["Try again in a second: a has the room by what is committed now."]
    assert isinstance(create(ctx), Created)


def test_a_fork_says_what_would_help_on_its_own_node(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=4)
    source = running(ctx, {"cpus": 2})
    placing.node(db, ctx, "b", cpus=64)
    larger = InstanceRequest(cpus=3, memory_mb=64)

    code, found = told(ctx, fork(ctx, source.uuid, larger))

    assert (code, actions(found)) == ("out_of_capacity", ["ask", "wait"])
    assert fields(found[0]) == {"cpus": 2}
    assert found[1]["node"] == "a"
    set_scheduling(db, "a", "cordoned")
    code, found = told(ctx, fork(ctx, source.uuid, InstanceRequest(cpus=1, memory_mb=64)))
    assert (code, [one["change"] for one in found]) == ("pin_ineligible", [[{"action": "uncordon", "node": "a"}]])


def test_what_became_of_a_forks_node_after_the_decision_is_in_its_remedies(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=4)
    source = running(ctx, {"cpus": 2})
    late = placing.overtaken(ctx, lambda: set_scheduling(db, "a", "cordoned"))

    code, found = told(late, fork(late, source.uuid, InstanceRequest(cpus=1, memory_mb=64)))

    assert (code, [one["change"] for one in found]) == ("pin_ineligible", [[{"action": "uncordon", "node": "a"}]])


def test_growth_that_a_claim_refuses_says_how_far_it_may_grow(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=8)
    fleet_of.claim(db, limit=(4, 1024, 10))
    there = running(ctx, {"cpus": 2})

    code, found = told(ctx, resize(ctx, there.uuid, Amounts(5, 64, 0)))

    assert (code, fields(found[0])) == ("claim_exceeded", {"cpus": 4})
    assert not isinstance(resize(ctx, there.uuid, Amounts(4, 64, 0)), Refusal)


def test_an_explanation_says_who_pays_and_that_it_has_no_room(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=8)
    request = InstanceRequest(cpus=3, memory_mb=64)
    free = explain(ctx, fleet_of.NAMESPACE, request).as_dict()
    assert (free["charged_to"]["payer"], free["charged_to"]["refuses"]) == ("cluster", None)
    assert "remedies" not in free

    claim = fleet_of.claim(db, limit=(2, 1024, 10))
    told_so = explain(ctx, fleet_of.NAMESPACE, request).as_dict()
    refusal = create(ctx, cpus=3)

    assert told_so["outcome"] == "ranked"
    charged = told_so["charged_to"]
    assert (charged["payer"], charged["claim"]) == ("claim", claim)
    assert isinstance(refusal, Refusal)
    assert charged["refuses"] == {"code": refusal.code, "detail": refusal.detail}
    assert refusal.remedies is not None
    assert told_so["remedies"] == [one.as_dict() for one in refusal.remedies()]


def test_an_explanation_under_advisory_claims_is_not_bounded_by_the_claim(db: Database) -> None:
    ctx = placing.context(db)
    placing.node(db, ctx, "a", cpus=8)
    fleet_of.claim(db, limit=(2, 1024, 10))
    there = running(ctx, {"cpus": 2})

    assert explain(ctx, fleet_of.NAMESPACE, InstanceRequest(cpus=3, memory_mb=64)).payer.no is None
    assert explain_again(ctx, there.uuid, Reason.RESIZE, target={"cpus": 4}).payer.no is None


def test_an_explained_resize_asks_the_payer_for_the_growth_alone(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=8)
    placing.node(db, ctx, "b", cpus=8)
    fleet_of.claim(db, limit=(4, 1024, 10))
    there = running(ctx, {"cpus": 2})

    assert explain_again(ctx, there.uuid, Reason.RESIZE, target={"cpus": 4}).payer.no is None
    no = explain_again(ctx, there.uuid, Reason.RESIZE, target={"cpus": 5}).payer.no
    assert no is not None
    assert no.detail == "the namespace's claim has no room: cpus (limit 4, used 2, requested 3)"
    assert explain_again(ctx, there.uuid, Reason.MIGRATE).payer.no is None


def test_a_create_that_asks_for_no_disk_is_explained_as_the_guard_judges_it(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=8, disk_gb=100)
    placing.node(db, ctx, "b", cpus=8, disk_gb=5)
    assert isinstance(create(ctx, disk_gb=50), Created)
    # A disk was taken out: the cluster's side holds more than there is.
    fleet_of.publish(db, "a", config=ctx.configuration(), cpus=8, disk_gb=40)
    ctx.snapshots.refresh()

    explained = explain(ctx, fleet_of.NAMESPACE, InstanceRequest(cpus=1, memory_mb=64, disk_gb=0)).as_dict()
    refusal = create(ctx, disk_gb=0)
    code, found = told(ctx, refusal)

    assert isinstance(refusal, Refusal)
    assert explained["charged_to"]["refuses"] == {"code": code, "detail": refusal.detail}
    assert code == "out_of_capacity"
    assert explained["remedies"] == found
    assert capacity(ctx, fleet_of.NAMESPACE, InstanceRequest(cpus=1, memory_mb=64, disk_gb=0)).fits == 0


def test_a_create_is_not_told_to_ask_for_no_disk_where_that_would_not_help(db: Database, ctx: Context) -> None:
    placing.node(db, ctx, "a", cpus=8, disk_gb=100)
    placing.node(db, ctx, "b", cpus=8, disk_gb=5)
    assert isinstance(create(ctx, disk_gb=50), Created)
    fleet_of.publish(db, "a", config=ctx.configuration(), cpus=8, disk_gb=40)
    ctx.snapshots.refresh()

    code, found = told(ctx, create(ctx, disk_gb=3))

    assert code == "out_of_capacity"
    assert "ask" not in actions(found)
