"""What is wrong with a flag's value, with the value: `'four' is not a whole number`, `0 is below 1, the least`."""

from __future__ import annotations

from typing import Any, Final

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from fleet.model.body_problems import sentence_of

WHOLE: Final = frozenset({"int_parsing", "int_type", "int_from_float", "int_parsing_size"})
SHOWN_CHARACTERS: Final = 40


class Commands(TyperGroup):
    """Commands whose usage errors repeat what was typed."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command that was typed.

        Raises:
            BadParameter: a value cannot be meant; with the value and what could be.
        """
        try:
            return super().invoke(ctx)
        except typer.BadParameter as wrong:
            if isinstance(wrong.__cause__, ValidationError):
                wrong.message = in_words(wrong.__cause__)
            raise


def in_words(error: ValidationError) -> str:
    """Return the first finding, with the value it is about."""
    found = error.errors(include_url=False)[0]
    if found["type"] in WHOLE:
        return f"{str(found['input'])[:SHOWN_CHARACTERS]!r} is not a whole number"
    return sentence_of(found)
