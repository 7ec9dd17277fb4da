"""The schedule events of a decision: what every stage did, in the words that operators grep for.

Promise: the same decision always tells the same events, in the order in which things happened, with one set of
messages and payload keys. No list or map of a payload holds more than `SHOWN_MAX` nodes; where one was cut, a key
ending in `_total`, and for dropped nodes the counts by reason, say what all of them were. Nothing here is stored: the
events are read off a decision that was replayed, or, where its snapshot is gone, off its record.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from fleet.model.capacity import demand_at_admission, to_milli
from fleet.model.decision import Decision
from fleet.model.request import PlacementRequest, Reason
from fleet.placement.ask import Ask
from fleet.placement.columns import UNKNOWN, Mask, shown, shown_milli
from fleet.placement.frame import Frame
from fleet.placement.record import STORED_NODES_MAX, StoredDecision
from fleet.placement.stage import Filter, Scorer
from fleet.placement.strategies.load_aware import bands
from fleet.placement.trail import Step, Trail

SHOWN_MAX: Final = STORED_NODES_MAX
STARTED: Final = "started scheduling"
INPUTS: Final = "schedule inputs"
INITIAL: Final = "schedule initial candidates"
FORCED: Final = "schedule forced candidates"
NO_COUNTERS: Final = "schedule could not read the capacity counters"
"""For the log alone: where the counters cannot be read, nothing is decided, and no event can be written."""
HIGHEST_AFFINITY: Final = "schedule have highest affinity"
KEEPING_AFFINITY: Final = "schedule keeping affinity despite transient load"
LOWEST_LOAD: Final = "schedule have lowest cpu load"
FINAL: Final = "schedule final candidates"
FAILED: Final[Mapping[str, str]] = {
    "affinity_unsatisfiable": "schedule failed, affinity unsatisfiable",
    "affinity_unsatisfied": "schedule failed, affinity unsatisfied",
    "node_not_found": "schedule failed, node not found",
    "out_of_capacity": "schedule failed, insufficient resources",
}
"""The last event of a refused decision, by its code."""

LACKING_MAX: Final = 5
FAILED_OTHERWISE: Final = "schedule failed, no eligible node"
LOAD_DETAIL: Final = (
    "cpu_load_1",
    "cpu_schedulable",
    "cpu_schedulable_from_fallback",
    "normalised_load",
    "ram_committed_fraction",
    "bucket",
)
_ASKED_ALWAYS: Final = frozenset(
    {"cpus", "memory_mb", "disk_gb", "namespace", "affinity", "metadata", "name", "tags", "image"}
)


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One event of a timeline, without its time: a rendered event has that of its decision."""

    message: str
    payload: Mapping[str, Any] = field(default_factory=dict)
    level: str = "info"


def stage_message(name: str) -> str:
    """Return the message of one stage's event."""
    return f"schedule at stage {name}"


def aborting_message(name: str) -> str:
    """Return the message of the stage that left nobody."""
    return f"schedule has no candidates at stage {name}, aborting"


def ordering_message(strategy: str) -> str:
    """Return the message of the strategy's event."""
    return LOWEST_LOAD if strategy == "load-aware" else f"schedule ordered by strategy {strategy}"


def schedule_events(decision: Decision, left_out: Sequence[str] = ()) -> tuple[AuditEvent, ...]:
    """Return the events of a decision, oldest first; `left_out` are ranked nodes that the walk may not try."""
    trail = decision.evidence
    assert isinstance(trail, Trail), "decisions explain themselves by their trail"
    first = _first(trail)
    events = [AuditEvent(STARTED), AuditEvent(INPUTS, _inputs(trail.ask, trail.frame)), first]
    if decision.refused:
        events += _lacking(trail, first)
    events += _stages(trail)
    if not decision.refused:
        events += [_ordered(decision, trail), _final(decision, left_out)]
    return tuple(events)


def failed_message(code: str) -> str:
    """Return the message of the last event of a decision that refused."""
    return FAILED.get(code, FAILED_OTHERWISE)


def node_after(decision: Decision, node: str) -> dict[str, Any]:
    """Return what a node holds when the request is added to what the decision saw of it; {} when it is not in there.

    The admission itself reads nothing back: these are the decision's figures, not the ledger's of that moment.
    """
    trail = decision.evidence
    assert isinstance(trail, Trail), "decisions explain themselves by their trail"
    ask, frame = trail.ask, trail.frame
    at = frame.roster.index.get(node)
    if at is None:
        return {}
    figures: dict[str, Any] = {}
    for row, dimension in enumerate(("cpus", "memory_mb", "disk_gb")):
        held = shown(frame.used[row][at])
        figures[f"node_used_{dimension}"] = None if held is None else held + ask.added(dimension, at)
    demand = int(frame.counter("expected_demand")[at])
    added = demand_at_admission(ask.added("cpus", at), frame.config.scheduler_demand_per_vcpu)
    figures["node_expected_demand"] = None if demand == UNKNOWN else shown_milli(demand + to_milli(added))
    return figures


