"""Tokens of nodes: one a node, as a hash only, gone with the node.

Where the answer to a COMMIT is lost, the hash tells what became of it: no token has another's.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from sqlalchemy import Connection

from fleet.ledger import events, idempotency
from fleet.ledger.database import Database, Sql
from fleet.ledger.idempotency import Keyed

STORED = Sql("SELECT token_hash FROM nodes WHERE name = :name AND state <> 'deleted'")
LOCK = Sql("SELECT id, token_hash, {now} AS made_at FROM nodes WHERE name = :name AND state <> 'deleted' {for_update}")
SET = Sql("UPDATE nodes SET token_hash = :token_hash WHERE id = :id")


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeTokenView:
    """A node's token, without its secret; `created_at_us` is the database's."""

    node: str
    created_at_us: int


def stored_hash(db: Database, name: str) -> str:
    """Return the hash of a node's token; empty where there is no node or it has none."""
    with db.read() as conn:
        return str(STORED.run(conn, name=name).scalar() or "")


def store(db: Database, name: str, token_hash: str, keyed: Keyed | None = None, *, by: str) -> NodeTokenView | None:
    """Give a node a token in the place of its former one; None: there is no such node."""
    seen: list[NodeTokenView] = []

    def work(conn: Connection) -> NodeTokenView | None:
        node = LOCK.run(conn, name=name).first()
        if node is None:
            return None
        SET.run(conn, id=node.id, token_hash=token_hash)
        replaced = {"replaced": bool(node.token_hash)}
        events.record(conn, "node", name, "node token made", replaced, by=by)
        made = NodeTokenView(node=name, created_at_us=node.made_at)
        idempotency.keep(conn, keyed, asdict(made))
        seen.append(made)
        return made

    return db.unit(work, on_lost=lambda: seen[-1] if seen and _standing(db, name) == token_hash else None)


def revoke(db: Database, name: str, *, by: str) -> bool | None:
    """End a node's token; False: it had none, None: there is no such node."""
    ended: list[str] = []

    def work(conn: Connection) -> bool | None:
        node = LOCK.run(conn, name=name).first()
        if node is None:
            return None
        if not node.token_hash:
            return False
        SET.run(conn, id=node.id, token_hash="")
        events.record(conn, "node", name, "node token revoked", {}, by=by)
        ended.append(node.token_hash)
        return True

    return db.unit(work, on_lost=lambda: True if ended and _standing(db, name) != ended[-1] else None)


def _standing(db: Database, name: str) -> str | None:
    """Read the hash back after a lost answer, once nobody is changing it; None: there is no node (any more)."""
    node = db.unit(lambda conn: LOCK.run(conn, name=name).first())
    return None if node is None else str(node.token_hash)
