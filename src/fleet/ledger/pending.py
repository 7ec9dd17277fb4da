"""Pending: what a node's sample cannot include yet. One rule, as SQL for sums; for one charge the formulas.

A draft has no proof of its domain, an incoming move has no domain there, and a domain that was proved at the moment the
measuring began, or later, may have been missed by it: equal times count as newer. Of a charge that the sample includes,
what it grew by since then is pending still.
"""

from __future__ import annotations

from fleet.model import capacity
from fleet.model.admission import Charge
from fleet.model.resources import Amounts

_WHOLE = "ch.settled_at IS NULL OR ch.role = 'incoming' OR ch.settled_at >= c.sample_at"


def amount_of(dimension: str) -> str:
    """Return SQL for what is pending of a row `ch` of charges, `c` being its node's row of scheduler_node_capacity.

    The dimension is `memory_mb` or `disk_gb`.
    """
    grown = f"ch.grown_at >= c.sample_at THEN ch.grown_{dimension}"
    return f"(CASE WHEN {_WHOLE} THEN ch.{dimension} WHEN {grown} ELSE 0 END)"


def amounts(charge: Charge, sample_at_us: int) -> tuple[int, int]:
    """Return the memory and the disk of a charge that a sample whose measuring began at `sample_at_us` cannot include.

    Growth is kept as one sum with the time of the last: a sample from between two growths counts both as pending.
    """
    missed = charge.role == "incoming" or capacity.missed_by_sample(charge.settled_at_us, sample_at_us)
    grew = _grew_since(charge, sample_at_us)
    memory, disk = (
        capacity.pending_amount(
            getattr(charge.amounts, name), getattr(charge.grown, name), missed=missed, growth_missed=grew
        )
        for name in ("memory_mb", "disk_gb")
    )
    return memory, disk


def grown_since(charge: Charge, sample_at_us: int) -> Amounts:
    """Return what the charge grew by since a sample's measuring began; equal times count as newer."""
    return charge.grown if _grew_since(charge, sample_at_us) else Amounts()


def _grew_since(charge: Charge, sample_at_us: int) -> bool:
    return charge.grown_at_us is not None and capacity.missed_by_sample(charge.grown_at_us, sample_at_us)
