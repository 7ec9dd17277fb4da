"""Release: a charge is deleted and exactly what it says goes back, in one transaction. A second release finds nothing.

Node row first, then the charge, then its payer (the recorded one: also after a claim expired), then the cluster.
Counters never go below zero: where a counter holds less than the charge, it is floored and an event says which counter,
which node, and how much was missing. `expected_demand` is not credited: it decays by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, RowMapping

from fleet.ledger import claims, events, gpus, node_rows, pending, totals
from fleet.ledger.database import Database, Sql
from fleet.model.admission import Charge
from fleet.model.gpu_inventory import GpuAsk
from fleet.model.resources import CLUSTER_DIMENSIONS, DIMENSIONS, Amounts

FIND = Sql("SELECT * FROM charges WHERE instance_uuid = :instance_uuid ORDER BY id")
LOCK = Sql("SELECT * FROM charges WHERE instance_uuid = :instance_uuid ORDER BY id {for_update}")
DELETE_CHARGE = Sql("DELETE FROM charges WHERE id = :charge_id AND node_id = :node_id")
CREDIT_NODE = Sql("""
    UPDATE scheduler_node_capacity SET
        used_cpus = {greatest}(0, used_cpus - :cpus),
        used_memory_mb = {greatest}(0, used_memory_mb - :memory_mb),
        used_disk_gb = {greatest}(0, used_disk_gb - :disk_gb),
        used_instances = {greatest}(0, used_instances - :instances),
        pending_memory_mb = {greatest}(0, pending_memory_mb - :pending_memory_mb),
        pending_disk_gb = {greatest}(0, pending_disk_gb - :pending_disk_gb),
        sleepy_memory_mb = {greatest}(0, sleepy_memory_mb - :sleepy_memory_mb),
        generation = generation + 1, updated_at = {now}
    WHERE node_id = :node_id
""")
CLUSTER_ROW = Sql("""
    SELECT unclaimed_used_cpus, unclaimed_used_memory_mb, unclaimed_used_disk_gb
    FROM cluster_capacity WHERE id = 1 {for_update}
""")
_CREDIT_CLUSTER = """
    UPDATE cluster_capacity SET
        unclaimed_used_cpus = {greatest}(0, unclaimed_used_cpus - :cpus),
        unclaimed_used_memory_mb = {greatest}(0, unclaimed_used_memory_mb - :memory_mb),
        unclaimed_used_disk_gb = {greatest}(0, unclaimed_used_disk_gb - :disk_gb),
        updated_at = {now}
    WHERE id = 1
