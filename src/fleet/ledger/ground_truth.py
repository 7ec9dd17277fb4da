"""Ground truth: a domain is where it is, and the ledger says so: unguarded, and loudly.

Used by whoever reads domains off a node (a worker at its start, a cleaner). Refusing to record reality would only make
the counters wrong; so no guard is asked, and an over-limit node gets an error event, on the instance and on the node.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal
from typing import Final

from sqlalchemy import Connection

from fleet.ledger import admission, charges, events, release
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database, Sql
from fleet.model.admission import Admitted
from fleet.model.gpu_inventory import NO_GPUS_ASKED
from fleet.model.resources import DIMENSIONS, Amounts, DimensionFigure

ROW = Sql(
    "SELECT c.*, n.name FROM scheduler_node_capacity c JOIN nodes n ON n.id = c.node_id WHERE c.node_id = :node_id"
)
DESPITE_GUARD: Final = "placement recorded despite exceeding capacity guard"
SET_INSTANCE_NODE = Sql("UPDATE instances SET node_id = :node_id, updated_at = {now} WHERE uuid = :instance_uuid")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sighting:
    """A domain of the product that was seen on a node, with what its instance is charged."""

    instance_uuid: str
    namespace: str
    node_id: int
    amounts: Amounts


@dataclass(frozen=True, slots=True)
class Recorded:
    """What recording a sighting changed. `over` lists the dimensions in which the node is over its limit now."""

    changed: bool
    over: tuple[DimensionFigure, ...] = ()


def record(db: Database, seen: Sighting) -> Recorded:
    """Charge the instance to the node where its domain is, whatever the guard would say. Safe to repeat.

    A charge on another node is released first: a domain is in one place. A move in flight is left to its own end. The
    new charge sleeps and holds GPUs as that one did, as far as the node has them free.
    """
    held = charges.of_instance(db, seen.instance_uuid)
    if any(charge.node_id == seen.node_id for charge in held):
        return Recorded(changed=False)
    if any(charge.role == "incoming" for charge in held):
        return Recorded(changed=False)
    if held:
        release.release(db, seen.instance_uuid)
    ask = NodeAsk(
        instance_uuid=seen.instance_uuid,
        namespace=seen.namespace,
        node_id=seen.node_id,
        amounts=seen.amounts,
        demand=Decimal(0),
        target_load=Decimal(0),
        sample_age_max_seconds=0,
        enforce=False,
        gpus=held[0].gpus if held else NO_GPUS_ASKED,
        sleepy=held[0].sleepy if held else False,
    )
    note = admission.Rows(changed=lambda conn: _note(conn, seen, previous=[c.node_id for c in held]))
    outcome = admission.admit(db, ask, note)
    if not isinstance(outcome, Admitted):
        # Somebody else charged it, or is just doing so: nothing of this was written, and the next sighting looks again.
        return Recorded(changed=False)
    return Recorded(changed=True, over=_over(db, seen))


def _note(conn: Connection, seen: Sighting, previous: list[int]) -> None:
    charges.settle(conn, seen.instance_uuid)
    SET_INSTANCE_NODE.run(conn, node_id=seen.node_id, instance_uuid=seen.instance_uuid)
    payload = {"node_id": seen.node_id, "previous_node_ids": previous, **seen.amounts.as_dict(), "enforce": False}
    events.record(
        conn, "instance", seen.instance_uuid, "instance placement recorded from ground truth", payload, "warning"
    )


def _over(db: Database, seen: Sighting) -> tuple[DimensionFigure, ...]:
    """Return, and record as errors, the dimensions in which the node holds more than its limit."""
    with db.read() as conn:
        row = ROW.run(conn, node_id=seen.node_id).mappings().first()
    if row is None:
        return ()
    figures = tuple(
        DimensionFigure.of(
            name,
            limit=row[f"limit_{name}"],
            used=row[f"used_{name}"] - getattr(seen.amounts, name),
            requested=getattr(seen.amounts, name),
        )
        for name in DIMENSIONS
    )
    over = tuple(figure for figure in figures if figure.exceeded)
    if over:
        payload = {"node": row["name"], "failing_stage": "node", "dimensions": [figure.as_dict() for figure in over]}

        def write(conn: Connection) -> None:
            events.record(conn, "instance", seen.instance_uuid, DESPITE_GUARD, payload, level="error")
            about = {**payload, "instance": seen.instance_uuid}
            events.record(conn, "node", row["name"], DESPITE_GUARD, about, level="error")

        db.unit(write)
    return over
