"""The values a request holds: rule trees, tag affinity, labels, architectures, kinds; read once, written back alike."""

from __future__ import annotations

import copy
import pickle
import time
from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model.affinity import (
    DEPRECATED_NOTE,
    RESERVED,
    AffinitySpec,
    TagMatch,
    parse_affinity,
)
from fleet.model.arch import effective_arch, parse_arch
from fleet.model.errors import InvalidRequest
from fleet.model.findings import PROBLEMS_MAX
from fleet.model.gpu import ambiguous_kind, parse_profile, supports_mig
from fleet.model.labels import parse_pair, selector_text
from fleet.model.request import InstanceRequest, PlacementRequest
from fleet.model.rules import (
    GROUP_DEPTH_MAX,
    RULES_MAX,
    AllOf,
    AnyOf,
    Node,
    Operator,
    Resource,
    Rule,
    instance_pairs,
    leaves,
    node_keys,
    parse_rules,
    rules_form,
    within_keys,
)
from tests.property.fleets import rule_count

BASE: Final[dict[str, Any]] = {"cpus": 1, "memory_mb": 1}
APART: Final[dict[str, Any]] = {"resource": "virtual_machine", "operator": "has_not", "tags": {"role": "db"}}
TEXT: Final = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
KEY: Final = TEXT.filter(lambda text: bool(text.strip()) and "=" not in text)
TAGS: Final = st.dictionaries(KEY, TEXT, min_size=1, max_size=4).filter(
    lambda tags: len({key.strip() for key in tags}) == len(tags)
)
LABEL: Final = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,8}[A-Za-z0-9])?", fullmatch=True)
RULE: Final = st.fixed_dictionaries(
    {"resource": st.just("virtual_machine"), "operator": st.sampled_from(["has", "has_not"]), "tags": TAGS},
    optional={"within": st.none() | KEY},
) | st.fixed_dictionaries(
    {"resource": st.just("metal_server"), "operator": st.sampled_from(["has", "has_not"]), "tags": TAGS}
)


