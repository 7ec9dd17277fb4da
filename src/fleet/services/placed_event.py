"""The event of a placement: the one row that every placement leaves in its instance's timeline; and of a refused one.

An instance that is placed again leaves one of its own kind: a move that begins, or another size where it is.

It names the decision, and a reader of the timeline is shown that decision's schedule events before it
(`services/timeline.py`): they are never rows. A waived demand clause is an exception, so it leaves a row of its own.
"""

from __future__ import annotations

from typing import Any, Final

from fleet.ledger import events
from fleet.ledger.database import Batch, Database
from fleet.ledger.decisions import DecisionRow
from fleet.services import waiver
from fleet.services.place import Refusal
from fleet.services.walk_events import ending_message

MESSAGE: Final = "instance placed"
MOVE_BEGUN: Final = "instance move begun"
RESIZED: Final = "instance resized where it is"
MESSAGES: Final = frozenset({MESSAGE, MOVE_BEGUN, RESIZED})


def record(
    batch: Batch,
    instance_uuid: str,
    node: str,
    row: DecisionRow,
    *,
    previous_node: str | None = None,
    message: str = MESSAGE,
    **further: Any,
) -> None:
    """Write the event of a placement on `node` by the decision `row`, and before it that of its waiver, if any.

    `previous_node` is one that the placement may not choose.
    """
    waived = waiver.is_waived(row.walk)
    if waived:
        told = {"node": node, "previous_node": previous_node, "decision": row.id, **waiver.payload(row.walk[:-1])}
        events.record(batch, "instance", instance_uuid, waiver.MESSAGE, told, level="warning")
    payload = {
        "node": node,
        "previous_node": previous_node,
        "decision": row.id,
        "enforce": True,
        "enforce_demand": not waived,
        **further,
    }
    events.record(batch, "instance", instance_uuid, message, payload)


def record_refused(db: Database, instance_uuid: str, refusal: Refusal, **further: Any) -> None:
    """Write the event of a placement of an instance that there is already, which was refused."""
    payload = {"message": refusal.detail, "code": refusal.code, "decision": refusal.decision_id, **further}
    message = ending_message(refusal.code, refusal.stage)
    db.unit(lambda conn: events.record(conn, "instance", instance_uuid, message, payload, level="warning"))


def tell_refused(instance_uuid: str, namespace: str, refusal: Refusal) -> None:
    """Write to the log what a refused create ends with: it leaves no instance whose timeline could have the event."""
    payload = {
        "message": refusal.detail,
        "code": refusal.code,
        "stage": refusal.stage or None,
        "transient": refusal.transient,
        "namespace": namespace,
        "decision": refusal.decision_id,
    }
    events.tell("instance", instance_uuid, ending_message(refusal.code, refusal.stage), payload, "warning")
