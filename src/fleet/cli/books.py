"""Hold the service's books against what a driver knows: was anything oversold, lost, or left unfinished?

Promise: only the public API is asked, and only a proof counts: a figure that cannot be read is a fault, not a pass.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleet.cli.caller import Caller
from fleet.model.resources import CLUSTER_DIMENSIONS

# What the public view calls them.
PUBLIC: Final = (("cpus", "cpu"), ("memory_mb", "ram"), ("disk_gb", "disk"))
OPEN_STATES: Final = ("pending", "running")
GONE_STATES: Final = frozenset({"deleted"})
POLL_SECONDS: Final = 0.3
POLL_SECONDS_MAX: Final = 5.0


@dataclass(frozen=True, slots=True)
class NodeBooks:
    """One node as the ledger has it; a limit of None is unlimited."""

    name: str
    state: str
    scheduling: str
    used: Mapping[str, int]
    limits: Mapping[str, int | None]

    def over(self, held: Sequence[int] = (0, 0, 0)) -> list[str]:
        """The dimensions in which the ledger, or what the driver knows to be there, exceeds the limit."""
        found = []
        for name, mine in zip(CLUSTER_DIMENSIONS, held, strict=False):
            limit, used = self.limits[name], max(self.used[name], mine)
            if limit is not None and used > limit:
                found.append(f"{self.name} is oversold: {used} {name} committed, the limit is {limit}")
        return found


def read_nodes(caller: Caller) -> list[NodeBooks]:
    """Every hypervisor with its ledger row."""
    found = []
    for name, node in caller.get("/admin/resources")["per_node"].items():
        if not node["cpu_committed_row_present"]:
            continue
        used, limits = ({key: node[f"{public}_{kind}"] for key, public in PUBLIC} for kind in ("committed", "limit"))
        found.append(NodeBooks(name, node["state"], node["scheduling"], used, limits))
    return sorted(found, key=lambda node: node.name)


def oversold(nodes: Sequence[NodeBooks], held: Mapping[str, Sequence[int]]) -> list[str]:
    """One sentence for each node and dimension above its limit."""
    return [sentence for node in nodes for sentence in node.over(tuple(held.get(node.name, (0, 0, 0)))[:3])]


def differences(caller: Caller) -> list[Any]:
    """What the ledger's own verification finds."""
    found: list[Any] = caller.must("POST", "/admin/ledger/verify")["differences"]
    return found


def instances_of(caller: Caller, namespace: str) -> dict[str, dict[str, Any]]:
    """Every instance of a namespace, by uuid."""
    return {item["uuid"]: item for item in caller.pages(f"/instances?namespace={namespace}")}


def lost(known: Mapping[str, Mapping[str, Any]], *, standing: Collection[str], gone: Collection[str] = ()) -> list[str]:
    """Acknowledged instances that are not there, and deleted ones that still are."""
    found = [f"instance {uuid} was acknowledged and is not there" for uuid in standing if uuid not in known]
    placed = [(uuid, known[uuid]["state"]) for uuid in standing if uuid in known]
    found += [
        f"instance {uuid} was placed and is {state}" for uuid, state in placed if state in {"error", *GONE_STATES}
    ]
    deleted = [(uuid, known[uuid]["state"]) for uuid in gone if uuid in known]
    found += [f"instance {uuid} was deleted and is {state}" for uuid, state in deleted if state not in GONE_STATES]
    return found


def open_operations(caller: Caller) -> int:
    """How many operations are not finished."""
    return sum(len(caller.pages(f"/operations?state={state}")) for state in OPEN_STATES)


def settle(caller: Caller, seconds: float, progress: Callable[[int], None] = lambda _open: None) -> list[str]:
    """Wait until no operation is open; what is stuck after `seconds` without any progress, as sentences."""
    deadline = time.monotonic() + seconds
    fewest = -1
    while True:
        left = open_operations(caller)
        progress(left)
        if left == 0:
            return _failed(caller)
        if fewest < 0 or left < fewest:
            fewest, deadline = left, time.monotonic() + seconds
        if time.monotonic() > deadline:
            break
        # Counting many costs the service more, and changes less.
        time.sleep(min(POLL_SECONDS_MAX, POLL_SECONDS + left / 500))
    stuck = [one for state in OPEN_STATES for one in caller.pages(f"/operations?state={state}")]
    return [f"operation {one['uuid']} ({one['kind']}) is {one['state']} at {one['step'] or 'start'}" for one in stuck]


def _failed(caller: Caller) -> list[str]:
    return [
        f"operation {one['uuid']} ({one['kind']}) failed: {one.get('error') or 'no reason kept'}"
        for one in caller.pages("/operations?state=failed")
    ]


def states(known: Mapping[str, Mapping[str, Any]]) -> Counter[str]:
    """How many instances are in which state."""
    return Counter(str(item["state"]) for item in known.values())
