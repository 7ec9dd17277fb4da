"""What one try asks of one node: the question that admission answers, and what of it each guard is to judge.

A create asks for all of its amounts. A charge that grows where it is asks for what is added, a move for all of them on
its destination and for what is added at its payer; the guards read here which of it they compare and charge.
"""

from __future__ import annotations

from dataclasses import dataclass
from decimal import Decimal

from fleet.model.gpu_inventory import NO_GPUS_ASKED, GpuAsk
from fleet.model.resources import Amounts
from fleet.placement.rules.enforced import Enforced


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeAsk:
    """What one try asks of one node. `amounts` include the overhead; `demand` and `target_load` are loads.

    `source` names the node that holds the draft now, when a create is placed again elsewhere; `incoming` asks for the
    destination of a move, whose source keeps its own charge until the move settles. Either way namespace and cluster
    are left alone: they were charged when the first charge was made. `enforce` False is for ground-truth writers only:
    they record where a domain already is, and no guard may hide that.

    `held` is what the instance's primary charge was read to hold. On this very node the ask is then to bring it to
    `amounts`, and only what grows is judged and charged (`ledger/growth.py` reads it); its `gpus` stay as they are. Of
    a move (`incoming`) this node is charged everything, the payer what grows. `sleepy`: the instance sleeps when it is
    idle, so its memory counts among what may wake up on its node.

    `enforced` are the rules that the instance brings; None where none is to hold: a growth in place, a domain that is
    where it is, a destination that an operator named.
    """

    instance_uuid: str
    namespace: str
    node_id: int
    amounts: Amounts
    demand: Decimal
    target_load: Decimal
    sample_age_max_seconds: int
    claim_hard: bool = False
    admit_unsized: bool = False
    wait: bool = False
    source: int | None = None
    incoming: bool = False
    enforce: bool = True
    held: Amounts | None = None
    gpus: GpuAsk = NO_GPUS_ASKED
    sleepy: bool = False
    enforced: Enforced | None = None

    @property
    def in_place(self) -> bool:
        """Whether the charge that this node holds is to change its size."""
        return self.held is not None and not self.incoming

    @property
    def charged(self) -> Amounts:
        """What is charged to the node: everything, or what is added to the charge it holds."""
        return self.paid if self.in_place else self.amounts

    @property
    def unjudged(self) -> int:
        """Up to which amount a dimension is not judged: what does not grow a charge that is there always fits."""
        return 0 if self.in_place else -1

    @property
    def paid(self) -> Amounts:
        """What the payer is charged: everything, or what is added to what it pays already."""
        if self.held is not None:
            return (self.amounts - self.held).floored()
        return Amounts() if self.incoming or self.source is not None else self.amounts

    @property
    def unjudged_by_payer(self) -> int:
        """The same at the payer's guards."""
        return -1 if self.held is None else 0

    @property
    def schedulings(self) -> tuple[str, str]:
        """The scheduling states that admit it: a cordoned node may still grow what it holds."""
        return "enabled", "cordoned" if self.in_place else "enabled"

    @property
    def charges_payer(self) -> bool:
        """Whether a namespace's claim or the cluster pays: not when the instance is paid for already."""
        return self.source is None and (not self.incoming or self.paid != Amounts())
