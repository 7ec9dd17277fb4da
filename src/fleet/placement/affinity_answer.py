"""Was affinity ignored, or was there no choice? The facts that answer it, read off a decision that was made again.

Promise: what is said of a node is what the stages said of it, for any node of the snapshot, however many there were; a
node that was not in the snapshot is told as such. Nothing here is judged again. `affinity_words` puts it in sentences.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from enum import StrEnum
from typing import Any, Final

import numpy as np

from fleet.model.decision import Decision
from fleet.placement.audit import SHOWN_MAX, is_forced
from fleet.placement.columns import Mask
from fleet.placement.record import StoredDecision
from fleet.placement.stage import Filter, NamedStage, Scorer, all_stages
from fleet.placement.trail import Step, Trail


class Verdict(StrEnum):
    """The answer in a word, in the order in which the questions are asked."""

    NOT_KEPT = "not_kept"
    FORCED = "forced"
    NOTHING_ASKED = "nothing_asked"
    NO_CHOICE = "no_choice"
    EXPECTED_ABSENT = "expected_absent"
    SCORED = "scored"


Counts = Mapping[str, Mapping[str, int]]
"""Nodes by stage and reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dropped:
    """Where a node fell: `meaning` completes "dropped because …"; `capacity`: it had no room."""

    stage: str
    reason: str
    meaning: str
    capacity: bool
    sheds_load: bool
    figures: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """What the decision says of one node.

    `judged`: it was in the snapshot. `score` None: it was not scored. `considered` are the first of its `neighbours`
    that carry a tag which is preferred or shunned. `place` is where it stands in the ranking, from 1; `over_target`: it
    had more load than its target, so it was left for last.
    """

    node: str
    judged: bool
    dropped: Dropped | None = None
    score: int | None = None
    neighbours: int = 0
    considered: Sequence[Mapping[str, Any]] = ()
    place: int | None = None
    over_target: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class AffinityFacts:
    """What one decision says about affinity.

    `scored` is how many nodes came to the scoring (with nothing to score: that would have), `before` where the others
    fell. `tiers` are the numbers of nodes by score, the highest first; `winners` the nodes of the highest score, at
    most `SHOWN_MAX` of `winners_total`. `shed` is where load shedding would have dropped the winners: all of them,
    so it was overridden, and `less_busy` nodes of lower scores were not taken. `constraints` is what `require_*`
    dropped, None where there are none. `yielded` are wishes that nobody with room satisfied.
    """

    verdict: Verdict
    judged: int
    scored: int
    before: Counts
    strategy: str
    ranked: int
    preferred: Sequence[str] = ()
    required: Sequence[str] = ()
    constraints: Mapping[str, int] | None = None
    highest: int | None = None
    tiers: Mapping[int, int] = field(default_factory=dict)
    winners: Sequence[str] = ()
    winners_total: int = 0
    shed: Counts = field(default_factory=dict)
    less_busy: int = 0
    yielded: Sequence[str] = ()
    chosen: NodeFacts | None = None
    expected: NodeFacts | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return the form for programs; scores are texts where they are keys."""
        return {**asdict(self), "tiers": {str(score): nodes for score, nodes in self.tiers.items()}}


SCORING: Final = "affinity"
CONSTRAINTS: Final = "affinity_constraints"


def affinity_facts(decision: Decision, chosen: str, expected: str | None = None) -> AffinityFacts:
    """Return what a decision says about affinity, about the node that was `chosen` and one that was `expected`."""
    trail = decision.evidence
    assert isinstance(trail, Trail), "decisions explain themselves by their trail"
    spec = trail.ask.request.affinity_spec
    scoring = next((step for step in trail.steps if isinstance(step.stage.stage, Scorer)), None)
    advising = [step for step in trail.steps if isinstance(step.stage.stage, Filter) and not _sheds(step.stage)]
    left = scoring.before if scoring is not None else _left(trail, advising)
    hoped = None if expected is None else _node(decision, trail, scoring, expected)
    constraints = next((step for step in advising if step.stage.name == CONSTRAINTS), None)
    facts: dict[str, Any] = {
        "verdict": _verdict(trail, scoring, left, hoped),
        "judged": len(trail.names),
        "scored": int(np.count_nonzero(left)),
        "before": _counts(advising),
        "strategy": decision.strategy,
        "ranked": len(decision.ranked_indices),
        "preferred": () if spec is None else _entries(spec.form(), "prefer_"),
        "required": () if spec is None else _entries(spec.form(), "require_"),
        "constraints": None if constraints is None else dict(_counts([constraints]).get(CONSTRAINTS, {})),
        "yielded": tuple(step.stage.name for step in advising if step.overridden),
        "chosen": _node(decision, trail, scoring, chosen),
        "expected": hoped,
    }
    return AffinityFacts(**facts, **({} if scoring is None else _scores(trail, scoring)))


def recorded_facts(stored: StoredDecision, preferred: bool, forced: bool) -> AffinityFacts:  # noqa: FBT001
    """Return what a record alone says, when its snapshot cannot be decided on again: counts, and no names."""
    kinds = {named.name: named for named in all_stages()}
    advising = {
        stage: dict(reasons)
        for stage, reasons in stored.counts.items()
        if stage in kinds and stage != SCORING and not _sheds(kinds[stage])
    }
    scored = stored.node_count - sum(sum(reasons.values()) for reasons in advising.values())
    verdict = Verdict.SCORED if scored != 1 else Verdict.NO_CHOICE
    if not preferred:
        verdict = Verdict.NOTHING_ASKED
    lower = sum(stored.counts.get(SCORING, {}).values())
    return AffinityFacts(
        verdict=Verdict.FORCED if forced else verdict,
        judged=stored.node_count,
        scored=scored,
        before=advising,
        strategy=stored.strategy,
        ranked=stored.ranked_count,
        constraints=advising.get(CONSTRAINTS),
        winners_total=scored - lower if preferred else 0,
    )


def _verdict(trail: Trail, scoring: Step | None, left: Mask, expected: NodeFacts | None) -> Verdict:
    if is_forced(trail.ask.request):
        return Verdict.FORCED
    if scoring is None:
        return Verdict.NOTHING_ASKED
    if np.count_nonzero(left) == 1:
        return Verdict.NO_CHOICE
    if expected is not None and expected.score is None:
        return Verdict.EXPECTED_ABSENT
    return Verdict.SCORED


def _scores(trail: Trail, scoring: Step) -> dict[str, Any]:
    scorer = scoring.stage.stage
    assert isinstance(scorer, Scorer), "only scorers score"
    scores = scorer.score(trail.ask, trail.frame)
    assert scores is not None, "a scorer that has a step has scores"
    tiers = Counter(scores[scoring.before].tolist())
    group = np.flatnonzero(scoring.after)
    shed = [step for step in trail.steps if _sheds(step.stage) and step.overridden]
    spared = scoring.before & ~scoring.after
    for step in shed:
        for _, mask in step.drops:
            spared = spared & ~mask
    return {
        "highest": max(tiers),
        "tiers": {score: tiers[score] for score in sorted(tiers, reverse=True)},
        "winners": tuple(trail.names[at] for at in group[:SHOWN_MAX]),
        "winners_total": len(group),
        "shed": {step.stage.name: _by_reason(step, scoring.after) for step in shed if _by_reason(step, scoring.after)},
        "less_busy": int(np.count_nonzero(spared)) if shed else 0,
    }


def _node(decision: Decision, trail: Trail, scoring: Step | None, node: str) -> NodeFacts:
    at = trail.frame.roster.index.get(node)
    if at is None:
        return NodeFacts(node=node, judged=False)
    places = np.flatnonzero(decision.ranked_indices == at)
    facts = NodeFacts(
        node=node,
        judged=True,
        dropped=_dropped(trail, at),
        place=int(places[0]) + 1 if len(places) else None,
        over_target=bool(decision.over_demand[places].any()),
    )
    if scoring is None or not scoring.before[at]:
        return facts
    told = scoring.stage.stage.figures(trail.ask, trail.frame, at)
    return replace(facts, score=told["score"], neighbours=told["instance_count"], considered=told["considered"])


def _dropped(trail: Trail, at: int) -> Dropped | None:
    """Return where a node fell; the scoring is no fall: what it scored says that better."""
    for step in trail.steps:
        stage = step.stage.stage
        if not isinstance(stage, Filter) or not step.before[at] or step.after[at]:
            continue
        reason = step.reason_at(at)
        return Dropped(
            stage=step.stage.name,
            reason=reason.code,
            meaning=reason.meaning,
            capacity=stage.capacity,
            sheds_load=stage.sheds_load,
            figures=stage.figures(trail.ask, trail.frame, at),
        )
    return None


def _sheds(named: NamedStage) -> bool:
    return isinstance(named.stage, Filter) and named.stage.sheds_load


def _left(trail: Trail, advising: Sequence[Step]) -> Mask:
    return advising[-1].after if advising else np.ones(len(trail.frame), dtype=np.bool_)


def _counts(steps: Sequence[Step]) -> Counts:
    found = {
        step.stage.name: {reason.code: int(np.count_nonzero(mask)) for reason, mask in step.split(step.before)}
        for step in steps
    }
    return {stage: reasons for stage, reasons in found.items() if reasons}


def _by_reason(step: Step, among: Mask) -> dict[str, int]:
    """Return whom an overridden stage would have dropped, each for its first reason."""
    found: dict[str, int] = {}
    for reason, mask in step.drops:
        if hit := int(np.count_nonzero(among & mask)):
            found[reason.code] = hit
            among = among & ~mask
    return found


def _entries(form: Mapping[str, Sequence[str]], beginning: str) -> tuple[str, ...]:
    """Return the entries of some lists as they may be typed: `prefer_with_tag role=web`."""
    return tuple(f"{name} {entry}" for name, entries in form.items() if name.startswith(beginning) for entry in entries)
