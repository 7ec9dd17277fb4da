"""Granting a namespace a claim, and changing one: a promise is made only where the cluster's row has room for it.

One transaction each, in the lock order: the namespace's charges by id, the claim, the cluster's row last and guarded.
What the cluster paid for the namespace is the new claim's from then on, so its use is not counted twice; a charge that
is being admitted at that moment stays the cluster's, until a pass re-homes it. A guard that matches no row *is* the
refusal: everything is rolled back and the figures are read afterwards. A claim past its end is folded first, in a
transaction of its own. Source: decisions, sections "Payer and claims" and "Overage".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

from sqlalchemy import Connection, RowMapping
from sqlalchemy.exc import IntegrityError

from fleet.ledger import claims, events, refusal
from fleet.ledger.claims import BY_CLUSTER, amounts_of, binds_of, overdrawn
from fleet.ledger.database import Database, Sql, SqlOfLists, Trouble, trouble
from fleet.model.errors import BrokenPromise
from fleet.model.resources import CLUSTER_DIMENSIONS, Amounts, DimensionFigure

CHARGES_AT_ONCE = 500

FIND_CHARGES = Sql(
    f"SELECT id FROM charges WHERE namespace = :namespace AND role = 'primary' AND {BY_CLUSTER} ORDER BY id"
)
# Judged again under each row's lock: what was released or paid by another meanwhile is left alone.
FLIP = SqlOfLists(f"UPDATE charges SET payer = :uuid WHERE id IN ({{ids}}) AND {BY_CLUSTER}")
PAID = Sql(
    "SELECT COUNT(*) AS charges, "
    + ", ".join(f"COALESCE(SUM({name} + ahead_{name}), 0) AS {name}" for name in CLUSTER_DIMENSIONS)
    + " FROM charges WHERE payer = :uuid"
)
INSERT = Sql("""
    INSERT INTO namespace_claims (uuid, namespace, limit_cpus, limit_memory_mb, limit_disk_gb,
        used_cpus, used_memory_mb, used_disk_gb, coverage_state, folded, expires_at, created_at, updated_at)
    VALUES (:uuid, :namespace, :limit_cpus, :limit_memory_mb, :limit_disk_gb,
        :used_cpus, :used_memory_mb, :used_disk_gb, 'active', 0, {now} + :seconds * 1000000, {now}, {now})
""")
EXPIRED = Sql("""
    SELECT uuid FROM namespace_claims WHERE namespace = :namespace AND folded = 0 AND expires_at <= {now} ORDER BY uuid
""")
LOCK = Sql("""
    SELECT k.*, CASE WHEN coverage_state = 'active' AND folded = 0 AND expires_at > {now} THEN 1 ELSE 0 END AS covers
    FROM namespace_claims k WHERE uuid = :uuid {for_update}
""")
CHANGE = Sql("""
    UPDATE namespace_claims SET limit_cpus = :cpus, limit_memory_mb = :memory_mb, limit_disk_gb = :disk_gb,
        expires_at = CASE WHEN :seconds IS NULL THEN expires_at ELSE {now} + :seconds * 1000000 END, updated_at = {now}
    WHERE uuid = :uuid
""")
PROMISE = Sql(
    "UPDATE cluster_capacity SET "
    + ", ".join(
        f"claimed_{name} = claimed_{name} + :delta_{name}, overage_{name} = overage_{name} + :over_{name}, "
        f"unclaimed_used_{name} = {{greatest}}(0, unclaimed_used_{name} - :migrated_{name})"
        for name in CLUSTER_DIMENSIONS
    )
    + ", updated_at = {now} WHERE id = 1 AND counted_nodes >= :counted_min"
    + "".join(
        f" AND (:judged_{name} = 0 OR unlimited_{name} > 0 OR claimed_{name} + :delta_{name} + overage_{name}"
        f" + :over_{name} + {{greatest}}(0, unclaimed_used_{name} - :migrated_{name}) <= total_{name})"
        for name in CLUSTER_DIMENSIONS
    )
)

RefusedFor = Literal[
    "claim_exists", "claim_below_usage", "claim_not_active", "claim_capacity", "no_schedulable_nodes", "not_found"
]


@dataclass(frozen=True, slots=True)
class Granted:
    """The claim as it stands: `used` is what its namespace's charges took over from the cluster, or took since."""

    uuid: str
    namespace: str
    limits: Amounts
    used: Amounts
    expires_at_us: int


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """Nothing was changed. `claim_capacity` and `claim_below_usage` have the figures of every dimension judged."""

    code: RefusedFor
    figures: tuple[DimensionFigure, ...] = ()


