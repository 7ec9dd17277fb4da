"""Wishes: what a request may ask for less of. Each wish alone, in the form in which the request states it.

An amount is lowered to the largest that some node would take, never further. An instance that is there keeps what it
was made with, and in a move its amounts, too: of those, whoever places it again can give up nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import combinations
from typing import Any, Final

import numpy as np

from fleet.model.affinity import AffinitySpec, TagMatch
from fleet.model.labels import selector_text
from fleet.model.request import PlacementRequest, Reason
from fleet.model.rules import AllOf, AnyOf, Node, Rule, leaves, rules_form
from fleet.placement.ask import MOVES
from fleet.placement.columns import Mask
from fleet.placement.explanation import counted, counted_gpus
from fleet.placement.relaxations import (
    NAMES_SHOWN_MAX,
    UNKNOWN_NAME,
    Case,
    Edit,
    Kind,
    Relaxation,
    Verdicts,
    change_of,
    wish,
)
from fleet.placement.room import most_of
from fleet.placement.rules.ground import FrameGround
from fleet.placement.rules.judge import judge_rule
from fleet.placement.stages.affinity_constraints import carried

LABEL_PAIRS_MAX: Final = 4
AMOUNT_STAGES: Final[Mapping[str, frozenset[str]]] = {
    "cpus": frozenset({"cpu_max_per_instance", "sufficient_idle_cpu"}),
    "memory_mb": frozenset({"sufficient_idle_memory"}),
    "disk_gb": frozenset({"sufficient_free_disk"}),
}
LEAST: Final = {"cpus": 1, "memory_mb": 1, "disk_gb": 0}
LABELS: Final = frozenset({"labels"})
TAGS: Final = frozenset({"affinity_constraints"})
RULES: Final = frozenset({"placement_rules"})
GPU: Final = frozenset({"gpu"})
PLACED_AGAIN: Final = frozenset({Reason.RESIZE, *MOVES})


def wishes(verdicts: Verdicts) -> Iterator[Relaxation]:
    """Yield everything that this request could do without."""
    if verdicts.case.request.reason in PLACED_AGAIN:
        yield from _destinations(verdicts)
        yield from _amounts(verdicts)
        return
    yield from _labels(verdicts)
    yield from _simple(verdicts)
    yield from _destinations(verdicts)
    yield from _tags(verdicts)
    yield from _rules(verdicts)
    yield from _amounts(verdicts)
    yield from _gpus(verdicts)


def _simple(verdicts: Verdicts) -> Iterator[Relaxation]:
    """Wishes that one field states: it is given up by emptying the field."""
    request = verdicts.case.request
    fields: tuple[tuple[str, Any, Any, Kind, frozenset[str], str], ...] = (
        ("region", request.region, "", Kind.REGION, frozenset({"region"}), _region(verdicts.case)),
        ("arch", request.arch, "", Kind.ARCH, frozenset({"arch"}), "the architecture {}"),
        ("gpu_kind", request.gpu_kind, "", Kind.GPU_KIND, GPU, "the kind of GPU, {}"),
        ("gpu_profile", request.gpu_profile, "", Kind.GPU_PROFILE, GPU, "the MIG profile {}, for whole GPUs"),
        ("placement.node", request.placement.node, None, Kind.PIN, frozenset({"node_pin"}), "the pin to {}"),
    )
    for name, before, after, kind, stages, words in fields:
        if before and (stages != GPU or request.gpus):
            said = ([change_of(name, before, after or None)], f"drop {words.format(before)}")
            yield wish(verdicts, kind, stages, {name: after}, said)
    seconds = request.sleep_after_idle_seconds
    if seconds and verdicts.case.frame.config.dedicated_sleepy_nodes:
        said = ([change_of("sleep_after_idle_seconds", seconds, 0)], "let it never sleep")
        yield wish(verdicts, Kind.SLEEP, frozenset({"sleepy_pool"}), {"sleep_after_idle_seconds": 0}, said)


def _destinations(verdicts: Verdicts) -> Iterator[Relaxation]:
    request = verdicts.case.request
    if request.destinations is not None:
        said = ([change_of("destinations", request.destinations, None)], "allow any destination")
        stages = frozenset({"scheduling_state", UNKNOWN_NAME})
        still = verdicts.dropped_for("scheduling_state", but=("not_a_destination",))
        yield wish(verdicts, Kind.DESTINATIONS, stages, {"destinations": None}, said, still)


def _region(case: Case) -> str:
    """Return the words for the region; where no node is in it, with those that there are, the likest first."""
    asked = case.request.region
    there = [name for name in case.frame.roster.coded("region").present() if name]
    if asked in there or not there:
        return "the region {}"
    like = {name: SequenceMatcher(None, name.casefold(), asked.casefold()).ratio() for name in there}
    first = sorted(there, key=lambda name: (-like[name], name))
    more = f" and {len(first) - NAMES_SHOWN_MAX} more" if len(first) > NAMES_SHOWN_MAX else ""
    return f"the region {{}} (no node is in it; there is: {', '.join(first[:NAMES_SHOWN_MAX])}{more})"


def _labels(verdicts: Verdicts) -> Iterator[Relaxation]:
    """The selector's labels: each alone; pairs of them when none does; then all of them."""
    asked, frame = verdicts.case.request.placement.labels, verdicts.case.frame
    if not asked:
        return
    unmatched = {key: ~frame.roster.labelled(key).equal(asked[key]) for key in sorted(asked)}
    lacking = sum((mask.astype(np.int64) for mask in unmatched.values()), np.zeros(len(frame), dtype=np.int64))
    near = verdicts.but_for(LABELS)
    least = int(lacking[near].min(initial=len(asked) + 1))
    for key, mask in unmatched.items():
        yield _without_labels(verdicts, (key,), lacking - mask > 0)
    if least == 2 and len(asked) > 2:
        for keys in _pairs(unmatched, near & (lacking == 2)):
            yield _without_labels(verdicts, keys, lacking - unmatched[keys[0]] - unmatched[keys[1]] > 0)
    if least > 1 and len(asked) > 1 and (least > 2 or len(asked) == 2):
        yield _without_labels(verdicts, tuple(unmatched), np.zeros(len(frame), dtype=np.bool_))


