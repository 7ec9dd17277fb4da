"""What is wrong with a flag's value, with the value: `'four' is not a whole number`, `0 is below 1, the least`."""

from __future__ import annotations

from typing import Any, Final

import typer
from pydantic import ValidationError
from typer.core import TyperGroup

from fleet.model.body_problems import sentence_of
from fleet.model.findings import shown

WHOLE: Final = frozenset({"int_parsing", "int_type", "int_from_float", "int_parsing_size"})
SENTENCE_CHARACTERS: Final = 1000
WIDTH: Final = {"max_content_width": 120}
"""Settings of a command's context; help that is read is not wider."""


class Commands(TyperGroup):
    """Commands whose usage errors repeat what was typed, and whose help tells each in a whole sentence."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands, as wide as the terminal is; a sentence is broken, and not cut off."""
        found = ((name, self.get_command(ctx, name)) for name in self.list_commands(ctx))
        rows = [(name, _sentence(command)) for name, command in found if command is not None and not command.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)

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


def _sentence(command: Any) -> str:
    return str(command.get_short_help_str(SENTENCE_CHARACTERS))


def in_words(error: ValidationError) -> str:
    """Return the first finding, with the value it is about."""
    found = error.errors(include_url=False)[0]
    if found["type"] in WHOLE:
        return f"{shown(found['input'])} is not a whole number"
    return sentence_of(found)
