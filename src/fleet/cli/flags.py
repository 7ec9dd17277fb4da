"""Flags that go together: a dataclass whose fields are flags, spread where a command asks for one; and choices.

Promise: what several commands ask for alike stands once, with its help; a command takes it as one value.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Iterator
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

from fleet.cli.outcome import Misused

R = TypeVar("R")


def one_of(flag: str, value: str, accepted: Collection[str]) -> None:
    """Check a word that stands for a choice.

    Raises:
        Misused: it is none of those accepted, which are named.
    """
    if value not in accepted:
        raise Misused(f"{flag} {value!r}: accepted: {', '.join(accepted)}")


def spread(command: Callable[..., R]) -> Callable[..., R]:
    """Spread each parameter of a command that is a dataclass into one flag a field of it."""
    own = inspect.signature(command, eval_str=True).parameters.values()
    groups: dict[str, Any] = {one.name: one.annotation for one in own if is_dataclass(one.annotation)}

    @functools.wraps(command)
    def gathered(**given: Any) -> R:
        values = {
            name: kind(**{one.name: given.pop(one.name) for one in fields(kind)}) for name, kind in groups.items()
        }
        return command(**values, **given)

    flags = [flag for one in own for flag in (_flags(groups[one.name]) if one.name in groups else [one])]
    told = [flag.replace(kind=inspect.Parameter.KEYWORD_ONLY) for flag in flags]
    gathered.__signature__ = inspect.Signature(told)  # type: ignore[attr-defined]
    gathered.__annotations__ = {flag.name: flag.annotation for flag in told}
    return gathered


def _flags(kind: Any) -> Iterator[inspect.Parameter]:
    hints = inspect.get_annotations(kind, eval_str=True)
    for one in fields(kind):
        yield inspect.Parameter(
            one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default, annotation=hints[one.name]
        )
