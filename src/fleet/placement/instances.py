"""Instances as a decision sees them: who holds what on which node, and what a node's sample cannot include yet.

Promise: *pending* is computed in one place for every snapshot that does not carry it. A charge is counted once: an
instance that is a draft and newer than the sample is one charge, not two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal

from fleet.model.admission import Charge
from fleet.model.capacity import expected_demand, missed_by_sample, pending_amount
from fleet.model.cluster_config import ClusterConfig
from fleet.model.resources import Amounts

NOTHING = Amounts()


@dataclass(frozen=True, slots=True)
class InstanceRecord:
    """One instance and its charges. Amounts are what its charge holds (its overhead included).

    `node` holds the primary charge, `incoming_node` the one of a move under way. `charge_age_seconds` None: the charge
    is inside the node's sample, unless it is a draft.
    """

    uuid: str
    namespace: str = ""
    node: str | None = None
    incoming_node: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    amounts: Amounts = NOTHING
    incoming: Amounts | None = None
    grown_memory_mb: int = 0
    grown_disk_gb: int = 0
    sleepy: bool = False
    terminating: bool = False
    draft: bool = False
    charge_age_seconds: Decimal | None = None

    @classmethod
    def of_charges(
        cls,
        charges: Iterable[Charge],
        *,
        tags: Mapping[str, str],
        terminating: bool,
        name_of: Callable[[int], str | None],
        now_us: int,
    ) -> InstanceRecord:
        """Return the instance of charges, of which there is one at least; `name_of`: the name of a node by its id."""
        held = {charge.role: charge for charge in charges}
        primary, incoming = held.get("primary"), held.get("incoming")
        first = primary or incoming
        assert first is not None, "an instance is known by its charges"
        return cls(
            uuid=first.instance_uuid,
            namespace=first.namespace,
            node=None if primary is None else name_of(primary.node_id),
            incoming_node=None if incoming is None else name_of(incoming.node_id),
            tags=tags,
            amounts=first.amounts,
            incoming=None if incoming is None or incoming.amounts == first.amounts else incoming.amounts,
            grown_memory_mb=first.grown.memory_mb,
            grown_disk_gb=first.grown.disk_gb,
            sleepy=first.sleepy,
            terminating=terminating,
            draft=first.settled_at_us is None,
            charge_age_seconds=Decimal(max(0, now_us - first.placed_at_us)) / 1_000_000,
        )

    def nodes(self) -> Iterator[str]:
        """Yield the nodes on which this instance counts as a neighbour: a moving one counts on both."""
        if self.node is not None:
            yield self.node
        if self.incoming_node is not None and self.incoming_node != self.node:
            yield self.incoming_node

    def held(self) -> Iterator[tuple[str, Amounts]]:
        """Yield each node that holds a charge of this instance, with the amounts held there."""
        if self.node is not None:
            yield self.node, self.amounts
        if self.incoming_node is not None and self.incoming_node != self.node:
            yield self.incoming_node, self.amounts if self.incoming is None else self.incoming


@dataclass(frozen=True, slots=True)
class Tally:
    """What the instances add up to on one node."""

    used: Amounts = NOTHING
    demand: Decimal = Decimal(0)
    pending_memory_mb: int = 0
    pending_disk_gb: int = 0
    sleepy_memory_mb: int = 0


EMPTY_TALLY = Tally()


def tally(
    instances: Iterable[InstanceRecord], config: ClusterConfig, sample_age_seconds: Mapping[str, Decimal | None]
) -> dict[str, Tally]:
    """Return for each node with instances what they use, what load they are expected to bring and what is pending."""
    found: dict[str, Tally] = {}
    for instance in instances:
        for node, amounts in instance.held():
            before = found.get(node, EMPTY_TALLY)
            memory, disk = _pending(instance, node, amounts, sample_age_seconds.get(node))
            found[node] = Tally(
                before.used + Amounts(amounts.cpus, amounts.memory_mb, amounts.disk_gb, 1),
                before.demand + _demand(instance, amounts, config),
                before.pending_memory_mb + memory,
                before.pending_disk_gb + disk,
                before.sleepy_memory_mb + (amounts.memory_mb if instance.sleepy else 0),
            )
    return found


def _pending(
    instance: InstanceRecord, node: str, amounts: Amounts, sample_age_seconds: Decimal | None
) -> tuple[int, int]:
    """Return the memory and disk of one charge that the node's sample cannot include yet."""
    age = instance.charge_age_seconds
    newer = age is not None and (sample_age_seconds is None or missed_by_sample(-age, -sample_age_seconds))
    missed = node != instance.node or instance.draft or newer
    # A document tells what it grew by since the sample, and nothing older.
    memory = pending_amount(amounts.memory_mb, instance.grown_memory_mb, missed=missed, growth_missed=True)
    disk = pending_amount(amounts.disk_gb, instance.grown_disk_gb, missed=missed, growth_missed=True)
    return memory, disk


def _demand(instance: InstanceRecord, amounts: Amounts, config: ClusterConfig) -> Decimal:
    if instance.charge_age_seconds is None:
        return Decimal(0)
    per_vcpu, window = config.scheduler_demand_per_vcpu, config.scheduler_demand_decay_seconds
    return expected_demand(amounts.cpus, per_vcpu, instance.charge_age_seconds, window)
