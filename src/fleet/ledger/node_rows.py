"""A node's ledger row under its lock: what is read with it stays true until the transaction ends.

Whoever must read the row before writing what the node holds locks it by these; two nodes are locked in the order of
their ids. The admission's guard does not come by here: its update is the lock.
"""

from __future__ import annotations

from sqlalchemy import Connection

from fleet.ledger.database import Sql

_OF_NODE = " FROM scheduler_node_capacity c WHERE c.node_id = :node_id {for_update}"

LOCK = Sql("SELECT c.*" + _OF_NODE)
LOCK_AGED = Sql("SELECT c.*, {now} - c.sample_at AS age_us" + _OF_NODE)
# The name is read beside the lock: its row is locked only where the subquery says so.
LOCK_NAMED = Sql("SELECT c.*, (SELECT n.name FROM nodes n WHERE n.id = c.node_id) AS name" + _OF_NODE)

_NAME = Sql("SELECT name FROM nodes WHERE id = :node_id")


def name_of(conn: Connection, node_id: int) -> str | None:
    """Return the name of a node, removed ones too: what its events are kept under. None: there never was one."""
    found: str | None = _NAME.run(conn, node_id=node_id).scalar_one_or_none()
    return found
