"""What really makes instances: one contract, one driver for each kind of hypervisor.

Promise: a driver's answers are facts or errors. A hypervisor that cannot be asked raises; it never has "no domains".
"""

from fleet.hypervisor.contract import (
    DomainSpec,
    Fault,
    Hypervisor,
    HypervisorError,
    domain_set_of,
)
from fleet.hypervisor.faults import FaultPlan
from fleet.hypervisor.simulated import SimulatedHypervisor, simulated_hypervisor
from fleet.model.domain import Domain, DomainState

__all__ = [
    "Domain",
    "DomainSpec",
    "DomainState",
    "Fault",
    "FaultPlan",
    "Hypervisor",
    "HypervisorError",
    "SimulatedHypervisor",
    "domain_set_of",
    "simulated_hypervisor",
]
