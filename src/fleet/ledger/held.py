"""A charge that changes its size where it is: what is compared and rewritten under the locks of an admission.

Growth names the amounts it wants, never a difference: whoever repeats it finds them, and charges nothing. The
difference is against what the caller read before (`NodeAsk.held`); under the charge's lock that must still be so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from sqlalchemy import Connection

from fleet.ledger import pending, release, totals
from fleet.ledger.ask import NodeAsk
from fleet.ledger.database import Sql
from fleet.model.admission import AlreadyPlaced, Charge, Refused, Stage
from fleet.model.resources import Amounts

NO_CHARGE = "no_charge"
CHARGE_ELSEWHERE = "charge_elsewhere"
CHARGE_MOVING = "charge_moving"
CHARGE_CHANGED = "charge_changed"

# The primary charge only: the beginning of a move holds its own new row while it waits for this one.
LOCK_PRIMARY = Sql("SELECT * FROM charges WHERE instance_uuid = :instance_uuid AND role = 'primary' {for_update}")
INCOMING = Sql("SELECT * FROM charges WHERE instance_uuid = :instance_uuid AND role = 'incoming'")
REWRITE = Sql("""
    UPDATE charges SET cpus = :cpus, memory_mb = :memory_mb, disk_gb = :disk_gb,
        grown_cpus = :grown_cpus, grown_memory_mb = :grown_memory_mb, grown_disk_gb = :grown_disk_gb,
        grown_at = CASE WHEN :grows = 1 THEN {now} ELSE grown_at END
    WHERE id = :charge_id
""")


class NotAsHeld(Exception):
    """The charge is not what the caller read, or holds what is asked for already; `outcome` says which."""

    def __init__(self, outcome: AlreadyPlaced | Refused) -> None:
        super().__init__(str(outcome))
        self.outcome = outcome


@dataclass(frozen=True, slots=True)
class Rewritten:
    """The charge as it was before, and what crediting its node with what shrank changed."""

    before: Charge
    shrunk: Amounts
    change: totals.Change
    clamped: tuple[tuple[str, int], ...]


def standing(ask: NodeAsk, charges: Sequence[Charge]) -> AlreadyPlaced | Refused | None:
    """Return what the instance's charges already answer to a growth; None: they are what the ask is based on."""
    primary = next((charge for charge in charges if charge.role == "primary"), None)
    if primary is None:
        return Refused(ask.node_id, Stage.NODE, ineligible=NO_CHARGE)
    if primary.node_id != ask.node_id:
        return Refused(ask.node_id, Stage.NODE, ineligible=CHARGE_ELSEWHERE)
    if primary.amounts == ask.amounts:
        return AlreadyPlaced(ask.node_id)
    if len(charges) > 1:
        # The destination holds the old size, and would be all that is left of the charge.
        return Refused(ask.node_id, Stage.NODE, ineligible=CHARGE_MOVING)
    return None if primary.amounts == ask.held else Refused(ask.node_id, Stage.NODE, ineligible=CHARGE_CHANGED)


def read(conn: Connection, instance_uuid: str) -> list[Charge]:
    """Return the instance's charges, the primary one locked; a move that is only beginning is not waited for."""
    rows = [statement.run(conn, instance_uuid=instance_uuid).mappings().all() for statement in (LOCK_PRIMARY, INCOMING)]
    return [release.charge_of(row) for found in rows for row in found]


def rewrite(conn: Connection, ask: NodeAsk) -> Rewritten:
    """Give the charge its new size, and its node, whose row the caller holds, what shrank.

    Raises:
        NotAsHeld: the charge was released, moved or rewritten since the caller read it.
    """
    charges = read(conn, ask.instance_uuid)
    outcome = standing(ask, charges)
    if outcome is not None:
        raise NotAsHeld(outcome)
    before = charges[0]
    node = release.lock_node(conn, ask.node_id)
    sample_at = node["sample_at"] if node is not None else 0
    after = _after(before, ask.amounts, sample_at)
    grows = after.grown_at_us is not None and after.grown_at_us != before.grown_at_us
    grown = {f"grown_{name}": getattr(after.grown, name) for name in ("cpus", "memory_mb", "disk_gb")}
    REWRITE.run(conn, {**after.amounts.as_dict(), **grown}, grows=int(grows), charge_id=before.charge_id)
    shrunk = (before.amounts - after.amounts).floored()
    if node is None or shrunk == Amounts():
        return Rewritten(before, shrunk, totals.Change(), ())
    # The guard has charged what grew, to what is used and to what is pending.
    added = (ask.charged.memory_mb, ask.charged.disk_gb)
    was, is_now = pending.amounts(before, sample_at), pending.amounts(after, sample_at)
    memory, disk = (more + old - new for more, old, new in zip(added, was, is_now, strict=True))
    clamped: list[tuple[str, int]] = []
    change = release.credit(conn, node, shrunk, (memory, disk), clamped, sleepy=before.sleepy)
    return Rewritten(before, shrunk, change, tuple(clamped))


def _after(before: Charge, target: Amounts, sample_at_us: int) -> Charge:
    """Return the charge in its new size. Growth that the sample includes is forgotten, what shrank counts against it.

    The stamp of a growth is the database's; here any time that is not before the sample stands for it.
    """
    increase = target - before.amounts
    grown = (pending.grown_since(before, sample_at_us) + increase).floored()
    grows = increase.floored() != Amounts()
    stamp = max(sample_at_us, (before.grown_at_us or 0) + 1) if grows else before.grown_at_us
    return replace(before, amounts=target, grown=grown, grown_at_us=stamp)
