"""A namespace's claims of cluster capacity: made, read, changed and given up by the admin.

What is not there is answered in the same words, whether the namespace, the claim or both are missing, or the claim is
another namespace's. A read that fails says so; it never answers that there is no claim. A deleted namespace's claims
hold their capacity for a while yet: they are read and given up like any other, but neither made nor changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final
from uuid import UUID

from fleet.ledger import claim_grants, claim_views, namespaces
from fleet.ledger.claim_grants import ClaimRefused
from fleet.ledger.claim_views import ClaimView
from fleet.ledger.database import Database
from fleet.ledger.idempotency import Keyed
from fleet.ledger.instances import Position
from fleet.model.errors import (
    ClaimBelowUsage,
    ClaimCapacity,
    ClaimConflict,
    ClaimExists,
    ClaimNotActive,
    ClaimNotReady,
    FleetError,
    InvalidRequest,
    NotFound,
)
from fleet.model.request import is_name
from fleet.model.resources import Amounts, DimensionFigure
from fleet.services.authentication import Caller, require_admin
from fleet.services.idempotency import RetryKey, once

NO_CLAIM: Final = "no such namespace or claim"
NOTHING_TO_UPDATE: Final = "no claim fields to update specified"


def create(
    db: Database,
    caller: Caller,
    namespace: str,
    limits: Amounts,
    expires_in_seconds: int,
    *,
    uuid: str,
    retry_key: RetryKey | None,
) -> ClaimView:
    """Promise capacity to a namespace, for so many seconds, under the fresh `uuid`. Admin only.

    Raises:
        NotFound: no such namespace.
        ClaimExists: it holds an active claim.
        ClaimCapacity: the cluster cannot promise that much.
        ClaimNotReady, ClaimConflict, DatabaseUnavailable: try again.
    """
    require_admin(caller)
    _require_namespace(db, namespace)

    def make(keyed: Keyed | None) -> ClaimView:
        made = claim_grants.grant(db, namespace, limits, expires_in_seconds, uuid=uuid, by=caller.by, keyed=keyed)
        if isinstance(made, ClaimRefused):
            raise _refusal(made)
        return made

    return once(db, retry_key, make=make, replay=ClaimView.from_dict)


def listing(
    db: Database, caller: Caller, namespace: str | None, limit: int, after: tuple[int, str] | None = None
) -> list[ClaimView]:
    """Return a namespace's claims (None: the cluster's), expired ones too, youngest first. Admin only."""
    require_admin(caller)
    if namespace is not None:
        _require_namespace(db, namespace, deleted=True)
    return claim_views.listing(db, namespace, limit, None if after is None else Position(*after))


def get(db: Database, caller: Caller, namespace: str, ref: str) -> ClaimView:
    """Return one claim of a namespace. Admin only.

    Raises:
        NotFound: there is none; `ref` need not even be a uuid.
        DatabaseUnavailable: nothing is known about it.
    """
    require_admin(caller)
    _require_namespace(db, namespace, deleted=True)
    found = claim_views.get(db, namespace, _uuid(ref))
    if found is None:
        raise NotFound(NO_CLAIM)
    return found


def events_of(db: Database, caller: Caller, namespace: str, ref: str) -> str:
    """Return the uuid of a claim whose events may be read; a deleted one's are, as long as they are kept. Admin only.

    Raises:
        NotFound: there is none and, as far as is known, there was none.
        DatabaseUnavailable: nothing is known about it.
    """
    try:
        return get(db, caller, namespace, ref).uuid
    except NotFound:
        if not is_name(namespace) or not claim_views.was_of(db, namespace, _uuid(ref)):
            raise
        return _uuid(ref)


def update(
    db: Database, caller: Caller, namespace: str, ref: str, limits: Mapping[str, int], expires_in_seconds: int | None
) -> ClaimView:
    """Set the limits given, and the end where it is given, counted from now. Admin only.

    Raises:
        InvalidRequest: nothing is given.
        NotFound, ClaimBelowUsage, ClaimNotActive, ClaimCapacity: nothing was changed.
        ClaimNotReady, ClaimConflict, DatabaseUnavailable: try again.
    """
    require_admin(caller)
    if not limits and expires_in_seconds is None:
        raise InvalidRequest(NOTHING_TO_UPDATE, errors=[{"field": "body", "message": NOTHING_TO_UPDATE}])
    found = get(db, caller, namespace, ref)
    changed = claim_grants.change(db, found.uuid, limits, expires_in_seconds, by=caller.by)
    if isinstance(changed, ClaimRefused):
        raise _refusal(changed, growing=True)
    return changed


def delete(db: Database, caller: Caller, namespace: str, ref: str) -> ClaimView:
    """Delete a claim, covering or expired, and return it as it was; its capacity is the cluster's again. Admin only.

    A deleted namespace's claim is deleted like any other: that is how its capacity returns before the cleaner's delay.

    Raises:
        NotFound: there is none (any more).
        ClaimDeleteFailed: it stands, with its capacity.
        DatabaseUnavailable: nothing is known; repeat.
    """
    found = get(db, caller, namespace, ref)
    gone = claim_grants.delete(db, found.uuid, by=caller.by)
    if gone is None:
        raise NotFound(NO_CLAIM)
    return replace(gone, namespace_deleted_at_us=found.namespace_deleted_at_us)


def _require_namespace(db: Database, name: str, *, deleted: bool = False) -> None:
    find = namespaces.get_or_deleted if deleted else namespaces.get
    if not is_name(name) or find(db, name) is None:
        raise NotFound(NO_CLAIM)


def _uuid(ref: str) -> str:
    try:
        return str(UUID(ref))
    except ValueError:
        raise NotFound(NO_CLAIM) from None


def _refusal(refused: ClaimRefused, *, growing: bool = False) -> FleetError:
    """Return what a caller is told of a refusal."""
    figures, again = refused.figures, "try again in a moment"
    match refused.code:
        case "not_found":
            return NotFound(NO_CLAIM)
        case "claim_exists":
            told = "the namespace holds an active claim already; change that one, or delete it first"
            return ClaimExists(told, **({} if refused.claim is None else {"claim": refused.claim}))
        case "claim_below_usage":
            told = f"the claim cannot be smaller than what its namespace uses of it: {_told(figures, requested=False)}"
            return ClaimBelowUsage(told, dimensions=_forms(figures))
        case "claim_not_active":
            told = "the claim has expired and covers nothing; delete it and make a new one"
            return ClaimNotActive(told, coverage_state="expired")
        case "claim_capacity":
            # Of a claim that grows, the growth is what is requested.
            what = "the growth of this claim" if growing else "this claim"
            told = f"the cluster does not have the capacity to promise {what}: {_told(figures)}"
            return ClaimCapacity(told, dimensions=_forms(figures))
        case "no_cluster_capacity":
            return ClaimNotReady(f"the cluster's capacity is not known yet, so nothing can be promised; {again}")
        case "no_schedulable_nodes":
            told = "no node counts in the cluster's capacity, so nothing can be promised"
            return ClaimNotReady(f"{told}; {again}, once a node has published a sample")
        case "claim_conflict":
            return ClaimConflict(f"the claim or what it depends on is being changed by others; {again}")


def _told(figures: Iterable[DimensionFigure], *, requested: bool = True) -> str:
    """Return the dimensions that stand in the way, or all where none reads so by now."""
    known = list(figures)
    shown = [figure for figure in known if figure.exceeded] or known
    return ", ".join(
        f"{figure.dimension} (limit {'unlimited' if figure.limit is None else figure.limit}, used {figure.used}"
        + (f", requested {figure.requested})" if requested else ")")
        for figure in shown
    )


def _forms(figures: Iterable[DimensionFigure]) -> list[dict[str, Any]]:
    return [figure.as_dict() for figure in figures]