@dataclass(frozen=True, slots=True)
class _Promise:
    """What the cluster's row is to change by; `judged` are the dimensions that its guard compares with the total."""

    delta: Amounts
    over: Amounts
    migrated: Amounts = field(default_factory=Amounts)
    judged: tuple[str, ...] = CLUSTER_DIMENSIONS


class _NoRoom(Exception):
    def __init__(self, promise: _Promise) -> None:
        self.promise = promise


class _Refused(Exception):
    def __init__(self, refused: ClaimRefused) -> None:
        self.refused = refused


def grant(
    db: Database, namespace: str, limits: Amounts, expires_in_seconds: int, *, uuid: str
) -> Granted | ClaimRefused:
    """Promise `limits` to the namespace under the caller's fresh `uuid`. It pays for what the namespace holds already.

    Raises:
        DatabaseUnavailable: nothing is known; the caller must not read it as "full".
    """
    for expired in _expired(db, namespace):
        db.unit(partial(claims.fold_expired, uuid=expired))
    try:
        return db.unit(
            lambda conn: _grant(conn, uuid, namespace, limits, expires_in_seconds), on_lost=lambda: _granted(db, uuid)
        )
    except _NoRoom as refused:
        return _explain(db, refused.promise)
    except IntegrityError as error:
        if trouble(error) is not Trouble.DUPLICATE:
            raise
        return ClaimRefused("claim_exists")


def change(
    db: Database, uuid: str, limits: Mapping[str, int], expires_in_seconds: int | None = None
) -> Granted | ClaimRefused:
    """Set the limits named, and the end, counted from now. One dimension may grow while another shrinks, or neither.

    Repeating it changes nothing more, but for the end.

    Raises:
        DatabaseUnavailable: nothing is known; the caller must not read it as "full".
    """
    db.unit(partial(claims.fold_expired, uuid=uuid))
    try:
        return db.unit(lambda conn: _change(conn, uuid, limits, expires_in_seconds))
    except _NoRoom as refused:
        return _explain(db, refused.promise)
    except _Refused as refusal_:
        return refusal_.refused


def _grant(conn: Connection, uuid: str, namespace: str, limits: Amounts, seconds: int) -> Granted:
    ids = [row.id for row in FIND_CHARGES.run(conn, namespace=namespace)]
    for at in range(0, len(ids), CHARGES_AT_ONCE):
        FLIP.run(conn, {"ids": ids[at : at + CHARGES_AT_ONCE]}, uuid=uuid)
    paid = PAID.run(conn, uuid=uuid).mappings().one()
    used = Amounts(*(int(paid[name]) for name in CLUSTER_DIMENSIONS))
    INSERT.run(
        conn, {**binds_of("limit", limits), **binds_of("used", used)}, uuid=uuid, namespace=namespace, seconds=seconds
    )
    about = {"claim": uuid, **binds_of("limit", limits), **binds_of("used", used), "charges": int(paid["charges"])}
    events.record(conn, "namespace", namespace, "namespace claim granted", {**about, "expires_in_seconds": seconds})
    _promise(conn, _Promise(limits, overdrawn(used, limits), used))
    return _view(claims.READ.run(conn, uuid=uuid).mappings().one())


