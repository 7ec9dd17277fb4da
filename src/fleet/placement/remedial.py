"""What an operator can do, or time will, so that a refused request fits: to one node, to a setting, or by a new node.

Each names the node that it is done to. The request stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import numpy as np

from fleet.model.labels import LABELS_MAX, is_label, selector_text
from fleet.model.request import Placement
from fleet.model.rules import within_keys
from fleet.placement import what_if
from fleet.placement.ask import MOVES
from fleet.placement.columns import ACTIVE, STATES, UNKNOWN, UNLIMITED, Mask
from fleet.placement.explanation import UNITS, counted, counted_gpus, distance, shortfall, shortfalls
from fleet.placement.frame import Frame
from fleet.placement.relaxations import Case, Edit, Kind, Relaxation, Verdicts, names_of, or_others
from fleet.placement.stages.queue_state import WAITING_MAX
from fleet.placement.stages.sufficient_idle_disk import BUSY_MS_PER_SECOND_MAX

ROOM_STAGES: Final = frozenset(
    {
        "sufficient_idle_cpu",
        "sufficient_idle_memory",
        "sufficient_free_disk",
        "instance_slots",
        "gpu",
        "queue_state",
        "sufficient_idle_disk",
    }
)
NAMED_STAGES: Final = frozenset({"node_pin", "labels", "affinity_constraints", "placement_rules"})
"""What does not stand against a destination that an operator names."""

MISSING: Final = STATES.index("missing")
ERROR: Final = STATES.index("error")


def operations(verdicts: Verdicts) -> Iterator[Relaxation]:
    """Yield what could be done to nodes that are there, and to the cluster's settings."""
    yield from _naming(verdicts)
    yield from _scheduling(verdicts)
    yield from _slots(verdicts)
    yield from _samples(verdicts)
    yield from _labels(verdicts)
    yield from _settings(verdicts)


def _on_node(verdicts: Verdicts, kind: Kind, stage: str, still: Mask, edit: Any) -> Relaxation:
    return Relaxation(kind=kind, stages=frozenset({stage}), still=still, edit=edit, on_node=True)


def _naming(verdicts: Verdicts) -> Iterator[Relaxation]:
    """A move to a node that an operator names, or to another one: the wishes that choose among nodes then give way."""
    request = verdicts.case.request
    if request.reason not in MOVES:
        return
    others = {name: value for name, value in (request.metadata or {}).items() if name != "affinity"}
    freed = {"placement_rules": (), "affinity": None, "metadata": others or None}

    def edit(case: Case, at: int, others: int) -> Edit:
        name, before = case.frame.roster.names[at], request.placement.node
        named = case.request.model_copy(update={**freed, "placement": Placement(node=name)})
        gives_way = ", whatever its labels, rules and affinity say" if before is None else f" instead of {before}"
        change = {"action": "name-destination", "node": name, "from": before}
        words = f"name {name}{or_others(others)} as the destination{gives_way}"
        return Edit(Case(named, case.frame), (change,), words)

    nobody = np.zeros(len(verdicts.failing), dtype=np.bool_)
    yield Relaxation(kind=Kind.NAME, stages=NAMED_STAGES, still=nobody, edit=edit, on_node=True)


def _scheduling(verdicts: Verdicts) -> Iterator[Relaxation]:
    kinds = ((Kind.UNCORDON, "cordoned", "uncordon"), (Kind.UNDRAIN, "draining", "undrain"))
    for kind, reason, verb in kinds:
        if not verdicts.dropped_for("scheduling_state", only=(reason,)).any():
            continue

        def edit(case: Case, at: int, others: int, verb: str = verb) -> Edit:
            name = case.frame.roster.names[at]
            changed = Case(case.request, what_if.scheduling_enabled(case.frame, at))
            return Edit(changed, ({"action": verb, "node": name},), f"{verb} {name}{or_others(others)}")

        still = verdicts.dropped_for("scheduling_state", but=(reason,))
        yield _on_node(verdicts, kind, "scheduling_state", still, edit)


