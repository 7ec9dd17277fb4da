"""Stored snapshots and decisions: small, and they replay to the same decision."""

from typing import Any

import numpy as np
import pytest

from fleet.placement import record
from fleet.placement.columns import COLUMN_MAX, LEDGER, UNKNOWN, UNLIMITED
from fleet.placement.pipeline import decide
from fleet.placement.record import (
    decode,
    decode_decision,
    encode_base,
    encode_changes,
    encode_decision,
    pack,
    unpack,
)
from fleet.placement.snapshot import Snapshot
from tests.documents import a_node
from tests.unit.placement.asking import request_of, snapshot_of


def a_fleet(count: int) -> Snapshot:
    nodes = [
        a_node(
            name=f"node-{i:04}", node_id=i + 1, cpu_load_1=i % 7, scheduling="cordoned" if i % 50 == 0 else "enabled"
        )
        for i in range(count)
    ]
    return snapshot_of(*nodes, instances=[{"uuid": "i1", "node": "node-0001", "cpus": 2, "memory_mb": 1024}])


def grow(snapshot: Snapshot, at: int) -> None:
    """Place one more instance on a node, as the ledger would."""
    row: list[Any] = [None if value == UNLIMITED else value for value in snapshot.frame.ledger[:, at].tolist()]
    row[4:8] = [row[4] + 2, row[5] + 4096, row[6] + 20, row[7] + 1]
    row[8], row[11] = (row[8] + 1200) / 1000, row[11] / 1000
    names = ("created", "active"), ("enabled", "cordoned")
    row[13], row[14] = names[0][row[13]], names[1][row[14]]
    assert snapshot.update_counters([(at + 1, *row[:-2], row[-1])]) == []


def answers(snapshot: Snapshot, **changes: Any) -> Any:
    return decide(request_of(**changes), snapshot, 77).as_dict()


@pytest.mark.parametrize(
    "values",
    [
        [],
        [0],
        [UNKNOWN, UNLIMITED, 0, 5],
        [-127, 127],
        [-128, 128],
        [2**31, -(2**31)],
        [UNKNOWN, COLUMN_MAX, UNLIMITED],
        [2**31 - 1],
    ],
)
def test_packing_keeps_every_value(values: list[int]) -> None:
    column = np.array(values, dtype=np.int64)

    assert values == unpack(*pack(column)).tolist()


def test_a_base_replays_to_the_same_decision() -> None:
    snapshot = a_fleet(60)

    again = decode(encode_base(snapshot))

    assert answers(snapshot) == answers(again)
    assert snapshot.to_json() == again.to_json()


def test_changes_replay_onto_their_base() -> None:
    snapshot = a_fleet(60)
    base, version = encode_base(snapshot), snapshot.version
    for at in (1, 2, 9):
        grow(snapshot, at)
    snapshot.now_us += 5_000_000

    again = decode(base, encode_changes(snapshot, version))

    assert answers(snapshot) == answers(again)
    assert snapshot.to_json() == again.to_json()


def test_changes_replay_onto_a_checkpoint() -> None:
    snapshot = a_fleet(60)
    base, full = encode_base(snapshot), snapshot.version
    grow(snapshot, 1)
    checkpoint = encode_changes(snapshot, full)
    version = snapshot.mark()
    grow(snapshot, 1)
    grow(snapshot, 3)

    again = decode(base, checkpoint, encode_changes(snapshot, version))

    assert snapshot.to_json() == again.to_json()


def test_changes_since_a_version_that_is_no_longer_marked_are_whole_rows() -> None:
    snapshot = a_fleet(30)
    base, version = encode_base(snapshot), snapshot.version
    for at in range(1, 9):
        grow(snapshot, at)
        snapshot.mark()

    assert snapshot.marked(version) is None
    assert answers(snapshot) == answers(decode(base, encode_changes(snapshot, version)))


def test_a_new_sample_is_part_of_the_changes() -> None:
    snapshot = a_fleet(30)
    base, version = encode_base(snapshot), snapshot.version
    twin = snapshot_of(a_node(name="node-0004", node_id=5, memory_available=4096, cpu_load_1=4)).frame
    snapshot._replace_samples(np.array([4]), twin.sample.matrix)

    assert "node-0004" not in answers(snapshot)["ranked"]
    assert answers(snapshot) == answers(decode(base, encode_changes(snapshot, version)))


def test_new_nodes_need_a_new_base() -> None:
    snapshot = a_fleet(3)
    version = snapshot.version
    snapshot.remove(1)

    with pytest.raises(ValueError, match="need a new base"):
        encode_changes(snapshot, version)


def test_changes_cost_about_ten_bytes_a_row() -> None:
    snapshot = a_fleet(1000)
    encode_base(snapshot)
    version = snapshot.version
    for at in range(1, 201):
        if at % 50:
            grow(snapshot, at)

    assert len(encode_changes(snapshot, version)) < 200 * 10


def test_a_stored_decision_is_small_and_says_who_was_dropped() -> None:
    snapshot = a_fleet(1000)
    decision = decide(request_of(), snapshot, 5)

    data = encode_decision(decision, "1.2.3")
    stored = decode_decision(data)

    assert len(data) < 1000
    assert (stored.version, stored.seed, stored.summary) == ("1.2.3", 5, decision.summary)
    assert stored.counts == decision.counts == {"scheduling_state": {"cordoned": 20}}
    assert stored.ranked_count == 980
    form = stored.as_dict(snapshot.frame.roster.names)
    assert form["ranked"] == list(decision.ranked[:200])
    assert form["dropped"]["scheduling_state"]["cordoned"][1] == "node-0050"


def test_a_stored_refusal_keeps_its_code_and_remedy() -> None:
    decision = decide(request_of(memory_mb=60000), a_fleet(12), 5)

    form = decode_decision(encode_decision(decision)).as_dict()

    assert (form["code"], form["stage"], form["transient"]) == ("out_of_capacity", "sufficient_idle_memory", True)
    assert form["remedy"] == decision.remedy
    assert form["dropped"]["scheduling_state"]["cordoned"] == [0]


@pytest.mark.parametrize("read", [decode, decode_decision])
def test_bytes_of_another_kind_are_refused(read: Any) -> None:
    with pytest.raises(ValueError, match="these 5 bytes are not fleet-"):
        read(b"hello")


def test_a_base_of_another_version_is_read_by_column_name() -> None:
    snapshot = a_fleet(3)
    data = encode_base(snapshot)

    described = record.Source(record.BASE, data)
    described.header["ledger"][0][0] = "limit_of_the_future"
    described.column(described.header["node_ids"])
    matrix = record._matrix(described, described.header["ledger"], LEDGER)

    assert set(matrix[0].tolist()) == {UNKNOWN}
    assert matrix[1].tolist() == snapshot.frame.ledger[1].tolist()
