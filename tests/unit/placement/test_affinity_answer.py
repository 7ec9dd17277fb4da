"""Was affinity ignored, or was there no choice? Each outcome, with the exact sentences and the facts behind them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest

from fleet.placement.affinity_answer import AffinityFacts, Verdict, affinity_facts, recorded_facts
from fleet.placement.affinity_words import affinity_sentences, asked_sentences, recorded_sentences
from fleet.placement.record import decode_decision, encode_decision
from tests.documents import a_node
from tests.unit.placement.asking import decision_on, request_of

WEB: Mapping[str, Any] = {"affinity": {"prefer_with_tag": ["role=web"]}}
SHUN: Mapping[str, Any] = {"affinity": {"prefer_without_tag": ["noisy"]}}


def carrier(uuid: str, node: str, **tags: str) -> dict[str, Any]:
    return {"uuid": uuid, "node": node, "tags": tags, "cpus": 1, "memory_mb": 64, "disk_gb": 1}


def facts_on(*nodes: Any, expected: str | None = None, **asked: Any) -> AffinityFacts:
    decision = decision_on(*nodes, **asked)
    return affinity_facts(decision, decision.ranked[0], expected)


def test_nothing_was_asked() -> None:
    facts = facts_on(a_node(name="n1"), a_node(name="n2"))

    assert facts.verdict is Verdict.NOTHING_ASKED
    assert affinity_sentences(facts) == [
        "Nothing was asked: it has no affinity, so no node was scored, and there is nothing to diagnose."
    ]


def test_a_specification_of_nothing_but_constraints_is_told_by_its_stage() -> None:
    facts = facts_on(
        a_node(name="n1"),
        a_node(name="n2"),
        affinity={"require_without_tag": ["noisy"]},
        instances=[carrier("i1", "n1", noisy="")],
        expected="n1",
    )

    assert facts.verdict is Verdict.NOTHING_ASKED
    assert affinity_sentences(facts) == [
        (
            "Nothing was preferred, so no node was scored: its affinity has only require_*; its story is there: "
            "require_without_tag noisy."
        ),
        "affinity_constraints dropped 1 of the 2 nodes that came to it: 1 require_without_tag.",
        (
            "n1 was no candidate: affinity_constraints dropped it for require_without_tag: a neighbour there carries "
            "a tag that must not be there (require_without_tag (noisy present))."
        ),
    ]


def test_with_one_candidate_affinity_was_never_consulted() -> None:
    facts = facts_on(
        a_node(name="n1"),
        a_node(name="n2", memory_available=0),
        a_node(name="n3", scheduling="cordoned"),
        a_node(name="n4", scheduling="draining"),
        **WEB,
        instances=[carrier("i1", "n3", role="web")],
        expected="n3",
    )

    assert facts.verdict is Verdict.NO_CHOICE
    assert affinity_sentences(facts) == [
        (
            "There was no choice: n1 was the only node left to score, so affinity was never consulted: it was neither "
            "honoured nor ignored."
        ),
        (
            "Before the scoring 3 of 4 nodes fell: 2 at scheduling_state (1 cordoned, 1 draining), "
            "1 at sufficient_idle_memory (1 below_memory_reservation)."
        ),
        (
            "n3 was not scored: scheduling_state dropped it for cordoned: an operator cordoned the node "
            "(scheduling cordoned)."
        ),
    ]


def test_the_expected_node_had_no_room() -> None:
    facts = facts_on(
        a_node(name="n1"),
        a_node(name="n2"),
        a_node(name="n3", limit_cpus=2),
        **WEB,
        instances=[carrier("i1", "n3", role="web")],
        expected="n3",
    )
    told = affinity_sentences(facts)

    assert facts.verdict is Verdict.EXPECTED_ABSENT
    assert told[0].startswith("n3 was not scored: sufficient_idle_cpu dropped it for over_limit_cpus: ")
    assert "limit_cpus 2" in told[0]
    assert told[1:4] == [
        "That is a matter of room, not of affinity.",
        "Before the scoring 1 of 3 nodes fell: 1 at sufficient_idle_cpu (1 over_limit_cpus).",
        "Affinity was consulted and made no difference: all 2 nodes that were scored have 0.",
    ]


def test_a_node_that_was_not_there_is_told_as_such() -> None:
    facts = facts_on(a_node(name="n1"), a_node(name="n2"), **WEB, expected="elsewhere")

    assert facts.verdict is Verdict.EXPECTED_ABSENT
    assert affinity_sentences(facts)[0] == "elsewhere was not judged: no node of that name was registered then."


def test_the_expected_node_was_scored_and_others_had_better_company() -> None:
    facts = facts_on(
        a_node(name="n1"),
        a_node(name="n2"),
        a_node(name="n3"),
        affinity={"prefer_with_tag": ["role=web"], "prefer_without_tag": ["noisy"]},
        instances=[carrier("i1", "n2", role="web"), carrier("i2", "n2", role="web"), carrier("i3", "n3", noisy="")],
        expected="n3",
    )

    assert facts.verdict is Verdict.SCORED
    assert affinity_sentences(facts) == [
        (
            "Affinity was consulted and honoured: 3 nodes were scored, the highest score is 2, and only the nodes that "
            "have it went on: n2."
        ),
        "n2 has 2: i1 +1 (role=web), i2 +1 (role=web).",
        "n3 scored -1, against 2 of n2.",
        "n3 has -1: i3 -1 (noisy).",
        "The scores of the 3 nodes that were scored: 2 (1 node), 0 (1 node), -1 (1 node).",
    ]


def test_among_equal_scores_the_strategy_chooses() -> None:
    nodes = [a_node(name="n1", cpu_load_1=9.0), a_node(name="n2")]
    friends = [carrier("i1", "n1", role="web"), carrier("i2", "n2", role="web")]
    facts = facts_on(*nodes, a_node(name="n3"), **WEB, instances=friends, expected="n1")

    assert "n1 scored 1, as much as n2." in affinity_sentences(facts)
    assert (
        "Among the nodes of that score strategy load-aware chooses: n1 had place 2 of 2, n2 place 1."
        in affinity_sentences(facts)
    )


def test_load_shedding_that_was_overridden_is_told() -> None:
    facts = facts_on(
        a_node(name="n1", queue_waiting=1000),
        a_node(name="n2"),
        a_node(name="n3"),
        **WEB,
        instances=[carrier("i1", "n1", role="web")],
    )

    assert affinity_sentences(facts)[-1] == (
        "The only node of the highest score was busy, queue_state (1 queue_too_long), and affinity was kept all the "
        "same: 2 nodes with lower scores and less to do were not taken."
    )


def test_a_busy_node_of_the_highest_score_gives_way_to_its_equals() -> None:
    facts = facts_on(
        a_node(name="n1", queue_waiting=1000),
        a_node(name="n2"),
        a_node(name="n3"),
        **WEB,
        instances=[carrier("i1", "n1", role="web"), carrier("i2", "n2", role="web")],
        expected="n1",
    )

    assert facts.shed == {}
    assert any(
        told.startswith("Among the nodes of that score queue_state dropped n1 for queue_too_long: ")
        and told.endswith("and others had less to do.")
        for told in affinity_sentences(facts)
    )


def test_a_request_that_names_its_node_had_no_choice() -> None:
    facts = facts_on(a_node(name="n1"), a_node(name="n2"), **WEB, placement={"node": "n2"}, expected="n1")

    assert facts.verdict is Verdict.FORCED
    told = affinity_sentences(facts)
    assert told[0].startswith("There was no choice: the request itself said where it may go ")
    assert told[1].startswith("n1 was not scored: node_pin dropped it for not_the_pinned_node: ")


def test_facts_are_json_and_long_lists_are_cut_in_words_only() -> None:
    nodes = [a_node(name=f"n{at:03}") for at in range(30)]
    facts = facts_on(
        *nodes, **SHUN, instances=[carrier(f"i{at}", "n000", noisy="") for at in range(30)], expected="n000"
    )
    told = affinity_sentences(facts)

    assert json.loads(json.dumps(facts.as_dict(), default=float))["tiers"] == {"0": 29, "-30": 1}
    assert "n008, … 21 more, 29 in all." in told[0]
    assert any(line.endswith("i11 -1 (noisy), i12 -1 (noisy), … 25 more.") for line in told)


@pytest.mark.parametrize("asked", [{}, WEB])
def test_a_record_alone_says_what_counts_can_say(asked: Mapping[str, Any]) -> None:
    decision = decision_on(a_node(name="n1"), a_node(name="n2", limit_cpus=2), **asked)
    facts = recorded_facts(decode_decision(encode_decision(decision)), preferred=bool(asked), forced=False)
    told = recorded_sentences(facts, "the snapshot is gone", "n2")

    assert facts.verdict is (Verdict.NO_CHOICE if asked else Verdict.NOTHING_ASKED)
    assert told[0] == "Only counts are left of that decision, and no names: the snapshot is gone."
    assert told[-1] == "What was said of n2 is not known any more."
    if asked:
        assert told[1] == (
            "There was no choice: one node was left to score, so affinity was never consulted: it was neither honoured "
            "nor ignored. Before the scoring 1 of 2 nodes fell: 1 at sufficient_idle_cpu (1 over_limit_cpus)."
        )


def test_a_record_counts_who_had_the_highest_score() -> None:
    decision = decision_on(
        *(a_node(name=name) for name in ("n1", "n2", "n3")), **SHUN, instances=[carrier("i1", "n1", noisy="")]
    )
    facts = recorded_facts(decode_decision(encode_decision(decision)), preferred=True, forced=False)

    assert recorded_sentences(facts, "gone", None)[1] == (
        "3 of 3 nodes were scored, and 2 had the highest score: it was placed on one of these. "
        "None of the 3 nodes fell before."
    )


def test_what_was_asked_is_told_without_a_decision_too() -> None:
    assert asked_sentences(None)[0].startswith("Nothing was asked: ")
    assert asked_sentences(request_of(affinity={"require_with_tag": ["a"]}).affinity_spec) == [
        "Nothing was preferred, so no node was scored: its affinity has only require_* (require_with_tag a)."
    ]
    assert "is not known any more" in asked_sentences(request_of(**WEB).affinity_spec)[0]
