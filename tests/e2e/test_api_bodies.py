"""Every field of every body wrong in turn: a 400 that names the field, never a 500."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import httpx
import pytest

from tests.e2e.served import METRICS, As, Served, assert_problem

LONG = "x" * 5000
TEXTS: tuple[Any, ...] = (1, True, [], {}, LONG, "a\0b", "\ud800")
NAMES: tuple[Any, ...] = (*TEXTS, None, "", " ", "-a", "a b", "a/b", "ä", "a\n")
INTS: tuple[Any, ...] = ("1", 1.5, True, [], {}, -1, 2**63, 10**400)
MAPS: tuple[Any, ...] = (1, "a", True, [1])
DEEP: tuple[Any, ...] = tuple({"a": json.loads("[" * levels + "]" * levels)} for levels in (16, 40, 400))
SHAPE: Mapping[str, Any] = {"name": "x", "cpus": 1, "memory_mb": 1, "disk_gb": 0}


class Body(NamedTuple):
    """A body that is fine, and for each field values that are not. `{node}` and `{ns}` stand for existing ones."""

    method: str
    path: str
    good: Mapping[str, Any]
    bad: Mapping[str, tuple[Any, ...]]


RULE: Mapping[str, Any] = {"resource": "virtual_machine", "operator": "has_not", "tags": {"role": "db"}}
INSTANCE_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "name": NAMES,
    "namespace": (*TEXTS, "a b"),
    "cpus": (*INTS, None, 0),
    "memory_mb": (*INTS, None, 0),
    "disk_gb": (*INTS, None),
    "image": (*TEXTS, None),
    "tags": (
        *MAPS,
        None,
        {"a": 1},
        {"": "x"},
        {"a=b": "x"},
        {"a": LONG},
        {"k" * 200: ""},
        {"a": "\0"},
        {"\0": "a"},
        {"a": "1", " a": "2"},
    ),
    "affinity": (
        *MAPS,
        *DEEP,
        {"require_with_tag": "a"},
        {"require_with_tag": [1]},
        {"prefer_with_tag": [""]},
        {"prefer_with_tag": ["a"], "b": 1},
        {"a": True},
        {"a": None},
        {"a": 1.5},
        {"a": 10**400},
    ),
    "metadata": (*MAPS, *DEEP, {"affinity": 1}, {"affinity": {"a": "b"}}),
    "placement": (
        *(1, "a", [], {"bogus": 1}, {"node": 1}, {"node": "a b"}, {"labels": {"a": 1}}, {"labels": 1}),
        *({"labels": {"bad key": "x"}}, {"labels": {"a": ""}}, {"labels": {"a": "x" * 64}}),
    ),
    "placement_rules": (
        *(1, "a", True, {}, [1], [{}], [{**RULE, "weight": 1}], [{**RULE, "operator": "is"}], [{**RULE, "tags": {}}]),
        *([RULE] * 17, [RULE] * 5000, [{"any_of": []}], [{"any_of": [RULE], "all_of": [RULE]}]),
        *([{**RULE, "within": ""}], [{**RULE, "resource": "metal_server", "within": "rack"}]),
    ),
    "region": (*TEXTS, None, "a b", "-"),
    "arch": (*TEXTS, None, "sparc"),
    "gpus": (*INTS, None),
    "gpu_kind": (*TEXTS, None),
    "gpu_profile": (*TEXTS, None, "half", "1g.10gb"),
    "strategy": (*TEXTS, None, "A B"),
    "sleep_after_idle_seconds": (*INTS, None),
    "wait_for_capacity_seconds": (*INTS, None),
    "bogus": (1, None, "a"),
}
NODE_FIELDS: Mapping[str, tuple[Any, ...]] = {
    "labels": (*MAPS, None, {"a": 1}, {"": "x"}, {"a b": "x"}, {"a": "x y"}, {"a": LONG}, {"-a": "b"}),
    "region": (*TEXTS, None, "a b"),
    "arch": (*TEXTS, None, "sparc"),
    "backend": (*TEXTS, None, "xen"),
    "sleepy_pool": (1, "true", None, []),
    "max_instances": INTS,
    "gpu_kind": (*TEXTS, None, "<b>"),
    "gpu_count": (*INTS, None),
    "mig_profiles": (*MAPS, None, {"half": 1}, {"1g.10gb": 0}, {"1g.10gb": "1"}, {"1g.10gb": True}, {"": 1}),
    "bogus": (1,),
}
LABEL_CHANGES: tuple[Any, ...] = (
    *NODE_FIELDS["labels"],
    {"a b": None},
    {"a": ""},
    {f"k{at}": "v" for at in range(129)},
)
UNITS: Mapping[str, tuple[Any, ...]] = {
    "gpus": (
        *(1, "a", {}, [1], [{}], [{"uuid": ""}], [{"uuid": "a b"}], [{"uuid": LONG}], [{"uuid": "a", "bogus": 1}]),
        *([{"uuid": "a", "mig_mode": 1}], [{"uuid": "a", "memory_mb": -1}], [{"uuid": "a", "memory_mb": 2**64}]),
        *([{"uuid": "a"}, {"uuid": "a"}], [{"uuid": "a", "model": "m" * 256}], [{"uuid": "a", "iommu_group": "1"}]),
        *([{"uuid": f"GPU-{at}"} for at in range(1025)], [{"uuid": "a", "model": "a\0"}]),
    ),
    "mig_instances": (
        *(1, "a", {}, [1], [{"uuid": "a"}], [{"uuid": "a", "profile": ""}], [{"uuid": "a", "profile": "half"}]),
        *([{"uuid": "a", "profile": "1g.10gb", "parent_gpu_uuid": "a b"}], [{"uuid": "", "profile": "1g.10gb"}]),
        [{"uuid": "a", "profile": "1g.10gb"}] * 2,
    ),
}
NOT_FLAGS: tuple[Any, ...] = ("yes", 1, [])
NOT_FIGURES: tuple[Any, ...] = ("1", True, [], -1, 2**40 + 1)
FIGURES: tuple[Any, ...] = tuple(
    {**METRICS, name: wrong} for name in METRICS for wrong in (NOT_FLAGS if name == "is_hypervisor" else NOT_FIGURES)
)
BODIES = (
    Body("POST", "/auth", {"namespace": "a", "key": "b"}, {
        "namespace": (*TEXTS, None, ""), "key": (*TEXTS, None, ""), "bogus": (1,),
    }),
    Body("POST", "/auth/namespaces", {"name": "a"}, {"name": NAMES, "bogus": (1,)}),
    Body("POST", "/auth/namespaces/{ns}/keys", {"name": "a"}, {
        "name": NAMES, "expires_in_seconds": (*INTS, 0), "bogus": (1,),
    }),
    Body("POST", "/auth/namespaces/{ns}/keys/absent/rotate", {}, {
        "grace_seconds": (*INTS, None, 30 * 86_400 + 1), "expires_in_seconds": (*INTS, 0), "bogus": (1,),
    }),
    Body("POST", "/nodes", {"name": "a"}, {"name": NAMES, **NODE_FIELDS}),
    Body("PUT", "/nodes/{node}", {"region": ""}, {**NODE_FIELDS, "label_changes": LABEL_CHANGES}),
    Body("PUT", "/nodes/{node}/metrics", {"metrics": METRICS}, {
        "age_seconds": ("1", True, None, [], -1, 1e300, 10**400),
        "metrics": (1, "a", None, [], {"Bad Name": 1}, {"x": {}}, {"x": LONG}, *FIGURES),
        "failed": (*MAPS, None, {"cpu": 1}, {"cpu": LONG}),
        "healthy": (1, "true", []),
        "health_detail": (*MAPS, None, {"path": 1}),
        **UNITS,
        "bogus": (1,),
    }),
    Body("PUT", "/nodes/{node}/gpus", {}, {**UNITS, "bogus": (1,)}),
    Body("POST", "/instances", SHAPE, INSTANCE_FIELDS),
    Body("POST", "/placements/explain", SHAPE, INSTANCE_FIELDS),
    Body("PUT", "/admin/config/SCHEDULER_TARGET_LOAD", {"value": "0.75"}, {
        "value": ([], {}, None, "a\0b"), "bogus": (1,),
    }),
)  # fmt: skip
READERS = [pytest.param(body, id=f"{body.method} {body.path}") for body in BODIES]


@pytest.fixture(scope="module")
def places(served: Served) -> dict[str, str]:
    served.node("bodies")
    served.namespace("bodies").client.close()
    return {"node": "bodies", "ns": "bodies"}


def send(admin: As, body: Body, places: Mapping[str, str], content: Mapping[str, Any]) -> httpx.Response:
    path = body.path.format(**places)
    # The client's own encoder refuses half characters; on the wire they are only an escape.
    return admin.raw(body.method, path, json.dumps(content).encode())


def top_of(field: str) -> str:
    """The body's own field that a problem's field is in: `tags` of `tags[a]`."""
    return re.split(r"[.\[]", field, maxsplit=1)[0]


@pytest.mark.parametrize("body", READERS)
def test_every_field_wrong_in_turn_is_refused_by_name(admin: As, places: dict[str, str], body: Body) -> None:
    for name, values in body.bad.items():
        for value in values:
            answer = send(admin, body, places, {**body.good, name: value})

            try:
                # A number of hundreds of digits is no number any JSON reader promises to keep.
                document = assert_problem(answer, 400, "invalid_request")
                fields = [item["field"] for item in document["errors"]]
                assert name in {top_of(field) for field in fields}, (name, document)
            except AssertionError as wrong:
                raise AssertionError(f"{name}={value!r:.80}: {wrong}") from None


@pytest.mark.parametrize("body", READERS)
def test_every_required_field_left_out_is_named(admin: As, places: dict[str, str], body: Body) -> None:
    required = [
        name for name in body.good if name in {"name", "cpus", "memory_mb", "metrics", "key", "namespace", "value"}
    ]
    if body.path in {"/instances", "/placements/explain"}:
        required.remove("name")

    for name in required:
        rest = {field: value for field, value in body.good.items() if field != name}
        assert_problem(send(admin, body, places, rest), 400, "invalid_request", name)


@pytest.mark.parametrize("body", READERS)
def test_all_problems_of_a_body_are_told_together(admin: As, places: dict[str, str], body: Body) -> None:
    wrong = {name: values[0] for name, values in body.bad.items()}

    document = assert_problem(send(admin, body, places, wrong), 400, "invalid_request")

    assert {top_of(item["field"]) for item in document["errors"]} >= set(wrong)


def test_a_nodes_labels_are_changed_in_one_way_at_a_time(admin: As, places: dict[str, str]) -> None:
    path = f"/nodes/{places['node']}"
    for labels in ({}, {"a": "b"}):
        document = assert_problem(
            admin.put(path, {"labels": labels, "label_changes": {"c": "d"}}), 400, "invalid_request"
        )
        assert "label_changes some: give one of them" in document["detail"]

    changed = [
        admin.put(path, {"label_changes": changes}).json()["labels"]
        for changes in ({"a": "b", "c": "d"}, {"a": None, "absent": None}, {}, {"c": None})
    ]
    assert changed == [{"a": "b", "c": "d"}, {"c": "d"}, {"c": "d"}, {}]


@pytest.mark.parametrize("path", ["/instances", "/placements/explain"])
def test_a_strategy_that_is_not_there_is_told_with_the_bodys_other_problems(admin: As, path: str) -> None:
    document = assert_problem(admin.post(path, {**SHAPE, "cpus": True, "strategy": "tetris"}), 400, "invalid_request")

    assert [item["field"] for item in document["errors"]] == ["cpus", "strategy"]
    assert "there is: balanced" in document["errors"][1]["message"]


def test_a_strategy_that_is_no_name_is_told_once(admin: As) -> None:
    document = assert_problem(admin.post("/instances", {**SHAPE, "strategy": "te tris"}), 400, "invalid_request")

    assert [item["field"] for item in document["errors"]] == ["strategy"]


UNREADABLE: Mapping[str, tuple[bytes, str]] = {
    "half a document": (b'{"name": ', "body"),
    "no document": (b"", "body"),
    "not json": (b"name=x", "body"),
    "a list": (b"[]", "body"),
    "a text": (b'"x"', "body"),
    "null": (b"null", "body"),
    "two documents": (b"{}{}", "body"),
    "not utf-8": (b'{"name": "\xff"}', "body"),
    "NaN": (b'{"name": "x", "cpus": NaN}', "body"),
    "infinity": (b'{"name": "x", "cpus": 1e999}', "body"),
    "minus infinity": (b'{"name": "x", "cpus": -Infinity}', "body"),
    "a key twice": (b'{"name": "x", "name": "y"}', "name"),
    "a nested key twice": (b'{"name": "x", "tags": {"a": "b", "a": "c"}}', "a"),
    "deep nesting": (b'{"name": ' + b"[" * 200_000, "body"),
    "a number of thousands of digits": (b'{"name": "x", "cpus": ' + b"9" * 10_000 + b"}", "body"),
    "a control character": (b'{"name": "a\nb"}', "body"),
    "a byte order mark": (b'\xef\xbb\xbf{"name": "x"}', "body"),
}


@pytest.mark.parametrize("name", UNREADABLE)
@pytest.mark.parametrize("path", ["/instances", "/nodes", "/auth", "/auth/namespaces"])
def test_what_is_not_acceptable_json_is_refused(admin: As, path: str, name: str) -> None:
    content, field = UNREADABLE[name]

    assert_problem(admin.raw("POST", path, content), 400, "invalid_request", field)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""])
def test_another_content_type_is_refused_with_what_is_expected(admin: As, content_type: str) -> None:
    answer = admin.raw("POST", "/instances", b'{"cpus": 1, "memory_mb": 1}', Content_Type=content_type)

    document = assert_problem(answer, 400, "invalid_request", "body")
    assert "application/json" in document["detail"]


def test_a_body_over_the_bound_is_413_whether_its_length_is_stated_or_not(admin: As) -> None:
    big = b'{"name": "' + b"x" * (2 * 1024 * 1024) + b'"}'

    stated = admin.raw("POST", "/instances", big)
    streamed = admin.raw("POST", "/instances", iter([big[: len(big) // 2], big[len(big) // 2 :]]))

    assert_problem(stated, 413, "body_too_large", "body")
    assert_problem(streamed, 413, "body_too_large", "body")


LATER: Mapping[str, Any] = {"wait_for_capacity_seconds": 60}


@pytest.mark.parametrize("path", ["/instances", "/placements/explain"])
def test_a_field_whose_feature_is_not_there_yet_is_refused_never_ignored(admin: As, path: str) -> None:
    for name, value in LATER.items():
        asked = value if "." in name else {name: value}

        document = assert_problem(admin.post(path, {**SHAPE, **asked}), 400, "not_supported", name)

        assert [item["field"] for item in document["errors"]] == [name]


def test_all_fields_that_are_not_supported_are_told_together(admin: As) -> None:
    asked = {name: value for name, value in LATER.items() if "." not in name}

    document = assert_problem(admin.post("/instances", {**SHAPE, **asked}), 400, "not_supported")

    assert {item["field"] for item in document["errors"]} == set(asked)


def test_defaults_of_later_fields_are_accepted(admin: As, places: dict[str, str]) -> None:
    defaults: dict[str, Any] = {
        "affinity": None,
        "metadata": {},
        "placement": {},
        "placement_rules": [],
        "region": "",
        "gpus": 0,
    }

    answer = admin.post("/placements/explain", {**SHAPE, **defaults, "strategy": "load-aware"})

    assert answer.status_code == 200, answer.text


BAD_PLACES: tuple[tuple[str, str, str], ...] = (
    ("GET", "/instances/not-a-uuid", "uuid"),
    ("GET", "/instances/%00", "uuid"),
    ("DELETE", "/instances/1", "uuid"),
    ("GET", "/decisions/x", "uuid"),
    ("GET", "/operations/x", "uuid"),
    ("POST", "/operations/x/retry", "uuid"),
    ("GET", "/nodes/a%00b", "name"),
    ("GET", "/nodes/a%20b", "name"),
    ("GET", "/nodes/" + "x" * 300, "name"),
    ("POST", "/nodes/%ff/cordon", "name"),
    ("GET", "/auth/namespaces/a%00", "namespace"),
    ("GET", "/admin/config/a%00", "key"),
    ("GET", "/admin/config/NO_SUCH_KEY", "NO_SUCH_KEY"),
    ("GET", "/admin/config/NODE_LABELS", "NODE_LABELS"),
    ("GET", "/instances?limit=0", "limit"),
    ("GET", "/instances?limit=-1", "limit"),
    ("GET", "/instances?limit=1001", "limit"),
    ("GET", "/instances?limit=" + "9" * 30, "limit"),
    ("GET", "/instances?limit=ten", "limit"),
    ("GET", "/instances?cursor=x", "cursor"),
    ("GET", "/instances?cursor=1.2", "cursor"),
    ("GET", "/instances?cursor=" + "9" * 500, "cursor"),
    ("GET", "/instances?cursor=%00", "cursor"),
    ("GET", "/instances?state=flying", "state"),
    ("GET", "/instances?node=%00", "node"),
    ("GET", "/instances?namespce=a", "namespce"),
    ("GET", "/nodes?limit=0", "limit"),
    ("GET", "/nodes?cursor=" + "x" * 500, "cursor"),
    ("GET", "/nodes?cursor=%00", "cursor"),
    ("GET", "/nodes?cursor=", "cursor"),
    ("GET", "/auth/namespaces?cursor=a%20b", "cursor"),
    ("GET", "/auth/namespaces/bodies/keys?cursor=%F0%9F%98%80", "cursor"),
    ("GET", "/auth/namespaces/bodies/events?cursor=x", "cursor"),
    ("GET", "/nodes/bodies/events?scheduling=true&cursor=1", "cursor"),
    ("GET", "/decisions?outcome=%00", "outcome"),
    ("GET", "/decisions?outcome=foo", "outcome"),
    ("GET", "/decisions?instance=x", "instance"),
    ("GET", "/operations?state=x", "state"),
    ("GET", "/operations?cursor=x", "cursor"),
    ("GET", "/nodes/bodies/events?cursor=x", "cursor"),
    ("GET", "/nodes/bodies/events?limit=1001", "limit"),
    ("GET", "/nodes/bodies/events?newest_first=perhaps", "newest_first"),
    ("GET", "/placements/capacity?cpus=0&memory_mb=1", "cpus"),
    ("GET", "/healthz?x=1", "x"),
)


@pytest.mark.parametrize(("method", "path", "field"), BAD_PLACES)
def test_a_bad_path_or_query_value_is_a_400_that_names_it(
    admin: As, places: dict[str, str], method: str, path: str, field: str
) -> None:
    assert_problem(admin.call(method, path), 400, "invalid_request", field)


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("SCHEDULER_TARGET_LOAD", None, "value: must be a text, a number, true or false, not null"),
        ("SCHEDULER_TARGET_LOAD", ["1"], "value: must be a text, a number, true or false, not a list"),
        ("NO-KEY", "1", "key: is not a key of the configuration: those are letters, digits and '_'"),
    ],
)
def test_what_is_wrong_with_a_setting_is_said_once_and_in_words(admin: As, key: str, value: Any, sentence: str) -> None:
    document = assert_problem(admin.put(f"/admin/config/{key}", {"value": value}), 400, "invalid_request")

    assert document["detail"] == sentence
    assert len(document["errors"]) == 1


def test_unknown_paths_and_methods_are_problem_documents(admin: As) -> None:
    assert_problem(admin.get("/nowhere"), 404, "not_found")
    refused = admin.call("PATCH", "/instances")
    assert_problem(refused, 405, "method_not_allowed")
    assert "GET" in refused.headers["allow"]


@pytest.mark.parametrize("key", ["", "x" * 256, "tab\there", "ä"])
def test_a_bad_idempotency_key_is_refused_by_name(admin: As, key: str, new_name: Callable[[str], str]) -> None:
    sent = [*admin.headers.items(), ("Idempotency-Key", key)]

    answer = admin.client.post(
        "/auth/namespaces",
        json={"name": new_name("ns")},
        headers=[(name.encode(), value.encode()) for name, value in sent],
    )

    assert_problem(answer, 400, "invalid_request", "Idempotency-Key")
