"""What holds for rules about neighbours, against a plain reading of them: node by node, instance by instance."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from fleet.model.affinity import AffinitySpec, TagMatch
from fleet.model.request import PlacementRequest
from fleet.model.rules import RULES_MAX, AnyOf, Node, Operator, Resource, Rule, leaves, parse_rules
from fleet.placement.ask import Ask
from fleet.placement.document import read_instance
from fleet.placement.frame import Frame
from fleet.placement.neighbours import InstanceIndex
from fleet.placement.pipeline import decide
from fleet.placement.rules.ground import FrameGround
from fleet.placement.rules.judge import satisfied
from fleet.placement.snapshot import Snapshot
from fleet.placement.stages import affinity, affinity_constraints, placement_rules
from tests.property.fleets import (
    LAWS,
    LEAVES,
    NAMES,
    SEEDS,
    TAGS,
    documents,
    requests,
    rule_count,
    rule_lists,
    rule_trees,
)

Form = Mapping[str, Any]


def neighbours_on(document: Form, node: str, request: PlacementRequest) -> Iterator[Form]:
    """The instances that count on a node, as the documents say it."""
    for one in document["instances"]:
        here = node in {one["node"], one["incoming_node"]}
        mine = one["namespace"] == (request.namespace or "") and one["uuid"] != request.instance
        if here and mine and not one["terminating"]:
            yield one


def carries(tags: Form, pairs: Form) -> bool:
    return all(tags.get(key) == value for key, value in pairs.items())


def holds(rule: Node, document: Form, node: Form, request: PlacementRequest) -> bool:
    if not isinstance(rule, Rule):
        verdicts = [holds(inner, document, node, request) for inner in rule.nodes]
        return any(verdicts) if isinstance(rule, AnyOf) else all(verdicts)
    if rule.resource is Resource.METAL_SERVER:
        return carries(node["labels"], rule.tags) is (rule.operator is Operator.HAS)
    group = [node]
    if rule.within is not None:
        if rule.within not in node["labels"]:
            return False
        value = node["labels"][rule.within]
        group = [other for other in document["nodes"] if other["labels"].get(rule.within) == value]
    there = [one for other in group for one in neighbours_on(document, other["name"], request)]
    return any(carries(one["tags"], rule.tags) for one in there) is (rule.operator is Operator.HAS)


def seen_by(request: PlacementRequest, frame: Frame) -> FrameGround:
    return FrameGround(frame, request.namespace or "", request.instance)


def verdict(nodes: Sequence[Node], ground: FrameGround) -> list[bool]:
    found = satisfied(nodes, ground)
    assert found is not None
    return [bool(one) for one in found]


def kept(stage: Any, request: PlacementRequest, frame: Frame) -> list[bool] | None:
    drops = stage.drops(Ask.of(request, frame), frame)
    return None if drops is None else [not any(mask[at] for _, mask in drops) for at in range(len(frame))]


@LAWS
@given(document=documents(), request=requests(), trees=rule_lists(1, 3))
def test_rules_mean_what_a_plain_reading_of_them_says(
    document: dict[str, Any], request: PlacementRequest, trees: list[Any]
) -> None:
    rules = parse_rules(trees)
    asked = request.model_copy(update={"placement_rules": rules})

    found = kept(placement_rules, asked, Snapshot.from_json(document).frame)

    assert found == [all(holds(rule, document, node, asked) for rule in rules) for node in document["nodes"]]


ENTRIES = st.sampled_from([TagMatch.of(text) for text in ("role", "role=db", "web", "env=prod", "ghost")])


@LAWS
@given(document=documents(), request=requests(), entries=st.lists(ENTRIES, min_size=4, max_size=4))
def test_tag_affinity_means_what_a_plain_reading_of_it_says(
    document: dict[str, Any], request: PlacementRequest, entries: list[TagMatch]
) -> None:
    require_with, require_without, prefer_with, prefer_without = ((entry,) for entry in entries)
    spec = AffinitySpec(require_with, require_without, prefer_with, prefer_without)
    asked = request.model_copy(update={"affinity": spec, "metadata": None})
    frame = Snapshot.from_json(document).frame
    there = [[one["tags"] for one in neighbours_on(document, node["name"], asked)] for node in document["nodes"]]

    def matching(entry: TagMatch) -> list[int]:
        return [sum(entry.matches(tags) for tags in around) for around in there]

    require, forbid, prefer, shun = (matching(entry) for entry in entries)
    scores = affinity.score(Ask.of(asked, frame), frame)

    assert kept(affinity_constraints, asked, frame) == [
        bool(has) and not lacks for has, lacks in zip(require, forbid, strict=True)
    ]
    assert scores is not None
    assert scores.tolist() == [likes - dislikes for likes, dislikes in zip(prefer, shun, strict=True)]


# The law of distribution writes the first tree once for each of the others.
SPREADABLE = rule_lists(2, 3).filter(lambda trees: rule_count([trees[0], *trees]) <= RULES_MAX)


@LAWS
@given(document=documents(), request=requests(), trees=SPREADABLE)
def test_groups_obey_the_laws_of_and_and_or(
    document: dict[str, Any], request: PlacementRequest, trees: list[Any]
) -> None:
    ground = seen_by(request, Snapshot.from_json(document).frame)
    first, *others = parse_rules(trees)

    def of(form: Any) -> list[bool]:
        return verdict(parse_rules([form]), ground)

    assert verdict((first,), ground) == of({"any_of": [trees[0]]}) == of({"all_of": [trees[0]]})
    assert of({"all_of": trees}) == verdict((first, *others), ground) == verdict((*others, first, first), ground)
    assert of({"any_of": trees}) == of({"any_of": trees[::-1]})
    # a and (b or c) is (a and b) or (a and c)
    spread = [{"all_of": [trees[0], other]} for other in trees[1:]]
    assert of({"all_of": [trees[0], {"any_of": trees[1:]}]}) == of({"any_of": spread})


def opposite(form: dict[str, Any]) -> dict[str, Any]:
    """The tree that says no, after De Morgan."""
    for word, other in (("any_of", "all_of"), ("all_of", "any_of")):
        if word in form:
            return {other: [opposite(inner) for inner in form[word]]}
    return {**form, "operator": "has_not" if form["operator"] == "has" else "has"}


@LAWS
@given(document=documents(), request=requests(), tree=rule_trees())
def test_a_tree_and_its_opposite_part_the_nodes(
    document: dict[str, Any], request: PlacementRequest, tree: dict[str, Any]
) -> None:
    frame = Snapshot.from_json(document).frame
    ground = seen_by(request, frame)
    (rule,), (other,) = parse_rules([tree]), parse_rules([opposite(tree)])
    keys = {leaf.within for leaf in leaves((rule,)) if leaf.within is not None}
    # A node without the label of a `within` satisfies neither operator.
    whole = [keys <= traits.labels.keys() for traits in frame.roster.traits]

    one, two = verdict((rule,), ground), verdict((other,), ground)

    assert [a != b for a, b, known in zip(one, two, whole, strict=True) if known] == [True] * sum(whole)


@LAWS
@given(document=documents(), request=requests(), leaf=st.sampled_from([one for one in LEAVES if "within" in one]))
def test_a_node_without_the_label_is_in_no_group(
    document: dict[str, Any], request: PlacementRequest, leaf: dict[str, Any]
) -> None:
    frame = Snapshot.from_json(document).frame
    ground = seen_by(request, frame)

    for operator in ("has", "has_not"):
        found = verdict(parse_rules([{**leaf, "operator": operator}]), ground)
        assert not any(found[at] for at, one in enumerate(frame.roster.traits) if leaf["within"] not in one.labels)


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS, data=st.data())
def test_who_does_not_count_as_a_neighbour_changes_nothing_by_its_tags(
    document: dict[str, Any], request: PlacementRequest, seed: int, data: st.DataObject
) -> None:
    """Another namespace's, one that is being terminated, and the instance itself."""

    def counts(one: Form) -> bool:
        mine = one["namespace"] == (request.namespace or "") and one["uuid"] != request.instance
        return mine and not one["terminating"]

    retagged = [
        one if counts(one) else {**one, "tags": data.draw(st.sampled_from(TAGS))} for one in document["instances"]
    ]

    plain = decide(request, Snapshot.from_json(document), seed, explain=True)
    other = decide(request, Snapshot.from_json({**document, "instances": retagged}), seed, explain=True)

    assert plain.as_dict() == other.as_dict()