def group(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    members = st.lists(inner, min_size=1, max_size=2)
    return st.fixed_dictionaries({"any_of": members}) | st.fixed_dictionaries({"all_of": members})


NODE: Final = st.one_of(RULE, group(RULE), group(group(RULE)), group(group(group(group(group(RULE))))))
RULES: Final = st.lists(NODE, max_size=3).filter(lambda rules: rule_count(rules) <= RULES_MAX)
BINARY: Final = st.dictionaries(
    st.sampled_from(RESERVED), st.lists(KEY | st.tuples(KEY, TEXT).map("=".join), max_size=3)
)
WEIGHTS: Final = st.dictionaries(KEY.filter(lambda key: key not in RESERVED), st.integers(-(2**40), 2**40), max_size=4)


def shape(value: Any) -> Any:
    """A tree as JSON without what reading trims or leaves out."""
    if isinstance(value, list):
        return [shape(item) for item in value]
    if "tags" not in value:
        return {word: shape(item) for word, item in value.items()}
    trimmed = {key.strip(): text.strip() for key, text in value["tags"].items()}
    kept = {name: item for name, item in value.items() if item is not None}
    return {**kept, "tags": trimmed, **({"within": kept["within"].strip()} if "within" in kept else {})}


@given(RULES)
def test_a_tree_keeps_its_shape_and_is_read_back_the_same(rules: list[Any]) -> None:
    nodes = parse_rules(rules)

    assert rules_form(nodes) == shape(rules)
    assert parse_rules(rules_form(nodes)) == nodes == parse_rules(nodes)
    assert hash(nodes) == hash(parse_rules(rules_form(nodes)))
    assert pickle.loads(pickle.dumps(nodes)) == nodes == copy.deepcopy(nodes)


@given(
    rules=RULES,
    affinity=st.none() | BINARY | WEIGHTS,
    in_metadata=st.booleans(),
    labels=st.dictionaries(LABEL, LABEL, max_size=3),
    tags=TAGS,
    words=st.fixed_dictionaries(
        {},
        optional={
            "arch": st.sampled_from(["", "x86_64", "ARM64"]),
            "region": st.just("") | LABEL,
            "strategy": st.sampled_from(["", "best-fit"]),
            "gpu_kind": st.just("a100"),
            "disk_gb": st.integers(0, 9),
        },
    ),
    profile=st.sampled_from(["", "1G.10GB"]),
)
def test_what_is_stored_of_a_request_reads_back_to_the_same_request(
    rules: list[Any],
    affinity: dict[str, Any] | None,
    *,
    in_metadata: bool,
    labels: dict[str, str],
    tags: dict[str, str],
    words: dict[str, Any],
    profile: str,
) -> None:
    asked = {"metadata": {"affinity": affinity, "note": [1]}} if in_metadata else {"affinity": affinity}
    gpus = {"gpus": 1, "gpu_profile": profile} if profile else {}
    body = {**BASE, "placement_rules": rules, "placement": {"labels": labels}, "tags": tags, **asked, **words, **gpus}
    request = InstanceRequest.model_validate(body)

    stored = request.model_dump(mode="json", exclude_defaults=True)
    again = InstanceRequest.model_validate(stored)

    assert again == request
    assert again.model_dump(mode="json", exclude_defaults=True) == stored
    assert (again.placement_rules, again.affinity_spec) == (request.placement_rules, request.affinity_spec)


def test_a_request_keeps_what_it_read_when_it_is_asked_with_its_reason() -> None:
    request = InstanceRequest.model_validate(
        {**BASE, "placement_rules": [APART], "metadata": {"affinity": {"prefer_with_tag": ["a"]}}}
    )

    asked = PlacementRequest.of(request, "n")

    assert asked.placement_rules is request.placement_rules
    assert asked.affinity_spec is request.affinity_spec is not None


def test_a_request_that_asks_nothing_has_no_rules_and_no_affinity() -> None:
    plain = InstanceRequest.model_validate(BASE)
    empty = InstanceRequest.model_validate({**BASE, "affinity": None, "metadata": {"affinity": None}})

    assert (plain.placement_rules, plain.affinity_spec, empty.affinity_spec) == ((), None, None)
    assert plain.model_dump(mode="json", exclude_defaults=True) == BASE


def test_metadata_is_stored_as_it_was_given() -> None:
    metadata = {"affinity": {"static-runner": -10}, "owner": {"team": [1, None]}}
    request = InstanceRequest.model_validate({**BASE, "metadata": metadata})

    assert request.model_dump(mode="json", exclude_defaults=True)["metadata"] == metadata
    assert request.affinity_spec == AffinitySpec(prefer_without=(TagMatch("static-runner"),), deprecated=True)


SECONDS_MAX: Final = 2
"""Of this thread's own work."""
HOSTILE: Final[tuple[tuple[str, Callable[[], Any]], ...]] = (
    ("a hundred thousand rules", lambda: [APART] * 100_000),
    ("a hundred thousand rules in a group", lambda: [{"any_of": [APART] * 100_000}]),
    ("a hundred thousand empty groups", lambda: [{"any_of": []}] * 100_000),
    ("a hundred thousand numbers", lambda: list(range(100_000))),
    ("a thousand deep groups", lambda: [deep(900)] * 1000),
    ("many groups of many groups", lambda: [{"any_of": [{"all_of": [{"any_of": []}] * 1000}] * 1000}] * 1000),
    ("a hundred thousand tags", lambda: [{**APART, "tags": {str(n): "" for n in range(100_000)}}]),
    ("a hundred thousand fields", lambda: [{**APART, **{f"x{n}": 1 for n in range(100_000)}}]),
    ("a megabyte of a key", lambda: [{**APART, "tags": {"k" * 1_000_000: ""}}]),
    ("a megabyte of a field", lambda: [{**APART, "k" * 1_000_000: ""}]),
)


def deep(levels: int) -> dict[str, Any]:
    node = dict(APART)
    for _ in range(levels):
        node = {"any_of": [node]}
    return node


@pytest.mark.parametrize("rules", [row[1] for row in HOSTILE], ids=[row[0] for row in HOSTILE])
def test_a_hostile_tree_is_refused_at_once(rules: Callable[[], Any]) -> None:
    body = rules()
    before = time.thread_time()

    with pytest.raises(InvalidRequest) as refused:
        parse_rules(body)

    assert time.thread_time() - before < SECONDS_MAX
    problems = refused.value.extra["errors"]
    assert 1 <= len(problems) <= PROBLEMS_MAX
    assert all(len(item["message"]) < 300 and len(item["field"]) < 200 for item in problems)


def test_the_seventeenth_rule_ends_the_reading() -> None:
    class Counted(list[Any]):
        seen = 0

        def __iter__(self) -> Any:
            for item in list.__iter__(self):
                self.seen += 1
                yield item

    rules = Counted([APART] * 1000)
    with pytest.raises(InvalidRequest, match="at most 16 rules"):
        parse_rules(rules)

    assert rules.seen == RULES_MAX + 1


def test_a_group_too_deep_is_refused_before_its_list_is_looked_at() -> None:
    class Unread(list[Any]):
        def __iter__(self) -> Any:
            raise AssertionError("was read")

    node: dict[str, Any] = {"any_of": Unread([APART])}
    for _ in range(GROUP_DEPTH_MAX):
        node = {"any_of": [node]}

    with pytest.raises(InvalidRequest, match="at most 5 deep"):
        parse_rules([node])


def test_what_a_tree_reads_is_told_without_evaluating_it() -> None:
    nodes = parse_rules(
        [
            {"any_of": [APART, {**APART, "within": "rack"}, {**APART, "tags": {"env": "prod"}, "within": "zone"}]},
            {"resource": "metal_server", "operator": "has", "tags": {"type": "storage", "rack": "a"}},
        ]
    )

    assert within_keys(nodes) == ("rack", "zone")
    assert instance_pairs(nodes) == (("role", "db"), ("env", "prod"))
    assert node_keys(nodes) == ("rack", "type", "zone")
    assert [rule.within for rule in leaves(nodes)] == [None, "rack", "zone", None]
    assert (within_keys(()), instance_pairs(()), node_keys(())) == ((), (), ())


A_RULE: Final[Node] = Rule(Resource.METAL_SERVER, Operator.HAS, {"a": "b"})


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rule(1, Operator.HAS, {"a": "b"}),  # type: ignore[arg-type]
        lambda: Rule(Resource.METAL_SERVER, None, {"a": "b"}),  # type: ignore[arg-type]
        lambda: Rule(Resource.METAL_SERVER, Operator.HAS, ["a"]),  # type: ignore[arg-type]
        lambda: Rule(Resource.METAL_SERVER, Operator.HAS, {"a": 1}),  # type: ignore[dict-item]
        lambda: Rule(Resource.VIRTUAL_MACHINE, Operator.HAS, {"a": "b"}, 1),  # type: ignore[arg-type]
        lambda: AnyOf([A_RULE]),  # type: ignore[arg-type]
        lambda: AllOf(("x",)),  # type: ignore[arg-type]
        lambda: TagMatch(1),  # type: ignore[arg-type]
        lambda: TagMatch("a", 1),  # type: ignore[arg-type]
        lambda: AffinitySpec(require_with=("a",)),  # type: ignore[arg-type]
        lambda: AffinitySpec(prefer_with=[TagMatch("a")]),  # type: ignore[arg-type]
    ],
)
def test_a_value_of_a_wrong_type_cannot_be_made(make: Callable[[], object]) -> None:
    with pytest.raises(TypeError):
        make()


