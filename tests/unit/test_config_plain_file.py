"""Files of plain values: whatever stands in one, JSON can hold what comes back, or one line says what is wrong."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.config.plain_file import read_plain

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)
BREAKING = (
    "when: !!timestamp 2001-99-99",
    "when: !!timestamp soon",
    "cpus: " + "1" * 5000,
    'cpus: !!int ""',
    "cpus: !!float many",
    "cpus: .nan",
    "cpus: .inf",
    "disk: !!binary x",
    "disk: !!binary aGVsbG8=",
    "all: !!set {a}",
    "all: &all [*all]",
    "? [1]\n: 2",
    "? {a: 1}\n: 2",
    "a: 1\na: 2",
    "a: {b: 1, b: 1}",
    "--- {}\n--- {}",
    '"\\ud800": 1',
    "[" * 5000,
    "a: !!python/object/apply:os.getcwd []",
)


@pytest.mark.parametrize("text", BREAKING)
def test_what_is_not_plain_is_told_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"\A.+\Z") as refused:
        read_plain(text)

    assert str(refused.value).isprintable()


@pytest.mark.parametrize("text", ['{"a": 1, "a": 2}', '{"a": NaN}', "[" * 100_000, '{"a": "\\ud800"}', "1" * 5000, ""])
def test_what_is_not_plain_in_json_is_told_in_one_line(text: str) -> None:
    with pytest.raises(ValueError, match=r"\A.+\Z"):
        read_plain(text, json_form=True)


@pytest.mark.parametrize(
    ("text", "json_form", "told"),
    [
        ('[{"name": "a"},\n {"name": "b",\n  "name": "c"}]', True, "the key 'name' stands twice (line 3, column 3)"),
        ('{"a": {"b": 1, "b": 2},\n"a": [":"]}', True, "the key 'b' stands twice (line 1, column 16)"),
        ('{"\\u0061": ["{", "\\""],\n"a": 1}', True, "the key 'a' stands twice (line 2, column 1)"),
        ("{", True, "Expecting property name enclosed in double quotes: line 1 column 2 (char 1)"),
        ("a: 1\na: 2", False, "the key 'a' stands twice (line 2, column 1)"),
        ("a: 'b\" \\x", False, "while scanning a quoted scalar, found unexpected end of stream (line 1, column 10)"),
        ("--- {}\n--- {}", False, "but found another document (line 2, column 1)"),
        ("größe: \0", False, "unacceptable character #x0000: special characters are not allowed at position 7"),
    ],
)
def test_what_is_wrong_is_told_with_its_place_and_as_it_is_written(text: str, json_form: bool, told: str) -> None:
    with pytest.raises(ValueError, match=r"\A.+\Z") as refused:
        read_plain(text, json_form=json_form)

    assert str(refused.value).endswith(told)
    assert "\\'" not in str(refused.value)


@given(st.lists(st.sampled_from(["a", "b", "\n", '"', "é"]), min_size=1), PLAIN)
def test_a_key_that_stands_twice_in_json_is_found_wherever_it_is(path: list[str], value: Any) -> None:
    plain = json.dumps(value)
    inner = f'{{"x": {plain}, "y": {plain},\n"x": {plain}}}'
    for key in path:
        inner = f'[{plain}, {{"0": {plain}, {json.dumps(key)}: {inner}}}]'

    with pytest.raises(ValueError, match=r"the key 'x' stands twice \(line 2, column 1\)"):
        read_plain(inner, json_form=True)


def test_a_date_stays_the_text_that_was_written() -> None:
    assert read_plain("when: 2001-02-03\nthen: 2001-99-99") == {"when": "2001-02-03", "then": "2001-99-99"}


@given(PLAIN)
def test_every_plain_value_comes_back(value: Any) -> None:
    assert read_plain(json.dumps(value), json_form=True) == value


@given(st.text(max_size=60))
def test_no_text_at_all_breaks_the_reading(text: str) -> None:
    for json_form in (False, True):
        try:
            read = read_plain(text, json_form=json_form)
        except ValueError:
            continue
        json.dumps(read, allow_nan=False).encode()
