"""Nodes as operators handle them: register, change, cordon, remove; and samples that arrive over HTTP."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from typing import Annotated, Any, Final, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from fleet.ledger import nodes, samples
from fleet.ledger.database import Database
from fleet.ledger.idempotency import Keyed
from fleet.ledger.nodes import NodeIn, NodeView
from fleet.ledger.samples import SampleIn
from fleet.model.arch import parse_arch
from fleet.model.cluster_config import ClusterConfig
from fleet.model.errors import InvalidRequest, NodeNotFound, NotFound
from fleet.model.figures import FIGURE_MAX
from fleet.model.gpu import DECLARED_KIND, DECLARED_KIND_CHARACTERS_MAX
from fleet.model.gpu_report import PROFILE_UNITS_MAX, PROFILES_MAX, UNITS_MAX, profile_counts
from fleet.model.labels import LABEL_SYNTAX, LABELS_MAX, is_label
from fleet.model.node import BACKENDS, Scheduling
from fleet.model.request import Name
from fleet.services.authentication import Caller
from fleet.services.gpus import InventoryBody
from fleet.services.gpus import declare as declare_units
from fleet.services.idempotency import RetryKey, once

NO_NODE: Final = "no such node"
INSTANCES_MAX: Final = 1_000_000
AGE_SECONDS_MAX: Final = 366 * 86_400
METRICS_MAX: Final = 256
TEXT_MAX: Final = 1000

_FLAGS: Final = frozenset({"is_hypervisor", "blobs_share_instances_disk"})
_WHOLE: Final = frozenset(
    {
        *("cpu_threads", "cpu_cores", "cpu_max", "cpu_schedulable", "cpu_max_per_instance", "cpu_foreign_vcpus"),
        *("cpu_total_instance_vcpus", "memory_max", "memory_available", "memory_reserved_mb", "memory_foreign_mb"),
        *("memory_total_instance_actual", "disk_total_gb", "disk_free_gb", "disk_foreign_gb", "queue_waiting"),
        *("instances_total", "instances_active"),
    }
)
_REAL: Final = frozenset({"cpu_load_1", "cpu_load_5", "cpu_load_15", "disk_reservation_gb", "disk_busy_ms_per_second"})
_METRIC_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)


class NodeFields(BaseModel):
    """What an operator declares about a node.

    Fields left out keep what they had; `labels` and `mig_profiles` that are given replace all of the former ones.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    labels: dict[str, str] = Field(default_factory=dict, max_length=LABELS_MAX)
    region: Annotated[str, Field(max_length=63)] = ""
    arch: Annotated[str, Field(max_length=16)] = ""
    backend: Annotated[str, Field(max_length=16)] = ""
    sleepy_pool: bool = False
    max_instances: Annotated[int, Field(ge=0, le=INSTANCES_MAX)] | None = None
    gpu_kind: Annotated[str, Field(max_length=DECLARED_KIND_CHARACTERS_MAX, pattern=DECLARED_KIND)] = ""
    gpu_count: Annotated[int, Field(ge=0, le=UNITS_MAX)] = 0
    mig_profiles: dict[str, Annotated[int, Field(le=PROFILE_UNITS_MAX)]] = Field(
        default_factory=dict, max_length=PROFILES_MAX
    )

    @field_validator("labels")
    @classmethod
    def _labels_have_the_syntax(cls, value: dict[str, str]) -> dict[str, str]:
        _check_labels(value)
        return value

    @field_validator("mig_profiles")
    @classmethod
    def _profiles_are_profiles(cls, value: dict[str, int]) -> dict[str, int]:
        return profile_counts(value)

    @field_validator("region")
    @classmethod
    def _region_is_a_label(cls, value: str) -> str:
        if value and not is_label(value):
            raise ValueError("must be 1-63 letters, digits, '.', '_' or '-', or empty for none")
        return value

    @field_validator("arch")
    @classmethod
    def _arch_is_known(cls, value: str) -> str:
        return parse_arch(value)

    @field_validator("backend")
    @classmethod
    def _backend_is_known(cls, value: str) -> str:
        if value and value not in BACKENDS:
            raise ValueError(f"must be one of {', '.join(BACKENDS)}")
        return value

    def given(self) -> dict[str, Any]:
        """Only the fields that were given."""
        return {name: getattr(self, name) for name in self.model_fields_set if name != "name"}


class NodeChange(NodeFields):
    """The body of `PUT /nodes/{name}`.

    Fields left out keep what they had; `labels` and `mig_profiles` that are given replace all of the former ones.
    `label_changes` leaves the labels alone that it does not name: a value sets one, null takes one away.
    """

    label_changes: dict[str, str | None] = Field(default_factory=dict, max_length=2 * LABELS_MAX)

    @field_validator("label_changes")
    @classmethod
    def _changes_have_the_syntax(cls, value: dict[str, str | None]) -> dict[str, str | None]:
        _check_labels(value)
        return value

    @model_validator(mode="after")
    def _labels_come_in_one_way(self) -> Self:
        if {"labels", "label_changes"} <= self.model_fields_set:
            raise ValueError("labels sets all labels and label_changes some: give one of them")
        return self


class NodeBody(NodeFields):
    """The body of `POST /nodes`."""

    name: Name


