"""Granting a namespace a claim, changing one, deleting one: a promise is made only where the cluster has room for it.

One transaction each, in the lock order: the caller's key, the namespace's charges by id, its row, the claim, the
cluster's row last and guarded. What the cluster paid for the namespace is the new claim's from then on, so its use is
not counted twice; a charge that is being admitted at that moment stays the cluster's, until a pass re-homes it. A guard
that matches no row *is* the refusal: everything is rolled back and the figures are read afterwards. A claim past its
end is folded first. Source: decisions, sections "Payer and claims" and "Overage".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal, TypeAlias

from sqlalchemy import Connection, RowMapping
from sqlalchemy.exc import DBAPIError, IntegrityError

from fleet.ledger import claim_views, claims, cluster, events, idempotency
from fleet.ledger.claim_views import ClaimView, view_of
from fleet.ledger.claims import BY_CLUSTER, amounts_of, binds_of, overdrawn
from fleet.ledger.database import Database, Sql, SqlOfLists, Trouble, trouble
from fleet.ledger.idempotency import Keyed
from fleet.model.errors import BrokenPromise, ClaimDeleteFailed, DatabaseUnavailable
from fleet.model.moment import iso
from fleet.model.resources import CLUSTER_DIMENSIONS, Amounts, DimensionFigure

CHARGES_AT_ONCE = 500
ENDINGS_FOLLOWED_MAX = 4
"""How often a grant starts again because the claim that stood in its way ended meanwhile."""

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
# The namespace's row is held, shared, to the end of the transaction: no claim is born in one that is being deleted.
INSERT = Sql("""
    INSERT INTO namespace_claims (uuid, namespace, limit_cpus, limit_memory_mb, limit_disk_gb,
        used_cpus, used_memory_mb, used_disk_gb, coverage_state, folded, expires_at, created_at, updated_at)
    SELECT :uuid, name, :limit_cpus, :limit_memory_mb, :limit_disk_gb,
        :used_cpus, :used_memory_mb, :used_disk_gb, 'active', 0, {now} + :seconds * 1000000, {now}, {now}
    FROM namespaces WHERE name = :namespace AND deleted_at IS NULL {share}
""")
EXPIRED = Sql("""
    SELECT uuid FROM namespace_claims WHERE namespace = :namespace AND folded = 0 AND expires_at <= {now} ORDER BY uuid
""")
# A claim never changes its namespace, so that is read without a lock; it comes before the claim in the lock order.
NAMESPACE = Sql("SELECT namespace FROM namespace_claims WHERE uuid = :uuid")
HOLD_NAMESPACE = Sql("SELECT name FROM namespaces WHERE name = :name AND deleted_at IS NULL {share}")
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
    "claim_exists",
    "claim_below_usage",
    "claim_not_active",
    "claim_capacity",
    "claim_conflict",
    "no_cluster_capacity",
    "no_schedulable_nodes",
    "not_found",
]
Granted: TypeAlias = ClaimView
"""The claim as it stands: `used` is what its namespace's charges took over from the cluster, or took since."""


@dataclass(frozen=True, slots=True)
class ClaimRefused:
    """Nothing was changed. `claim_capacity` and `claim_below_usage` have the figures of every dimension judged.

    `claim` is the one that stands in the way of another, if it still does.
    """

    code: RefusedFor
    figures: tuple[DimensionFigure, ...] = ()
    claim: str | None = None


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
    db: Database,
    namespace: str,
    limits: Amounts,
    expires_in_seconds: int,
    *,
    uuid: str,
    by: str = "",
    keyed: Keyed | None = None,
) -> Granted | ClaimRefused:
    """Promise `limits` to the namespace under the caller's fresh `uuid`. It pays for what the namespace holds already.

    `keyed` is stored with the claim; where that key is in use already, the answer is `claim_exists`.

    Raises:
        DatabaseUnavailable: nothing is known; the caller must not read it as "full".
    """
    work = partial(
        _grant, uuid=uuid, namespace=namespace, limits=limits, seconds=expires_in_seconds, by=by, keyed=keyed
    )
    for _ in range(ENDINGS_FOLLOWED_MAX):
        for expired in _expired(db, namespace):
            db.unit(partial(claims.fold_expired, uuid=expired))
        try:
            return _unit(db, work, on_lost=lambda: _standing(db, uuid))
        except IntegrityError as error:
            if trouble(error) is not Trouble.DUPLICATE:
                raise
        if not _expired(db, namespace):
            return ClaimRefused("claim_exists", claim=claim_views.active(db, namespace))
    return ClaimRefused("claim_conflict")


