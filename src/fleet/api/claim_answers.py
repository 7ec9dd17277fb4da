"""The shapes of claims' bodies and answers, for the OpenAPI document and for the people who read it."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from fleet.api.schemas import LIFETIME_SECONDS_MAX, SIZES
from fleet.model.request import AMOUNT_MAX

ClaimLimit = Annotated[int, Field(ge=0, le=AMOUNT_MAX)]
ClaimSeconds = Annotated[int, Field(ge=1, le=LIFETIME_SECONDS_MAX)]


def _without_default(schema: dict[str, Any]) -> None:
    """What is left out is kept: the value that stands for it inside is no default."""
    schema.pop("default", None)


class ClaimBody(BaseModel):
    """The body of `POST /auth/namespaces/{namespace}/claims`: what to promise, and for how long from now."""

    model_config = ConfigDict(strict=True, extra="forbid")

    limit_cpus: ClaimLimit
    limit_memory_mb: ClaimLimit
    limit_disk_gb: ClaimLimit
    expires_in_seconds: ClaimSeconds


class ClaimFields(BaseModel):
    """The body of `PUT /auth/namespaces/{namespace}/claims/{uuid}`: at least one field; what is left out stays."""

    model_config = ConfigDict(strict=True, extra="forbid")

    limit_cpus: ClaimLimit = Field(default=0, json_schema_extra=_without_default)
    limit_memory_mb: ClaimLimit = Field(default=0, json_schema_extra=_without_default)
    limit_disk_gb: ClaimLimit = Field(default=0, json_schema_extra=_without_default)
    expires_in_seconds: ClaimSeconds = Field(default=1, json_schema_extra=_without_default)

    @property
    def limits(self) -> dict[str, int]:
        """The limits that are given, by dimension."""
        return {name: getattr(self, f"limit_{name}") for name in SIZES if f"limit_{name}" in self.model_fields_set}

    @property
    def seconds(self) -> int | None:
        """The time to its end, if it is given."""
        return self.expires_in_seconds if "expires_in_seconds" in self.model_fields_set else None


class ClaimAnswer(BaseModel):
    """A claim. `coverage_state` is active or expired: it is set when a pass folds the claim, not when it is read.

    `namespace_deleted_at`: null, or since when its namespace is deleted; it is then deleted after
    `CLEANER_DELAY_SECONDS`, and can be deleted before.
    """

    uuid: str
    namespace: str
    state: str
    coverage_state: str
    limit_cpus: int
    limit_memory_mb: int
    limit_disk_gb: int
    used_cpus: int
    used_memory_mb: int
    used_disk_gb: int
    expires_at: str
    created_at: str
    updated_at: str
    namespace_deleted_at: str | None
