"""The request: what is asked for. One definition serves the API's body, the CLI's file and `fleet decide`.

Amounts follow `fleet.model.resources`. Validation is strict: a boolean is not an integer, a number in quotes is not a
number, an unknown field is an error, and all problems of one body are reported together, each with its field.

Rules, affinity and labels are read once, here: a request holds them parsed (`placement_rules`, `affinity_spec`) and
writes them back as they were given, so that what is stored with an instance reads back to the same request.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    StringConstraints,
    ValidationError,
    ValidationInfo,
    field_validator,
)

from fleet.model.affinity import AffinitySpec, parse_affinity
from fleet.model.arch import parse_arch
from fleet.model.body_problems import parsed, problems_of, refusal
from fleet.model.cluster_config import STRATEGY_SYNTAX, is_strategy_name
from fleet.model.findings import Findings, kind_of, refusal_of, shown, step
from fleet.model.gpu import parse_kind, parse_profile, profile_problem
from fleet.model.gpu_inventory import GpuAsk
from fleet.model.labels import LABEL_SYNTAX, is_label, parse_labels
from fleet.model.resources import Amounts
from fleet.model.rules import Node, parse_rules, rules_form, tag_problem

AMOUNT_MAX = 2**40
"""Largest amount of one request: far above any machine, far below where 64-bit sums could overflow."""

CPUS_MAX = 1_000_000
TAGS_MAX = 64
_NAME = re.compile(r"^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$")
_AFFINITY = "affinity"


class Reason(StrEnum):
    """Why placement is asked."""

    CREATE = "create"
    RESIZE = "resize"
    MIGRATE = "migrate"
    EVACUATE = "evacuate"
    FORK = "fork"


ASKED = tuple(str(one) for one in Reason if one is not Reason.FORK)
"""The reasons that a body may give: a fork is asked for by its own verb, which makes the question itself."""

_STORED = {"stored": True}


def is_name(text: str) -> bool:
    """Return whether `text` may name an instance, node or namespace: 1-63 of letters, digits, `.`, `_`, `-`."""
    return _NAME.fullmatch(text) is not None


def _named(text: str) -> str:
    if not is_name(text):
        msg = "must be 1-63 letters, digits, '.', '_' or '-', starting and ending with a letter or digit"
        raise ValueError(msg)
    return text


def _region(text: str) -> str:
    if text and not is_label(text):
        raise ValueError(f"{shown(text)} is not a region's name: it must be {LABEL_SYNTAX}, or empty for any")
    return text


def _strategy(text: str) -> str:
    if text and not is_strategy_name(text):
        raise ValueError(f"{shown(text)} is not a strategy's name: {STRATEGY_SYNTAX}")
    return text


def _tags(value: Any) -> dict[str, str]:
    """Return an instance's tags, trimmed. A list of plain strings is keys with the empty value."""
    if isinstance(value, list) and all(isinstance(item, str) for item in value):
        value = dict.fromkeys(value, "")
    return parsed(_parse_tags, value, "tags")


def _parse_tags(value: Any, path: str) -> dict[str, str]:
    findings = Findings()
    tags: dict[str, str] = {}
    if not isinstance(value, dict):
        findings.add(path, f"must be an object of tags, or a list of their keys, not {kind_of(value)}")
    elif len(value) > TAGS_MAX:
        findings.add(path, f"at most {TAGS_MAX} tags, got {len(value)}")
    else:
        for given, text in value.items():
            if not isinstance(given, str) or not isinstance(text, str):
                place = f"{path}[{step(given)}]" if isinstance(given, str) else path
                findings.add(place, f"keys and values must be texts, not {kind_of(text)}")
                continue
            key, trimmed = given.strip(), text.strip()
            if problem := tag_problem(key, trimmed):
                findings.add(f"{path}[{step(key)}]", problem)
            elif key in tags:
                findings.add(f"{path}[{step(key)}]", "stands twice: white space at the ends of a key does not count")
            tags[key] = trimmed
    findings.finish()
    return tags


def _labels(value: Any) -> dict[str, str]:
    return parsed(parse_labels, value, "labels")


def _affinity(value: Any) -> AffinitySpec | None:
    return None if value is None else parsed(parse_affinity, value, _AFFINITY)


def _affinity_form(spec: AffinitySpec | None) -> dict[str, Any] | None:
    return None if spec is None else dict(spec.given)


def _metadata_form(value: dict[str, Any] | None) -> dict[str, Any] | None:
    spec = None if value is None else value.get(_AFFINITY)
    return {**(value or {}), _AFFINITY: dict(spec.given)} if isinstance(spec, AffinitySpec) else value


def _rules(value: Any) -> tuple[Node, ...]:
    return parsed(parse_rules, value, "placement_rules")


Name = Annotated[str, AfterValidator(_named)]
Text = Annotated[str, StringConstraints(max_length=1000)]
Tags = Annotated[dict[str, str], BeforeValidator(_tags, json_schema_input_type=dict[str, str] | list[str])]
Labels = Annotated[dict[str, str], BeforeValidator(_labels, json_schema_input_type=dict[str, str])]
Affinity = Annotated[
    AffinitySpec | None,
    PlainSerializer(_affinity_form),
    PlainValidator(_affinity, json_schema_input_type=dict[str, Any] | None),
]
Rules = Annotated[
    tuple[Node, ...],
    PlainSerializer(rules_form),
    PlainValidator(_rules, json_schema_input_type=list[Any] | None),
]
Metadata = Annotated[dict[str, Any] | None, PlainSerializer(_metadata_form)]
Region = Annotated[str, AfterValidator(_region)]
Arch = Annotated[str, AfterValidator(parse_arch)]
GpuKind = Annotated[str, AfterValidator(parse_kind)]
GpuProfile = Annotated[str, AfterValidator(parse_profile)]
Strategy = Annotated[str, AfterValidator(_strategy)]