def change(
    db: Database, uuid: str, limits: Mapping[str, int], expires_in_seconds: int | None = None, *, by: str = ""
) -> Granted | ClaimRefused:
    """Set the limits named, and the end, counted from now. One dimension may grow while another shrinks, or neither.

    Repeating it changes nothing more, but for the end.

    Raises:
        DatabaseUnavailable: nothing is known; the caller must not read it as "full".
    """
    return _unit(db, partial(_change, uuid=uuid, limits=limits, seconds=expires_in_seconds, by=by))


def delete(db: Database, uuid: str, *, by: str = "") -> ClaimView | None:
    """Delete a claim and give back what it held, at once. Return it as it was; None: there is none (any more).

    Raises:
        ClaimDeleteFailed: the database answered and did not do it; the claim and its capacity stand.
        DatabaseUnavailable: nothing is known; it is safe to repeat.
    """
    seen: list[ClaimView] = []

    def work(conn: Connection) -> ClaimView | None:
        row = claims.delete(conn, uuid, by=by, asked="delete namespace claim request from REST API")
        if row is None:
            return None
        seen.append(view_of(row))
        return seen[-1]

    def gone() -> ClaimView | None:
        return seen[-1] if seen and _standing(db, uuid) is None else None

    try:
        return db.unit(work, on_lost=gone)
    except DatabaseUnavailable as error:
        if claims.is_contended(error):
            raise ClaimDeleteFailed("its rows, or the cluster's, stayed locked by others") from error
        raise
    except (DBAPIError, BrokenPromise) as error:
        raise ClaimDeleteFailed(str(getattr(error, "orig", None) or error).splitlines()[0]) from error


def _standing(db: Database, uuid: str) -> ClaimView | None:
    """Read a claim back after a lost answer: a locking read waits for a transaction that is still ending."""
    row = db.unit(lambda conn: claims.LOCK.run(conn, uuid=uuid).mappings().first())
    return None if row is None else view_of(row)


def _unit(
    db: Database,
    work: Callable[[Connection], Granted | ClaimRefused],
    on_lost: Callable[[], Granted | ClaimRefused | None] | None = None,
) -> Granted | ClaimRefused:
    """Run one promise; a guard that refused is explained after the rollback."""
    try:
        return db.unit(work, on_lost=on_lost)
    except _NoRoom as refused:
        return _explain(db, refused.promise)
    except _Refused as known:
        return known.refused
    except DatabaseUnavailable as error:
        if claims.is_contended(error):
            return ClaimRefused("claim_conflict")
        raise


def _grant(
    conn: Connection, *, uuid: str, namespace: str, limits: Amounts, seconds: int, by: str, keyed: Keyed | None
) -> Granted:
    # The key comes first in the lock order; what to answer is known only after the charges.
    idempotency.keep(conn, keyed, {})
    ids = [row.id for row in FIND_CHARGES.run(conn, namespace=namespace)]
    for at in range(0, len(ids), CHARGES_AT_ONCE):
        FLIP.run(conn, {"ids": ids[at : at + CHARGES_AT_ONCE]}, uuid=uuid)
    paid = PAID.run(conn, uuid=uuid).mappings().one()
    used = Amounts(*(int(paid[name]) for name in CLUSTER_DIMENSIONS))
    named = binds_of("limit", limits)
    binds = {**named, **binds_of("used", used)}
    if INSERT.run(conn, binds, uuid=uuid, namespace=namespace, seconds=seconds).rowcount == 0:
        raise _Refused(ClaimRefused("not_found"))
    made = view_of(claims.READ.run(conn, uuid=uuid).mappings().one())
    idempotency.answered(conn, keyed, made.as_dict())
    asked = {"claim": uuid, **named, "expires_in_seconds": seconds}
    events.record(conn, "namespace", namespace, "create namespace claim request from REST API", asked, by=by)
    # The request says how long from now; only the moment tells when it ends.
    taken = {**binds, "charges": int(paid["charges"]), "expires_at": iso(made.expires_at_us)}
    events.record(conn, "claim", uuid, "db record created", taken, by=by)
    _promise(conn, _Promise(limits, overdrawn(used, limits), used))
    return made