class SampleBody(InventoryBody):
    """The body of `PUT /nodes/{name}/metrics`: a sample and the time since its measuring began."""

    age_seconds: Annotated[float, Field(ge=0, le=AGE_SECONDS_MAX, allow_inf_nan=False)] = 0
    metrics: dict[str, Any] = Field(max_length=METRICS_MAX)
    failed: dict[str, Annotated[str, Field(max_length=TEXT_MAX)]] = Field(default_factory=dict, max_length=METRICS_MAX)
    healthy: bool | None = None
    health_detail: dict[str, Annotated[str, Field(max_length=TEXT_MAX)]] = Field(default_factory=dict, max_length=16)

    @field_validator("metrics")
    @classmethod
    def _figures_are_figures(cls, value: dict[str, Any]) -> dict[str, Any]:
        problems = [f"{name[:70]}: {problem}" for name, figure in value.items() if (problem := _problem(name, figure))]
        if problems:
            raise ValueError("; ".join(problems))
        return value


def _check_labels(labels: Mapping[str, str | None]) -> None:
    """Check that labels have the syntax of labels; a value of None takes one away.

    Raises:
        ValueError: one has not.
    """
    for key, text in labels.items():
        if not is_label(key) or not (text is None or is_label(text)):
            raise ValueError(f"label {key[:70]}={(text or '')[:70]!r}: keys and values must be {LABEL_SYNTAX}")


def _problem(name: str, figure: Any) -> str | None:
    """What is wrong with one figure. Null is unknown; a name we do not know may hold any plain value."""
    if not _METRIC_NAME.fullmatch(name):
        return "is not a metric's name"
    if figure is None:
        return None
    if name in _FLAGS:
        return None if isinstance(figure, bool) else "must be true or false"
    if isinstance(figure, int | float) and not isinstance(figure, bool):
        return _number_problem(name, figure)
    if name in _WHOLE | _REAL:
        return "must be a number"
    if isinstance(figure, bool) or (isinstance(figure, str) and len(figure) <= TEXT_MAX):
        return None
    return f"must be a number, true, false or a text of at most {TEXT_MAX} characters"


def _number_problem(name: str, figure: float) -> str | None:
    if not math.isfinite(figure) or not 0 <= figure <= FIGURE_MAX:
        return "must be from 0 to 2^40"
    if name in _WHOLE and figure != int(figure):
        return "must be a whole number"
    return None


def register(db: Database, body: NodeBody, retry_key: RetryKey | None, caller: Caller) -> tuple[NodeView, bool]:
    """Register a node, or set the given fields of a registered one; the second value says whether it is new."""

    def make(keyed: Keyed | None) -> tuple[NodeView, bool]:
        return nodes.register(db, NodeIn(name=body.name, declared=body.given()), keyed, by=caller.by)

    return once(db, retry_key, make=make, replay=lambda kept: (get(db, str(kept["name"])), True))


def get(db: Database, name: str) -> NodeView:
    """Return one node.

    Raises:
        NotFound: there is none.
    """
    found = nodes.get(db, name)
    if found is None:
        raise NotFound(NO_NODE)
    return found


def update(db: Database, name: str, body: NodeChange, caller: Caller) -> NodeView:
    """Set the given fields; a changed `max_instances` holds from the node's next sample on."""
    declared = body.given()
    if not declared:
        known = ", ".join((*nodes.DECLARED, "label_changes"))
        problem = {"field": "body", "message": f"no field to set; known: {known}"}
        raise InvalidRequest("no node fields to update were given", errors=[problem])
    label_changes = declared.pop("label_changes", None)
    found = nodes.update(db, name, declared, label_changes=label_changes, by=caller.by)
    if found is None:
        raise NotFound(NO_NODE)
    return found


def declare_gpus(db: Database, name: str, body: InventoryBody, caller: Caller) -> NodeView:
    """Replace the node's cards and slices by what is declared.

    Raises:
        NotFound: there is no such node.
        InvalidRequest: its hypervisor serves no GPUs.
        Conflict: another node has one of them.
    """
    with _as_not_found():
        declare_units(db, name, body, by=caller.by)
    return get(db, name)


def schedule(db: Database, name: str, scheduling: Scheduling, caller: Caller) -> NodeView:
    """Store an operator's intent; once this returns, no admission that ignores it commits.

    Raises:
        NotFound: there is no such node.
    """
    with _as_not_found():
        samples.set_scheduling(db, name, scheduling, by=caller.by)
    return get(db, name)


def remove(db: Database, name: str, caller: Caller) -> None:
    """Remove a node that holds nothing.

    Raises:
        NotFound: there is no such node.
    """
    with _as_not_found():
        samples.remove_node(db, name, by=caller.by)


@contextmanager
def _as_not_found() -> Iterator[None]:
    """Answer as every path of a node does; `node_not_found` is for a request or a sample that names a node."""
    try:
        yield
    except NodeNotFound:
        raise NotFound(NO_NODE) from None


def publish(db: Database, name: str, body: SampleBody, config: ClusterConfig) -> NodeView:
    """Store a node's sample, exactly as its own daemon would.

    Raises:
        NotFound: the node is not registered.
        InvalidRequest: GPUs on a node whose hypervisor serves none.
        Conflict: another node has one of the GPUs.
    """
    get(db, name)
    known = {key: figure for key, figure in body.metrics.items() if figure is not None}
    sample = SampleIn(
        node_name=name,
        age_seconds=Decimal(str(body.age_seconds)),
        metrics=known,
        failed=body.failed,
        healthy=body.healthy,
        health_detail=body.health_detail,
        gpus=body.cards(),
        mig_instances=body.slices(),
        strict_gpus=True,
    )
    samples.publish(db, [sample], config)
    return get(db, name)
