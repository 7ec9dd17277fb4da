"""How a value is shown in a sentence: the same wherever a value is refused."""

from __future__ import annotations

import pytest

from fleet.model.findings import SHOWN_MAX, as_given, shown, step


@pytest.mark.parametrize(
    ("value", "told"),
    [
        ("a b", "'a b'"),
        ("a\nb", r"'a\nb'"),
        ("x" * SHOWN_MAX, f"'{'x' * SHOWN_MAX}'"),
        ("x" * (SHOWN_MAX + 1), f"'{'x' * SHOWN_MAX}…'"),
        (7, "'7'"),
    ],
)
def test_a_value_is_quoted_on_one_line_and_a_long_one_is_cut_within_its_quotes(value: object, told: str) -> None:
    assert shown(value) == told


@pytest.mark.parametrize(("value", "told"), [("7", "'7'"), (7, "7"), (True, "True"), ({"a": "b"}, "{'a': 'b'}")])
def test_only_a_text_has_quotes_where_their_lack_may_be_the_fault(value: object, told: str) -> None:
    assert as_given(value) == told


@pytest.mark.parametrize(
    ("key", "told"), [("", '""'), ("a", "a"), ("a\nb", r"a\nb"), ("k" * 100, f"{'k' * SHOWN_MAX}…")]
)
def test_a_key_is_a_part_of_a_fields_name_on_one_line(key: str, told: str) -> None:
    assert step(key) == told
