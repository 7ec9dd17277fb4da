"""The request: what is asked for. One definition serves the API's body, the CLI's file and `fleet decide`.

Amounts follow `fleet.model.resources`. Validation is strict: a boolean is not an integer, a number in quotes is not a
number, an unknown field is an error, and all problems of one body are reported together (pydantic collects them).
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationError, field_validator

from fleet.model.errors import InvalidRequest
from fleet.model.resources import Amounts

AMOUNT_MAX = 2**40
"""Largest amount of one request: far above any machine, far below where 64-bit sums could overflow."""

CPUS_MAX = 1_000_000
TAG_KEY_MAX, TAG_VALUE_MAX, TAGS_MAX = 128, 1000, 64
_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")


class Reason(StrEnum):
    """Why placement is asked."""

    CREATE = "create"
    RESIZE = "resize"
    MIGRATE = "migrate"
    EVACUATE = "evacuate"


def is_name(text: str) -> bool:
    """Return whether `text` may name an instance, node or namespace: 1-63 of letters, digits, `.`, `_`, `-`."""
    return _NAME.fullmatch(text) is not None


def _named(text: str) -> str:
    if not is_name(text):
        msg = "must be 1-63 letters, digits, '.', '_' or '-', starting and ending with a letter or digit"
        raise ValueError(msg)
    return text


Name = Annotated[str, AfterValidator(_named)]
Text = Annotated[str, StringConstraints(max_length=1000)]


class Placement(BaseModel):
    """Hard constraints on where the instance may run."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    node: Name | None = None
    labels: dict[str, str] = Field(default_factory=dict)


class InstanceRequest(BaseModel):
    """The body of `POST /instances` and of a request file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: Name = "instance"
    namespace: Name | None = None
    cpus: Annotated[int, Field(ge=1, le=CPUS_MAX)]
    memory_mb: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    disk_gb: Annotated[int, Field(ge=0, le=AMOUNT_MAX)] = 0
    image: Text = ""
    tags: dict[str, str] = Field(default_factory=dict)
    affinity: dict[str, Any] | None = None
    metadata: dict[str, Any] | None = None
    placement: Placement = Placement()
    placement_rules: list[Any] = Field(default_factory=list)
    region: Text = ""
    arch: Text = ""
    gpus: Annotated[int, Field(ge=0, le=CPUS_MAX)] = 0
    gpu_kind: Text = ""
    gpu_profile: Text = ""
    strategy: Text = ""
    sleep_after_idle_seconds: Annotated[int, Field(ge=0, le=2**31)] = 0
    wait_for_capacity_seconds: Annotated[int, Field(ge=0, le=2**31)] = 0

    @field_validator("tags", mode="before")
    @classmethod
    def _plain_tags_are_keys(cls, value: Any) -> Any:
        """Accept a list of plain strings as keys with the empty value."""
        if isinstance(value, list) and all(isinstance(item, str) for item in value):
            return dict.fromkeys(value, "")
        return value

    @field_validator("tags")
    @classmethod
    def _tags_within_limits(cls, value: dict[str, str]) -> dict[str, str]:
        if len(value) > TAGS_MAX:
            msg = f"at most {TAGS_MAX} tags, got {len(value)}"
            raise ValueError(msg)
        for key, text in value.items():
            if not 1 <= len(key.strip()) <= TAG_KEY_MAX or "=" in key:
                msg = f"tag key {key[:40]!r} must have 1-{TAG_KEY_MAX} characters and no '='"
                raise ValueError(msg)
            if len(text) > TAG_VALUE_MAX:
                msg = f"the value of tag {key!r} has {len(text)} characters, at most {TAG_VALUE_MAX} are allowed"
                raise ValueError(msg)
        kept = {key.strip(): text.strip() for key, text in value.items()}
        if len(kept) != len(value):
            msg = "two tag keys differ in white space at their ends only, which does not count"
            raise ValueError(msg)
        return kept

    def amounts(self, overhead_mb: int = 0) -> Amounts:
        """Return what a charge for this request holds; `overhead_mb` is `INSTANCE_OVERHEAD_MB`."""
        return Amounts(self.cpus, self.memory_mb + overhead_mb, self.disk_gb, 1)


class PlacementRequest(InstanceRequest):
    """An instance request with its reason: what a decision is asked.

    `instance` is the uuid of the instance that is placed again (resize, migrate, evacuate, redirect); `destinations`
    restricts a drain's moves (None: any node).
    """

    reason: Reason = Field(default=Reason.CREATE, strict=False)
    instance: str | None = None
    destinations: list[str] | None = None


def problems_of(error: ValidationError) -> list[dict[str, str]]:
    """Return pydantic's findings as `[{"field": "placement.node", "message": …}]`."""
    found = []
    for item in error.errors(include_url=False, include_context=False):
        field = ".".join(str(part) for part in item["loc"]) or "body"
        found.append({"field": field, "message": item["msg"].removeprefix("Value error, ")})
    return found


def parse_placement_request(body: Any) -> PlacementRequest:
    """Return the request of a body.

    Raises:
        InvalidRequest: with every problem of the body.
    """
    try:
        return PlacementRequest.model_validate(body)
    except ValidationError as error:
        problems = problems_of(error)
        detail = "; ".join(f"{item['field']}: {item['message']}" for item in problems)
        raise InvalidRequest(detail, errors=problems) from None
