"""A node's token in the ledger: one a node, gone with the node for good."""

from __future__ import annotations

import json

import pytest

from fleet.ledger import node_tokens, samples
from fleet.ledger.database import Database
from fleet.model.errors import Forbidden, NotFound
from fleet.services import node_tokens as service
from fleet.services.authentication import Caller, hashed_token
from tests.ledger import fleet_of

ADMIN = Caller(namespace="system", key="ops")
SECRET = "s" * 40


def test_a_new_token_takes_the_place_of_the_former(db: Database) -> None:
    fleet_of.register(db, "n1")

    first = service.create(db, ADMIN, "n1", None, secret=SECRET)
    second = service.create(db, ADMIN, "n1", None, secret=SECRET)

    assert first.token != second.token
    assert node_tokens.stored_hash(db, "n1") == hashed_token(second.token)
    assert [json.loads(event["payload"]) for event in fleet_of.events_of(db, "node token made")] == [
        {"replaced": False, "by": "system/ops"},
        {"replaced": True, "by": "system/ops"},
    ]


def test_only_the_admin_makes_and_ends_tokens_and_only_of_nodes_that_are_there(db: Database) -> None:
    fleet_of.register(db, "n1")
    for caller in (Caller(namespace="tenant", key="k"), Caller(namespace="", node="n1")):
        with pytest.raises(Forbidden):
            service.create(db, caller, "n1", None, secret=SECRET)
        with pytest.raises(Forbidden):
            service.revoke(db, caller, "n1")
    for name in ("absent", "a b"):
        with pytest.raises(NotFound):
            service.create(db, ADMIN, name, None, secret=SECRET)
        with pytest.raises(NotFound):
            service.revoke(db, ADMIN, name)
    assert node_tokens.stored_hash(db, "n1") == ""


def test_a_revoked_token_is_gone_and_there_is_none_to_revoke_twice(db: Database) -> None:
    fleet_of.register(db, "n1")
    service.create(db, ADMIN, "n1", None, secret=SECRET)

    service.revoke(db, ADMIN, "n1")

    assert node_tokens.stored_hash(db, "n1") == ""
    with pytest.raises(NotFound):
        service.revoke(db, ADMIN, "n1")
    assert len(fleet_of.events_of(db, "node token revoked")) == 1


def test_a_token_is_gone_with_its_node_and_does_not_return_with_its_name(db: Database) -> None:
    fleet_of.register(db, "n1")
    service.create(db, ADMIN, "n1", None, secret=SECRET)

    samples.remove_node(db, "n1")
    assert node_tokens.stored_hash(db, "n1") == ""

    fleet_of.register(db, "n1")
    assert node_tokens.stored_hash(db, "n1") == ""