def _change(
    conn: Connection, *, uuid: str, limits: Mapping[str, int], seconds: int | None, by: str
) -> Granted | ClaimRefused:
    namespace = NAMESPACE.run(conn, uuid=uuid).scalar_one_or_none()
    if namespace is None or HOLD_NAMESPACE.run(conn, name=namespace).first() is None:
        return ClaimRefused("not_found")
    if claims.fold_expired(conn, uuid):
        return ClaimRefused("claim_not_active")
    row = LOCK.run(conn, uuid=uuid).mappings().first()
    if row is None:
        return ClaimRefused("not_found")
    if not row["covers"]:
        return ClaimRefused("claim_not_active")
    old, used = amounts_of(row, "limit"), amounts_of(row, "used")
    new = Amounts(*(limits.get(name, getattr(old, name)) for name in CLUSTER_DIMENSIONS))
    delta = new - old
    figures = tuple(
        DimensionFigure.of(name, limit=getattr(new, name), used=getattr(used, name), requested=0)
        for name in CLUSTER_DIMENSIONS
        if getattr(delta, name) < 0
    )
    if any(figure.exceeded for figure in figures):
        return ClaimRefused("claim_below_usage", figures)
    CHANGE.run(conn, {name: getattr(new, name) for name in CLUSTER_DIMENSIONS}, uuid=uuid, seconds=seconds)
    changed = claims.READ.run(conn, uuid=uuid).mappings().one()
    _record_change(conn, row, changed, seconds, by)
    if delta != Amounts():
        growing = tuple(name for name in CLUSTER_DIMENSIONS if getattr(delta, name) > 0)
        _promise(conn, _Promise(delta, overdrawn(used, new) - overdrawn(used, old), judged=growing))
    return view_of(changed)


def _record_change(conn: Connection, before: RowMapping, after: RowMapping, seconds: int | None, by: str) -> None:
    names = [f"limit_{name}" for name in CLUSTER_DIMENSIONS if before[f"limit_{name}"] != after[f"limit_{name}"]]
    if not names and seconds is None:
        return
    old, new = ({name: row[name] for name in names} for row in (before, after))
    payload: dict[str, Any] = {"claim": after["uuid"], "old": old, "new": new}
    if seconds is not None:
        # How long from now was said, so only the two moments tell by how much a claim was prolonged or cut short.
        old["expires_at"], new["expires_at"] = iso(before["expires_at"]), iso(after["expires_at"])
        payload["expires_in_seconds"] = seconds
    for kind, name in (("claim", after["uuid"]), ("namespace", after["namespace"])):
        events.record(conn, kind, name, "namespace claim changed", payload, by=by)


def _promise(conn: Connection, promise: _Promise) -> None:
    """Apply a promise to the cluster's row, under its guard: the transaction's last statement that writes."""
    binds: dict[str, Any] = {f"judged_{name}": int(name in promise.judged) for name in CLUSTER_DIMENSIONS}
    binds |= binds_of("delta", promise.delta) | binds_of("over", promise.over) | binds_of("migrated", promise.migrated)
    # Giving back needs no node: only a promise does.
    if PROMISE.run(conn, binds, counted_min=int(bool(promise.judged))).rowcount == 0:
        raise _NoRoom(promise)


def _explain(db: Database, promise: _Promise) -> ClaimRefused:
    """Return the refusal with the cluster's figures as they are now: they can differ from what the guard saw."""
    with db.read() as conn:
        row = cluster.READ.run(conn).mappings().first()
    if row is None:
        return ClaimRefused("no_cluster_capacity")
    if row["counted_nodes"] == 0:
        return ClaimRefused("no_schedulable_nodes")
    return ClaimRefused("claim_capacity", tuple(_figure(row, name, promise) for name in CLUSTER_DIMENSIONS))


def _figure(row: RowMapping, name: str, promise: _Promise) -> DimensionFigure:
    """Return one dimension as the guard judges it: `used` is what others use outside claims or overdraw."""
    requested = getattr(promise.delta, name)
    limit, used = cluster.unclaimed_side(row, name)
    # What the namespace uses already moves into its claim; a pass may find that the cluster held less than that.
    used += getattr(promise.over, name) - min(row[f"unclaimed_used_{name}"], getattr(promise.migrated, name))
    return DimensionFigure.of(name, limit=limit, used=used, requested=requested, judged=name in promise.judged)


def _expired(db: Database, namespace: str) -> list[str]:
    with db.read() as conn:
        return [str(row.uuid) for row in EXPIRED.run(conn, namespace=namespace)]