def events_at(decision: Decision, node: str) -> tuple[AuditEvent, ...]:
    """Return what a decision did with one node: the stage that dropped it and why, or its place in the order.

    Nothing, when the node was not there to be judged.
    """
    trail = decision.evidence
    assert isinstance(trail, Trail), "decisions explain themselves by their trail"
    at = trail.frame.roster.index.get(node)
    if at is None:
        return ()
    for stage, reasons in trail.masks().items():
        if any(mask[at] for mask in reasons.values()):
            return (_dropped_at(trail, trail.steps_by_name()[stage], at),)
    places = np.flatnonzero(decision.ranked_indices == at)
    return tuple(_place(decision, node, int(place)) for place in places)


def _dropped_at(trail: Trail, step: Step, at: int) -> AuditEvent:
    if isinstance(step.stage.stage, Scorer):
        detail = {trail.names[at]: step.stage.stage.figures(trail.ask, trail.frame, at)}
        return AuditEvent(HIGHEST_AFFINITY, {"highest_affinity": _highest(trail, step), "affinity_detail": detail})
    return AuditEvent(stage_message(step.stage.name), {"dropped": {trail.names[at]: _reason(trail, step, at)}})


def _place(decision: Decision, node: str, place: int) -> AuditEvent:
    payload = {
        "rank": place + 1,
        "candidates_total": len(decision.ranked_indices),
        "weights": {node: round(float(decision.ranked_weights[place]), 6)},
        "order_detail": {node: dict(decision.ordered_by(int(decision.ranked_indices[place])))},
    }
    return AuditEvent(FINAL, payload)


def recorded_at(stored: StoredDecision, at: int, node: str, why: str) -> tuple[AuditEvent, ...]:
    """Return what a record alone tells of the node at an index of the snapshot; `why` says why there is no more."""
    for stage, reasons in stored.dropped.items():
        for reason, mask in reasons.items():
            if mask[at]:
                dropped = {node: {"reason": reason}}
                return (AuditEvent(stage_message(stage), {"dropped": dropped, "not_kept": why}),)
    if stored.outcome == "refused":
        return ()
    places = np.flatnonzero(stored.ranked == at)
    rank = int(places[0]) + 1 if len(places) else None
    payload = {"rank": rank, "candidates_total": stored.ranked_count, "weights": None, "not_kept": why}
    return (AuditEvent(FINAL, payload),)


def requested(request: PlacementRequest) -> dict[str, Any]:
    """Return what was asked for; beyond the amounts and the affinity only what the request gives."""
    spec = request.affinity_spec
    given = request.model_dump(mode="json", exclude_defaults=True)
    return {
        "requested_affinity": {} if spec is None else dict(spec.given),
        "requested_cpus": request.cpus,
        "requested_memory_mb": request.memory_mb,
        "requested_disk_gb": request.disk_gb,
        "disk_spec": [{"size": request.disk_gb}] if request.disk_gb else [],
        "namespace": request.namespace,
        **{f"requested_{name}": value for name, value in given.items() if name not in _ASKED_ALWAYS},
    }


def _inputs(ask: Ask, frame: Frame) -> dict[str, Any]:
    return {
        **requested(ask.request),
        "forced_candidates": is_forced(ask.request),
        "metrics_age_seconds": _metrics_age(frame),
    }


def is_forced(request: PlacementRequest) -> bool:
    """Return whether the request itself names who may be a candidate."""
    named = request.placement.node is not None or request.destinations is not None
    return named or request.reason is Reason.FORK


def _metrics_age(frame: Frame) -> float | None:
    """Return the age of the oldest sample that still counts; None when none does."""
    at = frame.counter("sample_at_us")
    fresh = at[at > frame.now_us - frame.config.node_metrics_max_age_seconds * 1_000_000]
    return round((frame.now_us - int(fresh.min())) / 1_000_000, 6) if len(fresh) else None


def _first(trail: Trail) -> AuditEvent:
    request = trail.ask.request
    if not is_forced(request):
        return AuditEvent(INITIAL, _nodes("candidates", trail.names, range(len(trail.names))))
    pinned = request.placement.node
    if trail.ask.is_fork:
        pinned = trail.names[trail.ask.fork_home] if trail.ask.fork_home >= 0 else None
    named = [pinned] if pinned is not None else list(request.destinations or ())
    return AuditEvent(FORCED, _nodes("candidates", named, range(len(named))))


def lacks_message(node: str) -> str:
    """Return the message of a candidate that was named and has no sample that counts."""
    return f"schedule candidate {node} lacks metrics, aborting"


