"""A refusal in the words of the command line: the name that was asked for, the flag in place of a body's field.

The service says the same of what is absent and of what is another's, and names neither; whoever typed the name may
read it again. Programs (`--json`) get the document as it came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final
from urllib.parse import parse_qs, unquote

from fleet.cli.durations import written

FLAGS: Final = {
    "limit_cpus": "--cpus",
    "limit_memory_mb": "--memory (MiB)",
    "limit_disk_gb": "--disk (GiB)",
    "expires_in_seconds": "--expires-in",
    "grace_seconds": "--grace",
    "gpu_count": "--gpus",
    "memory_mb": "memory (MiB)",
    "disk_gb": "disk (GiB)",
    "sleep_after_idle_seconds": "--sleep-after",
    "wait_for_capacity_seconds": "--wait-for-capacity",
}
"""Fields of bodies by the words that are typed, as flags or in a file."""
SECONDS: Final = "_seconds"
HELD: Final = " still holds "
NAMESPACES: Final = ("auth", "namespaces")
OF_CLAIMS: Final = 4
"""Segments of `/auth/namespaces/{namespace}/claims`."""
LISTS: Final = {
    "no such namespace": "fleet namespace list",
    "no such node": "fleet node list",
    "no such instance": "fleet instance list",
    "no such decision": "fleet decision list",
    "no such operation": "fleet operation list",
}


def in_words(document: Mapping[str, Any], path: str, body: Any) -> str:
    """Return the refusal's sentence, with what was asked at `path`; empty: nothing to add to its own."""
    detail = str(document.get("detail") or "")
    if document.get("code") == "not_found":
        segments = _segments(path)
        odd = next((segment for segment in segments if "/" in segment), "")
        if odd and detail == "no such path":
            return f"{odd!r} is no name: it has a slash"
        name, _ = _missing(detail, segments, body)
        if detail == "no such namespace or claim" and len(segments) == OF_CLAIMS:
            # No claim was named: it is the namespace that is not there.
            detail = "no such namespace"
        return f"{detail}: {name}" if name else ""
    if document.get("code") == "invalid_request":
        return _by_flag(detail, document.get("errors") or [], parse_qs(path.partition("?")[2]))
    if document.get("code") == "not_supported":
        return ", ".join(" ".join(FLAGS.get(word, word) for word in part.split(" ")) for part in detail.split(", "))
    return ""


def hints(document: Mapping[str, Any], path: str, body: Any) -> list[str]:
    """Return what to type next."""
    segments = _segments(path)
    if document.get("code") == "not_found":
        _, listing = _missing(str(document.get("detail") or ""), segments, body)
        return [f"Which there are: {listing}"] if listing else []
    if document.get("code") == "conflict" and HELD in str(document.get("detail")) and len(segments) > 1:
        of, name = ("--namespace", segments[2]) if segments[:2] == NAMESPACES else ("--node", segments[1])
        return [f"Which they are: fleet instance list {of} {name}"]
    of_keys = segments[:2] == NAMESPACES and segments[3:] == ("keys",)
    if of_keys and document.get("code") == "conflict" and isinstance(body, Mapping):
        return [f"A new secret for it: fleet key rotate {segments[2]} {body.get('name')}"]
    return []


def _missing(detail: str, segments: tuple[str, ...], body: Any) -> tuple[str, str]:
    """Return the name of what is not there, and the command that lists what is; empty where either is not known."""
    if detail == "no such key" and segments[:2] == NAMESPACES and len(segments) > 4:
        return f"{segments[4]} of {segments[2]}", f"fleet key list {segments[2]}"
    listing = LISTS.get(f"no such {detail.split(' ')[1]}" if detail.startswith("no operation ") else detail, "")
    if detail == "no such namespace or claim" and len(segments) > 3:
        return (f"{segments[4]} of {segments[2]}" if len(segments) > 4 else segments[2]), ""
    if detail == "no such namespace":
        named = body.get("namespace") if isinstance(body, Mapping) else None
        return (segments[2] if segments[:2] == NAMESPACES and len(segments) > 2 else str(named or "")), listing
    known = detail.startswith("no such ") and detail.removeprefix("no such ") == segments[0].removesuffix("s")
    return (segments[1] if known and len(segments) > 1 else ""), listing


def _by_flag(detail: str, errors: Any, query: Mapping[str, Any]) -> str:
    told = detail
    for field, message in _named(errors):
        flag = f"--{field.replace('_', '-')}" if field in query else FLAGS.get(field)
        if flag is None:
            continue
        said = _in_units(message) if field.endswith(SECONDS) else message
        told = told.replace(f"{field}: {message}", f"{flag}: {said}")
    return told if told != detail else ""


def _named(errors: Any) -> Iterator[tuple[str, str]]:
    for item in errors if isinstance(errors, list) else []:
        if isinstance(item, Mapping):
            yield str(item.get("field")), str(item.get("message"))


def _in_units(message: str) -> str:
    """Return a sentence about seconds in the units that people write: `400d is above 30d, the most`."""
    words = message.split(" ")
    return " ".join(
        f"{written(int(word.rstrip(',')))}{',' if word.endswith(',') else ''}" if _is_count(word) else word
        for word in words
    )


def _is_count(word: str) -> bool:
    return word.rstrip(",").removeprefix("-").isdecimal()


def _segments(path: str) -> tuple[str, ...]:
    return tuple(unquote(part) for part in path.partition("?")[0].strip("/").split("/"))
