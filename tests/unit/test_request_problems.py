"""Every rule of a request's body: what breaks it is named, with its field, in a sentence that says what would do."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final
from uuid import UUID

import pytest
from pydantic import TypeAdapter, ValidationError

from fleet.model.body_problems import field_of, problems_of
from fleet.model.errors import InvalidRequest
from fleet.model.request import InstanceRequest, Reason, parse_placement_request, parse_stored_request

BASE: Final[Mapping[str, Any]] = {"cpus": 1, "memory_mb": 1}
LABEL: Final = "must be 1 to 63 letters, digits, '.', '_' or '-', starting and ending with a letter or digit"
REASONS: Final = "must be 'create', 'resize', 'migrate' or 'evacuate'"
WITH_TAGS: Final = {"require_with_tag": ["a"]}
RULE: Final = {"resource": "virtual_machine", "operator": "has", "tags": {"a": "b"}}

TABLE: Final[tuple[tuple[Mapping[str, Any], str, str], ...]] = (
    ({"cpus": 0}, "cpus", "0 is below 1, the least"),
    ({"cpus": -3}, "cpus", "-3 is below 1, the least"),
    ({"cpus": 1_000_001}, "cpus", "1000001 is above 1000000, the most"),
    ({"cpus": True}, "cpus", "must be a whole number, not true"),
    ({"cpus": "2"}, "cpus", "must be a whole number, not a text"),
    ({"cpus": 1.0}, "cpus", "must be a whole number, not 1.0"),
    ({"cpus": math.nan}, "cpus", "must be a whole number, not nan"),
    ({"cpus": math.inf}, "cpus", "must be a whole number, not inf"),
    ({"cpus": None}, "cpus", "must be a whole number, not null"),
    ({"cpus": []}, "cpus", "must be a whole number, not a list"),
    ({"memory_mb": 0}, "memory_mb", "0 is below 1, the least"),
    ({"memory_mb": 2**41}, "memory_mb", "2199023255552 is above 1099511627776, the most"),
    ({"memory_mb": 10**400}, "memory_mb", "a number of so many digits is above 1099511627776, the most"),
    ({"memory_mb": False}, "memory_mb", "must be a whole number, not false"),
    ({"disk_gb": -1}, "disk_gb", "-1 is below 0, the least"),
    ({"gpus": -1}, "gpus", "-1 is below 0, the least"),
    ({"sleep_after_idle_seconds": -1}, "sleep_after_idle_seconds", "-1 is below 0, the least"),
    ({"wait_for_capacity_seconds": 2**40}, "wait_for_capacity_seconds", "1099511627776 is above 2147483648, the most"),
    ({"name": 1}, "name", "must be a text, not a whole number"),
    (
        {"name": "-a"},
        "name",
        "must be 1-63 letters, digits, '.', '_' or '-', starting and ending with a letter or digit",
    ),
    ({"image": "x" * 1001}, "image", "has 1001 characters, at most 1000 are allowed"),
    ({"bogus": 1}, "bogus", "unknown field"),
    ({"destinations": "n1"}, "destinations", "must be a list, not a text"),
    ({"destinations": ["n1", 2]}, "destinations[1]", "must be a text, not a whole number"),
    (
        {"destinations": ["n" * 64]},
        "destinations[0]",
        "must be 1-63 letters, digits, '.', '_' or '-', starting and ending with a letter or digit",
    ),
    ({"tags": 1}, "tags", "must be an object of tags, or a list of their keys, not a whole number"),
    ({"tags": ["a", 1]}, "tags", "must be an object of tags, or a list of their keys, not a list"),
    ({"tags": {"a": 1}}, "tags[a]", "keys and values must be texts, not a whole number"),
    ({"tags": {"": "x"}}, 'tags[""]', "a tag needs a key"),
    ({"tags": {" ": "x"}}, 'tags[""]', "a tag needs a key"),
    ({"tags": ["a=b"]}, "tags[a=b]", "the key 'a=b' holds '=', which stands between a key and its value"),
    (
        {"tags": {"k" * 129: ""}},
        f"tags[{'k' * 60}…]",
        f"the key '{'k' * 60}…' has 129 characters, a key takes at most 128",
    ),
    ({"tags": {"k": "v" * 1001}}, "tags[k]", "the value of key 'k' has 1001 characters, a value takes at most 1000"),
    ({"tags": {"a": "1", " a": "2"}}, "tags[a]", "stands twice: white space at the ends of a key does not count"),
    ({"tags": {str(n): "" for n in range(65)}}, "tags", "at most 64 tags, got 65"),
    ({"placement": 1}, "placement", "must be an object, not a whole number"),
    ({"placement": {"bogus": 1}}, "placement.bogus", "unknown field"),
    ({"placement": {"node": 1}}, "placement.node", "must be a text, not a whole number"),
    ({"placement": {"labels": [1]}}, "placement.labels", "must be an object of labels, not a list"),
    ({"placement": {"labels": {"a": 1}}}, "placement.labels[a]", "the value must be a text, not a whole number"),
    ({"placement": {"labels": {"bad key": "x"}}}, "placement.labels[bad key]", f"the key 'bad key' {LABEL}"),
    ({"placement": {"labels": {"a": "bad value"}}}, "placement.labels[a]", f"the value 'bad value' {LABEL}"),
    ({"placement": {"labels": {"a": ""}}}, "placement.labels[a]", f"the value '' {LABEL}"),
    (
        {"placement": {"labels": {f"k{n}": "v" for n in range(65)}}},
        "placement.labels",
        "takes at most 64 labels, not 65",
    ),
    ({"region": "eu west"}, "region", f"'eu west' is not a region's name: it {LABEL}, or empty for any"),
    ({"arch": "Sparc"}, "arch", "'Sparc' is not known; must be one of amd64, arm64 (or x86_64, aarch64)"),
    (
        {"strategy": "Best Fit"},
        "strategy",
        (
            "'Best Fit' is not a strategy's name: 1 to 63 lower-case letters, digits, '_' and '-', "
            "with a letter or digit at both ends"
        ),
    ),
    (
        {"gpu_kind": "k" * 129},
        "gpu_kind",
        "must be a card's name or a part of it, at most 128 printable characters",
    ),
    (
        {"gpus": 1, "gpu_profile": "half"},
        "gpu_profile",
        "'half' is not a MIG profile; write slices and memory like '1g.10gb' or '1g.10gb+me'",
    ),
    (
        {"gpu_profile": "1G.10gb"},
        "gpu_profile",
        "'1g.10gb' needs gpus of 1 or more: it says how each of them is cut",
    ),
    (
        {"gpus": 1, "gpu_kind": "NVIDIA V100", "gpu_profile": "1g.10gb"},
        "gpu_profile",
        "'1g.10gb' is a MIG profile, and cards of kind 'NVIDIA V100' have no MIG; leave one of them out",
    ),
    ({"affinity": []}, "affinity", "must be an object of lists or of weights, not a list"),
    (
        {"affinity": {"prefer_with_tag": "a"}},
        "affinity.prefer_with_tag",
        ("must be a list of tags, each 'key' or 'key=value', not a text"),
    ),
    (
        {"affinity": {"require_with_tag": [1]}},
        "affinity.require_with_tag[0]",
        ("must be a tag, 'key' or 'key=value', not a whole number"),
    ),
    (
        {"affinity": {"require_without_tag": ["a", " "]}},
        "affinity.require_without_tag[1]",
        ("must be a tag, 'key' or 'key=value', not an empty text"),
    ),
    ({"affinity": {"prefer_without_tag": ["=v"]}}, "affinity.prefer_without_tag[0]", "a tag needs a key"),
    ({"affinity": {"prefer_with_tag": ["t"] * 65}}, "affinity.prefer_with_tag", "takes at most 64 tags, not 65"),
    (
        {"affinity": {**WITH_TAGS, "db": 1}},
        "affinity.db",
        (
            "'db' cannot stand beside require_with_tag, "
            "require_without_tag, prefer_with_tag, prefer_without_tag; put it in one"
        ),
    ),
    ({"affinity": {"db": True}}, "affinity.db", "the weight of 'db' must be a whole number, not true"),
    ({"affinity": {"db": None}}, "affinity.db", "the weight of 'db' must be a whole number, not null"),
    (
        {"affinity": {"db": [1]}},
        "affinity.db",
        (
            "the weight of 'db' must be a whole number, not a list; lists are called require_with_tag, "
            "require_without_tag, prefer_with_tag, prefer_without_tag"
        ),
    ),
    ({"affinity": {"db": math.inf}}, "affinity.db", "the weight of 'db' must be a whole number, not inf"),
    ({"affinity": {"db": math.nan}}, "affinity.db", "the weight of 'db' must be a whole number, not nan"),
    ({"affinity": {"db": 1.5}}, "affinity.db", "the weight of 'db' must be a whole number, not 1.5"),
    (
        {"affinity": {"db": 2**63}},
        "affinity.db",
        "the weight of 'db' is too large; only its sign counts, write 1 or -1",
    ),
    ({"affinity": {"": 1}}, 'affinity.""', "must be a tag, 'key' or 'key=value', not an empty text"),
    ({"affinity": {f"t{n}": 1 for n in range(65)}}, "affinity", "takes at most 64 weights, not 65"),
    (
        {"metadata": {"affinity": 1}},
        "metadata.affinity",
        "must be an object of lists or of weights, not a whole number",
    ),
    (
        {"metadata": {"affinity": {"prefer_with_tag": [""]}}},
        "metadata.affinity.prefer_with_tag[0]",
        ("must be a tag, 'key' or 'key=value', not an empty text"),
    ),
    (
        {"affinity": WITH_TAGS, "metadata": {"affinity": WITH_TAGS}},
        "metadata.affinity",
        ("affinity is given too; keep one of them"),
    ),
    ({"placement_rules": "x"}, "placement_rules", "rules must be a list, not a text"),
    (
        {"placement_rules": [{"any_of": [RULE, {**RULE, "tags": {}}]}]},
        "placement_rules[0].any_of[1].tags",
        ("must be an object with at least one key, not an empty one"),
    ),
    ({"reason": "because"}, "reason", REASONS),
    ({"reason": "fork"}, "reason", REASONS),
    ({"reason": 1}, "reason", REASONS),
)


def problems(body: object) -> list[tuple[str, str]]:
    with pytest.raises(InvalidRequest) as refused:
        parse_placement_request(body)
    return [(item["field"], item["message"]) for item in refused.value.extra["errors"]]


@pytest.mark.parametrize(("wrong", "field", "message"), TABLE, ids=[f"{at} {row[1]}" for at, row in enumerate(TABLE)])
def test_what_breaks_a_rule_is_named_with_its_field(wrong: Mapping[str, Any], field: str, message: str) -> None:
    assert problems({**BASE, **wrong}) == [(field, message)]


def test_the_detail_tells_field_and_sentence_of_each_problem() -> None:
    with pytest.raises(InvalidRequest) as refused:
        parse_placement_request({"cpus": 0, "memory_mb": "1"})

    assert refused.value.detail == "cpus: 0 is below 1, the least; memory_mb: must be a whole number, not a text"


def test_what_is_no_uuid_is_told_so() -> None:
    with pytest.raises(ValidationError) as refused:
        TypeAdapter(UUID).validate_python("x")

    assert [item["message"] for item in problems_of(refused.value)] == ["is not a uuid"]


def test_a_fork_is_read_where_one_was_stored() -> None:
    assert parse_stored_request({**BASE, "reason": "fork"}).reason is Reason.FORK


def test_all_problems_of_one_body_are_told_together() -> None:
    body = {
        "cpus": 0,
        "disk_gb": -1,
        "tags": {"": "x", "a=b": ""},
        "affinity": {"db": True, "web": None},
        "metadata": [],
        "placement": {"node": "-", "labels": {"bad key": "x", "k": "bad value"}},
        "placement_rules": [{}, {**RULE, "operator": "is", "within": ""}],
        "arch": "vax",
        "region": "-",
        "strategy": "?",
        "gpu_profile": "half",
        "bogus": 1,
    }

    fields = [field for field, _ in problems(body)]

    assert sorted(fields) == sorted(
        [
            *("cpus", "memory_mb", "disk_gb", 'tags[""]', "tags[a=b]", "affinity.db", "affinity.web", "metadata"),
            *("placement.node", "placement.labels[bad key]", "placement.labels[k]"),
            *("placement_rules[0]", "placement_rules[0]", "placement_rules[0]"),
            *("placement_rules[1].operator", "placement_rules[1].within"),
            *("arch", "region", "strategy", "gpu_profile", "bogus"),
        ]
    )


@pytest.mark.parametrize("body", [None, 1, "x", [], True])
def test_a_body_that_is_no_object_is_refused_as_a_whole(body: object) -> None:
    ((field, message),) = problems(body)

    assert (field, message.split(",")[0]) == ("body", "must be an object")


def test_a_text_that_was_sent_in_the_wrong_place_is_not_sent_back() -> None:
    (problem,) = problems({**BASE, "cpus": "a secret"})

    assert "secret" not in problem[1]


def test_a_field_is_named_as_it_is_written() -> None:
    assert field_of(("placement", "node")) == "placement.node"
    assert field_of(("destinations", 3)) == "destinations[3]"
    assert field_of(("placement_rules", "[0].any_of[1].tags")) == "placement_rules[0].any_of[1].tags"
    assert field_of(()) == ""


def test_words_are_kept_as_the_product_spells_them() -> None:
    request = InstanceRequest.model_validate(
        {**BASE, "arch": " X86_64", "gpus": 1, "gpu_kind": " A100 ", "gpu_profile": "1G.10GB+ME ", "tags": [" a "]}
    )

    assert (request.arch, request.gpu_kind, request.gpu_profile) == ("amd64", "A100", "1g.10gb+me")
    assert request.tags == {"a": ""}


@pytest.mark.parametrize("nothing", [{"arch": ""}, {"region": ""}, {"gpu_profile": ""}, {"strategy": ""}])
def test_an_empty_word_asks_nothing(nothing: Mapping[str, str]) -> None:
    assert InstanceRequest.model_validate({**BASE, **nothing}) == InstanceRequest.model_validate(BASE)


def test_a_kind_of_gpu_without_gpus_asks_nothing_and_is_no_mistake() -> None:
    assert InstanceRequest.model_validate({**BASE, "gpu_kind": "h100"}).gpus == 0
