"""The page of the configuration says what the table of the keys says."""

from __future__ import annotations

from pathlib import Path

from fleet.config.keys import KEYS
from fleet.config.reference import COMMAND, page

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "configuration.md"


def test_the_page_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == page(), f"write it again: {COMMAND}"


def test_every_key_has_one_line_with_its_meaning() -> None:
    lines = page().splitlines()

    for key in KEYS.values():
        [line] = [line for line in lines if line.startswith(f"| `{key.name}` |")]
        assert key.meaning in line
        assert line.count(" | ") == 3
