"""What is left of what a namespace may be charged: its claim's room, or the cluster's unclaimed side.

Read without locks, for display; the guards of an admission have the last word. Source: decisions, "Payer and claims".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fleet.ledger.database import Database, Sql
from fleet.model.errors import BrokenPromise
from fleet.model.resources import CLUSTER_DIMENSIONS

READ = Sql("""
    SELECT k.*, n.uuid AS claim, n.limit_cpus, n.limit_memory_mb, n.limit_disk_gb,
           n.used_cpus, n.used_memory_mb, n.used_disk_gb
    FROM cluster_capacity k
    LEFT JOIN namespace_claims n ON n.active_namespace = :namespace AND n.expires_at > {now}
    WHERE k.id = 1
""")


@dataclass(frozen=True, slots=True)
class PayerRoom:
    """What the payer of a namespace's next charge has left; None: nothing bounds it. It may be below zero."""

    claim: str | None
    left: Mapping[str, int | None]


def room_of(db: Database, namespace: str, *, claim_hard: bool) -> PayerRoom:
    """Return the room of the claim that covers a namespace (bounded under hard enforcement only), or the cluster's."""
    with db.read() as conn:
        row = READ.run(conn, namespace=namespace).mappings().first()
    if row is None:
        raise BrokenPromise("the row of cluster_capacity is missing; `fleet ctl migrate-db` makes it")
    if row["claim"] is not None:
        bounded = {name: row[f"limit_{name}"] - row[f"used_{name}"] for name in CLUSTER_DIMENSIONS}
        return PayerRoom(row["claim"], bounded if claim_hard else dict.fromkeys(CLUSTER_DIMENSIONS))
    left = {
        name: None
        if row[f"unlimited_{name}"]
        else row[f"total_{name}"] - row[f"claimed_{name}"] - row[f"unclaimed_used_{name}"] - row[f"overage_{name}"]
        for name in CLUSTER_DIMENSIONS
    }
    return PayerRoom(None, left)
