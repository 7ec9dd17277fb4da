"""Numbered vectors of the affinity rule tree: its twenty validations, and how the examples read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import pytest

from fleet.model.errors import InvalidRequest
from fleet.model.request import parse_placement_request
from fleet.model.rules import AllOf, Operator, Resource, Rule, parse_rules

pytestmark = pytest.mark.vectors

RULE: Final[Mapping[str, Any]] = {"resource": "virtual_machine", "operator": "has", "tags": {"role": "db"}}
HOST: Final[Mapping[str, Any]] = {**RULE, "resource": "metal_server"}
TOP: Final = "placement_rules"


def nested(depth: int) -> dict[str, Any]:
    """A rule in `depth` groups."""
    node = dict(RULE)
    for _ in range(depth):
        node = {"all_of": [node]}
    return node


DEEP: Final = f"{TOP}[0]{'.all_of[0]' * 5}.all_of"
VALIDATIONS: Final[tuple[tuple[int, object, str, str], ...]] = (
    (1, {}, TOP, "rules must be a list"),
    (2, ["x"], f"{TOP}[0]", "must be an object"),
    (2, [{1: "x"}], f"{TOP}[0]", "must be an object with texts as keys, a rule or a group; a key is a whole number"),
    (3, [{"any_of": [RULE], "all_of": [RULE]}], f"{TOP}[0]", "exactly one key, any_of or all_of"),
    (3, [{"any_of": [RULE], "weight": 1}], f"{TOP}[0]", "'weight'"),
    (4, [nested(6)], DEEP, "nest at most 5"),
    (4, [{"any_of": [{"all_of": [{"any_of": [{"all_of": [{"any_of": [{"all_of": 1}]}]}]}]}]}], "", "nest at most 5"),
    (5, [{"any_of": []}], f"{TOP}[0].any_of", "list with at least one rule or group"),
    (5, [{"any_of": [RULE, {"all_of": RULE}]}], f"{TOP}[0].any_of[1].all_of", "list with at least one rule or group"),
    (6, [{**RULE, "zone": 1, "weight": 1}], f"{TOP}[0].weight", "unknown field 'weight'"),
    (6, [{**RULE, "whithin": "rack"}], f"{TOP}[0].whithin", "a rule has resource, operator, tags and may have within"),
    (6, [{**RULE, "none_of": [RULE]}], f"{TOP}[0].none_of", "unknown field 'none_of'"),
    (7, [{"operator": "has", "tags": {"a": "b"}}], f"{TOP}[0]", "a rule needs resource"),
    (7, [{"resource": "metal_server", "tags": {"a": "b"}}], f"{TOP}[0]", "a rule needs operator"),
    (7, [{"resource": "metal_server", "operator": "has"}], f"{TOP}[0]", "a rule needs tags"),
    (8, [{**RULE, "within": 1}], f"{TOP}[0].within", "within must be a host tag key"),
    (9, [{**RULE, "tags": ["a"]}], f"{TOP}[0].tags", "at least one key"),
    (9, [{**RULE, "tags": {}}], f"{TOP}[0].tags", "at least one key"),
    (10, [{**RULE, "tags": {f"k{n}": "" for n in range(33)}}], f"{TOP}[0].tags", "at most 32 tags"),
    (11, [{**RULE, "tags": {"a": 1}}], f"{TOP}[0].tags", "must be strings; the value of key 'a'"),
    (11, [{**RULE, "tags": {1: "a"}}], f"{TOP}[0].tags", "must be strings"),
    (12, [{**RULE, "tags": {"  ": "a"}}], f"{TOP}[0].tags", "a tag needs a key"),
    (13, [{**RULE, "tags": {f" {'k' * 129}": "a"}}], f"{TOP}[0].tags", "key takes at most 128"),
    (
        14,
        [{**RULE, "tags": {"k": "v" * 1001}}],
        f"{TOP}[0].tags",
        "value of key 'k' has 1001 characters, a value takes",
    ),
    (15, [{**RULE, "tags": {"k": "1", " k ": "2"}}], f"{TOP}[0].tags", "key 'k' is repeated"),
    (16, [{**RULE, "resource": "host"}], f"{TOP}[0].resource", "must be one of metal_server, virtual_machine"),
    (16, [{**RULE, "resource": ["metal_server"]}], f"{TOP}[0].resource", "must be one of metal_server"),
    (17, [{**RULE, "operator": "lacks"}], f"{TOP}[0].operator", "must be one of has, has_not, not 'lacks'"),
    (18, [{**HOST, "within": "rack"}], f"{TOP}[0].within", "only a virtual_machine rule takes within"),
    (19, [{**RULE, "within": " "}], f"{TOP}[0].within", "within takes a host tag key of 1 to 128"),
    (19, [{**RULE, "within": "w" * 129}], f"{TOP}[0].within", "within takes a host tag key of 1 to 128"),
    (20, [RULE] * 17, TOP, "at most 16 rules"),
    (20, [{"any_of": [RULE] * 9}, {"all_of": [RULE] * 8}], TOP, "placement_rules[1].all_of[7] is more"),
)


@pytest.mark.parametrize(
    ("number", "rules", "field", "words"), VALIDATIONS, ids=[f"{row[0]}-{at}" for at, row in enumerate(VALIDATIONS)]
)
def test_atlas_4_2_each_validation_names_the_culprit_and_its_path(
    number: int, rules: object, field: str, words: str
) -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_placement_request({"cpus": 1, "memory_mb": 1, "placement_rules": rules})

    (problem,) = refused.value.extra["errors"]
    assert words in problem["message"], number
    assert problem["field"] == field or (not field and problem["field"].startswith(TOP))


def test_atlas_4_2_every_validation_has_an_example() -> None:
    assert {number for number, *_ in VALIDATIONS} == set(range(1, 21))


@pytest.mark.parametrize(
    "rules",
    [
        [RULE] * 16,
        [nested(5)],
        [{**RULE, "tags": {f"k{n}": "" for n in range(32)}}],
        [{**RULE, "tags": {"k" * 128: "v" * 1000}}],
        [{**RULE, "tags": {f"  {'k' * 128} ": f" {'v' * 1000} "}}],
        [{**RULE, "within": "w" * 128}],
        [{**HOST, "within": None}],
        [],
        None,
    ],
    ids=["16 rules", "5 deep", "32 tags", "longest", "longest, untrimmed", "longest within", "no within", "[]", "null"],
)
def test_atlas_4_2_what_just_keeps_the_limits_is_accepted(rules: object) -> None:
    parse_placement_request({"cpus": 1, "memory_mb": 1, "placement_rules": rules})


def test_atlas_v26_a_rule_about_hosts_with_two_pairs_is_one_rule() -> None:
    both, one = parse_rules(
        [
            {"resource": "metal_server", "operator": "has_not", "tags": {"type": "storage", "rack": "b"}},
            {"resource": "metal_server", "operator": "has_not", "tags": {"type": "storage"}},
        ]
    )

    assert both == Rule(Resource.METAL_SERVER, Operator.HAS_NOT, {"type": "storage", "rack": "b"})
    assert one == Rule(Resource.METAL_SERVER, Operator.HAS_NOT, {"type": "storage"})


def test_atlas_v27_one_rule_with_two_pairs_is_not_a_group_of_two_rules() -> None:
    rule, group = parse_rules(
        [
            {"resource": "virtual_machine", "operator": "has", "tags": {"role": "db", "env": "prod"}},
            {"all_of": [{**RULE}, {**RULE, "tags": {"env": "prod"}}]},
        ]
    )

    assert rule == Rule(Resource.VIRTUAL_MACHINE, Operator.HAS, {"role": "db", "env": "prod"})
    assert group == AllOf(
        (
            Rule(Resource.VIRTUAL_MACHINE, Operator.HAS, {"role": "db"}),
            Rule(Resource.VIRTUAL_MACHINE, Operator.HAS, {"env": "prod"}),
        )
    )