"""
# The hottest row of all is held for one statement, but where it holds too little.
CREDIT_CLUSTER = Sql(
    _CREDIT_CLUSTER
    + """ AND unclaimed_used_cpus >= :cpus AND unclaimed_used_memory_mb >= :memory_mb
          AND unclaimed_used_disk_gb >= :disk_gb"""
)
CREDIT_CLUSTER_FLOORED = Sql(_CREDIT_CLUSTER)

R = TypeVar("R")

RELEASED: Final = "instance placement released"
CLAMPED: Final = "capacity counter clamped at zero"
NOTHING_ABOUT: Final[Mapping[str, Any]] = {}
MOVES_FOLLOWED_MAX = 4
"""How often whoever takes a charge away follows one that is placed elsewhere at the same moment."""


@dataclass(frozen=True, slots=True)
class Released:
    """What was given back. `clamped` names the counters that held less than the charge, with the missing amount."""

    charges: tuple[Charge, ...]
    clamped: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class NothingToRelease:
    """The instance holds no charge: it was released before, or never admitted."""


class ChargeMovedError(Exception):
    """The charge moved to another node before its node was locked: nothing was written, try again."""


def release(
    db: Database,
    instance_uuid: str,
    *,
    rows: Callable[[Connection], None] | None = None,
    about: Mapping[str, Any] = NOTHING_ABOUT,
) -> Released | NothingToRelease:
    """Release every charge of the instance, with the caller's `rows` in the same transaction.

    `rows` also runs when there is nothing to release: the caller's state change does not depend on it. `about` stands
    in the event of each charge that went; where none was there, an event says so.
    """
    return following(db, lambda conn: release_in(conn, instance_uuid, rows=rows, about=about))


def following(db: Database, work: Callable[[Connection], R]) -> R:
    """Run a unit that locks the nodes of an instance's charges, again where those moved before it held them.

    Raises:
        ChargeMovedError: they moved each time.
    """
    for _ in range(MOVES_FOLLOWED_MAX - 1):
        with suppress(ChargeMovedError):
            return db.unit(work)
    return db.unit(work)


def release_in(
    conn: Connection,
    instance_uuid: str,
    *,
    rows: Callable[[Connection], None] | None = None,
    about: Mapping[str, Any] = NOTHING_ABOUT,
) -> Released | NothingToRelease:
    """Release inside the caller's unit, which must not hold a lock that comes later in the lock order."""
    nodes = lock_nodes(conn, charges_of(conn, instance_uuid))
    # Read again, and locked: what a charge counts for, and who pays it, may have changed while nodes were waited for.
    found = locked_charges_of(conn, instance_uuid)
    if not {charge.node_id for charge in found} <= nodes.keys():
        raise ChargeMovedError(instance_uuid)
    gone = [charge for charge in found if delete_charge(conn, charge)]
    if found and charges_of(conn, instance_uuid):
        # A move began while a charge's own lock was waited for.
        raise ChargeMovedError(instance_uuid)
    clamped: list[tuple[str, int]] = []
    change = totals.Change()
    for charge in gone:
        change += credit_node(conn, charge, nodes[charge.node_id], clamped)
    if rows is not None:
        rows(conn)
    for charge in gone:
        payload = {**_node_after(charge, nodes[charge.node_id]), **about}
        events.record(conn, "instance", instance_uuid, RELEASED, payload)
    if about and not gone:
        events.record(conn, "instance", instance_uuid, RELEASED, {"charges": 0, **about})
    # Claims before the cluster, whatever pays: that is the lock order. Its row comes last of all that is written.
    for charge in sorted(gone, key=lambda item: (item.payer is None, item.payer)):
        clamped += credit_payer(conn, charge)
    totals.apply(conn, change)
    record_clamps(conn, instance_uuid, clamped)
    return Released(tuple(gone), tuple(clamped)) if gone else NothingToRelease()


def _node_after(charge: Charge, before: RowMapping | None) -> dict[str, Any]:
    """Return what a charge gave back, to whom, and what its node holds after that."""
    payload = {**charge.amounts.as_dict(), "payer": charge.payer or "cluster"}
    if before is None:
        return {"node": None, "node_id": charge.node_id, **payload}
    used = {
        f"node_used_{name}": max(0, before[f"used_{name}"] - getattr(charge.amounts, name))
        for name in CLUSTER_DIMENSIONS
    }
    return {"node": before["name"], **payload, **used}


def record_clamps(conn: Connection, instance_uuid: str, clamped: Sequence[tuple[str, int]]) -> None:
    """Record each counter that held less than what was taken from it, with what was missing."""
    for name, missing in clamped:
        kind, _, rest = name.partition(" ")
        node = node_rows.name_of(conn, int(rest.split()[0])) if kind == "node" else None
        payload = {"counter": name, "node": node, "missing": missing, "released": instance_uuid}
        events.record(conn, "instance", instance_uuid, CLAMPED, payload, level="warning")


def charges_of(conn: Connection, instance_uuid: str) -> list[Charge]:
    """Return the instance's charges as this transaction sees them."""
    return [charge_of(row) for row in FIND.run(conn, instance_uuid=instance_uuid).mappings()]


def locked_charges_of(conn: Connection, instance_uuid: str) -> list[Charge]:
    """Return the instance's charges and hold their rows: neither node nor payer changes before the transaction ends."""
    return [charge_of(row) for row in LOCK.run(conn, instance_uuid=instance_uuid).mappings()]


