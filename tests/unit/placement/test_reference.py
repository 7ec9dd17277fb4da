"""The reference page says what the stages say."""

from pathlib import Path

from fleet.placement.reference import render

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "stages.md"


def test_the_page_is_not_stale() -> None:
    assert PAGE.read_text() == render(), (
        "write it again: python -m fleet.placement.reference > docs/reference/stages.md"
    )
