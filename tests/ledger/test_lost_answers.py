"""What an operator does to nodes and operations when an answer is lost: done once, and told as done."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from fleet.ledger import operations, samples
from fleet.ledger.database import Database
from fleet.model.errors import Conflict, DatabaseUnavailable, NodeNotFound
from fleet.model.lifecycle import OperationKind, OperationState
from tests.ledger import fleet_of
from tests.ledger.fleet_of import ask
from tests.ledger.injecting import Injector, lost


@dataclass(frozen=True, slots=True)
class Act:
    """`prepare` returns what is acted on; `message` is the event of the act; `done` says whether it is carried out."""

    message: str
    prepare: Callable[[Database], str]
    do: Callable[[Database, str], Any]
    done: Callable[[Database, str], bool]


def a_node(db: Database) -> str:
    name = f"node-{uuid.uuid4()}"
    fleet_of.node(db, name, cpus=4)
    return name


def an_operation(db: Database, state: OperationState) -> str:
    node_id = fleet_of.node(db, cpus=4)
    instance, operation = fleet_of.admitted(db, ask(node_id)), str(uuid.uuid4())
    create = OperationKind.CREATE
    db.unit(lambda conn: operations.insert(conn, operation, create, instance, fleet_of.NAMESPACE, node_id))
    fleet_of.execute(db, "UPDATE operations SET state = :state WHERE uuid = :uuid", state=str(state), uuid=operation)
    return operation


def state_of(db: Database, operation: str) -> OperationState:
    found = operations.get(db, operation)
    assert found is not None
    return found.state


def is_removed(db: Database, name: str) -> bool:
    [row] = fleet_of.rows(db, "SELECT state FROM nodes WHERE name = :name", name=name)
    return bool(row["state"] == "deleted")


ACTS = {
    "node removed": Act("node removed", a_node, lambda db, name: samples.remove_node(db, name, by="op"), is_removed),
    "operation retried": Act(
        "operation retried",
        lambda db: an_operation(db, OperationState.FAILED),
        lambda db, name: operations.retry(db, name, by="op"),
        lambda db, name: state_of(db, name) is OperationState.PENDING,
    ),
    "operation cancelled": Act(
        "operation cancelled",
        lambda db: an_operation(db, OperationState.PENDING),
        lambda db, name: operations.cancel(db, name, by="op"),
        lambda db, name: state_of(db, name) is OperationState.CANCELLED,
    ),
}


@pytest.mark.parametrize("after", [False, True], ids=["not-carried-out", "carried-out"])
@pytest.mark.parametrize("what", ACTS)
def test_an_act_whose_connection_breaks_at_any_step_is_done_once_and_told_as_done(
    maria: Database, injector: Injector, what: str, *, after: bool
) -> None:
    act = ACTS[what]
    struck: list[str] = []
    while True:
        target = act.prepare(maria)
        fleet_of.execute(maria, "DELETE FROM events")
        with injector.at(len(struck), lost(after=after)):
            try:
                act.do(maria, target)
            except DatabaseUnavailable:
                # A read, or the connection it opens, is not tried again: before it nothing was done, or all of it.
                assert injector.steps[-1].startswith(("SELECT", "SET NAMES")), injector.steps
        if not act.done(maria, target):
            act.do(maria, target)
        assert act.done(maria, target)
        assert len(fleet_of.events_of(maria, act.message)) == 1
        fleet_of.assert_exact(maria)
        if not injector.struck:
            break
        struck.append(injector.steps[len(struck)])
    assert "commit" in struck


def test_what_is_not_there_or_not_so_is_still_refused(db: Database) -> None:
    running = an_operation(db, OperationState.DONE)

    with pytest.raises(NodeNotFound):
        samples.remove_node(db, "nobody")
    for act in (operations.retry, operations.cancel):
        with pytest.raises(Conflict):
            act(db, running)
