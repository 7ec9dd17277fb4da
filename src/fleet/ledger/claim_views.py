"""Claims as they are stored: what a reader sees. Reads never write.

A claim past its end reads as it stands in its row, active, until a pass folds it: that is when the cluster takes its
capacity back. A read that cannot reach the database raises; it never answers that there is no claim, because whoever
read that would believe its capacity returned. A claim of a deleted namespace reads like any other until it goes: it
still holds its capacity.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import RowMapping

from fleet.ledger import events
from fleet.ledger.claims import DELETED, amounts_of
from fleet.ledger.database import Database, Sql
from fleet.ledger.instances import Position
from fleet.model.resources import Amounts

_CLAIMS = """
    SELECT k.*, n.deleted_at AS namespace_deleted_at
    FROM namespace_claims k LEFT JOIN namespaces n ON n.name = k.namespace
"""
_OF_NAMESPACE = _CLAIMS + " WHERE k.namespace = :namespace"
_AFTER = "(k.created_at < :at OR (k.created_at = :at AND k.uuid < :cursor_uuid))"
_YOUNGEST_FIRST = " ORDER BY k.created_at DESC, k.uuid DESC LIMIT :limit"
GET = Sql(_CLAIMS + " WHERE k.uuid = :uuid")
LIST = Sql(_OF_NAMESPACE + _YOUNGEST_FIRST)
LIST_AFTER = Sql(f"{_OF_NAMESPACE} AND {_AFTER}{_YOUNGEST_FIRST}")
LIST_ALL = Sql(_CLAIMS + _YOUNGEST_FIRST)
LIST_ALL_AFTER = Sql(f"{_CLAIMS} WHERE {_AFTER}{_YOUNGEST_FIRST}")
ACTIVE = Sql("SELECT uuid FROM namespace_claims WHERE active_namespace = :namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimView:
    """One claim; times are database microseconds. `coverage_state` is active or, once it is folded, expired.

    `namespace_deleted_at_us`: its namespace is deleted since then, and the reconciler deletes the claim after a while.
    """

    uuid: str
    namespace: str
    coverage_state: str
    limits: Amounts
    used: Amounts
    expires_at_us: int
    created_at_us: int
    updated_at_us: int
    namespace_deleted_at_us: int | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return what `from_dict` reads, as JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, form: Mapping[str, Any]) -> ClaimView:
        """Return the claim of `as_dict`."""
        return cls(**{**form, "limits": Amounts(**form["limits"]), "used": Amounts(**form["used"])})


def get(db: Database, namespace: str, uuid: str) -> ClaimView | None:
    """Return one claim of the namespace; another's is none.

    Raises:
        DatabaseUnavailable: nothing is known about it.
    """
    with db.read() as conn:
        row = GET.run(conn, uuid=uuid).mappings().first()
    return None if row is None or row["namespace"] != namespace else view_of(row)


def was_of(db: Database, namespace: str, uuid: str) -> bool:
    """Return whether a deleted claim was the namespace's, as far as its timeline is kept: its end is the last to go."""
    last = events.listing(db, "claim", uuid, limit=1)
    return bool(last) and last[0].message == DELETED and last[0].payload.get("namespace") == namespace


def listing(db: Database, namespace: str | None, limit: int, after: Position | None = None) -> list[ClaimView]:
    """Return a namespace's claims (None: all), whether they cover or not, youngest first.

    Raises:
        DatabaseUnavailable: nothing is known about them.
    """
    first, following = (LIST_ALL, LIST_ALL_AFTER) if namespace is None else (LIST, LIST_AFTER)
    binds: dict[str, str | int] = {"limit": limit} if namespace is None else {"limit": limit, "namespace": namespace}
    with db.read() as conn:
        if after is None:
            rows = first.run(conn, binds)
        else:
            rows = following.run(conn, binds, at=after.at_us, cursor_uuid=after.uuid)
        return [view_of(row) for row in rows.mappings()]


def active(db: Database, namespace: str) -> str | None:
    """Return the uuid of the namespace's claim that is not folded, if there is one."""
    with db.read() as conn:
        found: str | None = ACTIVE.run(conn, namespace=namespace).scalar_one_or_none()
    return found


def view_of(row: RowMapping) -> ClaimView:
    """Return the view of a row of `namespace_claims`."""
    return ClaimView(
        uuid=row["uuid"],
        namespace=row["namespace"],
        coverage_state=row["coverage_state"],
        limits=amounts_of(row, "limit"),
        used=amounts_of(row, "used"),
        expires_at_us=row["expires_at"],
        created_at_us=row["created_at"],
        updated_at_us=row["updated_at"],
        namespace_deleted_at_us=row.get("namespace_deleted_at"),
    )
