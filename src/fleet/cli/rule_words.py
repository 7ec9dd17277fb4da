"""A placement rule in words, short enough for a line: `any of (metal_server has rack=b, 3 more)`.

Promise: nothing is left out unsaid; of a group with more than a few parts the rest is counted. `--json` has all of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, TypeGuard

PARTS_SHOWN_MAX: Final = 2
GROUPS: Final[Mapping[str, str]] = {"any_of": "any of", "all_of": "all of"}


def is_rule(value: Any) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a figure is a rule, or a group of rules, in the form in which a request states it."""
    if not isinstance(value, Mapping):
        return False
    return {"resource", "operator", "tags"} <= value.keys() or (len(value) == 1 and not GROUPS.keys().isdisjoint(value))


def rule_words(rule: Mapping[str, Any]) -> str:
    """Return a rule in words."""
    for key, words in GROUPS.items():
        if key in rule:
            return f"{words} ({_parts(rule[key])})"
    tags = " ".join(f"{key}={value}" for key, value in rule["tags"].items())
    within = f" within {rule['within']}" if rule.get("within") else ""
    return f"{rule['resource']} {rule['operator']} {tags}{within}"


def _parts(rules: Sequence[Mapping[str, Any]]) -> str:
    shown = [rule_words(one) for one in rules[:PARTS_SHOWN_MAX]]
    more = len(rules) - len(shown)
    return ", ".join([*shown, f"{more} more"] if more > 0 else shown)