def _slots(verdicts: Verdicts) -> Iterator[Relaxation]:
    if not verdicts.dropped_for("instance_slots", only=("over_limit_instances",)).any():
        return

    def edit(case: Case, at: int, others: int) -> Edit:
        name, before = case.frame.roster.names[at], int(case.frame.limits[3, at])
        after = int(case.frame.used[3, at]) + 1
        change = {"action": "update", "node": name, "field": "max_instances", "from": before, "to": after}
        words = f"raise max_instances of {name} from {before} to {after}{or_others(others)}"
        return Edit(Case(case.request, what_if.slots_raised(case.frame, at, after)), (change,), words)

    still = verdicts.dropped_for("instance_slots", but=("over_limit_instances",))
    yield _on_node(verdicts, Kind.SLOTS, "instance_slots", still, edit)


def _samples(verdicts: Verdicts) -> Iterator[Relaxation]:
    """Nodes that nothing fresh is known of, and nodes in error."""
    frame = verdicts.case.frame
    state = frame.counter("state")

    def hear(case: Case, at: int, others: int) -> Edit:
        name = case.frame.roster.names[at]
        heard = Case(case.request, what_if.heard_of(case.frame, at))
        words = f"start sf-resources on {name}{or_others(others)}, {_last_sample(case.frame, at)}"
        return Edit(heard, ({"action": "publish", "node": name},), words)

    def repair(case: Case, at: int, others: int) -> Edit:
        name = case.frame.roster.names[at]
        repaired = Case(case.request, what_if.heard_of(case.frame, at))
        return Edit(
            repaired, ({"action": "repair", "node": name},), f"repair {name}{or_others(others)}, which is in error"
        )

    silent: Mask = (state == ACTIVE) | (state == MISSING)
    if (verdicts.fails["node_state"] & silent).any():
        yield _on_node(verdicts, Kind.SAMPLE, "node_state", ~silent, hear)
    if (state == ERROR).any():
        yield _on_node(verdicts, Kind.REPAIR, "node_state", state != ERROR, repair)


def _last_sample(frame: Frame, at: int) -> str:
    sample_at = int(frame.counter("sample_at_us")[at])
    if sample_at == UNKNOWN:
        return "which has sent no sample"
    return f"whose last sample is {(frame.now_us - sample_at) // 1_000_000} s old"


def _labels(verdicts: Verdicts) -> Iterator[Relaxation]:
    """A label that a node lacks: the selector's last one, or one within which rules ask."""
    frame, request = verdicts.case.frame, verdicts.case.request
    asked = request.placement.labels
    unmatched = {key: ~frame.roster.labelled(key).equal(value) for key, value in sorted(asked.items())}
    takes_more = np.array([len(traits.labels) < LABELS_MAX for traits in frame.roster.traits], dtype=np.bool_)
    lacking = sum((mask.astype(np.int64) for mask in unmatched.values()), np.zeros(len(frame), dtype=np.int64))
    for key, mask in unmatched.items():
        still: Mask = ~(mask & (lacking == 1) & (takes_more | frame.roster.labelled(key).has_value()))
        yield _on_node(verdicts, Kind.LABEL_A_NODE, "labels", still, _labelling(verdicts, key, asked[key], mask))
    unlabelled = verdicts.dropped_for("placement_rules", only=("rule_label_missing",))
    if unlabelled.any():
        for key in filter(is_label, within_keys(request.placement_rules)):
            without = ~frame.roster.labelled(key).has_value()
            still = ~(without & unlabelled & takes_more)
            yield _on_node(
                verdicts, Kind.LABEL_A_NODE, "placement_rules", still, _labelling(verdicts, key, "", without)
            )


def _labelling(verdicts: Verdicts, key: str, value: str, without: Mask) -> Any:
    """Return the edit that declares a label; without a value, it is one that no other node has."""

    def edit(case: Case, at: int, _others: int) -> Edit:
        name, before = case.frame.roster.names[at], case.frame.roster.traits[at].labels.get(key)
        changed = Case(case.request, what_if.labelled(case.frame, at, key, value or what_if.NEW_NODE))
        change = {"action": "label", "node": name, "field": f"labels[{key}]", "from": before, "to": value or None}
        label = selector_text({key: value}) if value else f"{key} of its own"
        words = (
            f"declare the label {label} on {name}, if that is true of it (without it: {names_of(case.frame, without)})"
        )
        return Edit(changed, (change,), words)

    return edit


