"""Judging affinity rules: one mask over the nodes for a whole tree.

The meaning of a rule, from the Atlas document: `metal_server` reads a node's labels, `virtual_machine` the tags of the
namespace's instances there; `has` needs one label set, or one instance, with every pair, and `has_not` is its opposite.
With `within`, the instances of all nodes count that share the candidate's value of that label; a candidate without the
label fails both operators, because nobody can tell which group it is in.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from fleet.model.rules import AllOf, AnyOf, Node, Operator, Resource, Rule
from fleet.placement.columns import Mask
from fleet.placement.rules.ground import Ground


def satisfied(nodes: Sequence[Node], ground: Ground) -> Mask | None:
    """Return which nodes satisfy every one of `nodes`; None when there is no rule at all."""
    return _all(nodes, ground) if nodes else None


def _all(nodes: Sequence[Node], ground: Ground) -> Mask:
    return reduce(np.logical_and, [_judge(node, ground) for node in nodes])


def _judge(node: Node, ground: Ground) -> Mask:
    if isinstance(node, AnyOf):
        return reduce(np.logical_or, [_judge(inner, ground) for inner in node.nodes])
    if isinstance(node, AllOf):
        return _all(node.nodes, ground)
    return judge_rule(node, ground)


def judge_rule(rule: Rule, ground: Ground) -> Mask:
    """Return which nodes satisfy one rule."""
    if rule.resource is Resource.METAL_SERVER:
        found = ground.labelled(rule.tags)
        return found if rule.operator is Operator.HAS else ~found
    places = ground.places(ground.carriers(rule.tags))
    if rule.within is None:
        found = ground.mask(places)
        return found if rule.operator is Operator.HAS else ~found
    found, known = ground.sharing(rule.within, places), ground.having(rule.within)
    return found & known if rule.operator is Operator.HAS else ~found & known
