"""What is left of what a namespace may be charged: its claim's room, or the cluster's unclaimed side.

Read without locks, for display; the guards of an admission have the last word. Source: decisions, "Payer and claims".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.ledger import cluster
from fleet.ledger.database import Database, Sql
from fleet.model.errors import BrokenPromise
from fleet.model.resources import CLUSTER_DIMENSIONS, Amounts, DimensionFigure

READ = Sql(f"""
    SELECT k.*, {cluster.UNUSED}, n.uuid AS claim, n.limit_cpus, n.limit_memory_mb, n.limit_disk_gb,
           n.used_cpus, n.used_memory_mb, n.used_disk_gb
    FROM cluster_capacity k
    LEFT JOIN namespace_claims n ON n.active_namespace = :namespace AND n.expires_at > {{now}}
    WHERE k.id = 1
""")


@dataclass(frozen=True, slots=True)
class Side:
    """A limit and what is used of it, by dimension; a limit of None bounds nothing."""

    limit: Mapping[str, int | None]
    used: Mapping[str, int]

    @property
    def left(self) -> dict[str, int | None]:
        """What is left; it may be below zero."""
        return {name: None if most is None else most - self.used[name] for name, most in self.limit.items()}

    def figures(self, amounts: Amounts, *, grows: bool = False) -> tuple[DimensionFigure, ...]:
        """Judge amounts as the guard does: a new charge is compared in every dimension, asked for or not.

        `grows`: they are added to a charge that is there, and only what grows is compared.
        """
        asked = {name: getattr(amounts, name) for name in self.limit}
        return tuple(
            DimensionFigure.of(
                name, limit=limit, used=self.used[name], requested=asked[name], judged=asked[name] > 0 or not grows
            )
            for name, limit in self.limit.items()
        )


@dataclass(frozen=True, slots=True)
class PayerRoom:
    """Who pays for a namespace's next charge, and the room that bounds it: `claim` None is the cluster.

    A claim bounds under hard enforcement only. `unclaimed` is the cluster's side, whoever pays; `idle` is what claims
    hold back and do not use.
    """

    claim: str | None
    side: Side
    unclaimed: Side
    idle: Mapping[str, int]


def room_of(db: Database, namespace: str, *, claim_hard: bool) -> PayerRoom:
    """Return the room of the claim that covers a namespace, or the cluster's.

    Raises:
        DatabaseUnavailable: nothing is known.
    """
    with db.read() as conn:
        row = READ.run(conn, namespace=namespace).mappings().first()
    if row is None:
        raise BrokenPromise(cluster.MISSING)
    sides = {name: cluster.unclaimed_side(row, name) for name in CLUSTER_DIMENSIONS}
    unclaimed = Side(
        {name: most for name, (most, _) in sides.items()}, {name: used for name, (_, used) in sides.items()}
    )
    idle = cluster.claims_unused(row)
    if row["claim"] is None:
        return PayerRoom(None, unclaimed, unclaimed, idle)
    limit = {name: row[f"limit_{name}"] if claim_hard else None for name in CLUSTER_DIMENSIONS}
    used = {name: row[f"used_{name}"] for name in CLUSTER_DIMENSIONS}
    return PayerRoom(row["claim"], Side(limit, used), unclaimed, idle)