def _pairs(unmatched: Mapping[str, Mask], near: Mask) -> list[tuple[str, str]]:
    """Return the first pairs of labels that are all that some of these nodes lack."""
    found = (pair for pair in combinations(unmatched, 2) if (unmatched[pair[0]] & unmatched[pair[1]] & near).any())
    return [pair for pair, _ in zip(found, range(LABEL_PAIRS_MAX), strict=False)]


def _without_labels(verdicts: Verdicts, keys: tuple[str, ...], still: Mask) -> Relaxation:
    asked = verdicts.case.request.placement.labels
    kept = {key: value for key, value in asked.items() if key not in keys}
    changes = [change_of(f"placement.labels[{key}]", asked[key], None) for key in keys]
    selector = selector_text({key: asked[key] for key in keys})
    words = f"drop the label{'s' if len(keys) > 1 else ''} {selector}"
    kind = Kind.LABEL if len(keys) == 1 else Kind.LABELS
    return wish(verdicts, kind, LABELS, {"placement.labels": kept}, (changes, words), still)


def _tags(verdicts: Verdicts) -> Iterator[Relaxation]:
    """The `require_*` tags, each alone."""
    spec, ask, frame = verdicts.ask.request.affinity_spec, verdicts.ask, verdicts.case.frame
    if spec is None or not spec.constrains:
        return
    broken = [("require_with_tag", one, ~carried(ask, frame, one)) for one in spec.require_with]
    broken += [("require_without_tag", one, carried(ask, frame, one)) for one in spec.require_without]
    failing = sum((mask.astype(np.int64) for _, _, mask in broken), np.zeros(len(frame), dtype=np.int64))
    base = "affinity" if verdicts.case.request.affinity is not None else "metadata.affinity"
    for name, match, mask in broken:
        still: Mask = failing - mask > 0
        if ask.resize_home >= 0:
            still[ask.resize_home] = False
        said = ([change_of(f"{base}.{name}", str(match), None)], f"drop {match} from {name}")
        yield wish(verdicts, Kind.TAG, TAGS, _affinity(verdicts.case.request, _less(spec, name, match)), said, still)


def _less(spec: AffinitySpec, name: str, match: TagMatch) -> AffinitySpec:
    if name == "require_with_tag":
        less = replace(spec, require_with=tuple(one for one in spec.require_with if one != match))
    else:
        less = replace(spec, require_without=tuple(one for one in spec.require_without if one != match))
    return replace(less, given=less.form(), deprecated=False)


def _affinity(request: PlacementRequest, spec: AffinitySpec) -> dict[str, Any]:
    """Return the fields of the request that state an affinity, where it states it now."""
    kept = spec or None
    if request.affinity is not None:
        return {"affinity": kept}
    others = {name: value for name, value in (request.metadata or {}).items() if name != "affinity"}
    return {"metadata": others if kept is None else {**others, "affinity": kept}}


def _rules(verdicts: Verdicts) -> Iterator[Relaxation]:
    """The rules: the smallest parts of the tree that can go so that it asks less; at last, all of it."""
    rules, frame, ask = verdicts.case.request.placement_rules, verdicts.case.frame, verdicts.ask
    if not rules:
        return
    seen = FrameGround(frame, ask.namespace, ask.request.instance)
    judged = {rule: judge_rule(rule, seen) for rule in set(leaves(rules))}
    near = verdicts.but_for(RULES)
    helped: list[tuple[int, ...]] = []
    parts = sorted(_parts(rules, "placement_rules", ()), key=lambda part: (len(list(leaves((part[2],)))), part[1]))
    for place, path, node in parts:
        if any(inner[: len(place)] == place for inner in helped):
            continue
        kept = _without(rules, place)
        still = ~_hold(kept, judged, len(frame))
        if ask.resize_home >= 0:
            still[ask.resize_home] = False
        if (near & ~still).any():
            helped.append(place)
        said = ([change_of(path, rules_form((node,))[0], None)], f"drop {path} ({_told(node)})")
        yield wish(verdicts, Kind.RULE, RULES, {"placement_rules": kept}, said, still)
    if not helped and len(rules) > 1:
        said = ([change_of("placement_rules", rules_form(rules), None)], "drop all placement rules")
        still = np.zeros(len(frame), dtype=np.bool_)
        yield wish(verdicts, Kind.RULES, RULES, {"placement_rules": ()}, said, still)


