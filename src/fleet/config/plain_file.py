"""Texts of plain values, YAML or JSON, read strictly: what people write by hand and JSON can hold, and nothing else.

Promise: whatever the text is, a value of objects, lists, texts, finite numbers, true, false and null comes back, or
ValueError with one line that says what is wrong, and where as far as that is known. Of a key that stands twice nobody
could tell which one is meant, so it is refused. A date stays the text that was written.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Hashable
from typing import Any, Final

import yaml

from fleet.model.findings import shown

_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"
_JSON_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:]')


class _Loader(yaml.SafeLoader):
    """YAML's safe loader; a key stands once, and a date is a text."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002
        """Build an object of keys that all differ."""
        seen: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)
            if isinstance(key, Hashable) and key in seen:
                said = f"the key {shown(str(key))} stands twice"
                raise yaml.constructor.ConstructorError(None, None, said, key_node.start_mark)
            seen.add(key if isinstance(key, Hashable) else id(key))
        return super().construct_mapping(node, deep=deep)


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag != _TIMESTAMP]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}


def read_plain(text: str, *, json_form: bool = False) -> Any:
    """Return the value of one document.

    Raises:
        ValueError: it is none; the message is one line.
    """
    try:
        value = read_json(text) if json_form else yaml.load(text, Loader=_Loader)  # noqa: S506
        _check(value, frozenset(), set())
    except yaml.YAMLError as error:
        raise ValueError(f"is not one YAML document: {_one_line(_placed(error))}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        # YAML's tags name a type; the text behind one that is none of that type is told by whatever broke on it.
        raise ValueError(f"holds a value that cannot be read: {_one_line(str(error))}") from None
    return value


def read_json(text: str) -> Any:
    """Return the value of a JSON text, whatever Python's reader takes; `read_plain` is stricter.

    Raises:
        ValueError: it is no JSON, or a key stands twice in an object; the message says where.
        RecursionError: it is nested too deeply.
    """
    try:
        return json.loads(text, object_pairs_hook=_unique)
    except _RepeatedKey:
        raise ValueError(_repeated_key(text)) from None


class _RepeatedKey(ValueError):
    """An object has a key twice; the reader does not say where it is."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise _RepeatedKey
    return found


def _repeated_key(text: str) -> str:
    """Return which key is the first to stand twice in its object, and where; the text is JSON at least up to there."""
    around: list[set[str]] = []
    last, at = "", 0
    for token in _JSON_TOKEN.finditer(text):
        word = token[0]
        if word in "{[":
            around.append(set())
        elif word in "}]":
            around.pop()
        elif word != ":":
            last, at = word, token.start()
        elif (key := json.loads(last)) in around[-1]:
            line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
            return f"the key {shown(key)} stands twice (line {line}, column {column})"
        else:
            around[-1].add(key)
    raise AssertionError("the reader found a key that stands twice, and so does this")


def _check(value: Any, around: frozenset[int], seen: set[int]) -> None:
    """Refuse what JSON cannot hold; a part that stands in many places is looked at once, one in itself never ends."""
    if isinstance(value, dict | list):
        if id(value) in around:
            raise ValueError("a part of it holds itself")
        if id(value) in seen:
            return
        seen.add(id(value))
        for one in [*value.keys(), *value.values()] if isinstance(value, dict) else value:
            _check(one, around | {id(value)}, seen)
    elif isinstance(value, str):
        value.encode()
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{value} is not a finite number")
    elif value is not None and not isinstance(value, bool | int | float):
        raise ValueError(f"a {type(value).__name__} is neither text, number, true, false nor null")


def _placed(error: yaml.YAMLError) -> str:
    """Return what is wrong in YAML, and where; its own words show the text as well, over many lines."""
    if not isinstance(error, yaml.MarkedYAMLError) or error.problem_mark is None:
        return str(error).replace(' in "<unicode string>",', " at")
    said = ", ".join(part for part in (error.context, error.problem) if part)
    return f"{said} (line {error.problem_mark.line + 1}, column {error.problem_mark.column + 1})"


def _one_line(text: str) -> str:
    line = " ".join(text.split())
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in line)