@LAWS
@given(document=documents(), tags=st.sampled_from([one for one in TAGS if one]))
def test_a_moving_instance_counts_on_both_of_its_nodes(document: dict[str, Any], tags: dict[str, str]) -> None:
    one = {**document["instances"][0], "namespace": "", "terminating": False, "tags": tags}
    frame = Snapshot.from_json({**document, "instances": [one]}).frame

    found = verdict(parse_rules([{**LEAVES[-1], "operator": "has", "tags": tags, "within": None}]), ground_of(frame))

    assert found == [name in {one["node"], one["incoming_node"]} for name in frame.roster.names]


def ground_of(frame: Frame) -> FrameGround:
    return FrameGround(frame, "", None)


# --- the index ------------------------------------------------------------------------------------------------------


@LAWS
@given(document=documents(), asked=st.sampled_from([one for one in TAGS if one]))
def test_a_group_holds_who_carries_the_tags_and_never_the_asker(
    document: dict[str, Any], asked: dict[str, str]
) -> None:
    places = {name: at for at, name in enumerate(NAMES)}
    there = [read_instance(form) for form in document["instances"]]
    index = InstanceIndex(there)

    for namespace in ("", "other"):
        for exclude in (None, "i1", "nobody"):
            seen = [one for one in there if one.namespace == namespace and not one.terminating and one.uuid != exclude]
            tagged = [one for one in seen if "role" in one.tags]
            carrying = [one for one in seen if carries(one.tags, asked)]
            # Asked twice: what is remembered is the same.
            for _ in range(2):
                assert list(index.tagged(namespace, "role", exclude)) == tagged
                assert list(index.carrying(namespace, asked, exclude)) == carrying
                found = index.carrying(namespace, asked, exclude).places(places)
                assert found.tolist() == sorted(places[node] for one in carrying for node in one.nodes())
