"""The shapes of what the admin alone sees and sets, for the OpenAPI document. Unknown is null, never zero."""

from __future__ import annotations

import re
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, field_validator

from fleet.api.schemas import EventAnswer
from fleet.model.findings import kind_of

_KEY: Final = re.compile(r"[A-Za-z][A-Za-z0-9_]*", re.ASCII)


class ResourceTotals(BaseModel):
    """Sums of what is above zero, over the hypervisors that take instances now. Null: unlimited or unread."""

    cpu_available: int | None
    ram_available: int | None = Field(description="MiB")
    disk_available: int | None = Field(description="GiB")


class ResourceNodes(BaseModel):
    """How many hypervisors there are, and how many of them the totals sum."""

    hypervisors: int
    in_total: int


class NodeResources(BaseModel):
    """One hypervisor. `*_available` below zero is how much it is over; a limit of null: unlimited, unread, unsized."""

    state: str
    scheduling: str
    takes_instances: bool
    takes_none_because: str | None = Field(
        description="its state, cordoned, draining, stale (its sample), unsized (no ledger row), or busy (its queue)"
    )
    sample_age_seconds: float | None
    cpu_max_per_instance: int | None
    cpu_schedulable: int | None
    cpu_schedulable_from_fallback: bool = Field(description="its sample has none: threads less the reservation")
    cpu_hard_max: int | None = Field(description="what the limit would be now; null: unlimited or unknown")
    cpu_measured: int | None
    cpu_committed: int | None = Field(description="0 also without a ledger row; null: the counters cannot be read")
    cpu_committed_row_present: bool | None
    cpu_limit: int | None = Field(description="the ledger row's own; no fallback")
    cpu_available: int | None = Field(description="the limit less the larger of measured and committed")
    cpu_load_1: float | None
    cpu_load_5: float | None
    cpu_load_15: float | None
    expected_demand: float | None
    memory_reserved_mb: int | None
    memory_max: int | None
    memory_available: int | None
    ram_max_per_instance: int | None = Field(description="MiB that are free now, less the reservation")
    ram_max: int | None
    ram_measured: int | None
    ram_committed: int | None
    sleepy_memory_mb: int | None
    wake_risk_mb: int | None
    ram_limit: int | None
    ram_available: int | None = Field(description="the smaller of what the ledger and the measurement leave")
    disk_total_gb: int | None
    disk_free_gb: int | None
    disk_reservation_gb: float | None
    disk_committed: int | None
    disk_limit: int | None
    disk_available: int | None
    instances_total: int | None
    instances_active: int | None
    instances_committed: int | None
    instances_limit: int | None
    queue_waiting: int | None


class ClusterCapacityAnswer(BaseModel):
    """The cluster's row: null is unlimited.

    `left_*` is what namespaces without a claim may still use, and what a new claim may promise beyond what its
    namespace uses already; `claims_unused_*` is what claims hold back and do not use.
    """

    total_cpus: int | None
    total_memory_mb: int | None
    total_disk_gb: int | None
    claimed_cpus: int
    claimed_memory_mb: int
    claimed_disk_gb: int
    claims_unused_cpus: int
    claims_unused_memory_mb: int
    claims_unused_disk_gb: int
    unclaimed_used_cpus: int
    unclaimed_used_memory_mb: int
    unclaimed_used_disk_gb: int
    overage_cpus: int
    overage_memory_mb: int
    overage_disk_gb: int
    left_cpus: int | None
    left_memory_mb: int | None
    left_disk_gb: int | None
    counted_nodes: int


class DifferenceAnswer(BaseModel):
    """A figure that is not as the charges say."""

    row: str
    figure: str
    stored: int | str
    recomputed: int | str


class DriftAnswer(BaseModel):
    """How many figures differ from the charges right now, and the first of them."""

    count: int
    differences: list[DifferenceAnswer]


class CorrectionAnswer(BaseModel):
    """A figure that a pass set right."""

    row: str
    figure: str
    old: int
    new: int


class FailedPassAnswer(BaseModel):
    """The last pass that failed."""

    at: str
    age_seconds: float
    since_last_good: bool = Field(description="no pass has ended well after it")
    code: str
    error: str


class PassAnswer(BaseModel):
    """The last reconcile pass that ended well (null: there was none), and the last one that failed."""

    ended_at: str | None
    age_seconds: float | None
    duration_seconds: float | None
    corrections: int | None = Field(description="how many figures it set right; null: not kept")
    corrected: list[CorrectionAnswer] = Field(description="the first of them")
    stale: bool
    stale_after_seconds: int
    last_failure: FailedPassAnswer | None


class ResourcesAnswer(BaseModel):
    """Room node by node, in all and of the cluster. `capacity_degraded`: counters could not be read; they are null."""

    total: ResourceTotals
    nodes: ResourceNodes
    per_node: dict[str, NodeResources]
    cluster: ClusterCapacityAnswer | None
    drift: DriftAnswer | None = Field(description="null: it could not be computed")
    last_pass: PassAnswer
    capacity_degraded: bool


class AuditEventAnswer(EventAnswer):
    """One event of the whole trail, with the object it belongs to; `by` null: nobody did it."""

    object_type: str
    object_id: str
    by: str | None


class ConfigAnswer(BaseModel):
    """One cluster-wide key; `is_set` false: the default holds. Who changed it last, and when, where that is known."""

    key: str
    value: str
    default: str
    meaning: str
    is_set: bool
    updated_at: str | None
    updated_by: str | None


def key_name(text: str) -> str:
    """Return what may be a key's name at all; which keys there are, the configuration itself says."""
    if _KEY.fullmatch(text) is None:
        raise ValueError("is not a key of the configuration: those are letters, digits and '_'")
    return text


class ConfigBody(BaseModel):
    """The body of `PUT /admin/config/{key}`; numbers and booleans mean their text."""

    model_config = ConfigDict(strict=True, extra="forbid")

    value: str | bool | int | float = Field(json_schema_extra={"maxLength": 1000})

    @field_validator("value", mode="before")
    @classmethod
    def _plain(cls, value: Any) -> Any:
        """Say once what is wrong with it: not once for each type that it could have."""
        if isinstance(value, str | bool | int | float):
            return value
        raise ValueError(f"must be a text, a number, true or false, not {kind_of(value)}")
