"""Which hypervisor driver serves a node. Worker and measuring ask here, so that both speak of the same domains."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from fleet.config import ConfigError, ConfigProblem, Settings
from fleet.hypervisor.contract import Hypervisor
from fleet.hypervisor.simulated import MAX_VCPUS, simulated_hypervisor
from fleet.measure import SimulatedNode

SIMULATED: Final = "simulated"
FOLDER: Final = "simulated-domains"


class SimulatedDrivers:
    """Drivers of simulated nodes, made when first asked for. Their domains are remembered under `folder`.

    `described` holds the nodes of a simulated-nodes file, with their faults; `real_node` names the one that is a real
    machine, whose disks are measured and so must not be counted by the driver as well.
    """

    def __init__(self, folder: Path, *, described: Iterable[SimulatedNode] = (), real_node: str = "") -> None:
        self._folder = folder
        self._described: Mapping[str, SimulatedNode] = {node.name: node for node in described}
        self._real_node = real_node
        self._known: dict[str, Hypervisor] = {}
        self._guard = threading.Lock()

    def __call__(self, node: str) -> Hypervisor:
        """The driver of the node with this name."""
        with self._guard:
            if node not in self._known:
                self._known[node] = self._make(node)
            return self._known[node]

    def _make(self, node: str) -> Hypervisor:
        described = self._described.get(node)
        return simulated_hypervisor(
            self._folder,
            node,
            max_vcpus=described.vcpus_max if described else MAX_VCPUS,
            faults=described.faults if described else None,
            occupies_disk=node != self._real_node,
        )


def drivers_of(settings: Settings, described: Iterable[SimulatedNode] = ()) -> SimulatedDrivers:
    """The drivers of the machine that `settings` describe.

    Raises:
        ConfigError: the backend has no driver in this version.
    """
    if settings.node_backend != SIMULATED:
        reason = f"{settings.node_backend!r} has no driver in this version; accepted: {SIMULATED}"
        where = settings.origin("NODE_BACKEND")
        raise ConfigError([ConfigProblem(key="NODE_BACKEND", where=where, reason=reason)])
    return simulated_drivers(settings, described)


def simulated_drivers(settings: Settings, described: Iterable[SimulatedNode] = ()) -> SimulatedDrivers:
    """The drivers of simulated nodes, whatever this machine's own backend is."""
    folder = Path(settings.instances_path) / FOLDER
    return SimulatedDrivers(folder, described=described, real_node=settings.node_name)