@pytest.mark.parametrize(
    "make",
    [
        lambda: Rule("host", Operator.HAS, {"a": "b"}),  # type: ignore[arg-type]
        lambda: Rule(Resource.METAL_SERVER, "is", {"a": "b"}),  # type: ignore[arg-type]
        lambda: Rule(Resource.METAL_SERVER, Operator.HAS, {}),
        lambda: Rule(Resource.METAL_SERVER, Operator.HAS, {str(n): "" for n in range(33)}),
        lambda: Rule(Resource.METAL_SERVER, Operator.HAS, {" a": "b"}),
        lambda: Rule(Resource.METAL_SERVER, Operator.HAS, {"": "b"}),
        lambda: Rule(Resource.METAL_SERVER, Operator.HAS, {"a=b": ""}),
        lambda: Rule(Resource.METAL_SERVER, Operator.HAS, {"a": "b"}, "rack"),
        lambda: Rule(Resource.VIRTUAL_MACHINE, Operator.HAS, {"a": "b"}, ""),
        lambda: Rule(Resource.VIRTUAL_MACHINE, Operator.HAS, {"a": "b"}, "a=b"),
        lambda: AnyOf(()),
        lambda: AllOf(()),
        lambda: TagMatch(""),
        lambda: TagMatch("a=b"),
        lambda: TagMatch("a", "v" * 1001),
    ],
)
def test_a_value_that_breaks_a_rule_cannot_be_made(make: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"."):
        make()


def test_a_rule_does_not_change_with_what_it_was_made_from() -> None:
    tags = {"a": "b"}
    rule = Rule(Resource.METAL_SERVER, Operator.HAS, tags)
    tags["c"] = "d"

    assert rule.tags == {"a": "b"}
    with pytest.raises(TypeError):
        rule.tags["e"] = "f"  # type: ignore[index]


@pytest.mark.parametrize(
    ("entry", "tags", "matches"),
    [
        ("db", {"db": ""}, True),
        ("db", {"db": "main"}, True),
        ("db", {"web": "db"}, False),
        ("role=db", {"role": "db"}, True),
        ("role=db", {"role": "web"}, False),
        ("role=db", {"role=db": ""}, False),
        ("role=", {"role": ""}, True),
        ("role=", {"role": "db"}, False),
        ("a=b=c", {"a": "b=c"}, True),
        (" role = db ", {"role": "db"}, True),
        ("db", {}, False),
    ],
)
def test_an_entry_means_a_key_or_a_pair(entry: str, tags: dict[str, str], matches: bool) -> None:
    assert TagMatch.of(entry).matches(tags) is matches


