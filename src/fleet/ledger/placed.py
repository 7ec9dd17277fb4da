"""Reading every charge with its instance, for a snapshot that is saved whole. Reads only, no locks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from fleet.ledger.database import Database, Sql
from fleet.ledger.neighbours import TERMINATING
from fleet.ledger.release import charge_of
from fleet.model.admission import Charge

PAGE_CHARGES = 2000
PAGE = Sql("""
    SELECT ch.*, i.state AS instance_state, JSON_EXTRACT(i.request, '$.tags') AS tags
    FROM charges ch LEFT JOIN instances i ON i.uuid = ch.instance_uuid
    WHERE ch.id > :after ORDER BY ch.id LIMIT :limit
""")


@dataclass(frozen=True, slots=True)
class PlacedCharge:
    """A charge, the tags of its instance, and whether that is being terminated."""

    charge: Charge
    tags: Mapping[str, str]
    terminating: bool


def everything(db: Database) -> Iterator[PlacedCharge]:
    """Yield every charge, oldest first, in pages: each page is its own read, so a move may be seen half."""
    after = 0
    while True:
        with db.read() as conn:
            rows = PAGE.run(conn, after=after, limit=PAGE_CHARGES).mappings().all()
        for row in rows:
            tags = json.loads(row["tags"]) if row["tags"] else {}
            yield PlacedCharge(charge_of(row), tags, row["instance_state"] in TERMINATING)
        if len(rows) < PAGE_CHARGES:
            return
        after = int(rows[-1]["id"])