def _parts(nodes: tuple[Node, ...], path: str, above: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], str, Node]]:
    """Yield the parts of a list of which every one must hold: without one of them, the tree asks less."""
    for at, node in enumerate(nodes):
        here = (*above, at)
        if len(nodes) > 1 or not above:
            yield here, f"{path}[{at}]", node
        yield from _inner_parts(node, f"{path}[{at}]", here)


def _inner_parts(node: Node, path: str, here: tuple[int, ...]) -> Iterator[tuple[tuple[int, ...], str, Node]]:
    if isinstance(node, AllOf):
        yield from _parts(node.nodes, f"{path}.all_of", here)
    elif isinstance(node, AnyOf):
        # One alternative less asks more, so only what stands within an alternative can go.
        for at, inner in enumerate(node.nodes):
            yield from _inner_parts(inner, f"{path}.any_of[{at}]", (*here, at))


def _without(nodes: tuple[Node, ...], place: tuple[int, ...]) -> tuple[Node, ...]:
    at, *deeper = place
    if not deeper:
        return nodes[:at] + nodes[at + 1 :]
    group = nodes[at]
    assert isinstance(group, AnyOf | AllOf), "only groups have something within"
    return (*nodes[:at], type(group)(_without(group.nodes, tuple(deeper))), *nodes[at + 1 :])


def _hold(nodes: tuple[Node, ...], judged: Mapping[Rule, Mask], count: int) -> Mask:
    """Return where every one of the nodes holds, from the verdicts on the rules."""
    found = np.ones(count, dtype=np.bool_)
    for node in nodes:
        if isinstance(node, Rule):
            found &= judged[node]
        elif isinstance(node, AllOf):
            found &= _hold(node.nodes, judged, count)
        else:
            found &= np.logical_or.reduce([_hold((inner,), judged, count) for inner in node.nodes])
    return found


def _told(node: Node) -> str:
    if not isinstance(node, Rule):
        return f"{len(list(leaves((node,))))} rules"
    within = f" within {node.within}" if node.within else ""
    return f"{node.resource} {node.operator} {selector_text(node.tags)}{within}"


def is_sized(request: PlacementRequest) -> bool:
    """Whether the request says a size that could be another: a move has the size of what is there."""
    return request.reason in {Reason.RESIZE, Reason.FORK} or (
        request.reason is Reason.CREATE and request.instance is None
    )


def _amounts(verdicts: Verdicts) -> Iterator[Relaxation]:
    """Less of one amount: as much as each node would take."""
    request, ask, frame = verdicts.case.request, verdicts.ask, verdicts.case.frame
    for name, stages in AMOUNT_STAGES.items() if is_sized(request) else ():
        wanted = int(getattr(request, name))
        most = most_of(ask, frame, name, verdicts.unknown(stages))
        still = most < LEAST[name]
        given_up = np.where(still, np.inf, np.maximum(wanted - most, 0) / max(1, wanted))

        def edit(case: Case, at: int, _others: int, name: str = name, wanted: int = wanted, most: Any = most) -> Edit:
            left = min(wanted, int(most[at]))
            changed = Case(case.request.model_copy(update={name: left}), case.frame)
            return Edit(changed, (change_of(name, wanted, left),), f"ask for {counted(left, name)} instead of {wanted}")

        yield Relaxation(kind=Kind.AMOUNT, stages=stages, still=still, edit=edit, given_up=given_up, amount=name)


def _gpus(verdicts: Verdicts) -> Iterator[Relaxation]:
    """Fewer GPUs, or none."""
    request, ask, frame = verdicts.case.request, verdicts.ask, verdicts.case.frame
    if not request.gpus:
        return
    wanted, free = request.gpus, frame.gpus.free(ask.gpus)
    still = free < 1
    given_up = np.where(still, np.inf, np.maximum(wanted - free, 0) / wanted)

    def fewer(case: Case, at: int, _others: int) -> Edit:
        left = min(wanted, int(free[at]))
        changed = Case(case.request.model_copy(update={"gpus": left}), case.frame)
        return Edit(
            changed,
            (change_of("gpus", wanted, left),),
            f"ask for {counted_gpus(left, request.gpu_profile)} instead of {wanted}",
        )

    yield Relaxation(kind=Kind.AMOUNT, stages=GPU, still=still, edit=fewer, given_up=given_up, amount="gpus")
    values = {"gpus": 0, "gpu_kind": "", "gpu_profile": ""}
    changes = [change_of(name, getattr(request, name), after or None) for name, after in values.items()]
    said = ([change for change in changes if change["from"]], "ask for no GPUs")
    changes[0]["to"] = 0
    yield wish(verdicts, Kind.NO_GPUS, frozenset({"gpu", "backend"}), values, said)
