"""The neighbours that a decision saw: stored in a few bytes each, and the decision is the same on them."""

from __future__ import annotations

import random
from typing import Any
from uuid import UUID

import numpy as np
import pytest

from fleet.model.resources import Amounts
from fleet.placement.instances import InstanceRecord
from fleet.placement.neighbour_record import NEIGHBOURS, UUID_BYTES, neighbour_bytes, read_neighbours
from fleet.placement.neighbours import InstanceIndex
from fleet.placement.pipeline import decide
from fleet.placement.record import Writer
from fleet.placement.snapshot import Snapshot
from tests.documents import a_node
from tests.unit.placement.asking import request_of, snapshot_of

SLOT = Amounts(0, 0, 0, 1)
APART = {"resource": "virtual_machine", "operator": "has_not", "tags": {"role": "db"}}


def a_uuid(draws: random.Random) -> str:
    return str(UUID(int=draws.getrandbits(128), version=4))


def neighbours(count: int, nodes: int) -> list[InstanceRecord]:
    draws = random.Random(7)
    return [
        InstanceRecord(
            a_uuid(draws),
            "tenant",
            node=f"node-{draws.randrange(nodes):04}",
            incoming_node=f"node-{draws.randrange(nodes):04}" if draws.random() < 0.1 else None,
            tags={"role": f"db-{draws.randrange(20)}"},
        )
        for _ in range(count)
    ]


def fleet(count: int) -> Snapshot:
    return snapshot_of(
        *(a_node(name=f"node-{at:04}", node_id=at + 1, labels={"rack": f"r{at // 8}"}) for at in range(count))
    )


def test_a_thousand_neighbours_take_a_few_bytes_each_beyond_their_uuids() -> None:
    roster = fleet(1000).frame.roster
    stored = neighbour_bytes(roster, neighbours(1000, 1000))

    assert len(stored) - 1000 * UUID_BYTES < 4_000
    assert len(neighbour_bytes(roster, [])) < 150


def test_a_long_pair_is_written_once_in_whatever_company_it_stands() -> None:
    roster, draws = fleet(1).frame.roster, random.Random(3)
    pairs = {f"key-{at}": "".join(draws.choices("abcdefghijklmnopqrstuvwxyz", k=1000)) for at in range(64)}
    seen = [
        InstanceRecord(
            a_uuid(draws), "tenant", "node-0000", tags={key: pairs[key] for key in draws.sample(list(pairs), 40)}
        )
        for _ in range(200)
    ]
    stored = neighbour_bytes(roster, seen)

    assert len(stored) < 2 * sum(map(len, pairs.values()))
    assert dict(read_neighbours(stored, roster)) == {one.uuid: one for one in seen}


def test_neighbours_whose_sets_were_written_with_their_pairs_are_read() -> None:
    roster, uuid = fleet(1).frame.roster, a_uuid(random.Random(1))
    writer = Writer()
    columns = [writer.column(np.array([0], dtype=np.int64)) for _ in range(4)]
    header = {"whole": [], "namespaces": ["tenant"], "tags": [{"role": "db"}], "columns": columns}
    writer.blobs.append(UUID(uuid).bytes)

    (read,) = read_neighbours(writer.finish(NEIGHBOURS, header), roster).values()

    assert (read.uuid, read.tags, read.node, read.incoming_node) == (uuid, {"role": "db"}, "node-0000", "node-0000")


def test_what_is_read_back_is_what_was_seen_in_the_same_order() -> None:
    roster = fleet(50).frame.roster
    seen = [
        *neighbours(30, 50),
        InstanceRecord("not-a-uuid", "tenant", node="node-0001", tags={"role": ""}, amounts=SLOT),
        InstanceRecord(a_uuid(random.Random(1)), "tenant", tags={}),
        InstanceRecord(a_uuid(random.Random(2)), "tenant", node="gone", tags={"a": "b"}, amounts=SLOT),
        InstanceRecord(a_uuid(random.Random(3)), "tenant", node="node-0002", amounts=Amounts(2, 64, 8, 1), draft=True),
    ]
    read = read_neighbours(neighbour_bytes(roster, seen), roster)

    assert dict(read) == {one.uuid: one for one in seen}
    assert [uuid for uuid in read if uuid in {one.uuid for one in seen[:30]}] == [one.uuid for one in seen[:30]]


@pytest.mark.parametrize(
    "asked",
    [
        {"placement_rules": [APART]},
        {"placement_rules": [{**APART, "within": "rack"}]},
        {"affinity": {"prefer_with_tag": ["role=db-3"], "prefer_without_tag": ["role"]}},
        {"affinity": {"require_without_tag": ["role=db-1"]}},
    ],
)
def test_a_decision_is_the_same_on_what_was_stored(asked: dict[str, Any]) -> None:
    snapshot = fleet(200)
    request = request_of(namespace="tenant", **asked)
    index = InstanceIndex(neighbours(400, 200))
    frame = snapshot.frame.with_instances(index)
    again = snapshot.frame.with_instances(read_neighbours(neighbour_bytes(frame.roster, index.values()), frame.roster))

    assert decide(request, Snapshot(frame), 3).as_dict() == decide(request, Snapshot(again), 3).as_dict()


def test_bytes_of_another_kind_are_refused() -> None:
    with pytest.raises(ValueError, match="are not fleet-neighbours"):
        read_neighbours(b"fleet-base-1\n", fleet(1).frame.roster)
