"""A node's token: what one hypervisor may do over HTTP, and no more.

With it a node publishes its own sample (with the GPUs inside it), reads its own operations, and retries or cancels
them. It declares nothing: no labels, no inventory. Every other path answers the same 403, whatever is there.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fleet.ledger import node_tokens
from fleet.ledger.database import Database
from fleet.ledger.idempotency import Keyed
from fleet.ledger.node_tokens import NodeTokenView
from fleet.model.errors import Conflict, NotFound
from fleet.services.authentication import NODE_TOKEN_PREFIX, Caller, hashed_token, require_admin
from fleet.services.idempotency import RetryKey, once_secret
from fleet.services.nodes import NO_NODE


@dataclass(frozen=True, slots=True, kw_only=True)
class NewNodeToken:
    """A token with its secret, which nothing will ever show again."""

    view: NodeTokenView
    token: str


def create(db: Database, caller: Caller, node: str, retry_key: RetryKey | None, *, secret: str) -> NewNodeToken:
    """Make the node's token and end its former one, at once. Admin only.

    With a retry key a retry is told the same token again: see `once_secret`.

    Raises:
        NotFound: there is no such node.
    """
    require_admin(caller)

    def token(own: str) -> str:
        return f"{NODE_TOKEN_PREFIX}{node}.{own}"

    def make(own: str, keyed: Keyed | None) -> NewNodeToken:
        view = node_tokens.store(db, node, hashed_token(token(own)), keyed, by=caller.by)
        if view is None:
            raise NotFound(NO_NODE)
        return NewNodeToken(view=view, token=token(own))

    def replay(own: str, kept: Mapping[str, Any]) -> NewNodeToken:
        return NewNodeToken(view=NodeTokenView(**kept), token=token(own))

    return once_secret(db, retry_key, "node token", node, secret=secret, make=make, replay=replay)


@contextmanager
def discreet(caller: Caller) -> Iterator[None]:
    """Keep from a node what a refused sample would tell of another node: its name, and what runs there."""
    try:
        yield
    except Conflict as error:
        if not caller.node:
            raise
        gpus = error.extra.get("gpus", [])
        raise Conflict("another node has GPUs that this sample names", gpus=gpus) from None


def revoke(db: Database, caller: Caller, node: str) -> None:
    """End the node's token, at once. Admin only.

    Raises:
        NotFound: there is no such node, or it has no token.
    """
    require_admin(caller)
    ended = node_tokens.revoke(db, node, by=caller.by)
    if not ended:
        raise NotFound(NO_NODE if ended is None else "the node has no token")
