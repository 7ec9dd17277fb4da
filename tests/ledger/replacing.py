"""Instances that are placed again: running ones on a real ledger, how their moves end, and decisions made again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from sqlalchemy import Connection

from fleet.cli.decide import decide_files
from fleet.ledger import charges, decisions, instances, moves
from fleet.ledger.database import Database, Sql
from fleet.model.lifecycle import InstanceState
from fleet.model.resources import Amounts
from fleet.placement.record import encode_decision
from fleet.services import decisions as replays
from fleet.services.context import Context
from fleet.services.create import Created
from fleet.services.place import Refusal
from fleet.services.replacing import Chosen
from tests.ledger import fleet_of, placing

MOVED = Sql("UPDATE instances SET node_id = :node_id, updated_at = {now} WHERE uuid = :uuid")


def running(ctx: Context, body: Mapping[str, Any], namespace: str = fleet_of.NAMESPACE) -> Created:
    """A create whose domain was proved."""
    made = placing.created(ctx, body, namespace)
    runs(ctx, made.uuid)
    return made


def runs(ctx: Context, uuid: str) -> None:
    def settle(conn: Connection) -> None:
        charges.settle(conn, uuid)
        assert instances.move_state(conn, uuid, {InstanceState.CREATING}, InstanceState.RUNNING)

    ctx.database.unit(settle)


def chosen(outcome: Chosen | Refusal) -> Chosen:
    assert isinstance(outcome, Chosen), outcome
    return outcome


def arrived(db: Database, uuid: str, overhead_mb: int = 0) -> None:
    """The end of a move that went well: the instance is where its incoming charge was, in that size."""
    (incoming,) = [charge for charge in charges.of_instance(db, uuid) if charge.role == "incoming"]
    holds = incoming.amounts

    def rows(conn: Connection) -> None:
        MOVED.run(conn, uuid=uuid, node_id=incoming.node_id)
        instances.resize(conn, uuid, holds.cpus, holds.memory_mb - overhead_mb, holds.disk_gb)

    assert moves.settle(db, uuid, rows=rows)


def holds(db: Database, uuid: str) -> dict[str, tuple[int, Amounts]]:
    """Which node each of its charges is on, and how much it is, by role."""
    return {charge.role: (charge.node_id, charge.amounts) for charge in charges.of_instance(db, uuid)}


def assert_replays(ctx: Context, decision_id: str | None) -> decisions.DecisionRow:
    """The stored decision comes out the same, bit for bit, from what it saw, and from the files for `fleet decide`."""
    assert decision_id is not None
    row = decisions.get(ctx.database, decision_id)
    assert row is not None
    replayed = replays.replay(ctx.database, row)
    assert encode_decision(replayed) == row.record
    inputs = replays.saved_inputs(ctx.database, row)
    with TemporaryDirectory() as folder:
        files = {name: Path(folder) / f"{name}.json" for name in ("snapshot", "request")}
        for name, file in files.items():
            file.write_text(json.dumps(inputs[name]))
        answer, _ = decide_files(str(files["snapshot"]), str(files["request"]), inputs["seed"])
    answer.pop("remedies", None)
    assert answer == replayed.as_dict()
    return row


def event_of(db: Database, uuid: str, message: str) -> dict[str, Any]:
    found = [row for row in fleet_of.events_of(db, message) if row["object_id"] == uuid]
    assert found, message
    return dict(json.loads(found[-1]["payload"]))
