"""What was typed wrong, told as every other refusal: the flag, the value, and what would be accepted.

All that is missing is named together. A flag or a command that nobody has is answered with those that are near.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import typer

from fleet.cli.outcome import Misused

WrongUsage: Final[type[Exception]] = typer.BadParameter.__mro__[1]
"""What the framework raises for any wrong usage."""
HELP_BEGINS: Final = "Usage: "


def is_help(wrong: Exception) -> bool:
    """Whether it is no fault, but the help of a command that was given nothing."""
    return str(getattr(wrong, "message", "")).startswith(HELP_BEGINS)


def in_words(wrong: Any, line: Sequence[str]) -> Misused:
    """Return the fault in words, and where to read on."""
    context = getattr(wrong, "ctx", None)
    hint = "" if context is None else f"{context.command_path} --help"
    flag = _name(wrong.param) if getattr(wrong, "param", None) is not None else getattr(wrong, "param_hint", None)
    if hasattr(wrong, "param_type"):
        return Misused(f"missing: {_listed(_missing(wrong, line))}", hint)
    if flag:
        return Misused(f"{flag}: {wrong.message}", hint)
    if hasattr(wrong, "possibilities"):
        near = _listed(sorted(wrong.possibilities or ()), "or")
        return Misused(f"there is no option {wrong.option_name}{f'; did you mean {near}?' if near else ''}", hint)
    text = str(wrong.format_message()).removesuffix(".")
    return Misused(f"{text[:1].lower()}{text[1:]}", hint)


def _missing(wrong: Any, line: Sequence[str]) -> list[str]:
    """Return what is needed and was not given; the framework itself names the first."""
    if wrong.ctx is None or wrong.param is None:
        return [str(wrong.param_hint or wrong.message)]
    needed = [param for param in wrong.ctx.command.params if param.required]
    return [_name(param) for param in needed if param is wrong.param or (_is_flag(param) and not _is_in(param, line))]


def _name(param: Any) -> str:
    return str(max(param.opts, key=len)) if _is_flag(param) else str(param.name).upper()


def _is_flag(param: Any) -> bool:
    return str(param.opts[0]).startswith("-")


def _is_in(param: Any, line: Sequence[str]) -> bool:
    return any(word.partition("=")[0] in param.opts for word in line)


def _listed(names: Sequence[str], last: str = "and") -> str:
    *others, end = names or [""]
    return f"{', '.join(others)} {last} {end}" if others else end
