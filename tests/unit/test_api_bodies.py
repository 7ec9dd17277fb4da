"""Strict JSON: what the framework would let through is refused before any rule is asked."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.api.answers import iso, name_after, number, position
from fleet.api.bodies import NESTING_MAX, parse
from fleet.api.problems import BodyProblem
from fleet.model.errors import InvalidRequest

LARGEST_BODY_SECONDS = 5.0
"""Of this thread's own work: fifty times what it takes. A comparison of each name with each other takes more."""
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(VALUES)
def test_every_ordinary_value_is_read_as_it_was_written(value: Any) -> None:
    assert parse(json.dumps(value).encode()) == value
    assert parse(json.dumps(value, ensure_ascii=False).encode()) == value


@pytest.mark.parametrize(
    ("body", "field"),
    [
        (b'{"a": NaN}', "body"),
        (b'{"a": -Infinity}', "body"),
        (b'{"a": 1e999}', "body"),
        (b'{"a": 1, "a": 2}', "a"),
        (b'{"a": {"b": 1, "b": 1}}', "b"),
        (b'{"a": "\\u0000"}', "a"),
        (b'{"a": [{"b": "\\ud800"}]}', "a.0.b"),
        (b'{"\\u0000": 1}', "?"),
        (b"\xff", "body"),
        (b"[" * 100_000, "body"),
        (b"1" * 10_000, "body"),
        (b"[" * (NESTING_MAX + 1) + b"]" * (NESTING_MAX + 1), "0"),
        (b'{"a": ' * NESTING_MAX + b"[]" + b"}" * NESTING_MAX, "a"),
    ],
)
def test_what_is_not_acceptable_is_refused_by_field(body: bytes, field: str) -> None:
    with pytest.raises(BodyProblem) as refused:
        parse(body)

    assert refused.value.errors[0]["field"] == field


def test_a_name_that_comes_twice_is_found_at_once_in_the_largest_body() -> None:
    names = [*map(str, range(90_000)), "89999"]
    body = ("{" + ",".join(f'"{name}":0' for name in names) + "}").encode()
    began = time.thread_time()

    with pytest.raises(BodyProblem) as refused:
        parse(body)

    assert refused.value.errors[0]["field"] == "89999"
    assert time.thread_time() - began < LARGEST_BODY_SECONDS


def test_many_brackets_side_by_side_are_no_deep_nesting() -> None:
    deep: Any = []
    for _ in range(NESTING_MAX - 2):
        deep = [deep]
    wide = [deep, *([] for _ in range(100))]

    assert parse(json.dumps(wide).encode()) == wide


def test_a_pair_of_half_characters_is_a_whole_one() -> None:
    assert parse(b'{"a": "\\ud83d\\ude80"}') == {"a": "\N{ROCKET}"}


def test_database_microseconds_are_told_as_utc() -> None:
    assert iso(1_764_417_600_000_001) == "2025-11-29T12:00:00.000001Z"
    assert iso(None) is None


@pytest.mark.parametrize("cursor", ["", "x", "1", "1.2", "-1." + "a" * 36, "9" * 19 + "." + "a" * 36, "1." + "g" * 36])
def test_a_cursor_that_is_not_one_is_refused(cursor: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        position(cursor)

    assert refused.value.extra["errors"][0]["field"] == "cursor"


def test_cursors_are_read_back() -> None:
    uuid = "00000000-0000-4000-8000-000000000000"

    assert position(f"17.{uuid}") == (17, uuid)
    assert position(None) is None
    assert number("42") == 42
    assert (name_after("node-1"), name_after(None)) == ("node-1", "")
    with pytest.raises(InvalidRequest):
        number("４２")
