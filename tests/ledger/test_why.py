"""Why an instance is where it is: the decision of its create, what followed it, and what is said when it is gone."""

from __future__ import annotations

from typing import Any

from fleet.ledger import instances
from fleet.ledger.database import Database
from fleet.placement.affinity_answer import Verdict
from fleet.services.context import Context
from fleet.services.why import Why, why
from tests.ledger import fleet_of
from tests.ledger.fleet_of import ask
from tests.ledger.placing import context, created, node, overtaken, redirected

WEB = {"affinity": {"prefer_with_tag": ["role=web"]}}
NOTHING = "Nothing was asked: it has no affinity, so no node was scored, and there is nothing to diagnose."
GONE = "The decision that placed it is not kept any more: decisions are kept for 30 days (DECISIONS_RETENTION_DAYS)."
AGAIN = "`fleet explain` with the flags of its create says where it would go now, and why."


def answered(db: Database, ctx: Context, uuid: str, expected: str | None = None) -> Why:
    view = instances.get(db, uuid)
    assert view is not None
    return why(ctx, view, expected)


def test_the_answer_begins_with_the_decision_and_how_many_it_judged(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    node(db, ctx, "b", cpus=4)
    made = created(ctx)
    found = answered(db, ctx, made.uuid)

    assert found.decision == made.decision_id
    assert found.sentences[0].startswith(f"{made.node} was chosen by decision {made.decision_id} at 20")
    assert found.sentences[0].endswith("Z; 2 nodes were judged.")
    assert list(found.sentences[1:]) == [NOTHING]


def test_a_redirect_is_the_pass_that_counts_and_says_what_was_left(db: Database) -> None:
    ctx = context(db)
    for name in ("a", "b"):
        node(db, ctx, name, cpus=4)
    made = created(ctx, WEB)
    second = redirected(db, ctx, made)
    found = answered(db, ctx, made.uuid)

    assert (found.placed_on, found.previous_node) == (second, made.node)
    assert found.decision != made.decision_id
    assert found.sentences[1] == (
        f"It had been placed on {made.node} before, which turned out unfit: unfit; that node was not tried again."
    )
    assert found.verdict is Verdict.SCORED


def test_what_the_guard_refused_is_told(db: Database) -> None:
    ctx = context(db)
    full = node(db, ctx, "x", cpus=4)
    node(db, ctx, "y", cpus=4, cpu_load_1=2.0)
    made = created(overtaken(ctx, lambda: fleet_of.admitted(db, ask(full, cpus=4))))
    found = answered(db, ctx, made.uuid)

    assert found.placed_on == "y"
    assert found.sentences[-1] == (
        "x was tried, and the guard refused it at stage node: cpus limit 4, used 4, asked 1."
    )


def test_a_waiver_is_told(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "n", cpus=8, cpu_load_1=8.0)
    found = answered(db, ctx, created(ctx).uuid)

    assert found.demand_waived
    assert found.sentences[-1] == (
        "No candidate was under its load target, so the demand clause was waived: it was placed on real capacity alone."
    )


def test_without_the_snapshot_there_are_counts(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    node(db, ctx, "b", cpus=4, memory_mb=32)
    made = created(ctx, WEB)
    fleet_of.execute(db, "DELETE FROM decision_bases")
    found = answered(db, ctx, made.uuid, "b")

    assert found.verdict is Verdict.NO_CHOICE
    assert list(found.sentences[1:]) == [
        (
            "Only counts are left of that decision, and no names: the snapshot of decision "
            f"{made.decision_id} is not kept any more."
        ),
        (
            "There was no choice: one node was left to score, so affinity was never consulted: it was neither honoured "
            "nor ignored. Before the scoring 1 of 2 nodes fell: 1 at sufficient_idle_memory (1 over_limit_memory_mb)."
        ),
        "What was said of b is not known any more.",
    ]


def test_a_decision_made_otherwise_by_this_version_is_counts_too(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    made = created(ctx)
    fleet_of.execute(db, "UPDATE decisions SET request = :body", body='{"cpus": 1, "memory_mb": 999999999}')

    assert "decides otherwise" in answered(db, ctx, made.uuid).sentences[1]


def test_without_the_decision_what_is_known_is_said_and_no_more(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    plain, liking = created(ctx), created(ctx, WEB)
    hard = created(ctx, affinity={"require_without_tag": ["noisy"]})
    fleet_of.execute(db, "DELETE FROM decisions")

    def told(made: Any, expected: str | None = None) -> list[str]:
        found = answered(db, ctx, made.uuid, expected)
        assert (found.verdict, found.facts) == (Verdict.NOT_KEPT, None)
        assert found.sentences[0] == GONE
        assert found.sentences[1].startswith("It was placed on a at 20")
        return list(found.sentences[2:])

    assert told(plain) == [NOTHING, AGAIN]
    assert told(liking, "b") == [
        (
            "It was made with affinity (prefer_with_tag role=web): which nodes were scored and how, and whether there "
            "was a choice, is not known any more."
        ),
        "What was said of b is not known any more.",
        AGAIN,
    ]
    assert told(hard) == [
        "Nothing was preferred, so no node was scored: its affinity has only require_* (require_without_tag noisy).",
        AGAIN,
    ]


def test_without_its_events_too_nothing_is_made_up(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    made = created(ctx)
    fleet_of.execute(db, "DELETE FROM decisions")
    fleet_of.execute(db, "DELETE FROM events")
    found = answered(db, ctx, made.uuid)

    assert (found.placed_on, found.node) == (None, "a")
    assert list(found.sentences) == [GONE, NOTHING, AGAIN]


def test_what_an_instance_asks_that_this_version_cannot_read_is_not_called_nothing(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    made = created(ctx)
    fleet_of.execute(db, "DELETE FROM decisions")
    fleet_of.execute(db, "UPDATE instances SET request = :body", body='{"cpus": "many"}')

    assert NOTHING not in answered(db, ctx, made.uuid).sentences


def test_a_placing_that_came_later_is_named_and_not_mixed_in(db: Database) -> None:
    ctx = context(db)
    node(db, ctx, "a", cpus=4)
    node(db, ctx, "b", cpus=4)
    made = created(ctx, WEB)
    fleet_of.execute(
        db,
        "INSERT INTO events (object_type, object_id, at, level, message, payload) "
        "VALUES ('instance', :uuid, {now}, 'info', 'instance move begun', :payload)",
        uuid=made.uuid,
        payload='{"node": "b", "decision": "d-2"}',
    )
    found = answered(db, ctx, made.uuid)

    assert found.decision == made.decision_id
    assert found.later is not None
    assert found.sentences[-1].endswith(": a move, on b; `fleet decision show d-2 --events` tells that.")