def _lacking(trail: Trail, first: AuditEvent) -> list[AuditEvent]:
    """Return an event for each of the first named candidates that is not registered or has no sample that counts."""
    if first.message != FORCED:
        return []
    frame = trail.frame
    oldest = frame.now_us - frame.config.node_metrics_max_age_seconds * 1_000_000
    at, sampled = frame.roster.index, frame.counter("sample_at_us")
    named = first.payload["candidates"]
    lacking = [name for name in named if name not in at or int(sampled[at[name]]) <= oldest]
    return [AuditEvent(lacks_message(name), {"candidates": named}, "warning") for name in lacking[:LACKING_MAX]]


def _stages(trail: Trail) -> list[AuditEvent]:
    """Return the events of the stages, up to the one that left nobody."""
    events: list[AuditEvent] = []
    left: Mask = np.ones(len(trail.frame), dtype=np.bool_)
    advising = [step for step in trail.steps if not _sheds(step) and not isinstance(step.stage.stage, Scorer)]
    for step in advising:
        events.append(_stage(trail, step, step.before, step.after))
        left = step.after
        if not left.any():
            return [*events, _aborting(events[-1], step)]
    scored = next((step for step in trail.steps if isinstance(step.stage.stage, Scorer)), None)
    shedding = [step for step in trail.steps if _sheds(step)]
    if scored is None and not shedding:
        return events
    events.append(_nothing_scored(trail, left) if scored is None else _scored(trail, scored))
    for step in shedding:
        # Load shedding judges everybody, whoever is preferred; what it says about the preferred is overridden below.
        kept = left.copy()
        for _, mask in step.drops:
            kept &= ~mask
        events.append(_stage(trail, step, left, kept))
        left = kept
        if not left.any():
            return [*events, _aborting(events[-1], step)]
    if scored is not None and any(step.overridden for step in shedding):
        events.append(_keeping(trail, scored, left))
    return events


def _sheds(step: Step) -> bool:
    return isinstance(step.stage.stage, Filter) and step.stage.stage.sheds_load


def _stage(trail: Trail, step: Step, before: Mask, after: Mask) -> AuditEvent:
    payload = _nodes("candidates", trail.names, np.flatnonzero(after))
    payload |= _dropped(trail, step, before & ~after, "dropped")
    if step.overridden and not _sheds(step):
        would = np.zeros(len(before), dtype=np.bool_)
        for _, mask in step.drops:
            would |= mask
        payload |= {"overridden": True, **_dropped(trail, step, before & would, "would_drop")}
    return AuditEvent(stage_message(step.stage.name), payload)


def _aborting(last: AuditEvent, step: Step) -> AuditEvent:
    return AuditEvent(aborting_message(step.stage.name), last.payload, "warning")


def _dropped(trail: Trail, step: Step, dropped: Mask, key: str) -> dict[str, Any]:
    nodes = np.flatnonzero(dropped)
    out: dict[str, Any] = {key: {trail.names[at]: _reason(trail, step, int(at)) for at in nodes[:SHOWN_MAX]}}
    if len(nodes) > SHOWN_MAX:
        left, counts = dropped.copy(), {}
        for reason, mask in step.drops:
            if hit := int(np.count_nonzero(left & mask)):
                counts[reason.code] = hit
                left &= ~mask
        out |= {f"{key}_total": len(nodes), f"{key}_by_reason": counts}
    return out


def _reason(trail: Trail, step: Step, at: int) -> dict[str, Any]:
    figures = step.stage.stage.figures(trail.ask, trail.frame, at)
    return {"reason": step.reason_at(at).code, **figures, **_further(trail.frame, step.stage.name, at)}


def _further(frame: Frame, stage: str, at: int) -> dict[str, Any]:
    """Return figures that belong in the event and are not in the decision, whose form stays what it was."""
    if stage != "sufficient_idle_memory":
        return {}
    return {
        "instance_memory_mb": shown(frame.sample.column("memory_total_instance_actual")[at]),
        "memory_max_mb": shown(frame.sample.column("memory_max")[at]),
        "overcommit_ratio": float(frame.config.ram_overcommit_ratio),
    }


def _nothing_scored(trail: Trail, left: Mask) -> AuditEvent:
    """Return the second shape of the affinity's event: nothing was asked for, so nobody was scored."""
    spec = trail.ask.request.affinity_spec
    candidates = _nodes("candidates", trail.names, np.flatnonzero(left))
    payload = {
        **candidates,
        "requested_affinity": {} if spec is None else dict(spec.given),
        "highest_affinity": 0,
        "by_affinity": {"0": candidates["candidates"]},
        "affinity_detail": {},
    }
    return AuditEvent(HIGHEST_AFFINITY, payload)


