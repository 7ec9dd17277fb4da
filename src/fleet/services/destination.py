"""Choosing where a migration or an evacuation goes: a node that an operator names, or the best one that fits.

The destination is held in the ledger when this returns; whoever carries the move out settles or aborts it
(`ledger/moves.py`). A refusal marks nothing: where a drain names destinations, no room there says nothing about others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fleet.ledger import moves
from fleet.ledger.admission import Rows
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database
from fleet.model.admission import AdmissionOutcome
from fleet.model.errors import Conflict
from fleet.model.request import PlacementRequest, Reason
from fleet.placement.ask import MOVES
from fleet.placement.rules.enforced import Enforced
from fleet.services import replacing
from fleet.services.context import Context
from fleet.services.place import Admit, Refusal
from fleet.services.replacing import Chosen, Key, NewRows, Subject, no_rows


def choose_destination(
    ctx: Context,
    instance_uuid: str,
    *,
    reason: Reason = Reason.MIGRATE,
    node: str | None = None,
    destinations: Sequence[str] | None = None,
    new_rows: NewRows = no_rows,
    key: Key | None = None,
) -> Chosen | Refusal:
    """Hold a destination for an instance; never the node that it is on.

    `node`: an operator names it, which overrides labels, rules and affinity that the instance was made with (recorded),
    but neither room nor the node's state. `destinations` restrict the choice: None any, empty none.

    Raises:
        NotFound: no such instance; Conflict: as `replacing.subject`, or `node` is where the instance is.
    """
    assert reason in MOVES, "a move has a reason of its own"
    who, request = move_request(ctx, instance_uuid, reason, node=node, destinations=destinations)
    told = {"named": True, "overridden": _overridden(who)} if node is not None else {}
    verb = _move(who, named=node is not None)
    return replacing.place_again(ctx, who, request, verb, new_rows=new_rows, key=key, told=told)


def move_request(
    ctx: Context,
    instance_uuid: str,
    reason: Reason,
    *,
    node: str | None = None,
    destinations: Sequence[str] | None = None,
) -> tuple[Subject, PlacementRequest]:
    """Return the instance and what its move asks: what it was made with, or no more than the named node.

    Raises:
        NotFound, Conflict: as `choose_destination`.
    """
    who = replacing.subject(ctx, instance_uuid)
    if node is not None and node == who.node:
        raise Conflict(f"the instance is {who.instance.state} on node {node}: a move goes to another node")
    changed: dict[str, Any] = {"destinations": None if destinations is None else list(destinations)}
    if node is not None:
        metadata = {
            key: value for key, value in (who.instance.request.get("metadata") or {}).items() if key != "affinity"
        }
        changed |= {"placement": {"node": node}, "placement_rules": [], "affinity": None, "metadata": metadata or None}
    return who, replacing.question(ctx, who, reason, **changed)


def _overridden(who: Subject) -> list[str]:
    """Return which wishes of the instance a named destination overrides."""
    made = who.instance.request
    given = {
        "placement.node": (made.get("placement") or {}).get("node"),
        "placement.labels": (made.get("placement") or {}).get("labels"),
        "placement_rules": made.get("placement_rules"),
        "affinity": made.get("affinity") or (made.get("metadata") or {}).get("affinity"),
    }
    return [name for name, value in given.items() if value]


def _move(who: Subject, *, named: bool) -> Admit:
    """Return the ledger's verb. What the instance brings is handed on with a named node too: the ledger records it."""
    brings = Enforced.of(PlacementRequest.model_validate(who.instance.request), ()) if named else None

    def admit(db: Database, ask: NodeAsk, rows: Rows) -> AdmissionOutcome:
        there = replace(ask, gpus=who.charge.gpus, sleepy=who.charge.sleepy, enforced=brings if named else ask.enforced)
        return moves.begin(db, there, rows, named=named)

    return admit
