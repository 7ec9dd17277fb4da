"""The simulation's own books, beside the ledger: what was placed where, kept by nobody who admits.

Promise: `oversold` is judged from placements alone. Every placement is added to its node and compared with the node's
limit, and every card with who holds it; so a ledger that sells twice is found out, whatever it believes of itself.
"""

from __future__ import annotations

from collections.abc import Sequence

from fleet.model import capacity
from fleet.model.cluster_config import ClusterConfig
from fleet.model.figures import measured_of
from fleet.model.resources import DIMENSIONS, Amounts, Limits
from fleet.simulation.ledger import Charge
from fleet.simulation.machines import Ground


class Books:
    """Who holds what, from the placements themselves."""

    def __init__(self, grounds: Sequence[Ground], config: ClusterConfig) -> None:
        """Compute every node's limits anew."""
        self.limits: list[Limits] = []
        for ground in grounds:
            measured = measured_of(ground.sample(0), config)
            limits = capacity.node_limits(measured, config.ratios, ground.machine.max_instances).limits
            self.limits.append(limits)
        self.used = [Amounts()] * len(grounds)
        self.total = Amounts()
        self.gpus_total = sum(ground.machine.gpus for ground in grounds)
        self.gpus_used = 0
        self.nodes_in_use = 0
        self.oversold = 0
        self._holders: dict[str, int] = {}

    def place(self, charge: Charge) -> None:
        """Add a placement; count it as oversold in each dimension that it takes over its limit."""
        before = self.used[charge.node]
        after = self.used[charge.node] = before + charge.amounts
        limits = self.limits[charge.node].as_dict()
        for name in DIMENSIONS:
            limit = limits[name]
            self.oversold += limit is not None and getattr(after, name) > limit
        for unit in charge.units:
            self.oversold += unit in self._holders
            self._holders[unit] = charge.index
        self.total += charge.amounts
        self.gpus_used += len(charge.units)
        self.nodes_in_use += before.instances == 0

    def leave(self, charge: Charge) -> None:
        """Take a placement away."""
        self.used[charge.node] -= charge.amounts
        for unit in charge.units:
            self._holders.pop(unit, None)
        self.total -= charge.amounts
        self.gpus_used -= len(charge.units)
        self.nodes_in_use -= self.used[charge.node].instances == 0

    def totals(self) -> dict[str, int | None]:
        """Return the sum of all limits by dimension; None where some node is unlimited."""
        found: dict[str, int | None] = {}
        for name in DIMENSIONS:
            limits = [getattr(one, name) for one in self.limits]
            found[name] = None if None in limits else sum(limits)
        return found
