"""Labels: what operators declare on nodes, and the selectors that ask for it.

Keys and values have one syntax and are compared byte for byte; an empty value is none.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Final

from fleet.model.findings import Findings, kind_of, shown, step

LABEL_CHARACTERS_MAX: Final = 63
LABELS_MAX: Final = 64
LABEL_SYNTAX: Final = (
    f"1 to {LABEL_CHARACTERS_MAX} letters, digits, '.', '_' or '-', starting and ending with a letter or digit"
)
LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?", re.ASCII)
"""Syntax of a label's key and of its value."""


def is_label(text: str) -> bool:
    """Return whether a text may be a label's key or its value."""
    return LABEL.fullmatch(text) is not None


def can_be_declared(labels: Mapping[str, str]) -> bool:
    """Return whether a node may have these labels together."""
    return len(labels) <= LABELS_MAX and all(is_label(key) and is_label(value) for key, value in labels.items())


def parse_labels(value: object, path: str = "labels") -> dict[str, str]:
    """Return the pairs of a selector; a problem is told at `path` for a key, at `path[key]` for its value.

    Raises:
        InvalidRequest: with every problem.
    """
    findings = Findings()
    if not isinstance(value, dict):
        findings.add(path, f"must be an object of labels, not {kind_of(value)}")
    elif len(value) > LABELS_MAX:
        findings.add(path, f"takes at most {LABELS_MAX} labels, not {len(value)}")
    else:
        for key, text in value.items():
            _judge(key, text, path, findings)
    findings.finish()
    return dict(value) if isinstance(value, dict) else {}


def parse_pair(text: str) -> tuple[str, str]:
    """Return the key and the value of a label written `k=v`.

    Raises:
        ValueError: it is not one.
    """
    key, equals, value = (part.strip() for part in text.partition("="))
    if not equals:
        raise ValueError(f"{shown(text)} is not a label; write key=value")
    for name, part in (("key", key), ("value", value)):
        if not is_label(part):
            raise ValueError(f"the {name} {shown(part)} of the label {shown(text)} must be {LABEL_SYNTAX}")
    return key, value


def selector_text(labels: Mapping[str, str]) -> str:
    """Return a selector as people write it: `disk=nvme,tier=build`, in the order of the keys."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items()))


def _judge(key: object, text: object, path: str, findings: Findings) -> None:
    if not isinstance(key, str):
        findings.add(path, f"keys must be texts, not {kind_of(key)}")
        return
    place = f"{path}[{step(key)}]"
    if not is_label(key):
        findings.add(place, f"the key {shown(key)} must be {LABEL_SYNTAX}")
    if not isinstance(text, str):
        findings.add(place, f"the value must be a text, not {kind_of(text)}")
    elif not is_label(text):
        findings.add(place, f"the value {shown(text)} must be {LABEL_SYNTAX}")
