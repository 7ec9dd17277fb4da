"""GPUs for a ledger's small fleet: cards, slices, nodes that have them, and who holds what."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database
from fleet.model.gpu_inventory import GpuAsk
from fleet.model.gpu_report import ReportedUnit, Unit
from tests.ledger import fleet_of

A100 = "NVIDIA A100-SXM4-40GB"
H100 = "NVIDIA H100-SXM5-80GB"
_numbers = itertools.count(1)


def card(uuid: str = "", model: str = A100, **more: Any) -> ReportedUnit:
    return ReportedUnit(uuid=uuid or f"GPU-{next(_numbers)}", model=model, **{"mig_capable": True, **more})


def slice_of(parent: ReportedUnit | None, uuid: str = "", profile: str = "1g.10gb", **more: Any) -> ReportedUnit:
    return ReportedUnit(
        uuid=uuid or f"MIG-{next(_numbers)}",
        unit=Unit.SLICE,
        profile=profile,
        parent_gpu_uuid=parent.uuid if parent else "",
        **more,
    )


def node(
    db: Database,
    name: str = "",
    *,
    gpus: Sequence[ReportedUnit] | None = None,
    mig_instances: Sequence[ReportedUnit] | None = None,
    **declared: Any,
) -> int:
    """A node with plenty of everything but GPUs."""
    name = name or f"gpu-node-{next(_numbers)}"
    node_id = fleet_of.register(db, name, **{"backend": "simulated", **declared})
    fleet_of.publish(db, name, cpus=1000, gpus=gpus, mig_instances=mig_instances)
    return node_id


def ask(node_id: int, gpus: int = 1, kind: str = "", profile: str = "", **more: Any) -> NodeAsk:
    return fleet_of.ask(node_id, gpus=GpuAsk(gpus, kind, profile), **more)


def bound(db: Database, node_id: int | None = None) -> dict[str, str]:
    """Who holds each unit that is held, by its uuid."""
    where = "" if node_id is None else " AND node_id = :node_id"
    statement = f"SELECT uuid, bound_to FROM node_gpus WHERE bound_to IS NOT NULL{where} ORDER BY uuid"
    found = fleet_of.rows(db, statement, **({} if node_id is None else {"node_id": node_id}))
    return {row["uuid"]: row["bound_to"] for row in found}


def states(db: Database, node_id: int) -> dict[str, bool]:
    """Whether each known unit of a node is missing."""
    found = fleet_of.rows(db, "SELECT uuid, missing FROM node_gpus WHERE node_id = :n ORDER BY uuid", n=node_id)
    return {row["uuid"]: bool(row["missing"]) for row in found}


def pool(db: Database, node_id: int, profile: str = "") -> tuple[int, int]:
    """What is used and what there is of a counted pool."""
    statement = "SELECT used, total FROM node_gpu_pools WHERE node_id = :node_id AND profile = :profile"
    (found,) = fleet_of.rows(db, statement, node_id=node_id, profile=profile)
    return found["used"], found["total"]
