"""The cause of a refusal: one code, one stage, whether waiting can help, and a sentence that names who and what.

The order of causes is the decisions' (section 5): an unknown name; no nodes at all; the pinned node; nothing
schedulable; a selector that matches nothing; no GPUs anywhere; and then the stage that left nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from fleet.model.gpu_inventory import GpuAsk
from fleet.model.labels import selector_text
from fleet.model.rules import within_keys
from fleet.placement.ask import Ask
from fleet.placement.columns import COLUMN_MAX, Mask
from fleet.placement.explanation import LEFT, UNITS, counted, exceeds_every_limit, largest_limits, shortfalls
from fleet.placement.frame import Frame
from fleet.placement.stage import Filter, NamedStage, Reason, all_stages
from fleet.placement.stages.backend import serving as backend_serves
from fleet.placement.trail import Trail

NOTHING_SCHEDULABLE: Final = "no_schedulable_nodes"
OUT_OF_CAPACITY: Final = "out_of_capacity"
NAMED_MAX: Final = 3


@dataclass(frozen=True, slots=True)
class Cause:
    """Why nobody is left. `sentence` names what the counts cannot; `told` follows the counts. Both may be empty."""

    code: str
    stage: str | None = None
    transient: bool = False
    sentence: str = ""
    told: str = ""


def before_any_stage(ask: Ask, frame: Frame) -> Cause | None:
    """Return the cause that needs no stage: a name that no node has, or no node at all."""
    unknown = list(ask.unknown_destinations)
    if ask.is_pinned and ask.pin < 0:
        unknown.insert(0, str(ask.request.placement.node))
    if unknown:
        count = {0: "no node is registered", 1: "1 node is registered"}.get(
            len(frame), f"{len(frame)} nodes are registered"
        )
        return Cause("node_not_found", sentence=f"no node is called {_named(unknown)}; {count}")
    if ask.is_fork and ask.fork_home < 0:
        return Cause("node_not_found", sentence="the node that holds what is forked is not registered any more")
    if len(frame):
        return None
    if ask.gpus.count:
        return Cause("no_gpu_nodes", sentence="gpu workloads require a registered gpu node: no node is registered")
    return Cause("no_nodes", sentence="placement requires registered nodes: no node is registered")


def _named(names: Sequence[str]) -> str:
    """Return the first few names."""
    return ", ".join(names[:NAMED_MAX]) + (", …" if len(names) > NAMED_MAX else "")


def of_emptying(emptied: NamedStage, trail: Trail) -> Cause:
    """Return the cause when `emptied` left nobody."""
    ask, frame = trail.ask, trail.frame
    if ask.pin >= 0:
        return _of_pin(emptied, trail)
    schedulable = _schedulable(ask, frame)
    if not schedulable.any():
        return Cause(NOTHING_SCHEDULABLE, emptied.name)
    count = int(np.count_nonzero(schedulable))
    labels = ask.request.placement.labels
    if not (frame.roster.carrying(labels) & schedulable).any():
        sentence = f"{selector_text(labels)} matched none of {count} schedulable nodes"
        return Cause("labels_unmatched", "labels", sentence=sentence)
    if ask.gpus.count and not (frame.gpus.serving() & backend_serves(frame) & schedulable).any():
        asked = _gpus_asked(ask.gpus)
        sentence = (
            f"gpu workloads require a registered gpu node: none of {count} schedulable nodes serves GPUs ({asked})"
        )
        return Cause("no_gpu_nodes", "gpu", sentence=sentence)
    return _of_stage(emptied, trail)


def _schedulable(ask: Ask, frame: Frame) -> Mask:
    """Return the nodes that pass the stages which say whether a node may take anything at all."""
    left = np.ones(len(frame), dtype=np.bool_)
    for named in all_stages():
        if isinstance(named.stage, Filter) and named.stage.refusal == NOTHING_SCHEDULABLE:
            for _, mask in named.stage.drops(ask, frame) or ():
                left &= ~mask
    return left


def _gpus_asked(asked: GpuAsk) -> str:
    words = [str(asked.count), *([asked.kind] if asked.kind else []), *([asked.profile] if asked.profile else [])]
    return "asked: " + " x ".join(words)


def _of_stage(emptied: NamedStage, trail: Trail) -> Cause:
    stage = emptied.stage
    assert isinstance(stage, Filter), "a scorer never leaves nobody"
    if stage.refusal != OUT_OF_CAPACITY and emptied.name != "labels":
        return Cause(stage.refusal, emptied.name, told=_without_labels(emptied, trail))
    if not stage.capacity:
        return Cause(OUT_OF_CAPACITY, emptied.name, told=_largest_instance(emptied, trail))
    ask, frame = trail.ask, trail.frame
    among = trail.refused_on_capacity()
    largest = largest_limits(ask, frame, among) if exceeds_every_limit(ask, frame, among) else ""
    if not largest and emptied.name == "gpu":
        largest = _most_gpus(ask, frame, among)
    told = largest or (_most_free_gpus(ask, frame, among) if emptied.name == "gpu" else "")
    return Cause(OUT_OF_CAPACITY, emptied.name, transient=not largest, told=told)


def _largest_instance(emptied: NamedStage, trail: Trail) -> str:
    """Return the most vCPUs that one instance may have, where that is what left nobody."""
    if emptied.name != "cpu_max_per_instance":
        return ""
    before = trail.steps_by_name()[emptied.name].before
    column = np.where(before, trail.frame.sample.column("cpu_max_per_instance"), -1)
    most = int(column.max())
    if most < 0:
        return ""
    owner = min(trail.frame.roster.names[at] for at in np.flatnonzero(column == most))
    return f"{counted(trail.ask.amounts.cpus, 'cpus')} exceed the most that one instance may have, {most} ({owner})"


def _without_labels(emptied: NamedStage, trail: Trail) -> str:
    """Return who cannot satisfy a rule `within` a label because nobody can tell which group it is in."""
    if emptied.name != "placement_rules":
        return ""
    roster, judged = trail.frame.roster, trail.steps_by_name()[emptied.name].before
    parts = []
    for key in within_keys(trail.ask.request.placement_rules):
        lacking = sorted(roster.names[at] for at in np.flatnonzero(judged & ~roster.labelled(key).has_value()))
        if lacking:
            parts.append(f"{len(lacking)} of {np.count_nonzero(judged)} nodes lack the label {key} ({_named(lacking)})")
    return "; ".join(parts)


def _most_gpus(ask: Ask, frame: Frame, among: Mask) -> str:
    """Return a sentence when no node owns that many matching GPUs, bound or not: waiting cannot help."""
    owned = np.where(among, frame.gpus.owned(ask.gpus), -1)
    most = int(owned.max())
    if most >= ask.gpus.count:
        return ""
    owner = min(frame.roster.names[at] for at in np.flatnonzero(owned == most))
    left = LEFT if bool((frame.gpus.owned(ask.gpus) > most).any()) else ""
    holder = f"the most on one node is {most} ({owner})" if most else "no node has any of that kind"
    return f"{_gpus_asked(ask.gpus)}; {holder}{left}"


def _most_free_gpus(ask: Ask, frame: Frame, among: Mask) -> str:
    """Return how many of what is asked the best of the nodes has free."""
    free = np.where(among, frame.gpus.free(ask.gpus), -1)
    most = int(free.max())
    owner = min(frame.roster.names[at] for at in np.flatnonzero(free == most))
    return f"{_gpus_asked(ask.gpus)}; the most free on one node is {most}{f' ({owner})' if most else ''}"


def _of_pin(emptied: NamedStage, trail: Trail) -> Cause:
    """Return the cause of a pinned request: the stage that its node fails."""
    ask, frame, stage = trail.ask, trail.frame, emptied.stage
    assert isinstance(stage, Filter), "a scorer never leaves nobody"
    name = frame.roster.names[ask.pin]
    reason = trail.steps_by_name()[emptied.name].reason_at(ask.pin)
    if stage.capacity:
        found = _of_stage(emptied, trail)
        return Cause(found.code, found.stage, found.transient, _no_room(name, ask, frame, reason), found.told)
    if stage.refusal.startswith("affinity_"):
        return Cause(stage.refusal, emptied.name, sentence=f"node {name} fails {emptied.name}: {reason.meaning}")
    why = f"node {name} is not eligible: {reason.code} ({reason.meaning}), at stage {emptied.name}"
    return Cause("pin_ineligible", emptied.name, sentence=why)


def _no_room(name: str, ask: Ask, frame: Frame, reason: Reason) -> str:
    """Return what the pinned node lacks; where a figure is unknown, that, for it says nothing about room."""
    if reason.code.startswith("unknown_"):
        return f"node {name} promises nothing: {reason.code} ({reason.meaning})"
    lacking = shortfalls(ask, frame)[:, ask.pin]
    short = {unit: int(amount) for unit, amount in zip(UNITS, lacking, strict=True) if 0 < amount <= COLUMN_MAX}
    parts = [counted(amount, unit) for unit, amount in short.items()]
    return f"node {name} has no room: {'it lacks ' + ' and '.join(parts) if parts else reason.meaning}"
