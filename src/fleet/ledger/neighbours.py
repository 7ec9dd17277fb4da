"""Reading who is where in one namespace, little by little: what the cache of neighbours keeps. Reads only, no locks.

Every change of where a tagged instance counts moves the stamp of its row in the same transaction: its create, a
redirect, the begin and the end of a move, its delete. Stamps are set before the commit, so reads overlap as those of
`snapshots.py` do, and tell when they began as those do; and a namespace is read anew from time to time.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Row

from fleet.ledger.database import Database, Sql
from fleet.ledger.release import charges_of
from fleet.ledger.snapshots import NOW
from fleet.model.admission import Charge

_PLACES = """
    i.uuid, i.state, JSON_EXTRACT(i.request, '$.tags') AS tags,
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
# One row at least, so that the database's time always comes along.
CHANGED = Sql(f"""
    SELECT t.now_us, {_PLACES} FROM (SELECT {{now}} AS now_us) t
    LEFT JOIN instances i ON i.namespace = :namespace AND i.updated_at > :since {_CHARGES}
""")
TAGS = Sql("SELECT state, JSON_EXTRACT(request, '$.tags') AS tags FROM instances WHERE uuid = :uuid")
TERMINATING = frozenset({"deleting", "deleted"})


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A tagged instance and the nodes of its charges. Without a node it counts nowhere: it is gone, or going."""

    uuid: str
    tags: Mapping[str, str]
    node_id: int | None
    incoming_id: int | None

    @property
    def is_somewhere(self) -> bool:
        """Whether it counts on any node."""
        return self.node_id is not None or self.incoming_id is not None


@dataclass(frozen=True, slots=True)
class Neighbours:
    """What was read, and the database's time when that began."""

    found: Sequence[Neighbour]
    now_us: int


@dataclass(frozen=True, slots=True)
class Own:
    """An instance that is placed again: its tags, whether it is being terminated, and what it holds."""

    tags: Mapping[str, str]
    terminating: bool
    charges: Sequence[Charge]


def everyone(db: Database, namespace: str) -> Neighbours:
    """Return the tagged instances of a namespace that count somewhere, drafts too, terminating ones not."""
    with db.read() as conn:
        now_us = int(NOW.run(conn).one().now_us)
        rows = ALL.run(conn, namespace=namespace).all()
    return Neighbours([one for one in _tagged(rows) if one.is_somewhere], now_us)


def changed(db: Database, namespace: str, since: int) -> Neighbours:
    """Return the tagged instances stamped after `since`, also those that count nowhere by now."""
    with db.read() as conn:
        rows = CHANGED.run(conn, namespace=namespace, since=since).all()
    return Neighbours(_tagged(rows), int(rows[0].now_us))


def own(db: Database, uuid: str) -> Own | None:
    """Return an instance with its charges as they stand; None: there is none."""
    with db.read() as conn:
        row = TAGS.run(conn, uuid=uuid).first()
        charges = charges_of(conn, uuid)
    if row is None:
        return None
    return Own(_tags(row.tags), row.state in TERMINATING, charges)


def _tagged(rows: Sequence[Row[Any]]) -> list[Neighbour]:
    return [_neighbour(row) for row in rows if row.tags]


def _neighbour(row: Row[Any]) -> Neighbour:
    if row.state in TERMINATING:
        return Neighbour(row.uuid, {}, None, None)
    return Neighbour(row.uuid, _tags(row.tags), row.node_id, row.incoming_id)


def _tags(text: str | None) -> dict[str, str]:
    found: dict[str, str] = json.loads(text) if text else {}
    return found
