"""Growth in place: a charge that changes its size on the node that holds it, through the guard of every other growth.

Judged by the increase alone, dimension by dimension: what shrinks or stays is never refused, and the slot is held
already. A cordoned node may grow what it holds; a draining, stale or failed one may not. The demand clause asks, as
always, about the node and not the request, so it stands wherever vCPUs are added; the caller may waive it in a second
walk, since demand alone refuses nothing. The payer is charged what grows and credited what shrinks.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from fleet.ledger import admission, charges, held
from fleet.ledger.admission import NO_ROWS, Rows
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Database
from fleet.model import capacity
from fleet.model.admission import AdmissionOutcome, Busy, Charge, Refused
from fleet.model.resources import Amounts

REWRITES_FOLLOWED_MAX = 4
"""How often a growth starts again because the charge was rewritten between its being read and its being locked."""


def grow(db: Database, ask: NodeAsk, rows: Rows = NO_ROWS, *, per_vcpu: Decimal = Decimal(0)) -> AdmissionOutcome:
    """Bring the instance's charge on `ask.node_id` to `ask.amounts`, with all rows that must stand or fall with it.

    `ask.held` and `ask.demand` are set here, from the charge as it stands; `per_vcpu` is SCHEDULER_DEMAND_PER_VCPU, for
    the vCPUs that are added.

    Returns:
        Admitted; AlreadyPlaced (the charge has this size: nothing was written); Refused by a guard, or with
        `ineligible` "no_charge", "charge_elsewhere" or "charge_moving"; Busy (the node's row is locked, or the charge
        is rewritten faster than it can be read: says nothing about room).
    """
    for _ in range(REWRITES_FOLLOWED_MAX):
        before = charges.of_instance(db, ask.instance_uuid)
        based = _based_on(ask, next((charge for charge in before if charge.role == "primary"), None), per_vcpu)
        known = held.standing(based, before)
        if known is not None:
            return known
        outcome = admission.admit(db, based, rows)
        if not isinstance(outcome, Refused):
            return outcome
        if charges.of_instance(db, ask.instance_uuid) == before:
            return outcome
        # What was refused was a difference to a size that the charge has no more: that says nothing.
    return Busy(ask.node_id)


def _based_on(ask: NodeAsk, charge: Charge | None, per_vcpu: Decimal) -> NodeAsk:
    """Return the ask with the difference it makes: slots and GPUs stay, and only added vCPUs bring demand."""
    if charge is None:
        return replace(ask, held=Amounts())
    target = replace(ask.amounts, instances=charge.amounts.instances)
    demand = capacity.demand_at_admission(max(0, target.cpus - charge.amounts.cpus), per_vcpu)
    return replace(ask, amounts=target, held=charge.amounts, demand=demand, gpus=charge.gpus, sleepy=charge.sleepy)
