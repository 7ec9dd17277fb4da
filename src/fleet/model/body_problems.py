"""What is wrong with a body, in the product's words: one field name and one sentence for each problem.

The models are pydantic's, and so are its findings; nobody who sends a body should have to know that. A field is named
as people write it, `placement_rules[0].any_of[1].tags`; a sentence says what was given, the rule it breaks and its
bound. Our own parsers tell many problems of one field at once: `parsed` hands them through pydantic unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sized
from types import MappingProxyType
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import InitErrorDetails, PydanticCustomError

from fleet.model.errors import InvalidRequest
from fleet.model.findings import kind_of

_T = TypeVar("_T")
DIGITS_SHOWN_MAX: Final = 20
_OURS: Final = "of_this_product"
_VALUE_ERROR: Final = "Value error, "

_KINDS: Final = MappingProxyType(
    {
        "int_type": "a whole number",
        "int_from_float": "a whole number",
        "int_parsing_size": "a whole number of fewer digits",
        "float_type": "a number",
        "bool_type": "true or false",
        "string_type": "a text",
        "string_sub_type": "a text",
        "dict_type": "an object",
        "mapping_type": "an object",
        "model_type": "an object",
        "model_attributes_type": "an object",
        "list_type": "a list",
        "tuple_type": "a list",
    }
)
_BOUNDS: Final = MappingProxyType(
    {
        "greater_than_equal": ("ge", "is below {}, the least"),
        "less_than_equal": ("le", "is above {}, the most"),
        "greater_than": ("gt", "is not above {}"),
        "less_than": ("lt", "is not below {}"),
    }
)
_LENGTHS: Final = MappingProxyType(
    {
        "string_too_long": ("max_length", "has {} characters, at most {} are allowed"),
        "string_too_short": ("min_length", "has {} characters, at least {} are needed"),
        "too_long": ("max_length", "has {} entries, at most {} are allowed"),
        "too_short": ("min_length", "has {} entries, at least {} are needed"),
    }
)
_SENTENCES: Final = MappingProxyType(
    {
        "missing": "is missing",
        "extra_forbidden": "unknown field",
        "uuid_parsing": "is not a uuid",
        "uuid_type": "is not a uuid",
    }
)


def field_of(place: Iterable[str | int]) -> str:
    """Return a place in a body as one name: `placement.node`, `destinations[0]`, `placement.labels[rack]`."""
    name = ""
    for part in place:
        if isinstance(part, int):
            name += f"[{part}]"
        else:
            name += part if not name or part.startswith(("[", ".")) else f".{part}"
    return name


def sentence_of(item: Mapping[str, Any]) -> str:
    """Return what one of pydantic's findings says, without its field: "0 is below 1, the least"."""
    kind, value, context = item["type"], item.get("input"), item.get("ctx") or {}
    if kind in _SENTENCES:
        return _SENTENCES[kind]
    if kind in _KINDS:
        return f"must be {_KINDS[kind]}, not {kind_of(value)}"
    if kind in _BOUNDS:
        key, words = _BOUNDS[kind]
        return f"{_number(value)} {words.format(context.get(key))}"
    if kind in _LENGTHS and isinstance(value, Sized):
        key, words = _LENGTHS[kind]
        return words.format(len(value), context.get(key))
    return str(item["msg"]).removeprefix(_VALUE_ERROR).replace("Input should be", "must be", 1)


def problems_of(error: ValidationError) -> list[dict[str, str]]:
    """Return pydantic's findings as `[{"field": "placement.node", "message": …}]`."""
    return [
        {"field": field_of(item["loc"]) or "body", "message": sentence_of(item)}
        for item in error.errors(include_url=False)
    ]


def parsed(parse: Callable[[Any, str], _T], value: object, path: str) -> _T:
    """Return what one of our parsers reads in the field at `path`; its problems become pydantic's, each in its place.

    For use in a validator of that field, which knows the first part of the path already.
    """
    try:
        return parse(value, path)
    except InvalidRequest as refused:
        raise refusal(path, refused.extra["errors"]) from None


def refusal(path: str, problems: Iterable[Mapping[str, str]]) -> ValidationError:
    """Return problems as the error that a validator of the field at `path` raises to tell all of them."""
    findings = [
        InitErrorDetails(
            type=PydanticCustomError(_OURS, "{message}", {"message": item["message"]}),
            loc=tuple(filter(None, (item["field"].removeprefix(path),))),
            input=None,
        )
        for item in problems
    ]
    return ValidationError.from_exception_data(path, findings)


def _number(value: Any) -> str:
    if isinstance(value, int) and abs(value) >= 10**DIGITS_SHOWN_MAX:
        return "a number of so many digits"
    return str(value) if isinstance(value, int | float | str) and len(str(value)) <= DIGITS_SHOWN_MAX else "it"
