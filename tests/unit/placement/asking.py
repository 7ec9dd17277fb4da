"""Short ways to ask for a decision on a document."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fleet.model.decision import Decision
from fleet.model.request import PlacementRequest, parse_placement_request
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from tests.documents import a_document, a_request

Form = Mapping[str, Any]


def request_of(**changes: Any) -> PlacementRequest:
    return parse_placement_request(a_request(**changes))


def snapshot_of(*nodes: Form, config: Form | None = None, instances: Sequence[Form] = ()) -> Snapshot:
    return Snapshot.from_json(a_document(*nodes, config=config, instances=instances))


def decision_on(
    *nodes: Form,
    config: Form | None = None,
    instances: Sequence[Form] = (),
    seed: int = 0,
    explain: bool = False,
    **request: Any,
) -> Decision:
    return decide(request_of(**request), snapshot_of(*nodes, config=config, instances=instances), seed, explain=explain)


def reason_on(decision: Decision, node: str) -> tuple[str, str]:
    """The stage that dropped a node, and its reason."""
    return next((stage.name, stage.dropped[node]["reason"]) for stage in decision.stages if node in stage.dropped)
