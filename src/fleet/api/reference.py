"""The reference page of the REST interface, from the OpenAPI document and the table of codes.

`python -m fleet.api.reference > docs/reference/rest.md` writes it; a test refuses a stale page.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from typing import Any, Final

import fleet
from fleet.api.app import application
from fleet.api.problems import CODES, RETRY_AFTER_SECONDS, TRANSIENT_CAPACITY_SECONDS

COMMAND: Final = "python -m fleet.api.reference > docs/reference/rest.md"
INTRODUCTION: Final = f"""# REST

Generated from the routes themselves: `{COMMAND}`.
The same, for programs, is the OpenAPI document at `/openapi.json`.

JSON in and out. A bearer token comes from `POST /auth`; the namespace `system` is the admin, every other one sees only
its own, and what is another's is answered like what is not there. Lists are pages, `{{"items", "next_cursor"}}`: give
`next_cursor` back as `cursor`. Times are ISO-8601 UTC. A POST that creates something honours `Idempotency-Key`: a retry
within a day gets the first answer. Bodies are at most 1 MiB; unknown fields and parameters are refused, never ignored.
"""


def page() -> str:
    """The whole page."""
    document = application(fleet.__version__).openapi()
    parts = [INTRODUCTION, *_codes(), *_paths(document), *_shapes(document)]
    return "\n".join(parts).rstrip() + "\n"


def _codes() -> Iterator[str]:
    yield "## Problems\n"
    yield "Every no is an RFC 9457 problem document (`application/problem+json`) with a stable `code`.\n"
    yield "| code | HTTP | meaning | `Retry-After` |"
    yield "|---|---|---|---|"
    for code, (status, title) in CODES.items():
        seconds: object = RETRY_AFTER_SECONDS.get(code, "")
        if code == "rate_limited":
            seconds = "until the next try is judged"
        if code == "out_of_capacity":
            seconds = f"{TRANSIENT_CAPACITY_SECONDS} when `transient`"
        yield f"| `{code}` | {status} | {title} | {seconds} |"
    yield ""


def _paths(document: Mapping[str, Any]) -> Iterator[str]:
    tags: dict[str, list[str]] = {}
    for path, operations in document["paths"].items():
        for method, operation in operations.items():
            line = (
                f"| `{method.upper()} {path}` | {_parameters(operation)} | {_body(operation)} | {_about(operation)} |"
            )
            tags.setdefault(operation["tags"][0], []).append(line)
    for tag, lines in tags.items():
        yield f"## {tag.capitalize()}\n"
        yield "| path | parameters | body | |"
        yield "|---|---|---|---|"
        yield from lines
        yield ""


def _about(operation: Mapping[str, Any]) -> str:
    text = " ".join(operation["description"].split()).replace("|", "\\|")
    if "supported yet" in text:
        return text
    successes = sorted(status for status in operation["responses"] if status.startswith("2"))
    return f"{text} ({', '.join(successes)})"


def _parameters(operation: Mapping[str, Any]) -> str:
    found = [item["name"] for item in operation.get("parameters", []) if item["in"] == "query"]
    return ", ".join(f"`{name}`" for name in found)


def _body(operation: Mapping[str, Any]) -> str:
    schema = operation.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
    return "" if schema is None else _kind(schema)


def _shapes(document: Mapping[str, Any]) -> Iterator[str]:
    yield "## Bodies\n"
    bodies = {
        name
        for operations in document["paths"].values()
        for operation in operations.values()
        if "requestBody" in operation
        for name in _names(operation["requestBody"]["content"]["application/json"]["schema"])
    }
    parts = {
        _name(schema)
        for name in bodies
        for schema in document["components"]["schemas"][name]["properties"].values()
        if "$ref" in schema
    }
    for name in sorted(bodies | parts):
        shape = document["components"]["schemas"][name]
        yield f"### {name}\n"
        yield " ".join(shape.get("description", "").split()) + "\n"
        yield "| field | | |"
        yield "|---|---|---|"
        for field, schema in shape["properties"].items():
            needed = "required" if field in shape.get("required", []) else _default(schema)
            yield f"| `{field}` | {_kind(schema)} | {needed} |"
        yield ""


def _default(schema: Mapping[str, Any]) -> str:
    value = schema.get("default")
    if isinstance(value, dict):
        return ""  # a part of its own, whose fields say what holds
    return "" if value in (None, "", []) else f"default `{json.dumps(value)}`"


def _kind(schema: Mapping[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_kind(choice) for choice in schema["anyOf"])
    if "$ref" in schema:
        return f"[{_name(schema)}](#{_name(schema).lower()})"
    kind = str(schema.get("type", "any"))
    bounds = [f"{word} {_plain(schema[key])}" for key, word in _BOUNDS.items() if key in schema]
    return f"{kind} ({', '.join(bounds)})" if bounds else kind


def _plain(bound: float) -> str:
    return f"{int(bound):,}" if bound == int(bound) else str(bound)


_BOUNDS: Final = {"minimum": "from", "maximum": "to", "minLength": "characters from", "maxLength": "characters to"}


def _names(schema: Mapping[str, Any]) -> list[str]:
    """Return the shapes that a body may have."""
    return [_name(choice) for choice in schema.get("anyOf", [schema])]


def _name(schema: Mapping[str, Any]) -> str:
    return str(schema["$ref"]).rpartition("/")[2]


if __name__ == "__main__":
    sys.stdout.write(page())
