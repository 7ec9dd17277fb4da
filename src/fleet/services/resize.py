"""Resizing: another size for an instance, where it is when the increase fits there, else on another node.

Growth in place is done in the ledger when this returns; a move is begun, and whoever carries it out settles or aborts
it (`ledger/moves.py`). What makes the size true on a node is not done here.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from fleet.ledger import growth, moves
from fleet.ledger.admission import Rows
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database
from fleet.model.admission import AdmissionOutcome, Charge
from fleet.model.errors import InvalidRequest
from fleet.model.request import AMOUNT_MAX, CPUS_MAX, PlacementRequest, Reason
from fleet.model.resources import Amounts
from fleet.services import replacing
from fleet.services.context import Context
from fleet.services.place import Admit, Refusal
from fleet.services.replacing import Chosen, Key, NewRows, no_rows

BOUNDS = {"cpus": (1, CPUS_MAX), "memory_mb": (1, AMOUNT_MAX), "disk_gb": (0, AMOUNT_MAX)}


def resize(
    ctx: Context, instance_uuid: str, target: Amounts, *, new_rows: NewRows = no_rows, key: Key | None = None
) -> Chosen | Refusal:
    """Bring an instance to `target` (vCPUs, memory and disk as its owner counts them, without overhead).

    Its own node is judged by the increase alone, comes first, and is exempt from rules and a cordon; any other holds
    all of the new size, under the rules that the instance was made with. GPUs and sleep stay as they are.

    Raises:
        NotFound, Conflict: as `replacing.subject`; InvalidRequest: an amount is out of bounds.
    """
    who, holds, request = resize_request(ctx, instance_uuid, target)
    if holds == who.charge.amounts:
        return Chosen(who.charge.node_id, who.node, None, moves=False)
    verb = _grow_or_move(who.charge, ctx.configuration().scheduler_demand_per_vcpu)
    return replacing.place_again(ctx, who, request, verb, holds=holds, new_rows=new_rows, key=key)


def resize_request(
    ctx: Context, instance_uuid: str, target: Amounts
) -> tuple[replacing.Subject, Amounts, PlacementRequest]:
    """Return the instance, what its charge is to hold, and what is asked.

    Raises:
        NotFound, Conflict, InvalidRequest: as `resize`.
    """
    problems = [
        {"field": name, "message": f"must be {least} to {most}, got {getattr(target, name)}"}
        for name, (least, most) in BOUNDS.items()
        if not least <= getattr(target, name) <= most
    ]
    if problems:
        raise InvalidRequest("; ".join(f"{item['field']} {item['message']}" for item in problems), errors=problems)
    who = replacing.subject(ctx, instance_uuid)
    holds = who.holds(target)
    return who, holds, replacing.question(ctx, who, Reason.RESIZE, holds)


def _grow_or_move(home: Charge, per_vcpu: Decimal) -> Admit:
    """Return the ledger's verb: growth on the node that holds the instance, the begin of a move on any other."""

    def admit(db: Database, ask: NodeAsk, rows: Rows) -> AdmissionOutcome:
        if ask.node_id == home.node_id:
            here = replace(ask, enforced=None)
            return growth.grow(db, here, rows, per_vcpu=per_vcpu)
        there = replace(ask, held=home.amounts, gpus=home.gpus, sleepy=home.sleepy)
        return moves.begin(db, there, rows)

    return admit
