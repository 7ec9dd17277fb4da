"""A create from a YAML file: `resources` with sizes as people write them, `placement`, and the other fields by name.

Everything wrong with a file is told together, each fault with its path in the file. Sizes are binary and have a unit:
`2 GB`, `2GiB` and `2048M` are the same; memory must be whole MiB, a disk is rounded up to whole GiB.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any, Final

from fleet.cli.outcome import Misused, reason
from fleet.config.plain_file import read_plain

_SIZE: Final = re.compile(r"(\d{1,15}(?:\.\d{1,6})?) ?([MGT])(?:i?B)?", re.ASCII | re.IGNORECASE)
_MIB: Final = {"M": 1, "G": 1024, "T": 1024**2}
_PLAIN: Final = frozenset(
    {
        *("name", "namespace", "image", "tags", "affinity", "metadata", "placement_rules", "arch", "strategy"),
        *("sleep_after_idle_seconds", "wait_for_capacity_seconds"),
    }
)
_SECTIONS: Final = frozenset({"resources", "placement"})
_GPU: Final = {"gpu": "gpus", "gpus": "gpus", "gpu_kind": "gpu_kind", "gpu_profile": "gpu_profile", "region": "region"}


def size_mib(text: str) -> int:
    """A size in MiB, for example `2 GB`. Raises ValueError with what would be accepted."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not a size; write a number with M, G or T, for example '2 GB'")
    amount = Decimal(found[1]) * _MIB[found[2].upper()]
    if amount != int(amount):
        raise ValueError(f"{text!r} is not a whole number of MiB")
    return int(amount)


def size_gib(text: str) -> int:
    """A size in GiB, rounded up."""
    return -(-size_mib(text) // 1024)


def read_request(path: Path) -> dict[str, Any]:
    """The body of `POST /instances` that a file describes.

    Raises:
        Misused: the file cannot be read, or has faults; the message has a line for each.
    """
    try:
        document = read_plain(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeError) as error:
        raise Misused(f"{path} cannot be read: {reason(error)}") from None
    except ValueError as error:
        raise Misused(f"{path} {error}") from None
    body, faults = to_body(document)
    if faults:
        raise Misused(f"{path} has faults:\n" + "\n".join(f"  {fault}" for fault in faults))
    return body


def to_body(document: Any) -> tuple[dict[str, Any], list[str]]:
    """The body of a document, and its faults in the order of the document."""
    if not isinstance(document, Mapping):
        return {}, ["the document must be a map with name, resources, placement, …"]
    body: dict[str, Any] = {}
    faults: list[str] = []
    for name, value in document.items():
        if name in _PLAIN:
            body[name] = value
        elif name not in _SECTIONS:
            faults.append(f"{name}: unknown; known: {', '.join(sorted(_PLAIN | _SECTIONS))}")
        elif not isinstance(value, Mapping):
            faults.append(f"{name}: must be a map")
        else:
            (_resources if name == "resources" else _placement)(value, body, faults)
    return body, faults


def _resources(section: Mapping[Any, Any], body: dict[str, Any], faults: list[str]) -> None:
    disks: dict[str, int] = {}
    for name, value in section.items():
        if name == "cpus":
            whole = isinstance(value, float) and value == int(value)
            body["cpus"] = int(value) if whole else value
        elif name == "memory":
            _size(value, size_mib, f"resources.{name}", faults, lambda amount: body.update(memory_mb=amount))
        elif name in {"disk", "storage"}:
            _size(
                value,
                size_gib,
                f"resources.{name}",
                faults,
                lambda amount, name=name: disks.update({name: amount}),  # type: ignore[misc]
            )
        elif name in _GPU:
            body[_GPU[name]] = value
        else:
            known = ", ".join(sorted({"cpus", "memory", "disk", "storage", *_GPU}))
            faults.append(f"resources.{name}: unknown; known: {known}")
    if len(set(disks.values())) > 1:
        faults.append("resources.storage: means the same as disk, but is another size; keep one of them")
    elif disks:
        body["disk_gb"] = next(iter(disks.values()))


def _placement(section: Mapping[Any, Any], body: dict[str, Any], faults: list[str]) -> None:
    for name, value in section.items():
        if name in {"node", "labels"}:
            body.setdefault("placement", {})[name] = value
        else:
            faults.append(f"placement.{name}: unknown; known: labels, node")


def _size(value: Any, read: Callable[[str], int], field: str, faults: list[str], keep: Callable[[int], None]) -> None:
    if not isinstance(value, str):
        faults.append(f"{field}: {value!r} has no unit; write for example '2 GB'")
        return
    try:
        keep(read(value))
    except ValueError as fault:
        faults.append(f"{field}: {fault}")
