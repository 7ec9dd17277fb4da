"""Reading who is where in one namespace, little by little: what the cache of neighbours keeps. Reads only, no locks.

Every change of where a tagged instance counts moves the stamp of its row in the same transaction: its create, a
redirect, the begin and the end of a move, its delete. Stamps are set before the commit, so reads overlap as those of
`snapshots.py` do; and a namespace is read anew from time to time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from fleet.ledger.database import Database, Sql
from fleet.ledger.release import charge_of
from fleet.ledger.snapshots import NOW, THOROUGH_OVERLAP_US
from fleet.model.admission import Charge

_PLACES = """
    i.uuid, i.state, i.updated_at, JSON_EXTRACT(i.request, '$.tags') AS tags,
    p.node_id AS node_id, m.node_id AS incoming_id
"""
_CHARGES = """
    LEFT JOIN charges p ON p.instance_uuid = i.uuid AND p.role = 'primary'
    LEFT JOIN charges m ON m.instance_uuid = i.uuid AND m.role = 'incoming'
"""
# From the charges: a namespace may have deleted far more instances than it has.
ALL = Sql(f"""
    SELECT {_PLACES} FROM (SELECT DISTINCT instance_uuid FROM charges WHERE namespace = :namespace) c
    JOIN instances i ON i.uuid = c.instance_uuid {_CHARGES}
""")
CHANGED = Sql(f"""
    SELECT {_PLACES} FROM instances i {_CHARGES}
    WHERE i.namespace = :namespace AND i.updated_at > :cursor ORDER BY i.updated_at
""")
TAGS = Sql("SELECT namespace, state, JSON_EXTRACT(request, '$.tags') AS tags FROM instances WHERE uuid = :uuid")
CHARGES = Sql("SELECT * FROM charges WHERE instance_uuid = :uuid ORDER BY id")
TERMINATING = frozenset({"deleting", "deleted"})


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A tagged instance and the nodes of its charges. Without a node it counts nowhere: it is gone, or going."""

    uuid: str
    tags: Mapping[str, str]
    node_id: int | None
    incoming_id: int | None
    stamp: int

    @property
    def is_somewhere(self) -> bool:
        """Whether it counts on any node."""
        return self.node_id is not None or self.incoming_id is not None


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What was read, and up to which stamp."""

    found: Sequence[Neighbour]
    cursor: int


@dataclass(frozen=True, slots=True)
class Own:
    """An instance that is placed again: whose it is, its tags, whether it is being terminated, and what it holds."""

    uuid: str
    namespace: str
    tags: Mapping[str, str]
    terminating: bool
    charges: Sequence[Charge]


def everyone(db: Database, namespace: str) -> Neighbours:
    """Return the tagged instances of a namespace that count somewhere, drafts too, terminating ones not."""
    with db.read() as conn:
        now_us = int(NOW.run(conn).one().now_us)
        rows = ALL.run(conn, namespace=namespace).all()
    return Neighbours([one for one in _tagged(rows) if one.is_somewhere], now_us - THOROUGH_OVERLAP_US)


def changed(db: Database, namespace: str, cursor: int, overlap_us: int) -> Neighbours:
    """Return the tagged instances stamped after `cursor - overlap_us`, also those that count nowhere by now."""
    with db.read() as conn:
        rows = CHANGED.run(conn, namespace=namespace, cursor=cursor - overlap_us).all()
    newest = max((int(row.updated_at) for row in rows), default=cursor)
    return Neighbours(_tagged(rows), max(cursor, newest))


def own(db: Database, uuid: str) -> Own | None:
    """Return an instance with its charges as they stand; None: there is none."""
    with db.read() as conn:
        row = TAGS.run(conn, uuid=uuid).first()
        charges = [charge_of(item) for item in CHARGES.run(conn, uuid=uuid).mappings()]
    if row is None:
        return None
    return Own(uuid, row.namespace, _tags(row.tags), row.state in TERMINATING, charges)


def _tagged(rows: Sequence[Row[Any]]) -> list[Neighbour]:
    return [_neighbour(row) for row in rows if row.tags]


def _neighbour(row: Row[Any]) -> Neighbour:
    if row.state in TERMINATING:
        return Neighbour(row.uuid, {}, None, None, int(row.updated_at))
    return Neighbour(row.uuid, _tags(row.tags), row.node_id, row.incoming_id, int(row.updated_at))


def _tags(text: str | None) -> dict[str, str]:
    found: dict[str, str] = json.loads(text) if text else {}
    return found
