"""Claims as they are stored: what a reader sees. Reads never write.

A claim past its end reads as it stands in its row, active, until a pass folds it: that is when the cluster takes its
capacity back. A read that cannot reach the database raises; it never answers that there is no claim, because whoever
read that would believe its capacity returned.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from sqlalchemy import RowMapping

from fleet.ledger.claims import READ, amounts_of
from fleet.ledger.database import Database, Sql
from fleet.ledger.instances import Position
from fleet.model.resources import Amounts

_OF_NAMESPACE = "SELECT * FROM namespace_claims WHERE namespace = :namespace"
_YOUNGEST_FIRST = " ORDER BY created_at DESC, uuid DESC LIMIT :limit"
LIST = Sql(_OF_NAMESPACE + _YOUNGEST_FIRST)
LIST_AFTER = Sql(
    _OF_NAMESPACE + " AND (created_at < :at OR (created_at = :at AND uuid < :cursor_uuid))" + _YOUNGEST_FIRST
)
ACTIVE = Sql("SELECT uuid FROM namespace_claims WHERE active_namespace = :namespace")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimView:
    """One claim; times are database microseconds. `coverage_state` is active or, once it is folded, expired."""

    uuid: str
    namespace: str
    coverage_state: str
    limits: Amounts
    used: Amounts
    expires_at_us: int
    created_at_us: int
    updated_at_us: int

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
        row = READ.run(conn, uuid=uuid).mappings().first()
    return None if row is None or row["namespace"] != namespace else view_of(row)


def listing(db: Database, namespace: str, limit: int, after: Position | None = None) -> list[ClaimView]:
    """Return a namespace's claims, whether they cover or not, youngest first.

    Raises:
        DatabaseUnavailable: nothing is known about them.
    """
    with db.read() as conn:
        if after is None:
            rows = LIST.run(conn, namespace=namespace, limit=limit)
        else:
            rows = LIST_AFTER.run(conn, namespace=namespace, limit=limit, at=after.at_us, cursor_uuid=after.uuid)
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
    )
