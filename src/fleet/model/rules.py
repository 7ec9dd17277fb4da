"""The affinity rule tree: which hosts may hold an instance, asked of their labels and of the instances on them.

    placement_rules = [node, ...]                every node must hold; null or [] asks nothing
    node            = rule | {"any_of": [node, ...]} | {"all_of": [node, ...]}
    rule            = {"resource": …, "operator": …, "tags": {key: value, ...}, "within": key}

Promise: a tree that exists is valid, and reading one is cheap whatever was sent. Rules are counted while they are read,
one too many ends the reading; groups too deep are refused before their list is looked at. What is wrong with a tree is
told together, each problem with its path, for example `placement_rules[0].any_of[1].tags`. Evaluation is not here.

The words of the grammar (`metal_server`, `virtual_machine`) are its own: a node, an instance.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType
from typing import Any, Final, TypeAlias, TypeVar, Union

from fleet.model.findings import Findings, are_texts, kind_of, shown, step

RULES_MAX: Final = 16
"""Rules of one request, those in groups included."""

GROUP_DEPTH_MAX: Final = 5
RULE_TAGS_MAX: Final = 32
TAG_KEY_MAX: Final = 128
TAG_VALUE_MAX: Final = 1000

ANY_OF: Final = "any_of"
ALL_OF: Final = "all_of"
_GROUPS: Final = frozenset({ANY_OF, ALL_OF})
_NEEDED: Final = ("resource", "operator", "tags")
_FIELDS: Final = frozenset({*_NEEDED, "within"})


class Resource(StrEnum):
    """Whose tags a rule reads: those of the node (its labels), or of each instance on it."""

    METAL_SERVER = "metal_server"
    VIRTUAL_MACHINE = "virtual_machine"


class Operator(StrEnum):
    """`has`: some resource has every pair. `has_not`: the opposite of it."""

    HAS = "has"
    HAS_NOT = "has_not"


_W = TypeVar("_W", Resource, Operator)
_VALUES: Final[Mapping[type[StrEnum], frozenset[str]]] = MappingProxyType(
    {words: frozenset(str(word) for word in words) for words in (Resource, Operator)}
)


@dataclass(frozen=True, slots=True)
class Rule:
    """One condition on a candidate. All pairs of `tags` must be on the same resource.

    `within` is a label key: the rule then reads the instances on every node that shares the candidate's value of it.
    """

    resource: Resource
    operator: Operator
    tags: Mapping[str, str]
    within: str | None = None

    def __post_init__(self) -> None:
        """Refuse what no rule can be: TypeError for a wrong type, ValueError for a wrong value."""
        for word in (self.resource, self.operator):
            if not isinstance(word, str):
                raise TypeError(f"resource and operator must be words, not {kind_of(word)}")
        if not isinstance(self.tags, Mapping):
            raise TypeError(f"tags must be a mapping, not {kind_of(self.tags)}")
        if self.within is not None and not isinstance(self.within, str):
            raise TypeError(f"within must be a label key or None, not {kind_of(self.within)}")
        object.__setattr__(self, "resource", Resource(self.resource))
        object.__setattr__(self, "operator", Operator(self.operator))
        object.__setattr__(self, "tags", MappingProxyType(_checked(self.tags)))
        if self.within is None:
            return
        if self.resource is Resource.METAL_SERVER:
            raise ValueError("only a virtual_machine rule takes within")
        if problem := within_problem(self.within):
            raise ValueError(f"within {problem}")

    def __hash__(self) -> int:
        """Return the same for rules that are equal, in whatever order their tags were written."""
        return hash((self.resource, self.operator, frozenset(self.tags.items()), self.within))

    def __reduce__(self) -> tuple[type[Rule], tuple[Any, ...]]:
        """Let a rule be copied and sent to another process."""
        return Rule, (self.resource, self.operator, dict(self.tags), self.within)


@dataclass(frozen=True, slots=True)
class AnyOf:
    """A group that holds when at least one of its nodes holds."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        """Refuse what no group can be."""
        _check_members(self.nodes)


@dataclass(frozen=True, slots=True)
class AllOf:
    """A group that holds when every one of its nodes holds."""

    nodes: tuple[Node, ...]

    def __post_init__(self) -> None:
        """Refuse what no group can be."""
        _check_members(self.nodes)


Node: TypeAlias = Union[Rule, AnyOf, AllOf]  # noqa: UP007 - the groups name it before it exists


def tag_problem(key: str, value: str) -> str | None:
    """Return what is wrong with a trimmed tag pair, of an instance or of a rule."""
    if not key:
        return "a tag needs a key"
    if len(key) > TAG_KEY_MAX:
        return f"the key {shown(key)} has {len(key)} characters, a key takes at most {TAG_KEY_MAX}"
    if "=" in key:
        return f"the key {shown(key)} holds '=', which stands between a key and its value"
    if len(value) > TAG_VALUE_MAX:
        return f"the value of key {shown(key)} has {len(value)} characters, a value takes at most {TAG_VALUE_MAX}"
    return None


def within_problem(within: str) -> str | None:
    """Return what is wrong with a trimmed `within`, as the end of a sentence that starts with its name."""
    if not 1 <= len(within) <= TAG_KEY_MAX:
        return f"takes a host tag key of 1 to {TAG_KEY_MAX} characters, not of {len(within)}"
    return f"{shown(within)} holds '=', which no host tag key has" if "=" in within else None


def parse_rules(value: object, path: str = "placement_rules") -> tuple[Node, ...]:
    """Return the tree of a request's rules; `path` is the field they stand in. A tree is returned as it is.

    Raises:
        InvalidRequest: with every problem and its path.
    """
    if value is None or isinstance(value, tuple):
        _check_nodes(value or ())
        return value or ()
    reading = _Reading(path)
    if not isinstance(value, list):
        reading.findings.add(path, f"rules must be a list, not {kind_of(value)}")
        reading.findings.finish()
        return ()
    nodes = reading.nodes(value, path, 0)
    reading.findings.finish()
    return nodes


def rules_form(nodes: tuple[Node, ...]) -> list[dict[str, Any]]:
    """Return the tree as JSON values, in its own shape; `parse_rules` reads it back to the same tree."""
    return [_form(node) for node in nodes]


def leaves(nodes: tuple[Node, ...]) -> Iterator[Rule]:
    """Yield every rule of a tree, in the order it was written."""
    for node in nodes:
        if isinstance(node, Rule):
            yield node
        else:
            yield from leaves(node.nodes)


def within_keys(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    """Return the label keys by which rules group nodes, each once, in alphabetical order."""
    return tuple(sorted({rule.within for rule in leaves(nodes) if rule.within is not None}))


def instance_pairs(nodes: tuple[Node, ...]) -> tuple[tuple[str, str], ...]:
    """Return the tag pairs that rules ask of instances, each once, in the order of the tree."""
    return tuple(
        dict.fromkeys(
            pair for rule in leaves(nodes) if rule.resource is Resource.VIRTUAL_MACHINE for pair in rule.tags.items()
        )
    )


def node_keys(nodes: tuple[Node, ...]) -> tuple[str, ...]:
    """Return the label keys that rules read of nodes: in `metal_server` tags and in `within`, each once, sorted."""
    asked = {key for rule in leaves(nodes) if rule.resource is Resource.METAL_SERVER for key in rule.tags}
    return tuple(sorted(asked.union(within_keys(nodes))))


def _checked(tags: Mapping[str, str]) -> dict[str, str]:
    """Return a copy of a rule's tags, or raise."""
    if not 1 <= len(tags) <= RULE_TAGS_MAX:
        raise ValueError(f"tags takes 1 to {RULE_TAGS_MAX} pairs, not {len(tags)}")
    for key, value in tags.items():
        if not are_texts(key, value):
            raise TypeError("tag keys and values must be strings")
        if key != key.strip() or value != value.strip():
            raise ValueError(f"the tag {shown(key)} has white space at an end; trim it")
        if problem := tag_problem(key, value):
            raise ValueError(problem)
    return dict(tags)


