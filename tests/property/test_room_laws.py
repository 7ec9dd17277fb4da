"""How often a shape fits, against placing and charging it one by one until no node is left."""

from __future__ import annotations

from typing import Any

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fleet.model.gpu_inventory import choose
from fleet.model.request import PlacementRequest, Reason
from fleet.placement.ask import Ask
from fleet.placement.gpus import inventory_of
from fleet.placement.pipeline import decide
from fleet.placement.room import DIMENSIONS, count_shape
from fleet.placement.snapshot import Snapshot
from tests.property.fleets import LAWS, documents, requests

COUNTED_MAX = 40
GPU_FIELDS = ("gpu_count", "gpu_count_used", "mig_profiles", "mig_profiles_used", "gpus", "mig_instances", "gpu_kind")


@st.composite
def shapes(draw: st.DrawFn) -> PlacementRequest:
    """A request that asks for anything but neighbours."""
    return draw(requests()).model_copy(
        update={
            "reason": Reason.CREATE,
            "instance": None,
            "destinations": None,
            "placement_rules": (),
            "affinity": None,
            "metadata": None,
        }
    )


def charge(node: dict[str, Any], request: PlacementRequest, overhead_mb: int) -> None:
    """Charge one more instance to a node, as the ledger does; its sample stays what it was.

    What is left out is a use that nobody knows: no limit binds there, and it stays unknown.
    """
    row, amounts = node["capacity"], request.amounts(overhead_mb)
    for name, amount in amounts.as_dict().items():
        if f"used_{name}" in row:
            row[f"used_{name}"] += amount
    row["pending_memory_mb"] += amounts.memory_mb
    row["pending_disk_gb"] += amounts.disk_gb
    if request.gpus:
        _bind(node, request)


def _bind(node: dict[str, Any], request: PlacementRequest) -> None:
    inventory = inventory_of({name: node[name] for name in GPU_FIELDS if name in node})
    asked = Ask(request, request.amounts(), {}).gpus
    chosen = choose(inventory, asked)
    assert chosen is not None
    if not chosen and request.gpu_profile:
        used = node.setdefault("mig_profiles_used", {})
        used[request.gpu_profile] = used.get(request.gpu_profile, 0) + request.gpus
    elif not chosen:
        node["gpu_count_used"] = node.get("gpu_count_used", 0) + request.gpus
    for unit in [*node.get("gpus", []), *node.get("mig_instances", [])]:
        if unit["uuid"] in chosen:
            unit["bound_to"] = "someone"


def placed_one_by_one(document: dict[str, Any], request: PlacementRequest) -> dict[str, int]:
    """Place and charge until no node is left; return how many each node took."""
    taken: dict[str, int] = {node["name"]: 0 for node in document["nodes"]}
    overhead = int(document["config"].get("INSTANCE_OVERHEAD_MB", 0))
    for _ in range(COUNTED_MAX + 1):
        decision = decide(request, Snapshot.from_json(document), 0)
        if decision.refused:
            return taken
        node = next(node for node in document["nodes"] if node["name"] == decision.ranked[0])
        charge(node, request, overhead)
        taken[node["name"]] += 1
    raise AssertionError("more fit than were counted")


@settings(LAWS, max_examples=300)
@given(document=documents(), request=shapes())
def test_so_many_fit_as_can_be_placed_one_by_one(document: dict[str, Any], request: PlacementRequest) -> None:
    document["config"].pop("ADMIT_UNSIZED_NODES", None)
    snapshot = Snapshot.from_json(document)
    found = count_shape(request, snapshot.frame)
    assume(found.total <= COUNTED_MAX)

    taken = placed_one_by_one(snapshot.to_json(), request)

    assert dict(zip(snapshot.frame.roster.names, found.counts.tolist(), strict=True)) == taken


@LAWS
@given(document=documents(), request=shapes())
def test_what_binds_is_named_for_every_node(document: dict[str, Any], request: PlacementRequest) -> None:
    frame = Snapshot.from_json(document).frame
    found = count_shape(request, frame)

    assert sum(found.bounded_by().values()) == len(frame)
    for at in range(len(frame)):
        why = found.why_of(at)
        assert bool(why.reason) == (found.counts[at] == 0)
        assert not found.counts[at] or why.name in DIMENSIONS