@given(BINARY)
def test_the_binary_form_reads_back_to_the_same_entries(given_form: dict[str, Any]) -> None:
    spec = parse_affinity(given_form)

    assert not spec.deprecated
    assert parse_affinity(spec.form()) == spec == parse_affinity(spec)
    assert bool(spec) == any(given_form.values())


def test_weights_are_mapped_by_their_sign_alone() -> None:
    weights = {"db": 100, "web": 1, "noisy": -1, "idle": 0, "env=prod": -50}

    spec = parse_affinity(weights)

    assert spec.form() == {"prefer_with_tag": ["db", "web"], "prefer_without_tag": ["noisy", "env=prod"]}
    assert spec.deprecated
    assert spec.deprecation() == {"affinity": weights, "mapped_to": spec.form(), "note": DEPRECATED_NOTE}
    assert (spec.constrains, spec.scores) == (False, True)


def test_an_affinity_of_nothing_asks_nothing() -> None:
    assert not parse_affinity({})
    assert not parse_affinity({}).deprecated
    assert not parse_affinity({"a": 0})
    assert parse_affinity({"a": 0}).deprecated
    assert not parse_affinity({"require_with_tag": []})


def test_an_entry_counts_once_however_often_it_is_written() -> None:
    spec = parse_affinity({"prefer_with_tag": ["a", " a", "a=1"], "require_without_tag": ["a"]})

    assert spec.prefer_with == (TagMatch("a"), TagMatch("a", "1"))
    assert spec.entries == (TagMatch("a"), TagMatch("a", "1"))
    assert (spec.constrains, spec.scores) == (True, True)


@pytest.mark.parametrize("text", ["x86_64", " AMD64 ", "amd64"])
def test_an_architecture_has_one_spelling(text: str) -> None:
    assert parse_arch(text) == effective_arch(text) == "amd64"


def test_no_architecture_is_none_for_a_request_and_amd64_for_a_node() -> None:
    assert (parse_arch(""), parse_arch("  "), effective_arch(""), effective_arch("aarch64")) == (
        "",
        "",
        "amd64",
        "arm64",
    )
    assert effective_arch("riscv64") == "riscv64"


@pytest.mark.parametrize(
    ("kind", "models", "others"),
    [
        ("a10", ["NVIDIA A100-SXM4-40GB", "NVIDIA A10", "NVIDIA A30"], ("NVIDIA A100-SXM4-40GB",)),
        ("l4", ["NVIDIA L40S", "NVIDIA L4"], ("NVIDIA L40S",)),
        ("h200", ["NVIDIA GH200 480GB", "NVIDIA H200", "NVIDIA H200 NVL"], ("NVIDIA GH200 480GB",)),
        ("A100", ["NVIDIA A100-SXM4-40GB", "nvidia a100"], ()),
        ("a100", ["NVIDIA A100X", "NVIDIA A100X"], ("NVIDIA A100X",)),
        ("", ["NVIDIA A100"], ()),
        ("a.0", ["NVIDIA A100"], ()),
    ],
)
def test_a_kind_that_is_a_part_of_another_word_is_ambiguous(
    kind: str, models: list[str], others: tuple[str, ...]
) -> None:
    assert ambiguous_kind(kind, models) == others


@pytest.mark.parametrize("text", ["1g.5gb", "7g.80gb", "1g.10gb+me", "2G.20GB"])
def test_a_profile_is_slices_and_memory(text: str) -> None:
    assert parse_profile(text) == text.lower()


@pytest.mark.parametrize(
    "text", ["8g.80gb", "0g.5gb", "1g", "1g.gb", "1g.10gb+", "1g.10gb+me+me", "g.10gb", "1g.10 gb"]
)
def test_what_is_no_profile_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is not a MIG profile"):
        parse_profile(text)


@pytest.mark.parametrize("kind", ["NVIDIA RTX PRO 6000 Blackwell Server Edition", "GB200 NVL4", "NVIDIA H100 NVL"])
def test_a_card_that_can_be_cut_is_not_taken_for_one_whose_name_it_holds(kind: str) -> None:
    assert supports_mig(kind)


def test_a_selector_is_written_in_the_order_of_its_keys() -> None:
    assert selector_text({"tier": "build", "disk": "nvme"}) == "disk=nvme,tier=build"
    assert parse_pair(" disk = nvme") == ("disk", "nvme")


@pytest.mark.parametrize("text", ["disk", "=nvme", "disk=", "a b=c", "a=b=c"])
def test_what_is_no_label_is_refused_as_it_was_typed(text: str) -> None:
    with pytest.raises(ValueError, match="label") as refused:
        parse_pair(text)

    assert repr(text) in str(refused.value)