def _scored(trail: Trail, step: Step) -> AuditEvent:
    spec, scorer = trail.ask.request.affinity_spec, step.stage.stage
    scores = _scores(trail, step)
    considered = np.flatnonzero(step.before)
    tiers: dict[str, list[str]] = {}
    for score in sorted(set(scores[considered].tolist()), reverse=True):
        tier = considered[scores[considered] == score]
        tiers[str(score)] = [trail.names[at] for at in tier[:SHOWN_MAX]]
    # The winners come first: they are what is asked about when not all can be shown.
    told = [*np.flatnonzero(step.after), *np.flatnonzero(step.before & ~step.after)]
    payload = {
        **_nodes("candidates", trail.names, np.flatnonzero(step.after)),
        "requested_affinity": {} if spec is None else dict(spec.given),
        "highest_affinity": _highest(trail, step),
        "by_affinity": tiers,
        "affinity_detail": {
            trail.names[at]: scorer.figures(trail.ask, trail.frame, int(at)) for at in told[:SHOWN_MAX]
        },
    }
    return AuditEvent(HIGHEST_AFFINITY, payload | _total("affinity_detail", len(told)))


def _scores(trail: Trail, step: Step) -> NDArray[np.int64]:
    scorer = step.stage.stage
    assert isinstance(scorer, Scorer), "only scorers score"
    scores = scorer.score(trail.ask, trail.frame)
    assert scores is not None, "a scorer that has a step has scores"
    return scores


def _highest(trail: Trail, step: Step) -> int:
    return int(_scores(trail, step)[step.before].max())


def _keeping(trail: Trail, scored: Step, survivors: Mask) -> AuditEvent:
    payload = {
        **_nodes("candidates", trail.names, np.flatnonzero(scored.after)),
        **_nodes("load_shed_candidates", trail.names, np.flatnonzero(survivors)),
        "highest_affinity": _highest(trail, scored),
    }
    return AuditEvent(KEEPING_AFFINITY, payload, "warning")


def _ordered(decision: Decision, trail: Trail) -> AuditEvent:
    ranked, names = decision.ranked_indices, trail.names
    detail = {names[at]: dict(decision.ordered_by(int(at))) for at in ranked[:SHOWN_MAX]}
    total = _total("load_detail" if decision.strategy == "load-aware" else "order_detail", len(ranked))
    message = ordering_message(decision.strategy)
    if decision.strategy != "load-aware":
        candidates = _nodes("candidates", names, ranked)
        return AuditEvent(message, {**candidates, "strategy": decision.strategy, "order_detail": detail, **total})
    band = bands(trail.frame, ranked)
    payload = {
        **_nodes("candidates", names, ranked[band == band.min()]),
        "lowest_load": int(band.min()),
        "load_detail": {node: {name: found[name] for name in LOAD_DETAIL} for node, found in detail.items()},
        **total,
    }
    return AuditEvent(message, payload)


def _final(decision: Decision, left_out: Sequence[str]) -> AuditEvent:
    names, ranked = decision.evidence.names, decision.ranked_indices
    weights = decision.ranked_weights[:SHOWN_MAX]
    payload = {
        **_nodes("candidates", names, ranked),
        "weights": {names[at]: round(float(weight), 6) for at, weight in zip(ranked[:SHOWN_MAX], weights, strict=True)},
    }
    return AuditEvent(FINAL, payload | ({"left_out": list(left_out)} if left_out else {}))


def _nodes(key: str, names: Sequence[str], at: Sequence[int] | NDArray[np.intp]) -> dict[str, Any]:
    return {key: [names[place] for place in at[:SHOWN_MAX]], **_total(key, len(at))}


def _total(key: str, count: int) -> dict[str, int]:
    return {f"{key}_total": count} if count > SHOWN_MAX else {}


def recorded_events(stored: StoredDecision, asked: Mapping[str, Any], why: str) -> tuple[AuditEvent, ...]:
    """Return what a record alone can tell, when its snapshot cannot be decided on again: counts, and no names.

    `asked` is the payload of the inputs as far as it is known; `why` says why there is no more.
    """
    events = [AuditEvent(STARTED), AuditEvent(INPUTS, {**asked, "not_kept": why})]
    left = stored.node_count
    events.append(AuditEvent(INITIAL, {"candidates": None, "candidates_total": left}))
    for stage, counts in stored.counts.items():
        dropped = sum(counts.values())
        left -= dropped
        payload = {
            "candidates": None,
            "candidates_total": left,
            "dropped": None,
            "dropped_total": dropped,
            "dropped_by_reason": dict(counts),
        }
        events.append(AuditEvent(stage_message(stage), payload))
        if stage == stored.stage and stored.outcome == "refused":
            events.append(AuditEvent(aborting_message(stage), payload, "warning"))
    if stored.outcome == "ranked":
        events.append(AuditEvent(FINAL, {"candidates": None, "candidates_total": stored.ranked_count, "weights": None}))
    return tuple(events)
