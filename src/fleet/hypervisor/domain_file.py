"""The simulated hypervisor's memory: one JSON file a node, shared by any number of processes.

Writers hold an exclusive lock and replace the file in one step, so a process killed at any point leaves either the
old state or the new one. A file that cannot be read is an error, never an empty hypervisor; so is a missing folder.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from fleet.hypervisor.contract import Fault, HypervisorError
from fleet.model.domain import Domain, DomainState

FORMAT: Final = 1


@dataclass(slots=True)
class Remembered:
    """The file's content: domains by uuid, and how often each verb was called where a script counts them."""

    domains: dict[str, Domain] = field(default_factory=dict)
    calls: dict[str, int] = field(default_factory=dict)


class DomainFile:
    """One node's file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock_path = path.with_name(path.name + ".lock")
        self._next_path = path.with_name(path.name + ".next")

    def read(self) -> Remembered:
        """The state now. Replacing is one step, so a reader needs no lock."""
        try:
            content = json.loads(self._path.read_text(encoding="utf-8"))
            return _decoded(content)
        except FileNotFoundError:
            return self._empty()
        except OSError as fault:
            raise HypervisorError(Fault.UNREACHABLE, f"{self._path} cannot be read: {fault.strerror}") from fault
        except (ValueError, KeyError, TypeError) as fault:
            detail = f"{self._path} does not hold a hypervisor's state ({fault}); move it away to start empty"
            raise HypervisorError(Fault.STATE_UNREADABLE, detail) from fault

    @contextmanager
    def changing(self) -> Iterator[Remembered]:
        """The state under the exclusive lock; it is written back when the block ends without an error."""
        try:
            lock = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as fault:
            raise HypervisorError(Fault.UNREACHABLE, f"{self._lock_path}: {fault.strerror}") from fault
        try:
            # A lock of its own for each call: closing it releases it, also when the process is killed.
            fcntl.flock(lock, fcntl.LOCK_EX)
            remembered = self.read()
            yield remembered
            self._next_path.write_text(json.dumps(_encoded(remembered)), encoding="utf-8")
            self._next_path.replace(self._path)
        finally:
            os.close(lock)

    def _empty(self) -> Remembered:
        if not self._path.parent.is_dir():
            raise HypervisorError(Fault.UNREACHABLE, f"the folder {self._path.parent} does not exist")
        return Remembered()


def _encoded(remembered: Remembered) -> dict[str, Any]:
    return {
        "format": FORMAT,
        "calls": remembered.calls,
        "domains": [asdict(domain) for domain in remembered.domains.values()],
    }


def _decoded(content: dict[str, Any]) -> Remembered:
    if content["format"] != FORMAT:
        raise ValueError(f"format {content['format']!r}, expected {FORMAT}")
    domains = [
        Domain(**(entry | {"state": DomainState(entry["state"]), "gpu_uuids": tuple(entry.get("gpu_uuids", ()))}))
        for entry in content["domains"]
    ]
    return Remembered(domains={domain.uuid: domain for domain in domains}, calls=dict(content["calls"]))