class Placement(BaseModel):
    """Hard constraints on where the instance may run."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    node: Name | None = None
    labels: Labels = Field(default_factory=dict)


class InstanceRequest(BaseModel):
    """The body of `POST /instances` and of a request file."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    name: Name = "instance"
    namespace: Name | None = None
    cpus: Annotated[int, Field(ge=1, le=CPUS_MAX)]
    memory_mb: Annotated[int, Field(ge=1, le=AMOUNT_MAX)]
    disk_gb: Annotated[int, Field(ge=0, le=AMOUNT_MAX)] = 0
    image: Text = ""
    tags: Tags = Field(default_factory=dict)
    affinity: Affinity = None
    metadata: Metadata = None
    placement: Placement = Placement()
    placement_rules: Rules = ()
    region: Region = ""
    arch: Arch = ""
    gpus: Annotated[int, Field(ge=0, le=CPUS_MAX)] = 0
    gpu_kind: GpuKind = ""
    gpu_profile: GpuProfile = ""
    strategy: Strategy = ""
    sleep_after_idle_seconds: Annotated[int, Field(ge=0, le=2**31)] = 0
    wait_for_capacity_seconds: Annotated[int, Field(ge=0, le=2**31)] = 0

    @field_validator("metadata")
    @classmethod
    def _read_affinity(cls, value: dict[str, Any] | None, info: ValidationInfo) -> dict[str, Any] | None:
        """Hold `metadata.affinity` parsed, beside what else is in there."""
        if value is None or (given := value.get(_AFFINITY)) is None:
            return value
        path = f"metadata.{_AFFINITY}"
        if info.data.get(_AFFINITY) is not None:
            problem = f"{_AFFINITY} is given too; keep one of them"
            raise refusal("metadata", [{"field": path, "message": problem}])
        return {**value, _AFFINITY: parsed(lambda item, _: parse_affinity(item, path), given, "metadata")}

    @field_validator("gpu_profile")
    @classmethod
    def _profile_can_be_asked(cls, value: str, info: ValidationInfo) -> str:
        if {"gpus", "gpu_kind"} <= info.data.keys():
            problem = profile_problem(info.data["gpus"], info.data["gpu_kind"], value)
            if problem is not None:
                raise ValueError(problem)
        return value

    @property
    def affinity_spec(self) -> AffinitySpec | None:
        """The tag affinity, given as `affinity` or in `metadata`; None when there is none."""
        if self.affinity is not None or self.metadata is None:
            return self.affinity
        spec: AffinitySpec | None = self.metadata.get(_AFFINITY)
        return spec

    @property
    def gpu_ask(self) -> GpuAsk:
        """The GPUs asked for; a kind without a count asks for nothing."""
        return GpuAsk(self.gpus, self.gpu_kind, self.gpu_profile)

    @property
    def is_sleepy(self) -> bool:
        """Whether the instance sleeps when it is idle."""
        return self.sleep_after_idle_seconds > 0

    def amounts(self, overhead_mb: int = 0) -> Amounts:
        """Return what a charge for this request holds; `overhead_mb` is `INSTANCE_OVERHEAD_MB`."""
        return Amounts(self.cpus, self.memory_mb + overhead_mb, self.disk_gb, 1)


class PlacementRequest(InstanceRequest):
    """An instance request with its reason: what a decision is asked.

    `instance` is the uuid of the instance that is placed again (resize, migrate, evacuate, redirect), or that is
    forked; `destinations` restricts a drain's moves (None: any node).
    """

    reason: Reason = Field(default=Reason.CREATE, strict=False)
    instance: str | None = None
    destinations: list[Name] | None = None

    @field_validator("destinations")
    @classmethod
    def _each_once(cls, value: list[str] | None) -> list[str] | None:
        return None if value is None else list(dict.fromkeys(value))

    @field_validator("reason", mode="before")
    @classmethod
    def _can_be_asked(cls, value: Any, info: ValidationInfo) -> Any:
        if value in ASKED or info.context == _STORED:
            return value
        first, last = ", ".join(f"'{name}'" for name in ASKED[:-1]), ASKED[-1]
        raise ValueError(f"must be {first} or '{last}'")

    @classmethod
    def of(cls, request: InstanceRequest, namespace: str, **further: Any) -> PlacementRequest:
        """Return what is asked for an instance of `namespace`; `request` was judged, and is not judged again."""
        return cls.model_construct(**{**dict(request), "namespace": namespace, **further})


def parse_placement_request(body: Any) -> PlacementRequest:
    """Return the request of a body.

    Raises:
        InvalidRequest: with every problem of the body.
    """
    return _parse(body)


def parse_stored_request(body: Any) -> PlacementRequest:
    """Return the request that a decision was stored with: any that a body may ask, or a fork.

    Raises:
        InvalidRequest: this version does not read it.
    """
    return _parse(body, _STORED)


def _parse(body: Any, context: dict[str, bool] | None = None) -> PlacementRequest:
    try:
        return PlacementRequest.model_validate(body, context=context)
    except ValidationError as error:
        raise refusal_of(problems_of(error)) from None
