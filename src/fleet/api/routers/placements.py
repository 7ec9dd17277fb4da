"""`/placements/capacity`: how many more of a shape fit, and what binds."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query
from pydantic import ValidationError
from starlette.responses import Response

from fleet.api.answers import LIMIT_DEFAULT, answer, number
from fleet.api.bodies import StrictRoute
from fleet.api.dependencies import CallerDep, CursorQuery, LimitQuery, ServicesDep
from fleet.api.routers.instances import target_namespace
from fleet.api.schemas import ShapeAnswer, documented
from fleet.model.body_problems import problems_of
from fleet.model.findings import refusal_of
from fleet.model.labels import LABELS_MAX, parse_pair
from fleet.model.request import AMOUNT_MAX, CPUS_MAX, InstanceRequest, Name
from fleet.services.capacity import capacity

router = APIRouter(route_class=StrictRoute, tags=["instances"])
WORD_MAX: Final = 63
Word = Annotated[str, Query(max_length=WORD_MAX)]
LabelQuery = Annotated[
    list[str], Query(max_length=LABELS_MAX, description="`key=value`: only on nodes with this label; may be repeated")
]
NamespaceQuery = Annotated[Name | None, Query(description="for whom: the admin may name another")]


@router.get("/placements/capacity", responses=documented(404, success=ShapeAnswer), response_model=None)
def capacity_of_a_shape(
    *,
    services: ServicesDep,
    caller: CallerDep,
    cpus: Annotated[int, Query(ge=1, le=CPUS_MAX)],
    memory_mb: Annotated[int, Query(ge=1, le=AMOUNT_MAX)],
    disk_gb: Annotated[int, Query(ge=0, le=AMOUNT_MAX)] = 0,
    gpus: Annotated[int, Query(ge=0, le=CPUS_MAX)] = 0,
    gpu_kind: Word = "",
    gpu_profile: Word = "",
    region: Word = "",
    arch: Word = "",
    label: LabelQuery = [],  # noqa: B006  # the framework's way to say "none given"; it is never changed
    namespace: NamespaceQuery = None,
    limit: LimitQuery = LIMIT_DEFAULT,
    cursor: CursorQuery = None,
) -> Response:
    """How many more of a shape fit now: in all, and on each node, most room first; and what binds."""
    fields = {"cpus": cpus, "memory_mb": memory_mb, "disk_gb": disk_gb, "gpus": gpus, "gpu_kind": gpu_kind}
    fields |= {"gpu_profile": gpu_profile, "region": region, "arch": arch, "placement": {"labels": _labels(label)}}
    whose = target_namespace(services, caller, namespace)
    after = number(cursor) or 0
    found = capacity(services.context, whose, _shape(fields))
    items = found.nodes(after, limit)
    following = after + limit
    shape = {name: value for name, value in fields.items() if name != "placement" and value}
    if label:
        shape["labels"] = _labels(label)
    page = {"items": items, "next_cursor": str(following) if following < len(found.frame) else None}
    return answer({"shape": shape, **found.summary(), **page})


def _labels(given: list[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    problems: list[dict[str, str]] = []
    for text in given:
        try:
            key, value = parse_pair(text)
        except ValueError as problem:
            problems.append({"field": "label", "message": str(problem)})
            continue
        if key in pairs:
            problems.append({"field": "label", "message": f"the key {key} is given twice"})
        pairs[key] = value
    if problems:
        raise refusal_of(problems)
    return pairs


def _shape(fields: dict[str, object]) -> InstanceRequest:
    """Return the shape as a request; its fields have the names of the parameters.

    Raises:
        InvalidRequest: a word that no request may hold.
    """
    try:
        return InstanceRequest.model_validate(fields)
    except ValidationError as error:
        raise refusal_of(problems_of(error)) from None