def _check_nodes(nodes: object) -> None:
    if not isinstance(nodes, tuple) or not all(isinstance(node, Rule | AnyOf | AllOf) for node in nodes):
        raise TypeError("nodes must be a tuple of rules and groups")


def _check_members(nodes: object) -> None:
    _check_nodes(nodes)
    if not nodes:
        raise ValueError("a group needs at least one rule or group")


def _form(node: Node) -> dict[str, Any]:
    if isinstance(node, Rule):
        form: dict[str, Any] = {"resource": str(node.resource), "operator": str(node.operator), "tags": dict(node.tags)}
        return form if node.within is None else {**form, "within": node.within}
    return {ANY_OF if isinstance(node, AnyOf) else ALL_OF: rules_form(node.nodes)}


class _Reading:
    """One reading of a tree: its problems and how many rules it has met."""

    def __init__(self, top: str) -> None:
        self.findings = Findings()
        self._top = top
        self._rules = 0

    def nodes(self, items: list[Any], path: str, depth: int) -> tuple[Node, ...]:
        """Read a list of nodes. Every item is a rule, a group or a problem, and each of them is bounded."""
        read = (self._node(item, f"{path}[{at}]", depth) for at, item in enumerate(items))
        return tuple(node for node in read if node is not None)

    def _node(self, item: Any, path: str, depth: int) -> Node | None:
        if not isinstance(item, dict):
            self.findings.add(path, f"must be an object, a rule or a group, not {kind_of(item)}")
            return None
        if odd := [key for key in item if not isinstance(key, str)]:
            self.findings.add(
                path, f"must be an object with texts as keys, a rule or a group; a key is {kind_of(odd[0])}"
            )
            return None
        if _GROUPS.isdisjoint(item):
            return self._rule(item, path)
        if len(item) > 1:
            others = ", ".join(shown(key) for key in sorted(item)[:3])
            self.findings.add(path, f"a group has exactly one key, {ANY_OF} or {ALL_OF}; here are {others}")
            return None
        word, members = next(iter(item.items()))
        return self._group(word, members, f"{path}.{word}", depth + 1)

    def _group(self, word: str, members: Any, path: str, depth: int) -> AnyOf | AllOf | None:
        if depth > GROUP_DEPTH_MAX:
            self.findings.add(path, f"groups nest at most {GROUP_DEPTH_MAX} deep")
            return None
        if not isinstance(members, list) or not members:
            what = "an empty one" if members == [] else kind_of(members)
            self.findings.add(path, f"must be a list with at least one rule or group, not {what}")
            return None
        nodes = self.nodes(members, path, depth)
        if not nodes:
            return None
        return AnyOf(nodes) if word == ANY_OF else AllOf(nodes)

    def _rule(self, item: dict[str, Any], path: str) -> Rule | None:
        self._rules += 1
        if self._rules > RULES_MAX:
            self.findings.add(self._top, f"takes at most {RULES_MAX} rules in total, groups included; {path} is more")
            self.findings.finish()
        before = len(self.findings.problems)
        if unknown := item.keys() - _FIELDS:
            first = min(unknown)
            told = f"unknown field {shown(first)}; a rule has {', '.join(_NEEDED)} and may have within"
            self.findings.add(f"{path}.{step(first)}", told)
        for name in _NEEDED:
            if name not in item:
                self.findings.add(path, f"a rule needs {name}")
        within = self._within_text(item.get("within"), f"{path}.within")
        tags = self._tags(item["tags"], f"{path}.tags") if "tags" in item else {}
        resource = self._word(Resource, item, "resource", path)
        operator = self._word(Operator, item, "operator", path)
        if within is not None:
            self._judge_within(within, resource, f"{path}.within")
        if len(self.findings.problems) > before or resource is None or operator is None:
            return None
        return Rule(resource, operator, tags, within)

    def _within_text(self, value: Any, path: str) -> str | None:
        if value is None or isinstance(value, str):
            return None if value is None else value.strip()
        self.findings.add(path, f"within must be a host tag key, such as 'rack', or null, not {kind_of(value)}")
        return None

    def _judge_within(self, within: str, resource: Resource | None, path: str) -> None:
        if resource is Resource.METAL_SERVER:
            self.findings.add(path, "only a virtual_machine rule takes within; leave it out")
        if problem := within_problem(within):
            self.findings.add(path, f"within {problem}")

    def _tags(self, value: Any, path: str) -> dict[str, str]:
        if not isinstance(value, dict) or not value:
            what = "an empty one" if value == {} else kind_of(value)
            self.findings.add(path, f"must be an object with at least one key, not {what}")
            return {}
        if len(value) > RULE_TAGS_MAX:
            self.findings.add(path, f"takes at most {RULE_TAGS_MAX} tags, not {len(value)}")
            return {}
        tags: dict[str, str] = {}
        for given, text in value.items():
            if not isinstance(given, str) or not isinstance(text, str):
                whose = f"the value of key {shown(given)}" if isinstance(given, str) else "a key"
                wrong = kind_of(text if isinstance(given, str) else given)
                self.findings.add(path, f"tag keys and values must be strings; {whose} is {wrong}")
                continue
            key, trimmed = given.strip(), text.strip()
            if problem := tag_problem(key, trimmed):
                self.findings.add(path, problem)
            elif key in tags:
                self.findings.add(path, f"the key {shown(key)} is repeated: white space at its ends does not count")
            tags[key] = trimmed
        return tags

    def _word(self, words: type[_W], item: dict[str, Any], name: str, path: str) -> _W | None:
        if name not in item:
            return None
        value = item[name]
        if isinstance(value, str) and value in _VALUES[words]:
            return words(value)
        given = shown(value) if isinstance(value, str) else kind_of(value)
        self.findings.add(f"{path}.{name}", f"{name} must be one of {', '.join(words)}, not {given}")
        return None
