"""Reading JSON values strictly: every problem with its path, all of them together, no exception in between."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any, Final

from fleet.model.errors import InvalidRequest
from fleet.model.findings import as_given

PROBLEMS_SHOWN_MAX: Final = 5


class Reader:
    """Collects the problems of one document. A bad value reads as None; `finish` raises if there was any."""

    def __init__(self) -> None:
        """Start without problems."""
        self.problems: list[dict[str, str]] = []

    def problem(self, path: str, message: str) -> None:
        """Note what is wrong with the value at `path`."""
        self.problems.append({"field": path or "document", "message": message})

    def finish(self) -> None:
        """Raise InvalidRequest with every problem noted, if there was any."""
        if not self.problems:
            return
        told = [f"{item['field']}: {item['message']}" for item in self.problems[:PROBLEMS_SHOWN_MAX]]
        more = len(self.problems) - len(told)
        detail = "; ".join(told) + (f"; and {more} more" if more else "")
        raise InvalidRequest(detail, errors=self.problems)

    def mapping(self, value: object, path: str, known: Iterable[str] | None = None) -> Mapping[str, Any]:
        """Return an object; with `known`, every other key is a problem."""
        if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
            self._wrong(path, value, "an object")
            return {}
        if known is not None:
            for key in value.keys() - set(known):
                self.problem(f"{path}.{key}".lstrip("."), "unknown field")
        return value

    def items(self, value: object, path: str) -> list[Any]:
        """Return a list."""
        if not isinstance(value, list):
            self._wrong(path, value, "a list")
            return []
        return value

    def text(self, value: object, path: str, default: str = "") -> str:
        """Return a text; absent or null is the default."""
        if value is None:
            return default
        if not isinstance(value, str):
            self._wrong(path, value, "a text")
            return default
        return value

    def choice(self, value: object, path: str, choices: Iterable[str], default: str) -> str:
        """Return one word of a closed list."""
        word = self.text(value, path, default)
        allowed = tuple(choices)
        if word not in allowed:
            self._wrong(path, word, f"one of {', '.join(allowed)}")
        return word

    def flag(self, value: object, path: str) -> bool | None:
        """Return a boolean; absent or null is None."""
        if value is None or isinstance(value, bool):
            return value
        self._wrong(path, value, "true or false")
        return None

    def number(self, value: object, path: str, most: int, least: int = 0) -> Decimal | None:
        """Return a number exactly as written; absent or null is None."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
            self._wrong(path, value, "a number")
            return None
        # Whole numbers are finite, and may be too large to be asked.
        if not (isinstance(value, int) or math.isfinite(value)) or not least <= value <= most:
            self._wrong(path, value, f"a number from {least} to {most}")
            return None
        return Decimal(str(value))

    def whole(self, value: object, path: str, most: int, least: int = 0) -> int | None:
        """Return a whole number (120.0 is 120); absent or null is None."""
        number = self.number(value, path, most, least)
        if number is None:
            return None
        if number != number.to_integral_value():
            self._wrong(path, value, "a whole number")
            return None
        return int(number)

    def texts(self, value: object, path: str) -> dict[str, str]:
        """Return an object of texts; absent or null is empty. A list of plain texts is keys with the empty value."""
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return dict.fromkeys(value, "")
        if value is None:
            return {}
        return {key: self.text(item, f"{path}.{key}") for key, item in self.mapping(value, path).items()}

    def _wrong(self, path: str, value: object, accepted: str) -> None:
        self.problem(path, f"{as_given(value)} is not {accepted}")
