"""Who pays for what an admission charges: the claim that covers the namespace, or the cluster's unclaimed side.

The claim's own row has the last word on covering. One that ended leaves its charge to the cluster, whose row is the
last that any transaction touches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from sqlalchemy import Connection

from fleet.ledger import claims, events, node_rows, release
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Sql
from fleet.model.admission import Stage
from fleet.model.resources import DimensionFigure

# Where a claim pays, the condition is false before any row is looked up: such a transaction neither locks the cluster's
# row, nor waits for those that do.
_UNCLAIMED_USE = """
    UPDATE cluster_capacity SET
        unclaimed_used_cpus = unclaimed_used_cpus + :cpus,
        unclaimed_used_memory_mb = unclaimed_used_memory_mb + :memory_mb,
        unclaimed_used_disk_gb = unclaimed_used_disk_gb + :disk_gb,
        updated_at = {now}
    WHERE id = 1 AND EXISTS (
        SELECT 1 FROM charges WHERE instance_uuid = :instance_uuid AND role = 'primary' AND payer IS NULL)
"""

CLUSTER_FORCED = Sql(_UNCLAIMED_USE)

CLUSTER_GUARD = Sql(
    _UNCLAIMED_USE
    + """
      AND (:cpus <= :unjudged OR unlimited_cpus > 0
           OR unclaimed_used_cpus + overage_cpus + :cpus <= total_cpus - claimed_cpus)
      AND (:memory_mb <= :unjudged OR unlimited_memory_mb > 0
           OR unclaimed_used_memory_mb + overage_memory_mb + :memory_mb <= total_memory_mb - claimed_memory_mb)
      AND (:disk_gb <= :unjudged OR unlimited_disk_gb > 0
           OR unclaimed_used_disk_gb + overage_disk_gb + :disk_gb <= total_disk_gb - claimed_disk_gb)
"""
)

RECORDED = Sql("SELECT payer FROM charges WHERE instance_uuid = :instance_uuid AND role = 'primary' {for_update}")


OVER_CLAIM: Final = "placement admitted over namespace capacity claim"


@dataclass(frozen=True, slots=True)
class Paid:
    """Who paid: a claim's uuid, with the dimensions in which it is over its limit now, or None for the cluster."""

    payer: str | None
    over_claim: tuple[DimensionFigure, ...] = ()


def charge(
    conn: Connection, ask: NodeAsk, params: dict[str, Any], named: str | None, cluster_guard: Sql
) -> Paid | Stage:
    """Charge the claim that the charge names, or the cluster. A stage is the guard that refused.

    A charge that grows after its claim ended is the cluster's as a whole: an unfolded claim gives back what it paid.
    """
    given_back: list[tuple[str, int]] | None = None
    params = {**params, **ask.paid.as_dict(), "unjudged": ask.unjudged_by_payer}
    if named is not None:
        hard = ask.claim_hard and ask.enforce
        charged = claims.charge(
            conn,
            named,
            ask.paid,
            hard=hard,
            unjudged=ask.unjudged_by_payer,
            on_over=lambda over: _record_over(conn, ask, over),
        )
        if isinstance(charged, claims.Charged):
            return Paid(named, charged.over)
        if isinstance(charged, claims.Exceeded):
            return Stage.CLAIM
        given_back = None if ask.held is None else claims.credit(conn, named, ask.held)
        release.record_clamps(conn, ask.instance_uuid, given_back or ())
        claims.pay_from_cluster(conn, ask.instance_uuid)
    if cluster_guard.run(conn, params).rowcount == 0 and cluster_guard is CLUSTER_GUARD:
        return Stage.CLUSTER
    if given_back is not None and ask.held is not None:
        # Unguarded: the promise that covered it has ended, and leaves `claimed_*` with the fold.
        CLUSTER_FORCED.run(conn, params, **ask.held.as_dict())
    return Paid(None)


def _record_over(conn: Connection, ask: NodeAsk, over: tuple[DimensionFigure, ...]) -> None:
    """Record that a placement took its claim over its limits, for the instance and for who answers for the claim."""
    payload = {
        "node": node_rows.name_of(conn, ask.node_id),
        "namespace": ask.namespace,
        "claim_dimensions": [figure.as_dict() for figure in over],
    }
    events.record(conn, "instance", ask.instance_uuid, OVER_CLAIM, payload, level="warning")
    about = {**payload, "instance": ask.instance_uuid}
    events.record(conn, "namespace", ask.namespace, OVER_CLAIM, about, level="warning")


def recorded(conn: Connection, ask: NodeAsk) -> str | None:
    """Return the claim that the instance's primary charge names, whose row is held: it pays what a move adds."""
    found: str | None = RECORDED.run(conn, instance_uuid=ask.instance_uuid).scalar_one()
    return found
