"""The answer about affinity in sentences: each says one thing, names its nodes and gives its figures.

Promise: lists of nodes and neighbours are cut, and say by how much; the facts that go with the sentences have all.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from fleet.model.affinity import AffinitySpec
from fleet.placement.affinity_answer import CONSTRAINTS, AffinityFacts, Counts, Dropped, NodeFacts, Verdict

NODES_SHOWN: Final = 8
NEIGHBOURS_SHOWN: Final = 5
_NOTHING_ASKED: Final = (
    "Nothing was asked: it has no affinity, so no node was scored, and there is nothing to diagnose."
)


def affinity_sentences(facts: AffinityFacts) -> list[str]:
    """Return what is to be said of a decision that could be made again, the answer first."""
    sentences = list(_VERDICTS[facts.verdict](facts))
    if facts.yielded:
        sentences.append(f"Nobody with room satisfied {_and(facts.yielded)}, which is a wish here and was let go.")
    return sentences


def recorded_sentences(facts: AffinityFacts, why: str, expected: str | None) -> list[str]:
    """Return what a record alone can say: `why` there are counts and no names."""
    sentences = [f"Only counts are left of that decision, and no names: {why}."]
    if facts.verdict is Verdict.FORCED:
        sentences += _forced(facts)
    elif facts.verdict is Verdict.NOTHING_ASKED:
        sentences += _nothing_asked(facts)
    elif facts.verdict is Verdict.NO_CHOICE:
        sentences.append(
            "There was no choice: one node was left to score, so affinity was never consulted: it was neither honoured "
            f"nor ignored. {_others(facts)}"
        )
    else:
        sentences.append(
            f"{facts.scored} of {_nodes(facts.judged)} were scored, and {facts.winners_total} had the highest score: "
            f"it was placed on one of these. {_others(facts)}"
        )
    if expected is not None:
        sentences.append(f"What was said of {expected} is not known any more.")
    return sentences


def asked_sentences(spec: AffinitySpec | None) -> list[str]:
    """Return what an instance's affinity alone says, where no decision is left to ask."""
    if not spec:
        return [_NOTHING_ASKED]
    form = [f"{name} {entry}" for name, entries in spec.form().items() for entry in entries]
    if not spec.scores:
        return [f"Nothing was preferred, so no node was scored: its affinity has only require_* ({_and(form)})."]
    unknown = "which nodes were scored and how, and whether there was a choice, is not known any more"
    return [f"It was made with affinity ({_and(form)}): {unknown}."]


def _forced(facts: AffinityFacts) -> Iterator[str]:
    yield (
        "There was no choice: the request itself said where it may go (a node, destinations, or the node of what it "
        "was forked from), so affinity had nothing to choose from."
    )
    yield from _expected_otherwise(facts)


def _nothing_asked(facts: AffinityFacts) -> Iterator[str]:
    if facts.constraints is None:
        yield _NOTHING_ASKED
    else:
        dropped = sum(facts.constraints.values())
        told = f"; its story is there: {_and(facts.required)}" if facts.required else ""
        yield f"Nothing was preferred, so no node was scored: its affinity has only require_*{told}."
        came = facts.scored + dropped
        yield (
            f"{CONSTRAINTS} dropped {dropped} of the {_nodes(came)} that came to it"
            f"{': ' + _reasons(facts.constraints) if dropped else ''}."
        )
    yield from _expected_otherwise(facts)


def _no_choice(facts: AffinityFacts) -> Iterator[str]:
    only = facts.winners[0] if facts.winners else "one node"
    yield (
        f"There was no choice: {only} was the only node left to score, so affinity was never consulted: it was neither "
        "honoured nor ignored."
    )
    yield _others(facts)
    yield from _expected_otherwise(facts)


def _absent(facts: AffinityFacts) -> Iterator[str]:
    expected = facts.expected
    assert expected is not None, "the verdict is about the expected node"
    yield from _expected_otherwise(facts)
    if expected.dropped is not None and expected.dropped.capacity:
        yield "That is a matter of room, not of affinity."
    yield _others(facts)
    yield _outcome(facts)
    yield from _neighbours(facts.chosen)


def _scored(facts: AffinityFacts) -> Iterator[str]:
    yield _outcome(facts)
    yield from _neighbours(facts.chosen)
    expected, chosen = facts.expected, facts.chosen
    if expected is not None and chosen is not None and expected.node != chosen.node:
        yield _against(facts, expected)
        yield from _neighbours(expected)
        yield from _same_score(facts, expected, chosen)
    if len(facts.tiers) > 1:
        tiers = ", ".join(f"{score} ({_nodes(count)})" for score, count in list(facts.tiers.items())[:NODES_SHOWN])
        yield f"The scores of the {_nodes(facts.scored)} that were scored: {tiers}."
    if facts.shed:
        busy = ", ".join(f"{stage} ({_reasons(reasons)})" for stage, reasons in facts.shed.items())
        total = facts.winners_total
        who = "The only node of the highest score was" if total == 1 else f"All {total} nodes of the highest score were"
        yield (
            f"{who} busy, {busy}, and affinity was kept all the same: {_nodes(facts.less_busy)} with lower scores and "
            "less to do were not taken."
        )


