"""What one try to admit answered: a value, never an exception. "Refused" and "failed" are different things."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from fleet.model.gpu_inventory import NO_GPUS_ASKED, GpuAsk
from fleet.model.resources import Amounts, DimensionFigure

NOTHING = Amounts()


class Stage(StrEnum):
    """The guard that said no, in the order in which the guards stand."""

    NODE = "node"
    GPU = "gpu"
    CLAIM = "claim"
    CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Admitted:
    """The charge is committed. `payer` is a claim's uuid, or None when the cluster pays.

    `over_claim` lists the dimensions in which the payer's claim is now over its limit (advisory mode). `gpu_uuids` are
    the cards or slices that the instance got; none where its node only counts them.
    """

    node_id: int
    payer: str | None = None
    over_claim: tuple[DimensionFigure, ...] = ()
    unguarded: bool = False
    gpu_uuids: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class AlreadyPlaced:
    """The instance holds its charge already: the answer of the first try stands."""

    node_id: int


@dataclass(frozen=True, slots=True)
class Refused:
    """A guard matched no row. The figures were read after the rollback and may differ from what the guard saw.

    `unclaimed` are the cluster's own figures beside a claim's: whether the claim could grow. `idle` is, beside the
    cluster's figures, what claims hold back and do not use, by dimension.
    """

    node_id: int
    failing_stage: Stage
    figures: tuple[DimensionFigure, ...] = ()
    state: str = ""
    scheduling: str = ""
    sample_age_seconds: float | None = None
    ineligible: str = ""
    unclaimed: tuple[DimensionFigure, ...] = ()
    idle: Mapping[str, int] = field(default_factory=dict)

    @property
    def demand_only(self) -> bool:
        """Whether only the demand clause refused: every real dimension had room and the node was eligible."""
        over = [figure.dimension for figure in self.figures if figure.exceeded]
        return self.failing_stage is Stage.NODE and not self.ineligible and over == ["demand"]


@dataclass(frozen=True, slots=True)
class Busy:
    """The node's row was locked by another transaction: says nothing about room."""

    node_id: int


@dataclass(frozen=True, slots=True)
class RuleBroken:
    """A rule that held on the snapshot does not hold under the locks: others were faster. Says nothing about room.

    `rule` names it: `placement_rules[0]`, `require_without_tag role=db`.
    """

    node_id: int
    rule: str


AdmissionOutcome = Admitted | AlreadyPlaced | Refused | Busy | RuleBroken


@dataclass(frozen=True, slots=True)
class Charge:
    """The ledger row of one instance on one node. Times are database microseconds, UTC.

    `settled_at_us` None: a draft, the node has not proved the domain's presence. `payer` None: the cluster pays, or the
    charge is an incoming one, which nobody pays until it settles. `grown` is what it grew by where it is, up to
    `grown_at_us`; samples from before that cannot include it. `ahead` is what the payer pays beyond it: the growth of a
    move under way. Of the `gpus` it asked for, `gpus_counted` are in a count
    of the node, the others are bound to the instance by their uuids. `sleepy`: the instance sleeps when it is idle.
    """

    charge_id: int
    instance_uuid: str
    namespace: str
    node_id: int
    role: str
    payer: str | None
    amounts: Amounts
    placed_at_us: int
    settled_at_us: int | None
    grown: Amounts = NOTHING
    grown_at_us: int | None = None
    ahead: Amounts = NOTHING
    gpus: GpuAsk = NO_GPUS_ASKED
    gpus_counted: int = 0
    sleepy: bool = False

    @property
    def paid(self) -> Amounts:
        """What its payer pays, and gets back: what it holds, and what a move under way adds."""
        return self.amounts + self.ahead
