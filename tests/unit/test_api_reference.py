"""The reference pages say what the routes and commands say."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from fleet.api import reference as rest
from fleet.cli import reference as cli

FOLDER = Path(__file__).parents[2] / "docs" / "reference"


@pytest.mark.parametrize(
    ("name", "page", "command"), [("rest.md", rest.page, rest.COMMAND), ("cli.md", cli.page, cli.COMMAND)]
)
def test_the_page_is_what_the_code_says(name: str, page: Callable[[], str], command: str) -> None:
    assert (FOLDER / name).read_text(encoding="utf-8") == page(), f"write it again: {command}"
