"""Charging a namespace's claim, and ending one: what every writer of a claim's row shares.

`claim_grants` makes and changes claims; admission honours active rows. Whatever changes what a claim uses or promises
keeps the cluster's overage in step. A claim that ends, by its time or by deletion, gives back in that transaction what
it held; its charges go on naming it, and the cluster pays them from then on. Source: decisions, sections "Payer and
claims" and "Overage".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from sqlalchemy import Connection, RowMapping

from fleet.ledger import cluster, events
from fleet.ledger.database import Sql, Trouble, trouble
from fleet.model.errors import BrokenPromise, DatabaseUnavailable
from fleet.model.resources import CLUSTER_DIMENSIONS, Amounts, DimensionFigure

DELETED: Final = "namespace claim deleted, capacity returned"
BY_CLUSTER = "(payer IS NULL OR payer NOT IN (SELECT uuid FROM namespace_claims WHERE folded = 0))"
"""SQL for the charges that the cluster pays: they name no claim, or one that is folded or gone."""

_USE = """
    UPDATE namespace_claims SET
        used_cpus = used_cpus + :cpus, used_memory_mb = used_memory_mb + :memory_mb,
        used_disk_gb = used_disk_gb + :disk_gb, updated_at = {now}
    WHERE uuid = :uuid AND coverage_state = 'active' AND expires_at > {now}
"""
CHARGE_ADVISORY = Sql(_USE)
CHARGE_HARD = Sql(
    _USE
    + """ AND (:cpus <= :unjudged OR used_cpus + :cpus <= limit_cpus)
          AND (:memory_mb <= :unjudged OR used_memory_mb + :memory_mb <= limit_memory_mb)
          AND (:disk_gb <= :unjudged OR used_disk_gb + :disk_gb <= limit_disk_gb)"""
)
COVERS = Sql("""
    SELECT uuid FROM namespace_claims
    WHERE uuid = :uuid AND coverage_state = 'active' AND expires_at > {now} {for_update}
""")
READ = Sql("SELECT * FROM namespace_claims WHERE uuid = :uuid")
PAY_FROM_CLUSTER = Sql("UPDATE charges SET payer = NULL WHERE instance_uuid = :instance_uuid AND role = 'primary'")
CREDIT = Sql("""
    UPDATE namespace_claims SET
        used_cpus = {greatest}(0, used_cpus - :cpus), used_memory_mb = {greatest}(0, used_memory_mb - :memory_mb),
        used_disk_gb = {greatest}(0, used_disk_gb - :disk_gb), updated_at = {now}
    WHERE uuid = :uuid AND folded = 0
""")
LOCK_UNFOLDED = Sql("SELECT * FROM namespace_claims WHERE uuid = :uuid AND folded = 0 {for_update}")
SET_USED = Sql("""
    UPDATE namespace_claims SET used_cpus = :cpus, used_memory_mb = :memory_mb, used_disk_gb = :disk_gb,
        updated_at = {now}
    WHERE uuid = :uuid
""")
OVERAGE = Sql("""
    UPDATE cluster_capacity SET overage_cpus = overage_cpus + :cpus, overage_memory_mb = overage_memory_mb + :memory_mb,
        overage_disk_gb = overage_disk_gb + :disk_gb, updated_at = {now}
    WHERE id = 1
""")
LOCK_EXPIRED = Sql(
    "SELECT * FROM namespace_claims WHERE uuid = :uuid AND folded = 0 AND expires_at <= {now} {for_update}"
)
FOLD = Sql("""
    UPDATE namespace_claims SET coverage_state = 'expired', folded = 1, used_cpus = 0, used_memory_mb = 0,
        used_disk_gb = 0, updated_at = {now}
    WHERE uuid = :uuid
