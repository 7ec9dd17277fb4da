"""placement_rules: keep the nodes that satisfy the request's affinity rules.

Why: replicas belong apart, a cache belongs beside what it serves, some work belongs on some machines. Rules read the
labels of nodes and the tags of the namespace's own instances, drafts and destinations of moves included; instances that
are being terminated and the instance itself do not count. `AFFINITY_MATCHING` says what happens when no node that
satisfies the rules has room: `enforced` refuses, `preferred` ignores the rules. A node that is only locked is no proof
of anything, so neither mode gives up for a lock.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from fleet.model.rules import Node, Operator, Resource, Rule, leaves, rules_form
from fleet.placement.ask import Ask
from fleet.placement.columns import Mask
from fleet.placement.frame import Frame
from fleet.placement.rules.ground import FrameGround
from fleet.placement.rules.judge import satisfied
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

WITHOUT_LABEL = Reason("rule_label_missing", "a rule asks within a label that the node does not have")
RULES_BROKEN = Reason("rules_not_satisfied", "the node does not satisfy the placement rules")
NEIGHBOURS_SHOWN_MAX: Final = 3


def ground(ask: Ask, frame: Frame) -> FrameGround:
    """Return what the rules of this question see."""
    return FrameGround(frame, ask.namespace, ask.request.instance)


def drops(ask: Ask, frame: Frame) -> Drops | None:
    """Drop nodes that do not satisfy the whole tree; first those that lack a label which some rule asks within."""
    rules = ask.request.placement_rules
    if not rules:
        return None
    seen = ground(ask, frame)
    holds = satisfied(rules, seen)
    assert holds is not None, "a tree with rules has a verdict"
    unlabelled = np.zeros(len(frame), dtype=np.bool_)
    for rule in leaves(rules):
        if rule.within is not None:
            unlabelled |= ~seen.having(rule.within)
    return (WITHOUT_LABEL, ~holds & unlabelled), (RULES_BROKEN, ~holds)


def may_yield(ask: Ask, frame: Frame) -> bool:
    """Whether rules that nobody with room satisfies are ignored."""
    return bool(ask.request.placement_rules) and frame.config.affinity_matching == "preferred"


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return the first rule that one node breaks, and who is in the way."""
    seen = ground(ask, frame)
    for place, node in enumerate(ask.request.placement_rules):
        if not _verdict(ask, node, place, seen)[at]:
            broken = _culprit(node, seen, at)
            return {
                "broken": f"placement_rules[{place}]",
                "rule": rules_form((broken,))[0],
                **_who(ask, broken, frame, seen, at),
            }
    return {}


def _verdict(ask: Ask, node: Node, place: int, seen: FrameGround) -> Mask:
    def judged() -> Mask:
        found = satisfied((node,), seen)
        assert found is not None, "one node is a tree with a rule"
        return found

    return ask.once(f"placement_rules[{place}]", judged)


def _culprit(node: Node, seen: FrameGround, at: int) -> Node:
    """Return the innermost node of the tree that explains the failure: a rule, or a group of which nothing holds."""
    if isinstance(node, Rule):
        return node
    broken = [inner for inner in node.nodes if not _holds(inner, seen, at)]
    return _culprit(broken[0], seen, at) if len(broken) == 1 else node


def _holds(node: Node, seen: FrameGround, at: int) -> bool:
    found = satisfied((node,), seen)
    return found is None or bool(found[at])


def _who(ask: Ask, node: Node, frame: Frame, seen: FrameGround, at: int) -> dict[str, Any]:
    if not isinstance(node, Rule) or node.resource is Resource.METAL_SERVER:
        return {}
    if node.within is not None and not seen.having(node.within)[at]:
        return {"missing_label": node.within}
    if node.operator is Operator.HAS:
        return {}
    groups = np.arange(len(frame)) if node.within is None else frame.roster.labelled(node.within).codes
    known: dict[Rule, Mapping[int, Sequence[str]]] = ask.once("placement_rules neighbours", dict)
    if node not in known:
        known[node] = _blocking(node, frame, seen, groups.tolist())
    return {"neighbours": list(known[node].get(int(groups[at]), ()))}


def _blocking(rule: Rule, frame: Frame, seen: FrameGround, groups: Sequence[int]) -> Mapping[int, Sequence[str]]:
    """Return by group the uuids of the first few instances that stand against a `has_not` on the nodes of that group.

    `groups` holds the group of each node: the node itself, or who shares its label. All are found at once, for hundreds
    of dropped nodes ask about the same thousands of instances. The first by uuid: the order in which an index holds its
    instances is its history, and a replay has another.
    """
    index = frame.roster.index
    found: dict[int, list[str]] = {}
    for one in sorted(seen.carriers(rule.tags), key=lambda one: one.uuid):
        for node in one.nodes():
            if node in index:
                first = found.setdefault(groups[index[node]], [])
                if len(first) < NEIGHBOURS_SHOWN_MAX and one.uuid not in first:
                    first.append(one.uuid)
    return found


_APART = {"placement_rules": [{"resource": "virtual_machine", "operator": "has_not", "tags": {"role": "db"}}]}
_RACK = {"placement_rules": [{**_APART["placement_rules"][0], "within": "rack"}]}
_STORAGE = {"placement_rules": [{"resource": "metal_server", "operator": "has", "tags": {"type": "storage"}}]}
_DB = {"uuid": "i1", "node": "n1", "tags": {"role": "db"}, "cpus": 1, "memory_mb": 1024, "disk_gb": 10}

STAGE = Filter(
    order=17,
    reasons=(WITHOUT_LABEL, RULES_BROKEN),
    drops=drops,
    figures=figures,
    may_yield=may_yield,
    spares_resize_home=True,
    refusal="affinity_unsatisfied",
    examples=(
        Example("without rules every node will do", instances=(_DB,)),
        Example("no other role=db here: an empty node is kept", request=_APART),
        Example("no other role=db here: there is one", RULES_BROKEN, request=_APART, instances=(_DB,)),
        Example(
            "one that is being terminated does not count", request=_APART, instances=({**_DB, "terminating": True},)
        ),
        Example("nor does another namespace's", request=_APART, instances=({**_DB, "namespace": "other"},)),
        Example(
            "one that is on its way here does",
            RULES_BROKEN,
            request=_APART,
            instances=({**_DB, "node": "elsewhere", "incoming_node": "n1"},),
        ),
        Example("a label that the node has", request=_STORAGE, node={"labels": {"type": "storage"}}),
        Example("a label that it lacks", RULES_BROKEN, request=_STORAGE),
        Example(
            "a rack with one already", RULES_BROKEN, request=_RACK, node={"labels": {"rack": "a"}}, instances=(_DB,)
        ),
        Example("a node without a rack is in no rack", WITHOUT_LABEL, request=_RACK),
        Example(
            "preferred rules yield when nobody satisfies them",
            request=_STORAGE,
            config={"AFFINITY_MATCHING": "preferred"},
        ),
    ),
)
