"""The cluster's row as readers see it: what counts, what is claimed, what is used outside claims, what is left."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from sqlalchemy import RowMapping

from fleet.ledger.database import Database, Sql
from fleet.model.errors import BrokenPromise
from fleet.model.resources import CLUSTER_DIMENSIONS

UNUSED: Final = ", ".join(
    f"(SELECT COALESCE(SUM(CASE WHEN limit_{name} > used_{name} THEN limit_{name} - used_{name} ELSE 0 END), 0)"
    f" FROM namespace_claims WHERE folded = 0) AS claims_unused_{name}"
    for name in CLUSTER_DIMENSIONS
)
"""Columns: what claims hold back and do not use, beside the cluster's row `k`."""

READ = Sql(f"SELECT k.*, {UNUSED} FROM cluster_capacity k WHERE k.id = 1")
MISSING: Final = "the row of cluster_capacity is missing; `fleet ctl migrate-db` makes it"
"""What is wrong where the row that every ledger has is not there: no guard may take that for a full cluster."""

PING = Sql("SELECT {now} AS now_us")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterView:
    """Amounts by dimension; a total of None is unlimited, because a counted node has no limit there.

    `claims_unused` is what claims hold back and do not use.
    """

    total: dict[str, int | None]
    claimed: dict[str, int]
    unclaimed_used: dict[str, int]
    overage: dict[str, int]
    claims_unused: dict[str, int]
    counted_nodes: int
    updated_at_us: int

    @property
    def left(self) -> dict[str, int | None]:
        """What namespaces without a claim may still use together; None is unlimited, below zero is too much given.

        It is also what a new claim may promise, beyond what its namespace uses already: that moves into the claim.
        """
        return {name: None if total is None else total - self._taken(name) for name, total in self.total.items()}

    def _taken(self, name: str) -> int:
        return self.claimed[name] + self.unclaimed_used[name] + self.overage[name]


def view(db: Database) -> ClusterView:
    """Return the cluster's row."""
    with db.read() as conn:
        row = READ.run(conn).mappings().first()
    if row is None:
        raise BrokenPromise(MISSING)
    return ClusterView(
        total={name: None if row[f"unlimited_{name}"] else row[f"total_{name}"] for name in CLUSTER_DIMENSIONS},
        claimed={name: row[f"claimed_{name}"] for name in CLUSTER_DIMENSIONS},
        unclaimed_used={name: row[f"unclaimed_used_{name}"] for name in CLUSTER_DIMENSIONS},
        overage={name: row[f"overage_{name}"] for name in CLUSTER_DIMENSIONS},
        claims_unused=claims_unused(row),
        counted_nodes=row["counted_nodes"],
        updated_at_us=row["updated_at"],
    )


def unclaimed_side(row: RowMapping, name: str) -> tuple[int | None, int]:
    """Return a dimension of the cluster's row as the guard of unclaimed use compares it.

    The limit is what no claim was promised, None where there is none; used of it is what no claim pays, and what claims
    overdraw.
    """
    limit = None if row[f"unlimited_{name}"] else row[f"total_{name}"] - row[f"claimed_{name}"]
    return limit, row[f"unclaimed_used_{name}"] + row[f"overage_{name}"]


def claims_unused(row: RowMapping) -> dict[str, int]:
    """Return what claims hold back and do not use, of a row with those columns."""
    return {name: int(row[f"claims_unused_{name}"]) for name in CLUSTER_DIMENSIONS}


def now_us(db: Database) -> int:
    """Return the database's time: proof that it answers."""
    with db.read() as conn:
        return int(PING.run(conn).scalar_one())
