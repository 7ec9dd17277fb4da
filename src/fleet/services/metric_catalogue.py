"""Every metric that describes the fleet: its name, labels, unit and meaning, each said once.

Promise: what a scrape shows is what is described here, and the reference page is made from it. Names that operators
alert on are API: they are never renamed.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import GaugeMetricFamily

from fleet.ledger import admission, ground_truth, passes, payer, reconcile, release, samples
from fleet.services import failed_logins, placed_event, waiver

BY_DIMENSION: Final = "by dimension: vCPUs, MiB, GiB, instances"
BY_CLUSTER_DIMENSION: Final = "by dimension: vCPUs, MiB, GiB"
SECONDS: Final = "seconds"
MIB: Final = "MiB"
LOAD: Final = "load"
YES: Final = "1 or 0"


@dataclass(frozen=True, slots=True)
class GaugeDescription:
    """One gauge."""

    name: str
    meaning: str
    unit: str
    labels: tuple[str, ...] = ()

    def family(self) -> GaugeMetricFamily:
        """Return it without a series."""
        return GaugeMetricFamily(self.name, self.meaning, labels=self.labels)


@dataclass(frozen=True, slots=True)
class CounterDescription:
    """One counter: how often the events of these messages were recorded. Its series is called `name_total`."""

    name: str
    meaning: str
    unit: str
    messages: tuple[str, ...]


_NODE: Final = ("node",)
_NODE_DIMENSION: Final = ("node", "dimension")

NODE_LIMIT: Final = GaugeDescription(
    "scheduler_capacity_node_limit", "What a node may hold; +Inf is unlimited.", BY_DIMENSION, _NODE_DIMENSION
)
NODE_USED: Final = GaugeDescription(
    "scheduler_capacity_node_used", "What the ledger has charged to a node.", BY_DIMENSION, _NODE_DIMENSION
)
NODE_DEMAND: Final = GaugeDescription(
    "scheduler_capacity_node_expected_demand", "Load still expected of young placements.", LOAD, _NODE
)
NODE_LOAD: Final = GaugeDescription(
    "scheduler_capacity_node_cpu_load_1", "Load over one minute, as last sampled.", LOAD, _NODE
)
NODE_SCHEDULABLE: Final = GaugeDescription(
    "scheduler_capacity_node_cpu_schedulable",
    "Threads for instances: load and demand are compared with SCHEDULER_TARGET_LOAD times these.",
    "threads",
    _NODE,
)
NODE_COUNTED: Final = GaugeDescription(
    "scheduler_capacity_node_counted", "Whether a node counts in the cluster's totals.", YES, _NODE
)
NODE_SLEEPY: Final = GaugeDescription(
    "node_sleepy_memory_mb", "Memory of instances that sleep when they are idle.", MIB, _NODE
)
NODE_RISK: Final = GaugeDescription(
    "node_wake_risk_mb", "Memory that would be missing if all of them woke at once.", MIB, _NODE
)
NODE_AGE: Final = GaugeDescription(
    "node_sample_age_seconds", "Age of a node's last sample, by the database's clock.", SECONDS, _NODE
)
NODE_HEALTH: Final = GaugeDescription("node_resource_health", "0 while a node is in error, else 1.", YES, _NODE)
NODE_STATE: Final = GaugeDescription("node_state", "1 for the state a node is in.", YES, ("node", "state"))
NODE_SCHEDULING: Final = GaugeDescription(
    "node_scheduling", "1 for what an operator intends with a node.", YES, ("node", "scheduling")
)

CLUSTER_TOTAL: Final = GaugeDescription(
    "scheduler_capacity_cluster_total",
    "What the counting nodes may hold together; +Inf: one of them is unlimited.",
    BY_CLUSTER_DIMENSION,
    ("dimension",),
)
CLUSTER_CLAIMED: Final = GaugeDescription(
    "scheduler_capacity_cluster_claimed", "What namespace claims reserve.", BY_CLUSTER_DIMENSION, ("dimension",)
)
CLUSTER_UNCLAIMED_USED: Final = GaugeDescription(
    "scheduler_capacity_cluster_unclaimed_used", "What is used outside of claims.", BY_CLUSTER_DIMENSION, ("dimension",)
)
CLUSTER_OVERAGE: Final = GaugeDescription(
    "scheduler_capacity_cluster_overage", "What claims use above their limits.", BY_CLUSTER_DIMENSION, ("dimension",)
)
CLUSTER_NODES: Final = GaugeDescription(
    "scheduler_capacity_cluster_counted_nodes", "Nodes that count in the totals.", "nodes"
)

CLAIMS: Final = GaugeDescription(
    "scheduler_capacity_claims", "Active claims; the series below show at most 1000 of them.", "claims"
)
_CLAIM_DIMENSION: Final = ("namespace", "dimension")
CLAIM_LIMIT: Final = GaugeDescription(
    "scheduler_capacity_claim_limit",
    "What a namespace's active claim reserves. Where there are more than 1000, those used above it come first.",
    BY_CLUSTER_DIMENSION,
    _CLAIM_DIMENSION,
)
CLAIM_USED: Final = GaugeDescription(
    "scheduler_capacity_claim_used", "What is charged to that claim.", BY_CLUSTER_DIMENSION, _CLAIM_DIMENSION
)
CLAIM_EXPIRES: Final = GaugeDescription(
    "scheduler_capacity_claim_expires_seconds",
    "How long it still covers, by the database's clock; negative: it ended, and no pass has folded it yet.",
    SECONDS,
    ("namespace",),
)

LAST_SUCCESS_AT: Final = GaugeDescription(
    "scheduler_capacity_last_success_timestamp_seconds",
    "When a reconcile pass last ended well, by the database's clock.",
    "seconds since 1970",
)
LAST_SUCCESS_AGE: Final = GaugeDescription(
    "scheduler_capacity_last_success_age_seconds",
    "How long ago that was, by the database's clock; none: no pass is remembered.",
    SECONDS,
)
LAST_DURATION: Final = GaugeDescription("scheduler_capacity_last_duration_seconds", "How long that pass took.", SECONDS)
LAST_CORRECTIONS: Final = GaugeDescription(
    "scheduler_capacity_last_corrections", "How many figures that pass had to set right.", "figures"
)

INSTANCES: Final = GaugeDescription("scheduler_instances", "Instances that are not deleted.", "instances", ("state",))
OPERATIONS: Final = GaugeDescription(
    "scheduler_operations", "Operations that have not ended well (yet).", "operations", ("kind", "state")
)
OPERATIONS_OLDEST: Final = GaugeDescription(
    "scheduler_operations_oldest_pending_age_seconds", "Age of the oldest unfinished operation.", SECONDS, ("kind",)
)
OPERATIONS_OVERDUE: Final = GaugeDescription(
    "scheduler_operations_overdue_seconds", "How long the most overdue pending one has waited.", SECONDS, ("kind",)
)

GAUGES: Final = tuple(one for one in tuple(globals().values()) if isinstance(one, GaugeDescription))
"""In the order in which they stand above."""

COUNTERS: Final[tuple[CounterDescription, ...]] = (
    CounterDescription("scheduler_capacity_passes", "Reconcile passes that ended well.", "passes", (passes.ENDED,)),
    CounterDescription("scheduler_capacity_pass_failures", "Reconcile passes that failed.", "passes", (passes.FAILED,)),
    CounterDescription(
        "scheduler_capacity_corrections",
        "Figures that a pass had to set right: drift.",
        "figures",
        (reconcile.CORRECTED,),
    ),
    CounterDescription(
        "scheduler_capacity_clamps",
        "Counters that held less than what was released.",
        "counters",
        (release.CLAMPED,),
    ),
    CounterDescription(
        "scheduler_capacity_demand_waivers",
        "Admissions for which the demand clause was waived.",
        "admissions",
        (waiver.MESSAGE,),
    ),
    CounterDescription(
        "scheduler_capacity_unguarded_admissions",
        "Admissions on a node without a ledger row.",
        "admissions",
        (admission.UNGUARDED,),
    ),
    CounterDescription(
        "scheduler_capacity_forced",
        "Placements recorded although the guard would have refused them.",
        "placements",
        (ground_truth.DESPITE_GUARD,),
    ),
    CounterDescription(
        "scheduler_capacity_claim_overages",
        "Placements that took a namespace above its claim.",
        "placements",
        (payer.OVER_CLAIM,),
    ),
    CounterDescription(
        "scheduler_capacity_reservation_clamps",
        "Reservations that a safety bound replaced.",
        "reservations",
        (samples.RESERVATION_CLAMPED,),
    ),
    CounterDescription(
        "scheduler_operation_failures",
        "Attempts of operations that failed.",
        "attempts",
        ("operation attempt failed",),
    ),
    CounterDescription(
        "scheduler_create_failures", "Creates that were given up.", "creates", ("instance create failed",)
    ),
    CounterDescription(
        "scheduler_placements", "Placements, redirects among them.", "placements", (placed_event.MESSAGE,)
    ),
    CounterDescription(
        "scheduler_authentication_limit_hits",
        "Times that an address used up a bound on failed authentication.",
        "times",
        (failed_logins.MESSAGE,),
    ),
)

COUNTED: Final[Mapping[str, CounterDescription]] = {one.name: one for one in COUNTERS}