def _settings(verdicts: Verdicts) -> Iterator[Relaxation]:
    config, nobody = verdicts.case.frame.config, np.zeros(len(verdicts.failing), dtype=np.bool_)
    if verdicts.case.request.placement_rules and config.affinity_matching == "enforced":
        setting = ("AFFINITY_MATCHING", "enforced", "preferred", "placement_rules")
        yield _setting(setting, {"affinity_matching": "preferred"}, nobody)
    if config.dedicated_sleepy_nodes:
        setting = ("DEDICATED_SLEEPY_NODES", "true", "false", "sleepy_pool")
        yield _setting(setting, {"dedicated_sleepy_nodes": False}, nobody)


def _setting(said: tuple[str, str, str, str], values: Mapping[str, Any], nobody: Mask) -> Relaxation:
    key, before, after, stage = said

    def edit(case: Case, _at: int, _others: int) -> Edit:
        change = {"action": "set-config", "key": key, "from": before, "to": after}
        changed = Case(case.request, what_if.configured(case.frame, **values))
        return Edit(changed, (change,), f"set {key} to {after} for the whole cluster")

    return Relaxation(kind=Kind.SETTING, stages=frozenset({stage}), still=nobody, edit=edit)


def waiting(verdicts: Verdicts) -> Relaxation:
    """Return the relaxation of time: room comes free on a node that is large enough for the request."""
    ask, frame = verdicts.ask, verdicts.case.frame
    lacking = shortfalls(ask, frame)
    too_small = verdicts.unknown(ROOM_STAGES) | verdicts.dropped_for("gpu", only=("no_gpus",))
    for at, name in enumerate(UNITS):
        limit, wanted = frame.limits[at], getattr(ask.amounts, name)
        # On a node that holds a charge only the growth counts, beside what it holds already.
        too_small |= (limit != UNLIMITED) & (limit < wanted) & (lacking[at] > 0)
    # What only the ledger lacks comes free when charges go, however idle the machine is already.
    for name, available, owned, headroom in (
        ("memory_mb", "memory_available", "memory_max", frame.measured_memory),
        ("disk_gb", "disk_free_gb", "disk_total_gb", frame.measured_disk),
    ):
        most, short = frame.sample.column(owned), shortfall(ask, name, headroom)
        too_small |= (most != UNKNOWN) & (short > 0) & (frame.sample.column(available) + short > most)
    if ask.gpus.count:
        too_small |= frame.gpus.owned(ask.gpus) < ask.gpus.count

    def edit(case: Case, at: int, others: int) -> Edit:
        name = case.frame.roster.names[at]
        frees, parts = _awaited(verdicts, at)
        words = f"wait until {name}{or_others(others)} has {' and '.join(parts)}"
        changed = Case(case.request, what_if.emptied_for(case.frame, at, ask))
        return Edit(changed, ({"action": "wait", "node": name, "frees": frees},), words)

    given_up = np.where(too_small, np.inf, distance(ask, lacking))
    return Relaxation(kind=Kind.WAIT, stages=ROOM_STAGES, still=too_small, edit=edit, given_up=given_up, on_node=True)


def _awaited(verdicts: Verdicts, at: int) -> tuple[dict[str, int], list[str]]:
    """Return what has to come free on a node: figures, and words."""
    ask, frame = verdicts.ask, verdicts.case.frame
    lacking = shortfalls(ask, frame)[:, at]
    frees = {name: int(amount) for name, amount in zip(UNITS, lacking, strict=True) if amount > 0}
    parts = [f"{counted(amount, name)} more" for name, amount in frees.items()]
    if ask.gpus.count and (short := ask.gpus.count - int(frame.gpus.free(ask.gpus)[at])) > 0:
        frees["gpus"] = short
        parts.append(f"{counted_gpus(short, ask.gpus.profile)} more")
    if "queue_state" in verdicts.fails and verdicts.fails["queue_state"][at]:
        parts.append(f"at most {WAITING_MAX} waiting jobs")
    if "sufficient_idle_disk" in verdicts.fails and verdicts.fails["sufficient_idle_disk"][at]:
        parts.append(f"disks that are busy for at most {BUSY_MS_PER_SECOND_MAX} ms of a second")
    return frees, parts
