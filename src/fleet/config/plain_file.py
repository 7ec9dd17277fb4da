"""Texts of plain values, YAML or JSON, read strictly: what people write by hand and JSON can hold, and nothing else.

Promise: whatever the text is, a value of objects, lists, texts, finite numbers, true, false and null comes back, or
ValueError with one line that says what is wrong. Of a key that stands twice nobody could tell which one is meant, so it
is refused. A date stays the text that was written.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable
from typing import Any, Final

import yaml

from fleet.model.findings import first_repeated, shown

_TIMESTAMP: Final = "tag:yaml.org,2002:timestamp"


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
        value = json.loads(text, object_pairs_hook=_unique) if json_form else yaml.load(text, Loader=_Loader)  # noqa: S506
        _check(value, frozenset(), set())
    except yaml.YAMLError as error:
        raise ValueError(f"is not one YAML document: {_one_line(error)}") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except (ValueError, TypeError, LookupError, AttributeError, OverflowError) as error:
        # YAML's tags name a type; the text behind one that is none of that type is told by whatever broke on it.
        raise ValueError(f"holds a value that cannot be read: {_one_line(error)}") from None
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError(f"the key {shown(first_repeated(name for name, _ in pairs))} stands twice")
    return found


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


def _one_line(error: Exception) -> str:
    return ascii(" ".join(str(error).split()))[1:-1]