def _change(conn: Connection, uuid: str, limits: Mapping[str, int], seconds: int | None) -> Granted:
    row = LOCK.run(conn, uuid=uuid).mappings().first()
    if row is None:
        raise _Refused(ClaimRefused("not_found"))
    if not row["covers"]:
        raise _Refused(ClaimRefused("claim_not_active"))
    old, used = amounts_of(row, "limit"), amounts_of(row, "used")
    new = Amounts(*(limits.get(name, getattr(old, name)) for name in CLUSTER_DIMENSIONS))
    delta = new - old
    shrinking = [name for name in CLUSTER_DIMENSIONS if getattr(delta, name) < 0]
    figures = tuple(
        DimensionFigure.of(name, limit=getattr(new, name), used=getattr(used, name), requested=0) for name in shrinking
    )
    if any(figure.exceeded for figure in figures):
        raise _Refused(ClaimRefused("claim_below_usage", figures))
    sizes = {name: getattr(new, name) for name in CLUSTER_DIMENSIONS}
    CHANGE.run(conn, sizes, uuid=uuid, seconds=seconds)
    about = {"claim": uuid, **binds_of("limit", new), "expires_in_seconds": seconds}
    events.record(conn, "namespace", row["namespace"], "namespace claim changed", about)
    if delta != Amounts():
        growing = tuple(name for name in CLUSTER_DIMENSIONS if getattr(delta, name) > 0)
        _promise(conn, _Promise(delta, overdrawn(used, new) - overdrawn(used, old), judged=growing))
    return _view(claims.READ.run(conn, uuid=uuid).mappings().one())


def _promise(conn: Connection, promise: _Promise) -> None:
    """Apply a promise to the cluster's row, under its guard: the transaction's last statement that writes."""
    binds: dict[str, Any] = {f"judged_{name}": int(name in promise.judged) for name in CLUSTER_DIMENSIONS}
    binds |= binds_of("delta", promise.delta) | binds_of("over", promise.over) | binds_of("migrated", promise.migrated)
    # Giving back needs no node: only a promise does.
    if PROMISE.run(conn, binds, counted_min=int(bool(promise.judged))).rowcount == 0:
        raise _NoRoom(promise)


def _explain(db: Database, promise: _Promise) -> ClaimRefused:
    """Return the refusal with the cluster's figures as they are now: they can differ from what the guard saw.

    `used` is what others use outside claims; where claims overdraw, `exceeded` and `shortfall` count that too.
    """
    with db.read() as conn:
        row = refusal.CLUSTER.run(conn).mappings().first()
    if row is None:
        raise BrokenPromise("the row of cluster_capacity is missing; `fleet ctl migrate-db` makes it")
    if row["counted_nodes"] == 0:
        return ClaimRefused("no_schedulable_nodes")
    return ClaimRefused("claim_capacity", tuple(_figure(row, name, promise) for name in CLUSTER_DIMENSIONS))


def _figure(row: RowMapping, name: str, promise: _Promise) -> DimensionFigure:
    requested = getattr(promise.delta, name)
    limit = None if row[f"unlimited_{name}"] else row[f"total_{name}"] - row[f"claimed_{name}"]
    used = max(0, row[f"unclaimed_used_{name}"] - getattr(promise.migrated, name))
    overdrawn = row[f"overage_{name}"] + getattr(promise.over, name)
    short = 0 if limit is None or name not in promise.judged else max(0, used + overdrawn + requested - limit)
    return DimensionFigure(name, limit, used, requested, exceeded=short > 0, shortfall=short)


def _expired(db: Database, namespace: str) -> list[str]:
    with db.read() as conn:
        return [str(row.uuid) for row in EXPIRED.run(conn, namespace=namespace)]


def _granted(db: Database, uuid: str) -> Granted | None:
    with db.read() as conn:
        row = claims.READ.run(conn, uuid=uuid).mappings().first()
    return None if row is None else _view(row)


def _view(row: RowMapping) -> Granted:
    return Granted(row["uuid"], row["namespace"], amounts_of(row, "limit"), amounts_of(row, "used"), row["expires_at"])
