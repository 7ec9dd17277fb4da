"""decide(): the whole flow on one screen. Stages drop, a scorer prefers, load shedding sheds, a strategy orders.

Promise: the same request, snapshot and seed give the same decision, always and everywhere. The first failing stage is
a node's reason; the stage that emptied the set decides the code; a strategy never changes who fits. A fork goes to the
node that holds what it is forked from: no stage is asked, the guard alone has a word.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fleet.model.decision import Decision, Outcome
from fleet.model.errors import InvalidRequest
from fleet.model.request import PlacementRequest
from fleet.placement import cause
from fleet.placement.ask import Ask
from fleet.placement.columns import Mask
from fleet.placement.draws import SEED_MAX
from fleet.placement.frame import Frame
from fleet.placement.snapshot import Snapshot
from fleet.placement.stage import (
    Filter,
    NamedStage,
    NamedStrategy,
    Scorer,
    all_stages,
    cluster_strategy,
    strategy_named,
)
from fleet.placement.trail import Step, Trail


@dataclass(slots=True)
class Walk:
    """Where the nodes stand after the stages. `emptied` is the stage that left nobody."""

    steps: list[Step]
    left: Mask
    emptied: NamedStage | None = None


def decide(request: PlacementRequest, snapshot: Snapshot, seed: int, *, explain: bool = False) -> Decision:
    """Return which nodes fit, best first, or why none does. With `explain` every stage judges every node.

    Raises:
        InvalidRequest: unknown strategy, a seed out of range, or a re-placement of an instance that is not known.
        StrategyUnavailable: the request names none, and the one that the configuration names is not installed here.
    """
    return decide_on(request, snapshot.frame, seed, explain=explain)


def decide_on(request: PlacementRequest, frame: Frame, seed: int, *, explain: bool = False) -> Decision:
    """Return the same of one view: what `decide` does with its snapshot's."""
    if not 0 <= seed <= SEED_MAX:
        raise InvalidRequest(
            f"seed: {seed} is not within 0 to {SEED_MAX}", errors=[{"field": "seed", "message": "out of range"}]
        )
    strategy = _strategy_of(request, frame)
    ask = Ask.of(request, frame)
    unknown = cause.before_any_stage(ask, frame)
    if unknown is not None:
        return _refusal(unknown, Trail(ask, frame, []), strategy, seed)
    walk = _beside_its_source(ask, frame) if ask.is_fork else walk_stages(all_stages(), ask, frame, explain=explain)
    trail = Trail(ask, frame, walk.steps)
    if walk.emptied is not None:
        return _refusal(cause.of_emptying(walk.emptied, trail), trail, strategy, seed)
    return _ranking(walk.left, trail, strategy, seed)


def walk_stages(stages: Sequence[NamedStage], ask: Ask, frame: Frame, *, explain: bool) -> Walk:
    """Lay every stage's mask over the nodes, in order, until nobody is left (with `explain`: to the end)."""
    everyone = np.ones(len(frame), dtype=np.bool_)
    walk = Walk([], everyone)
    group: Mask | None = None
    for named in stages:
        if isinstance(named.stage, Scorer):
            group = _prefer(named, named.stage, ask, frame, walk)
            continue
        sheds = named.stage.sheds_load
        before = walk.left if group is None or not sheds else walk.left & group
        step = _filter(named, named.stage, ask, frame, before)
        if step is None:
            continue
        step.judged = everyone if explain else before
        walk.steps.append(step)
        walk.left = step.after if before is walk.left else _kept(step, walk.left)
        if not np.count_nonzero(walk.left) and walk.emptied is None and named.stage.may_yield(ask, frame):
            step.overridden, step.after, walk.left = True, before, before
        if walk.emptied is None and not np.count_nonzero(walk.left):
            walk.emptied = named
        if walk.emptied is not None and not explain:
            return walk
    if group is not None and walk.emptied is None:
        _settle_on_group(walk, group)
    return walk


def _beside_its_source(ask: Ask, frame: Frame) -> Walk:
    only = np.zeros(len(frame), dtype=np.bool_)
    only[ask.fork_home] = True
    return Walk([], only)


def _filter(named: NamedStage, stage: Filter, ask: Ask, frame: Frame, before: Mask) -> Step | None:
    found = stage.drops(ask, frame)
    if found is None:
        return None
    drops = [(reason, mask) for reason, mask in found if np.count_nonzero(mask)]
    if stage.spares_resize_home and ask.resize_home >= 0:
        drops = [(reason, _spared(mask, ask.resize_home)) for reason, mask in drops]
    step = Step(named, before, drops, before, before)
    step.after = _kept(step, before)
    return step


def _kept(step: Step, among: Mask) -> Mask:
    for _, mask in step.drops:
        among = among & ~mask
    return among


def _spared(mask: Mask, at: int) -> Mask:
    mask = mask.copy()
    mask[at] = False
    return mask


def _prefer(named: NamedStage, scorer: Scorer, ask: Ask, frame: Frame, walk: Walk) -> Mask | None:
    """Return the group with the highest score; the losers stay candidates for load shedding's last word."""
    scores = scorer.score(ask, frame)
    if scores is None or not np.count_nonzero(walk.left):
        return None
    lost: Mask = scores < scores[walk.left].max()
    if ask.resize_home >= 0:
        lost[ask.resize_home] = False
    group = walk.left & ~lost
    walk.steps.append(Step(named, walk.left, [(scorer.reasons[0], lost)], group, walk.left))
    return group


def _settle_on_group(walk: Walk, group: Mask) -> None:
    """Keep the winners of the score: a busy node is still a node that the user asked for."""
    left = walk.left & group
    if left.any():
        walk.left = left
        return
    walk.left = group
    walk.steps[:] = [
        replace(step, before=group, after=group, judged=group, overridden=True)
        if isinstance(step.stage.stage, Filter) and step.stage.stage.sheds_load
        else step
        for step in walk.steps
    ]


def _strategy_of(request: PlacementRequest, frame: Frame) -> NamedStrategy:
    if request.strategy:
        return strategy_named(request.strategy)
    return cluster_strategy(frame.config.placement_strategy)


def _ranking(left: Mask, trail: Trail, strategy: NamedStrategy, seed: int) -> Decision:
    ask, frame = trail.ask, trail.frame
    ordering = strategy.order(ask, frame, np.flatnonzero(left), seed)
    trail.ordering = ordering
    ranked, weights = ordering.ranked, ordering.weights
    if ask.resize_home >= 0 and left[ask.resize_home]:
        # Growing where the instance is moves nothing, so that node comes first under every strategy.
        first = np.argsort(ranked != ask.resize_home, kind="stable")
        ranked, weights = ranked[first], weights[first]
    over = frame.over_demand(ranked)
    if ask.resize_home >= 0 and not ask.added("cpus", ask.resize_home):
        # The guard asks about load only where vCPUs are added.
        over = over & (ranked != ask.resize_home)
    return Decision(Outcome.RANKED, strategy.name, seed, ranked, weights, over, trail)


def _refusal(found: cause.Cause, trail: Trail, strategy: NamedStrategy, seed: int) -> Decision:
    nobody: NDArray[np.intp] = np.empty(0, dtype=np.intp)
    trail.cause = found
    return Decision(
        Outcome.REFUSED,
        strategy.name,
        seed,
        nobody,
        np.empty(0, dtype=np.float64),
        np.empty(0, dtype=np.bool_),
        trail,
        code=found.code,
        stage=found.stage,
        transient=found.transient,
    )
