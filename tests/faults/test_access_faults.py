"""Namespaces, keys and tokens of nodes when the answer to a COMMIT is lost: done once, and the caller is told so."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fleet.ledger import namespaces, node_tokens
from fleet.ledger.database import Database
from tests.ledger import fleet_of
from tests.ledger.injecting import Injector, lost

KEY = "ci"
DAY_US = 86_400 * 1_000_000


@dataclass(frozen=True, slots=True)
class Act:
    """`do` acts on what is called so; `message` is its event; `so` says of an answer whether it tells of a success."""

    message: str
    do: Callable[[Database, str], Any]
    so: Callable[[Any], bool]


def make_key(db: Database, name: str) -> Any:
    return namespaces.create_key(db, name, "new", "fresh", lifetime_us=None, by="test")


def rotate(db: Database, name: str, grace_us: int = 0) -> Any:
    return namespaces.rotate_key(
        db, name, KEY, "fresh", selector="", grace_us=grace_us, lifetime_us=None, same_lifetime=True, by="test"
    )


ACTS = {
    "namespace made": Act("namespace created", lambda db, name: namespaces.create(db, f"{name}-2", by="test"), bool),
    "namespace deleted": Act("namespace deleted", lambda db, name: namespaces.delete(db, name, by="test"), bool),
    "key made": Act("key created", make_key, lambda made: made.name == "new"),
    "key rotated": Act("key rotated", rotate, lambda made: made.former_ends_at_us is None),
    "key rotated with a grace": Act(
        "key rotated", lambda db, name: rotate(db, name, DAY_US), lambda made: made.former_ends_at_us is not None
    ),
    "key deleted": Act("key deleted", lambda db, name: namespaces.delete_key(db, name, KEY, by="test"), bool),
    "token made": Act(
        "node token made",
        lambda db, name: node_tokens.store(db, name, "fresh", by="test"),
        lambda made: made.created_at_us > 0,
    ),
    "token revoked": Act("node token revoked", lambda db, name: node_tokens.revoke(db, name, by="test"), bool),
}


def prepare(db: Database, name: str) -> str:
    """A namespace with a key, and a node with a token, both of this name; their events are forgotten."""
    namespaces.create(db, name)
    namespaces.create_key(db, name, KEY, "first", lifetime_us=None)
    fleet_of.node(db, name, cpus=1)
    node_tokens.store(db, name, "first", by="")
    fleet_of.execute(db, "DELETE FROM events")
    return name


@pytest.mark.parametrize("after", [False, True], ids=["not-carried-out", "carried-out"])
@pytest.mark.parametrize("what", ACTS)
def test_an_act_whose_commit_goes_unanswered_is_done_once_and_told_as_done(
    maria: Database,
    injector: Injector,
    what: str,
    after: bool,
) -> None:
    act = ACTS[what]
    rehearsed = prepare(maria, "rehearsed")
    commit = injector.commit_step(lambda: act.do(maria, rehearsed))
    name = prepare(maria, "struck")

    with injector.at(commit, lost(after=after)):
        answer = act.do(maria, name)

    assert injector.struck
    assert act.so(answer), answer
    assert len(fleet_of.events_of(maria, act.message)) == 1
