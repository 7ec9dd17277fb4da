"""Words of a node: its states, an operator's intent, and the figures a decision may see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from enum import StrEnum
from typing import Any, Final

from fleet.model.gpu_inventory import NO_GPUS, GpuInventory
from fleet.model.resources import Amounts, Limits

BACKENDS: Final = ("libvirt", "qemu", "firecracker", "simulated")
"""What may make instances on a node."""


class NodeState(StrEnum):
    """What the product knows of the node. Only ACTIVE nodes are candidates."""

    CREATED = "created"
    ACTIVE = "active"
    MISSING = "missing"
    ERROR = "error"
    DELETED = "deleted"


class Scheduling(StrEnum):
    """What an operator intends; nothing else clears it."""

    ENABLED = "enabled"
    CORDONED = "cordoned"
    DRAINING = "draining"


COUNTED_SAMPLE_AGE_SECONDS = 900
"""A node whose sample is this old (or older) leaves the cluster's totals: three reconcile periods."""

LEGAL_STATES: Mapping[NodeState, frozenset[NodeState]] = {
    NodeState.CREATED: frozenset({NodeState.ACTIVE, NodeState.ERROR, NodeState.DELETED}),
    NodeState.ACTIVE: frozenset({NodeState.MISSING, NodeState.ERROR, NodeState.DELETED}),
    NodeState.MISSING: frozenset({NodeState.ACTIVE, NodeState.ERROR, NodeState.DELETED}),
    NodeState.ERROR: frozenset({NodeState.ACTIVE, NodeState.DELETED}),
    NodeState.DELETED: frozenset({NodeState.CREATED}),
}
"""Along which alone a node moves; a removed one that is registered again starts anew."""


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """A node's ledger row as a decision sees it. Reals are exact decimals; None limits are unlimited."""

    limits: Limits
    used: Amounts
    expected_demand: Decimal = Decimal(0)
    pending_memory_mb: int = 0
    pending_disk_gb: int = 0
    sleepy_memory_mb: int = 0


@dataclass(frozen=True, slots=True)
class NodeRecord:
    """Everything that a decision may know of one node.

    `node_id` is the ledger's key (0 where there is no ledger). `sample_at_us` is the database's UTC time, in
    microseconds since 1970, at which the sample's measuring began; None: no sample. `metrics` are the published
    figures by their public names; a missing one is unknown. `capacity` None: the ledger has no row for the node.
    """

    name: str
    node_id: int = 0
    state: str = NodeState.ACTIVE
    scheduling: str = Scheduling.ENABLED
    sample_at_us: int | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    region: str = ""
    arch: str = ""
    backend: str = ""
    sleepy_pool: bool = False
    max_instances: int | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    capacity: CapacityRow | None = None
    counted: bool = True
    gpu: GpuInventory = NO_GPUS