def _outcome(facts: AffinityFacts) -> str:
    who = _names(facts.winners, facts.winners_total)
    if len(facts.tiers) == 1:
        return (
            f"Affinity was consulted and made no difference: all {_nodes(facts.scored)} that were scored have "
            f"{facts.highest}."
        )
    return (
        f"Affinity was consulted and honoured: {_nodes(facts.scored)} were scored, the highest score is "
        f"{facts.highest}, and only the nodes that have it went on: {who}."
    )


def _against(facts: AffinityFacts, expected: NodeFacts) -> str:
    chosen = facts.chosen
    assert chosen is not None, "a placing has a node"
    if chosen.score is None:
        return f"{expected.node} scored {expected.score}, the highest score is {facts.highest}."
    word = "as much as" if expected.score == chosen.score else f"against {chosen.score} of"
    return f"{expected.node} scored {expected.score}, {word} {chosen.node}."


def _same_score(facts: AffinityFacts, expected: NodeFacts, chosen: NodeFacts) -> Iterator[str]:
    """Say why a node of the highest score is not the one: affinity does not choose among these."""
    if expected.score != facts.highest:
        return
    if expected.dropped is not None:
        yield f"Among the nodes of that score {_fell(expected.node, expected.dropped)}, and others had less to do."
    elif expected.place is not None and chosen.place is not None:
        late = ", over its load target and so left for last" if expected.over_target else ""
        yield (
            f"Among the nodes of that score strategy {facts.strategy} chooses: {expected.node} had place "
            f"{expected.place} of {facts.ranked}{late}, {chosen.node} place {chosen.place}."
        )


def _neighbours(facts: NodeFacts | None) -> Iterator[str]:
    """Say which neighbours contributed what to a node's score."""
    if facts is None or facts.score is None:
        return
    if not facts.neighbours:
        yield f"{facts.node} has {facts.score}: no neighbour there carries a tag that is preferred or shunned."
        return
    shown = [
        f"{one['instance_uuid']} {one['contribution']:+d} ({', '.join(one['matched'])})"
        for one in facts.considered[:NEIGHBOURS_SHOWN]
    ]
    more = facts.neighbours - len(shown)
    yield f"{facts.node} has {facts.score}: {', '.join(shown)}{f', … {more} more' if more else ''}."


def _expected_otherwise(facts: AffinityFacts) -> Iterator[str]:
    """Say what became of the expected node where its score is not the subject."""
    expected, chosen = facts.expected, facts.chosen
    if expected is None or (chosen is not None and expected.node == chosen.node and facts.verdict != Verdict.SCORED):
        return
    if not expected.judged:
        yield f"{expected.node} was not judged: no node of that name was registered then."
    elif expected.dropped is not None:
        state = "no candidate" if facts.highest is None else "not scored"
        yield f"{expected.node} was {state}: {_fell('it', expected.dropped)}."
    elif expected.place is not None:
        yield f"{expected.node} was a candidate, place {expected.place} of {facts.ranked} by strategy {facts.strategy}."


def _fell(node: str, dropped: Dropped) -> str:
    figures = ", ".join(f"{name} {_value(value)}" for name, value in dropped.figures.items())
    told = f" ({figures})" if figures else ""
    return f"{dropped.stage} dropped {node} for {dropped.reason}: {dropped.meaning}{told}"


def _others(facts: AffinityFacts) -> str:
    """Say where the nodes fell that were not scored."""
    gone = facts.judged - facts.scored
    if not gone:
        return "No other node was judged." if facts.judged == 1 else f"None of the {_nodes(facts.judged)} fell before."
    return f"Before the scoring {gone} of {_nodes(facts.judged)} fell: {_stages(facts.before)}."


def _stages(counts: Counts) -> str:
    by_number = sorted(counts.items(), key=lambda item: -sum(item[1].values()))
    return ", ".join(f"{sum(reasons.values())} at {stage} ({_reasons(reasons)})" for stage, reasons in by_number)


def _reasons(reasons: Mapping[str, int]) -> str:
    if len(reasons) == 1:
        (only,) = reasons.items()
        return f"{only[1]} {only[0]}"
    return ", ".join(f"{count} {reason}" for reason, count in sorted(reasons.items(), key=lambda item: -item[1]))


def _nodes(count: int) -> str:
    return f"{count} node" if count == 1 else f"{count} nodes"


def _names(names: Sequence[str], total: int) -> str:
    shown = ", ".join(names[:NODES_SHOWN])
    more = total - min(len(names), NODES_SHOWN)
    return f"{shown}, … {more} more, {total} in all" if more > 0 else shown


def _and(words: Iterable[str]) -> str:
    return ", ".join(words)


def _value(value: Any) -> str:
    if value is None:
        return "unknown"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, Mapping):
        return "(" + ", ".join(f"{name} {_value(item)}" for name, item in value.items()) + ")"
    if isinstance(value, Sequence) and not isinstance(value, str):
        return "[" + ", ".join(_value(item) for item in value) + "]"
    return str(value)


_VERDICTS: Final = {
    Verdict.FORCED: _forced,
    Verdict.NOTHING_ASKED: _nothing_asked,
    Verdict.NO_CHOICE: _no_choice,
    Verdict.EXPECTED_ABSENT: _absent,
    Verdict.SCORED: _scored,
}
