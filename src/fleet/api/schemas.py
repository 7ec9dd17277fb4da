"""The shapes of answers, for the OpenAPI document and for the people who read it.

Nothing is validated against them on the way out: answers are made of plain values (see `fleet.api.answers`), and a test
holds both together.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Generic, Literal, TypeVar
from uuid import UUID

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    PlainValidator,
    ValidationInfo,
    field_validator,
)

from fleet.api.problems import CODES
from fleet.model.request import AMOUNT_MAX, CPUS_MAX, InstanceRequest, Name

T = TypeVar("T")
SIZES: Final = ("cpus", "memory_mb", "disk_gb")
LIFETIME_SECONDS_MAX: Final = 10 * 366 * 86_400
"""Claims and keys live so long at most."""


class FieldProblem(BaseModel):
    """One thing wrong with a request."""

    field: str
    message: str


class RemedyAnswer(BaseModel):
    """A change with which a refused request would have been ranked; `node` would be the first of `nodes` (null: new).

    A change of the request has `field`, `from` and `to`; one of the fleet has `action` and what it is done to.
    """

    change: list[dict[str, Any]]
    text: str
    node: str | None
    nodes: int
    by: str = Field(description="Who can make it: caller, operator or time")


class Problem(BaseModel):
    """An RFC 9457 problem document; figures stand beside these under their own names."""

    model_config = ConfigDict(extra="allow")

    type: str
    title: str
    status: int
    detail: str
    code: str = Field(json_schema_extra={"enum": [*sorted(CODES)]})
    errors: list[FieldProblem] | None = None
    remedies: list[RemedyAnswer] | None = None


class Page(BaseModel, Generic[T]):
    """One page of a list; `next_cursor` null: the last one."""

    items: list[T]
    next_cursor: str | None


class LoginBody(BaseModel):
    """The body of `POST /auth`."""

    model_config = ConfigDict(strict=True, extra="forbid")

    namespace: str = Field(min_length=1, max_length=63)
    key: str = Field(min_length=1, max_length=255)


class TokenAnswer(BaseModel):
    """A bearer token and its life in seconds."""

    token: str
    expires_in: int


class NamespaceAnswer(BaseModel):
    """A namespace."""

    name: str
    created_at: str


class KeyAnswer(BaseModel):
    """A key, without its secret. `former_ends_at`: until when the secret before its rotation is good as well."""

    namespace: str
    name: str
    created_at: str
    expires_at: str | None
    state: Literal["active", "expired"]
    former_ends_at: str | None


class NewKeyAnswer(KeyAnswer):
    """A new key with its secret, which is told once."""

    key: str


class EventAnswer(BaseModel):
    """One audit event."""

    id: int
    at: str
    level: str
    message: str
    payload: dict[str, Any]


class TimelineAnswer(EventAnswer):
    """One event of an instance. `part` 0: a stored event; 1, 2, …: rendered in front of the stored event `id`."""

    part: int


class RenderedEvent(BaseModel):
    """One event rendered from a decision."""

    part: int
    at: str
    level: str
    message: str
    payload: dict[str, Any]


class ScheduledAnswer(RenderedEvent):
    """What a decision did with a node; `part` counts what one decision tells of it."""

    decision_id: str


class Amounts(BaseModel):
    """Whole amounts by dimension."""

    cpus: int
    memory_mb: int
    disk_gb: int
    instances: int


class Limits(BaseModel):
    """Limits by dimension; null is unlimited."""

    cpus: int | None
    memory_mb: int | None
    disk_gb: int | None
    instances: int | None


class CapacityAnswer(BaseModel):
    """A node's ledger row."""

    limit: Limits
    used: Amounts
    pending_memory_mb: int
    pending_disk_gb: int
    expected_demand: float
    counted: bool


class UnitAnswer(BaseModel):
    """A GPU or a slice of one. `state` is free, bound, missing (not reported any more) or cut (serves slices only)."""

    uuid: str
    memory_mb: int | None
    state: str
    missing: bool
    bound_to: str | None
    details: dict[str, str]


class CardAnswer(UnitAnswer):
    """A card."""

    model: str
    mig_capable: bool
    mig_mode: bool


class SliceAnswer(UnitAnswer):
    """A MIG instance: a slice of a card."""

    profile: str
    kind: str
    parent_gpu_uuid: str


class NodeTokenAnswer(BaseModel):
    """A node's new token, which is told once."""

    node: str
    created_at: str
    token: str


class NodeAnswer(BaseModel):
    """A node; `metrics` are its last sample, `capacity` null: the ledger has not sized it yet.

    `gpu_count` and `mig_profiles` are what was declared, else what is there; `…_used` what instances hold of them.
    """

    name: str
    state: str
    scheduling: str
    labels: dict[str, str]
    region: str
    arch: str
    backend: str
    sleepy_pool: bool
    max_instances: int | None
    gpu_kind: str
    gpu_count: int
    gpu_count_used: int
    mig_profiles: dict[str, int]
    mig_profiles_used: dict[str, int]
    gpus: list[CardAnswer]
    mig_instances: list[SliceAnswer]
    registered_at: str
    sample_at: str | None
    sample_age_seconds: float | None
    metrics: dict[str, Any]
    failed_collectors: dict[str, str]
    capacity: CapacityAnswer | None


