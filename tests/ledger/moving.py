"""Moves that change the size: a settled instance, the ask that moves it, and who pays how much."""

from __future__ import annotations

from typing import Any

from fleet.ledger import charges, moves
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database
from fleet.model.admission import AdmissionOutcome, Admitted
from fleet.model.resources import Amounts
from tests.ledger import fleet_of
from tests.ledger.fleet_of import ask

Three = tuple[int, int, int]


def to(db: Database, node_id: int, instance: str, **how: Any) -> NodeAsk:
    """The move of an instance, in the size asked for, from what its charge holds now."""
    return ask(node_id, instance_uuid=instance, held=held(db, instance), **how)


def held(db: Database, instance: str) -> Amounts:
    return next(charge.amounts for charge in charges.of_instance(db, instance) if charge.role == "primary")


def begun(db: Database, wanted: NodeAsk) -> Admitted:
    outcome: AdmissionOutcome = moves.begin(db, wanted)
    assert isinstance(outcome, Admitted), outcome
    return outcome


def settled(db: Database, wanted: NodeAsk) -> bool:
    """The instance arrived: its row says where it is, and its size."""

    def rows(conn: Any) -> None:
        fleet_of.moved_instance(conn, wanted)
        fleet_of.resized_instance(conn, wanted)

    return moves.settle(db, wanted.instance_uuid, rows=rows)


def claimed(db: Database, claim: str) -> Three:
    row = fleet_of.claim_row(db, claim)
    return row["used_cpus"], row["used_memory_mb"], row["used_disk_gb"]
