"""Growth in place: a settled charge to grow, the ask that grows it, and what a refusal says."""

from __future__ import annotations

from typing import Any

from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database
from fleet.model.admission import AdmissionOutcome, Refused, Stage
from tests.ledger import fleet_of
from tests.ledger.fleet_of import ask


def placed(db: Database, node_id: int, *, settled: bool = True, **how: Any) -> str:
    instance = fleet_of.admitted(db, ask(node_id, **how))
    assert not settled or fleet_of.settle(db, instance)
    return instance


def to(node_id: int, instance: str, **how: Any) -> NodeAsk:
    return ask(node_id, instance_uuid=instance, **how)


def over(outcome: AdmissionOutcome) -> tuple[Stage, list[tuple[str, float | None, float, float]]]:
    """At which stage it was refused, and in which dimensions: limit, used, requested."""
    assert isinstance(outcome, Refused), outcome
    exceeded = [item for item in outcome.figures if item.exceeded]
    return outcome.failing_stage, [(item.dimension, item.limit, item.used, item.requested) for item in exceeded]


def pending(db: Database, node_id: int) -> tuple[int, int]:
    row = fleet_of.row(db, node_id)
    return row["pending_memory_mb"], row["pending_disk_gb"]
