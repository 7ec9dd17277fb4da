"""Names and ids of the registered nodes, for daemons that serve many: light enough to be read every few seconds."""

from __future__ import annotations

from typing import Final

from fleet.ledger.database import Database, Sql

_BY_BACKEND: Final = Sql("SELECT id, name FROM nodes WHERE state <> 'deleted' AND backend = :backend")
_ALL: Final = Sql("SELECT id, name FROM nodes WHERE state <> 'deleted'")


def ids(db: Database, *, backend: str | None = None) -> dict[str, int]:
    """The nodes that are not removed, by name; `backend` leaves the others out."""
    with db.read() as conn:
        rows = _ALL.run(conn) if backend is None else _BY_BACKEND.run(conn, backend=backend)
        return {str(row.name): int(row.id) for row in rows}
