"""Domains: what a hypervisor runs, and the written rule of which of them hold a node's vCPUs and memory.

The rule: **a domain holds its vCPUs and its memory for as long as its process exists.** Running, paused, crashed with
its process kept, shutting down and moving in hold both, because each may use them again at any moment without asking;
so does a state the hypervisor cannot name. A domain that is shut off has no process and holds neither; a template, or
any other definition that never runs, is shut off. Disks are apart: they occupy space in every state.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class DomainState(StrEnum):
    """The state of a domain as the hypervisor tells it."""

    RUNNING = "running"
    PAUSED = "paused"
    CRASHED = "crashed"
    MIGRATING_IN = "migrating_in"
    SHUTTING_DOWN = "shutting_down"
    SHUT_OFF = "shut_off"
    UNKNOWN = "unknown"

    @property
    def holds_capacity(self) -> bool:
        """Whether a domain in this state holds vCPUs and memory: the rule of this module."""
        return self is not DomainState.SHUT_OFF


@dataclass(frozen=True, slots=True, kw_only=True)
class Domain:
    """One domain of a node. `owned` is false for what the product did not make.

    `memory_mb` is the balloon allocation, `disk_gb` what was asked for, `disk_occupied_mb` what its disks take of the
    file system now; None is unknown. `gpu_uuids` are the cards, or slices of cards, that it was given.
    """

    uuid: str
    name: str
    state: DomainState
    vcpus: int
    memory_mb: int
    disk_gb: int
    owned: bool
    disk_occupied_mb: int | None = None
    gpu_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainSums:
    """What a node's domains hold, by the rule above; foreign is what the product does not own."""

    vcpus: int
    memory_mb: int
    foreign_vcpus: int
    foreign_memory_mb: int
    own_disk_occupied_mb: int | None
    total: int
    active: int
    by_state: dict[DomainState, int]


def sum_domains(domains: Iterable[Domain]) -> DomainSums:
    """Add up a node's domains. One owned disk of unknown size makes the occupied disk unknown, not smaller."""
    known = list(domains)
    own = [domain for domain in known if domain.owned]
    own_active = [domain for domain in own if domain.state.holds_capacity]
    foreign = [domain for domain in known if not domain.owned and domain.state.holds_capacity]
    occupied = [domain.disk_occupied_mb for domain in own if domain.disk_occupied_mb is not None]
    states = Counter(domain.state for domain in known)
    return DomainSums(
        vcpus=sum(domain.vcpus for domain in own_active),
        memory_mb=sum(domain.memory_mb for domain in own_active),
        foreign_vcpus=sum(domain.vcpus for domain in foreign),
        foreign_memory_mb=sum(domain.memory_mb for domain in foreign),
        own_disk_occupied_mb=sum(occupied) if len(occupied) == len(own) else None,
        total=len(own),
        active=len(own_active),
        by_state={state: states[state] for state in DomainState},
    )
