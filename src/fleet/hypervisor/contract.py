"""The contract of a hypervisor driver.

Every verb may be repeated: a worker that died after a step, or a job that came twice, calls it again with the same
uuid and nothing happens twice. Which states hold vCPUs and memory is written in `fleet.model.domain`. Errors say
whether trying again may help.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from fleet.model.domain import Domain
from fleet.model.errors import FleetError


class Fault(StrEnum):
    """Why a driver could not do what it was asked."""

    UNREACHABLE = "unreachable"
    TIMED_OUT = "timed_out"
    REFUSED = "refused"
    NO_SUCH_DOMAIN = "no_such_domain"
    DOMAIN_DIFFERS = "domain_differs"
    STATE_UNREADABLE = "state_unreadable"


_TRANSIENT = frozenset({Fault.UNREACHABLE, Fault.TIMED_OUT})


class HypervisorError(FleetError):
    """The driver failed; whether the effect took place is unknown unless the fault excludes it."""

    code = "hypervisor_failed"

    def __init__(self, fault: Fault, detail: str, *, transient: bool | None = None) -> None:
        """Keep the fault; without `transient` the fault itself says whether trying again may help."""
        self.fault = fault
        self.transient = fault in _TRANSIENT if transient is None else transient
        super().__init__(detail, fault=str(fault), transient=self.transient)


@dataclass(frozen=True, slots=True, kw_only=True)
class DomainSpec:
    """What a domain is made from. `uuid` is the instance's, so that a repeated create finds its own work.

    `gpu_uuids` are the cards or slices of cards that it gets: exactly those, whatever else is free. On a node that
    only counts its GPUs they are not named, and it gets `gpus` of them (slices of `gpu_profile`, when that is given).
    """

    uuid: str
    name: str
    cpus: int
    memory_mb: int
    disk_gb: int
    image: str = ""
    gpus: int = 0
    gpu_profile: str = ""
    gpu_uuids: tuple[str, ...] = ()


class Hypervisor(Protocol):
    """One node's hypervisor."""

    def domains(self) -> Sequence[Domain]:
        """All domains in every state, also those the product does not own."""

    def domain_set(self) -> frozenset[str]:
        """Which domains exist in which state; a change is worth a new sample."""

    def max_vcpus(self) -> int | None:
        """The most vCPUs one domain may have; None when the hypervisor does not say."""

    def create(self, spec: DomainSpec) -> None:
        """Make the domain and start it. One that exists with the same amounts is left as it is, in its state."""

    def start(self, uuid: str) -> None:
        """Start the domain; a running one stays running."""

    def stop(self, uuid: str) -> None:
        """Stop the domain; a stopped one stays stopped."""

    def delete(self, uuid: str) -> None:
        """Remove the domain and its disks; one that does not exist is already removed."""


def domain_set_of(domains: Iterable[Domain]) -> frozenset[str]:
    """The value of `domain_set` for these domains."""
    return frozenset(f"{domain.uuid} {domain.state}" for domain in domains)