""")
LOCK = Sql("SELECT * FROM namespace_claims WHERE uuid = :uuid {for_update}")
DELETE = Sql("DELETE FROM namespace_claims WHERE uuid = :uuid")
# Floored, since a counter below zero would be room that nobody has; a pass sets right what was wrong before.
GIVE_BACK = Sql(
    "UPDATE cluster_capacity SET "
    + ", ".join(
        f"claimed_{name} = {{greatest}}(0, claimed_{name} - :limit_{name}), "
        f"overage_{name} = {{greatest}}(0, overage_{name} - :over_{name}), "
        f"unclaimed_used_{name} = unclaimed_used_{name} + :used_{name}"
        for name in CLUSTER_DIMENSIONS
    )
    + ", updated_at = {now} WHERE id = 1"
)


@dataclass(frozen=True, slots=True)
class Charged:
    """The claim paid; `over` lists the dimensions that stand above its limit now, with what was used before."""

    over: tuple[DimensionFigure, ...]


@dataclass(frozen=True, slots=True)
class Exceeded:
    """Hard enforcement: the claim covers the namespace and has no room."""


@dataclass(frozen=True, slots=True)
class NotCovering:
    """The claim expired or was deleted since the charge read its payer: the cluster pays."""


def charge(
    conn: Connection,
    uuid: str,
    amounts: Amounts,
    *,
    hard: bool,
    unjudged: int = -1,
    on_over: Callable[[tuple[DimensionFigure, ...]], None] = lambda _over: None,
) -> Charged | Exceeded | NotCovering:
    """Charge `amounts` to the claim under its row lock, and what that adds to the cluster's overage.

    Under hard enforcement an amount up to `unjudged` is not compared with its limit. `on_over` writes what is to be
    kept of a claim that stands above its limits now: before the cluster's row is held, which everybody waits for.
    """
    binds: dict[str, str | int] = {"uuid": uuid, "unjudged": unjudged}
    binds |= {name: getattr(amounts, name) for name in CLUSTER_DIMENSIONS}
    statement = CHARGE_HARD if hard else CHARGE_ADVISORY
    if statement.run(conn, binds).rowcount == 0:
        covers = hard and COVERS.run(conn, uuid=uuid).first() is not None
        return Exceeded() if covers else NotCovering()
    row = READ.run(conn, uuid=uuid).mappings().one()
    figures = [
        DimensionFigure.of(
            name,
            limit=row[f"limit_{name}"],
            used=row[f"used_{name}"] - getattr(amounts, name),
            requested=getattr(amounts, name),
        )
        for name in CLUSTER_DIMENSIONS
    ]
    over = tuple(figure for figure in figures if figure.exceeded)
    if over:
        on_over(over)
    _apply_overage(conn, row, before=-amounts, after=Amounts())
    return Charged(over)


def credit(conn: Connection, uuid: str, amounts: Amounts) -> list[tuple[str, int]] | None:
    """Give `amounts` back to an unfolded claim, and what that takes from the overage. None: it is folded or gone.

    Counters that held less are floored; they are returned with the missing amounts.
    """
    row = lock_unfolded(conn, uuid)
    if row is None:
        return None
    CREDIT.run(conn, uuid=uuid, cpus=amounts.cpus, memory_mb=amounts.memory_mb, disk_gb=amounts.disk_gb)
    given = Amounts(*(min(row[f"used_{name}"], getattr(amounts, name)) for name in CLUSTER_DIMENSIONS))
    _apply_overage(conn, row, before=Amounts(), after=-given)
    missing = (amounts - given).as_dict()
    return [(f"claim {uuid} used_{name}", missing[name]) for name in CLUSTER_DIMENSIONS if missing[name]]


def correct(conn: Connection, uuid: str, used: Amounts) -> None:
    """Set what a claim uses to the truth, and the cluster's overage with it; a folded one has no part in that."""
    row = lock(conn, uuid)
    if row is None:
        return
    SET_USED.run(conn, uuid=uuid, cpus=used.cpus, memory_mb=used.memory_mb, disk_gb=used.disk_gb)
    if not row["folded"]:
        _apply_overage(conn, row, before=Amounts(), after=used - amounts_of(row, "used"))


def lock(conn: Connection, uuid: str) -> RowMapping | None:
    """Lock a claim's row and return it; None: it is gone."""
    return LOCK.run(conn, uuid=uuid).mappings().first()


def lock_unfolded(conn: Connection, uuid: str) -> RowMapping | None:
    """Lock a claim's row and return it; None: it is folded or gone."""
    return LOCK_UNFOLDED.run(conn, uuid=uuid).mappings().first()