def charge_of(row: RowMapping) -> Charge:
    """Return the charge of a row of `charges`."""
    return Charge(
        charge_id=row["id"],
        instance_uuid=row["instance_uuid"],
        namespace=row["namespace"],
        node_id=row["node_id"],
        role=row["role"],
        payer=row["payer"],
        amounts=Amounts(row["cpus"], row["memory_mb"], row["disk_gb"], row["instances"]),
        placed_at_us=row["placed_at"],
        settled_at_us=row["settled_at"],
        grown=Amounts(row["grown_cpus"], row["grown_memory_mb"], row["grown_disk_gb"]),
        grown_at_us=row["grown_at"],
        ahead=Amounts(row["ahead_cpus"], row["ahead_memory_mb"], row["ahead_disk_gb"]),
        gpus=GpuAsk(row["gpus"], row["gpu_kind"], row["gpu_profile"]),
        gpus_counted=row["gpus_counted"],
        sleepy=bool(row["sleepy"]),
    )


def lock_nodes(conn: Connection, held: Iterable[Charge]) -> dict[int, RowMapping | None]:
    """Lock the rows of the nodes that hold these charges, by id, and return them; None: a node has no row."""
    return {node_id: lock_node(conn, node_id) for node_id in sorted({charge.node_id for charge in held})}


def lock_node(conn: Connection, node_id: int) -> RowMapping | None:
    """Lock a node's row and return it with the node's name; None: it has none."""
    return node_rows.LOCK_NAMED.run(conn, node_id=node_id).mappings().first()


def delete_charge(conn: Connection, charge: Charge) -> bool:
    """Delete a charge where it was found, its node's row being locked; False: somebody else did."""
    return DELETE_CHARGE.run(conn, charge_id=charge.charge_id, node_id=charge.node_id).rowcount == 1


def credit_node(
    conn: Connection, charge: Charge, before: RowMapping | None, clamped: list[tuple[str, int]]
) -> totals.Change:
    """Credit a deleted charge to its node's row, as the caller locked it. Return what that changes in the totals.

    Its GPUs are free again: those of this node only. Counters that held less than the charge are floored and noted in
    `clamped` with the missing amount.
    """
    if charge.gpus.count:
        gpus.give_back(conn, charge)
    if before is None:
        return totals.Change()
    was_pending = pending.amounts(charge, before["sample_at"])
    return credit(conn, before, charge.amounts, was_pending, clamped, sleepy=charge.sleepy)


def credit(
    conn: Connection,
    before: RowMapping,
    amounts: Amounts,
    was_pending: tuple[int, int],
    clamped: list[tuple[str, int]],
    *,
    sleepy: bool = False,
) -> totals.Change:
    """Credit amounts to a node's row, as it stands under the caller's lock; `was_pending`: memory and disk of them."""
    CREDIT_NODE.run(
        conn,
        amounts.as_dict(),
        node_id=before["node_id"],
        pending_memory_mb=was_pending[0],
        pending_disk_gb=was_pending[1],
        sleepy_memory_mb=amounts.memory_mb if sleepy else 0,
    )
    short = [(name, getattr(amounts, name) - before[f"used_{name}"]) for name in DIMENSIONS]
    clamped += [(f"node {before['node_id']} used_{name}", missing) for name, missing in short if missing > 0]
    if before["counted"]:
        return totals.Change()
    return totals.difference(before, lock_node(conn, before["node_id"]))


def credit_payer(conn: Connection, charge: Charge) -> list[tuple[str, int]]:
    """Credit the recorded payer if it is unfolded, else the cluster; once. An incoming charge has no payer.

    Returns the counters that held less, with what was missing.
    """
    return [] if charge.role != "primary" else give_back(conn, charge.payer, charge.paid)


def give_back(conn: Connection, payer: str | None, amounts: Amounts) -> list[tuple[str, int]]:
    """Credit amounts to a claim if it is unfolded, else to the cluster. Return the counters that held less."""
    from_claim = None if payer is None else claims.credit(conn, payer, amounts)
    if from_claim is not None:
        return from_claim
    given = {name: getattr(amounts, name) for name in CLUSTER_DIMENSIONS}
    if CREDIT_CLUSTER.run(conn, given).rowcount == 1:
        return []
    row = CLUSTER_ROW.run(conn).mappings().first()
    CREDIT_CLUSTER_FLOORED.run(conn, given)
    if row is None:
        return []
    return [
        (f"cluster unclaimed_used_{name}", amount - row[f"unclaimed_used_{name}"])
        for name, amount in given.items()
        if row[f"unclaimed_used_{name}"] < amount
    ]