class InstanceAnswer(BaseModel):
    """An instance."""

    uuid: str
    name: str
    namespace: str
    state: str
    node: str | None
    cpus: int
    memory_mb: int
    disk_gb: int
    image: str
    tags: dict[str, str]
    metadata: dict[str, Any]
    gpus: int
    gpu_kind: str
    gpu_profile: str
    gpu_uuids: list[str]
    placement_attempts: int
    decision_id: str | None
    error: str | None
    created_at: str
    updated_at: str


class CreatedAnswer(BaseModel):
    """An admitted instance: its room is charged, its node's worker makes it."""

    uuid: str
    node: str
    decision_id: str
    operation_id: str
    state: str


class OperationAnswer(BaseModel):
    """Durable work on a node."""

    uuid: str
    kind: str
    state: str
    instance_uuid: str
    namespace: str
    node: str | None
    step: str
    attempts: int
    attempts_max: int
    error: str | None
    created_at: str
    updated_at: str
    finished_at: str | None


class AcceptedAnswer(BaseModel):
    """Work that was accepted and will be done."""

    uuid: str
    state: str
    operation_id: str | None


class PayerAnswer(BaseModel):
    """Who would be charged: the namespace's claim, or the cluster; `refuses`: the answer of a payer without room."""

    payer: str
    claim: str | None
    dimensions: list[dict[str, Any]]
    refuses: dict[str, str] | None


class DecisionAnswer(BaseModel):
    """A decision with every reason."""

    model_config = ConfigDict(extra="allow")

    outcome: str
    summary: str
    charged_to: PayerAnswer | None = None
    remedies: list[RemedyAnswer] | None = None


class NodeFit(BaseModel):
    """How many more of a shape a node takes, and what binds there; `reason` only where none fits."""

    node: str
    fits: int
    binds: str
    reason: str | None


class ChargedTo(BaseModel):
    """Who pays for the next instance, and how many more that bears (null: no bound)."""

    payer: str
    fits: int | None
    binds: str | None


class ShapeAnswer(BaseModel):
    """How many more of a shape fit: `fits` in all; `bounded` says what binds on how many nodes."""

    shape: dict[str, Any]
    fits: int
    binds: str | None
    on_nodes: int
    nodes: int
    nodes_with_room: int
    bounded: list[dict[str, Any]]
    charged_to: ChargedTo
    items: list[NodeFit]
    next_cursor: str | None


class DecisionLine(BaseModel):
    """A line of the list of decisions."""

    id: str
    instance_uuid: str | None
    namespace: str
    reason: str
    outcome: str
    code: str
    node: str | None
    summary: str
    created_at: str


def _uuid(text: str) -> str:
    try:
        return str(UUID(text))
    except ValueError:
        raise ValueError("must be an instance's uuid") from None


class ExplainAgainBody(BaseModel):
    """The body of `POST /placements/explain` about an instance that there is already; what is left out stays as it is.

    Amounts belong to a resize; `node` (named by an operator) and `destinations` (null: any) to a move.
    """

    model_config = ConfigDict(strict=True, extra="forbid")

    instance: Annotated[str, AfterValidator(_uuid)]
    reason: Literal["resize", "migrate", "evacuate"]
    cpus: Annotated[int, Field(ge=1, le=CPUS_MAX)] | None = None
    memory_mb: Annotated[int, Field(ge=1, le=AMOUNT_MAX)] | None = None
    disk_gb: Annotated[int, Field(ge=0, le=AMOUNT_MAX)] | None = None
    node: Name | None = None
    destinations: list[Name] | None = None

    @property
    def target(self) -> dict[str, int]:
        """The amounts that are given."""
        given = {"cpus": self.cpus, "memory_mb": self.memory_mb, "disk_gb": self.disk_gb}
        return {name: amount for name, amount in given.items() if amount is not None}

    @field_validator("cpus", "memory_mb", "disk_gb", "node", "destinations")
    @classmethod
    def _belongs(cls, value: Any, info: ValidationInfo) -> Any:
        resize = info.data.get("reason") == "resize"
        if value is not None and "reason" in info.data and resize is not (info.field_name in SIZES):
            raise ValueError("belongs to a move, not to a resize" if resize else "belongs to a resize, not to a move")
        return value


def _question(value: Any) -> Any:
    again = isinstance(value, dict) and ("instance" in value or "reason" in value)
    return (ExplainAgainBody if again else InstanceRequest).model_validate(value)


ExplainBody = Annotated[
    InstanceRequest | ExplainAgainBody,
    PlainValidator(_question, json_schema_input_type=InstanceRequest | ExplainAgainBody),
]
"""A new instance, or one that is there already: which of them decides what is wrong with a body."""


class Anything(BaseModel):
    """A JSON object."""

    model_config = ConfigDict(extra="allow")


class HealthAnswer(BaseModel):
    """Whether the process serves."""

    model_config = ConfigDict(extra="allow")

    status: str


def documented(
    *codes: int, success: Any = None, status: int = 200, description: str = "OK"
) -> dict[int | str, dict[str, Any]]:
    """Return the `responses` of a route: its success, and problem documents for the statuses given."""
    found: dict[int | str, dict[str, Any]] = {}
    if success is not None:
        found[status] = {"model": success, "description": description}
    for code in sorted({400, 401, 403, 429, 500, 503, *codes}):
        found[code] = {
            "description": "; ".join(title for known, title in CODES.values() if known == code),
            "content": {"application/problem+json": {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return found