def pay_from_cluster(conn: Connection, instance_uuid: str) -> None:
    """Make the cluster the payer of an instance's charge."""
    PAY_FROM_CLUSTER.run(conn, instance_uuid=instance_uuid)


def fold_expired(conn: Connection, uuid: str) -> bool:
    """Give what a claim past its end used back to the unclaimed side, if nobody did. Its charges go on naming it."""
    ended = _fold(conn, uuid)
    if ended is None:
        return False
    _give_back(conn, ended)
    return True


def delete(conn: Connection, uuid: str, *, by: str, asked: str = "") -> RowMapping | None:
    """Delete a claim's row and give back what it held. Return the row as it was; None: it is gone already.

    One past its end is folded first. `asked` is the event of the request, where somebody asked for it.
    """
    ended = _fold(conn, uuid)
    row = LOCK.run(conn, uuid=uuid).mappings().first()
    if row is None:
        return None
    DELETE.run(conn, uuid=uuid)
    if asked:
        events.record(conn, "namespace", row["namespace"], asked, {"claim": uuid}, by=by)
    # Of the two rows the claim's own goes on telling whose it was.
    payload = {"claim": uuid, "namespace": row["namespace"], "coverage_state": row["coverage_state"], **_held(row)}
    for kind, name in (("claim", uuid), ("namespace", row["namespace"])):
        events.record(conn, kind, name, DELETED, payload, by=by)
    if ended is not None or not row["folded"]:
        _give_back(conn, ended or row)
    return row


def _fold(conn: Connection, uuid: str) -> RowMapping | None:
    """Fold a claim past its end, and return it as it was: the caller gives back what it held, last. None: it is not."""
    row = LOCK_EXPIRED.run(conn, uuid=uuid).mappings().first()
    if row is None:
        return None
    FOLD.run(conn, uuid=uuid)
    payload = {"claim": uuid, **_held(row)}
    for kind, name in (("claim", uuid), ("namespace", row["namespace"])):
        events.record(conn, kind, name, "namespace claim expired, usage folded", payload)
    return row


def is_contended(error: DatabaseUnavailable) -> bool:
    """Return whether the database answers, but others held the rows or changed them, try after try."""
    cause = error.__cause__
    return isinstance(cause, Exception) and trouble(cause) is Trouble.RETRY


def overdrawn(used: Amounts, limits: Amounts) -> Amounts:
    """Return what a claim uses beyond its limits: what the cluster's row counts as overage."""
    return (used - limits).floored()


def amounts_of(row: RowMapping, part: str) -> Amounts:
    """Return the columns `limit_*` or `used_*` of a claim's row."""
    return Amounts(*(row[f"{part}_{name}"] for name in CLUSTER_DIMENSIONS))


def binds_of(part: str, amounts: Amounts) -> dict[str, int]:
    """Return amounts as the binds `<part>_<dimension>` of a statement."""
    return {f"{part}_{name}": getattr(amounts, name) for name in CLUSTER_DIMENSIONS}


def _apply_overage(conn: Connection, row: RowMapping, *, before: Amounts, after: Amounts) -> None:
    """Apply the change of what is overdrawn; the cluster's row is touched only when that is not zero."""
    limits, used = amounts_of(row, "limit"), amounts_of(row, "used")
    change = overdrawn(used + after, limits) - overdrawn(used + before, limits)
    if change != Amounts():
        OVERAGE.run(conn, change.as_dict())


def _give_back(conn: Connection, row: RowMapping) -> None:
    """Take what an unfolded claim promised from the cluster's row, and hand it what the claim used.

    Raises:
        BrokenPromise: the cluster has no row, so nothing could be given back.
    """
    limits, used = amounts_of(row, "limit"), amounts_of(row, "used")
    binds = binds_of("limit", limits) | binds_of("used", used) | binds_of("over", overdrawn(used, limits))
    if GIVE_BACK.run(conn, binds).rowcount == 0:
        raise BrokenPromise(cluster.MISSING)


def _held(row: RowMapping) -> dict[str, int]:
    """Return what a claim held, as events say it: its limits and what it used."""
    return binds_of("limit", amounts_of(row, "limit")) | binds_of("used", amounts_of(row, "used"))
