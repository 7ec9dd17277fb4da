"""Labels that are changed one by one are merged under the node's rows: whoever changes others at once loses none."""

from __future__ import annotations

import threading

import pytest

from fleet.ledger import nodes
from fleet.ledger.database import Database
from fleet.model.errors import InvalidRequest
from fleet.model.labels import LABELS_MAX
from tests.ledger import fleet_of
from tests.ledger.holding import Other, open_transaction

HOLD = "SELECT node_id FROM scheduler_node_capacity WHERE node_id = {node_id} FOR UPDATE"
AT_ONCE = 6


def labels_of(db: Database) -> dict[str, str]:
    found = nodes.get(db, "n")
    assert found is not None
    kept = fleet_of.rows(db, "SELECT label, value FROM node_labels WHERE node_id = :id", id=found.node_id)
    assert found.labels == {row["label"]: row["value"] for row in kept}
    return dict(found.labels)


def test_a_change_sets_what_it_names_takes_away_what_is_none_and_leaves_the_rest(db: Database) -> None:
    fleet_of.register(db, "n", labels={"rack": "a", "disk": "hdd", "tier": "x"})

    nodes.update(db, "n", {"region": "north"}, label_changes={"disk": "nvme", "tier": None, "absent": None})

    assert labels_of(db) == {"rack": "a", "disk": "nvme"}
    (event,) = fleet_of.events_of(db, "node updated")
    assert '"old":{"labels":{"rack":"a","disk":"hdd","tier":"x"},"region":""}' in event["payload"]


def test_a_change_that_changes_nothing_is_no_event(db: Database) -> None:
    fleet_of.register(db, "n", labels={"rack": "a"})

    nodes.update(db, "n", {}, label_changes={"rack": "a", "absent": None})
    nodes.update(db, "n", {}, label_changes={})

    assert labels_of(db) == {"rack": "a"}
    assert fleet_of.events_of(db, "node updated") == []


def test_a_change_beyond_what_a_node_may_have_is_refused_whole(db: Database) -> None:
    full = {f"k{at}": "v" for at in range(LABELS_MAX)}
    fleet_of.register(db, "n", labels=full)

    with pytest.raises(InvalidRequest, match=f"at most {LABELS_MAX} labels; with these changes it would have 65"):
        nodes.update(db, "n", {"region": "north"}, label_changes={"one": "more"})
    assert labels_of(db) == full
    nodes.update(db, "n", {}, label_changes={"k0": None, "one": "more"})
    assert len(labels_of(db)) == LABELS_MAX


def test_a_change_that_waits_for_another_is_made_to_what_that_one_left(maria: Database) -> None:
    node_id = fleet_of.node(maria, "n", cpus=8)
    nodes.update(maria, "n", {}, label_changes={"rack": "a"})
    url = maria.url.render_as_string(hide_password=False)
    with open_transaction(maria) as conn:
        conn.exec_driver_sql(HOLD.format(node_id=node_id))
        first = Other(url, lambda db: nodes.update(db, "n", {}, label_changes={"disk": "nvme"}))
        first.stands(maria)
        second = Other(url, lambda db: nodes.update(db, "n", {}, label_changes={"tier": "x", "rack": None}))
        second.stands(maria)
        assert labels_of(maria) == {"rack": "a"}
    first.result()
    second.result()

    assert labels_of(maria) == {"disk": "nvme", "tier": "x"}


def test_labels_that_many_add_at_once_are_all_there(db: Database) -> None:
    fleet_of.register(db, "n", labels={})
    start = threading.Barrier(AT_ONCE)

    def add(other: Database, at: int) -> None:
        start.wait(10)
        nodes.update(other, "n", {}, label_changes={f"k{at}": "v"})

    url = db.url.render_as_string(hide_password=False)
    others = [Other(url, lambda other, at=at: add(other, at)) for at in range(AT_ONCE)]  # type: ignore[misc]
    for other in others:
        other.result()

    assert labels_of(db) == {f"k{at}": "v" for at in range(AT_ONCE)}
