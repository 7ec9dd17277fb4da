"""Pending: which charges a node's sample cannot include yet. One rule, as SQL for sums and in Python for one charge.

A draft has no proof of its domain, an incoming move has no domain there, and a domain that was proved at the moment the
measuring began, or later, may have been missed by it: equal times count as newer.
"""

from __future__ import annotations

from fleet.model.admission import Charge

OF_CHARGE = "(ch.settled_at IS NULL OR ch.role = 'incoming' OR ch.settled_at >= c.sample_at)"
"""The rule for a row `ch` of charges and its node's row `c` of scheduler_node_capacity."""


def is_pending(charge: Charge, sample_at_us: int) -> bool:
    """Return whether a sample whose measuring began at `sample_at_us` cannot include the charge."""
    return charge.settled_at_us is None or charge.role == "incoming" or charge.settled_at_us >= sample_at_us
