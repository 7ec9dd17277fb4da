"""The audit of a large refusal stays small: what is stored, and what is answered."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import pytest

from fleet.ledger import decisions as stored
from fleet.ledger.database import Database
from fleet.ledger.decisions import DecisionRow
from fleet.model.cluster_config import ClusterConfig
from fleet.model.request import parse_placement_request
from fleet.placement.pipeline import decide
from fleet.placement.record import STORED_NODES_MAX, encode_base, encode_changes, encode_decision
from fleet.placement.snapshot import Snapshot
from fleet.services import decisions
from fleet.services.context import Context
from tests.benchmarks.deciding import NOW_US, records

NODES = 10_000
STORED_MAX = 16 * 1024
ANSWERED_MAX = 192 * 1024
STATES = ("active", "active", "active", "active", "missing", "error")
ASKED: Mapping[str, Any] = {"cpus": 40, "memory_mb": 700_000, "disk_gb": 3000, "region": "eu"}


def of_every_kind() -> Snapshot:
    """Nodes that fall at many stages, for many reasons, in no order that could be packed well."""
    made = [
        replace(
            node,
            state=STATES[number * 7919 % len(STATES)],
            region="eu" if number * 104_729 % 13 else "us",
            metrics=node.metrics if number % 17 else {},
            capacity=node.capacity if number % 19 else None,
        )
        for number, node in enumerate(records(NODES))
    ]
    snapshot = Snapshot.from_records(made, ClusterConfig(), NOW_US)
    # Those that would take it are full.
    ledger = snapshot.frame.ledger.copy()
    ledger[4] = ledger[0]
    return Snapshot(replace_ledger(snapshot, ledger))


def replace_ledger(snapshot: Snapshot, ledger: Any) -> Any:
    old = snapshot.frame
    return type(old)(old.roster, ledger, old.sample, old.now_us, old.instances, old.gpus)


@pytest.fixture
def refused(db: Database) -> tuple[Context, DecisionRow]:
    """A refusal by ten thousand nodes, stored as the service stores it."""
    snapshot = of_every_kind()
    base, version = encode_base(snapshot), snapshot.version
    decision = decide(parse_placement_request(ASKED), snapshot, 7)
    assert decision.refused
    stored.insert_base(db, "b" * 36, None, base)
    row = DecisionRow(
        id="d" * 36,
        instance_uuid=None,
        namespace="system",
        reason="create",
        outcome="refused",
        code=decision.code or "",
        node_id=None,
        seed=7,
        base_id="b" * 36,
        changes=encode_changes(snapshot, version),
        record=encode_decision(decision),
        request=ASKED,
        walk=[],
        summary=decision.summary,
        version="0",
    )
    db.unit(lambda conn: stored.insert(conn, row))
    return cast(Context, SimpleNamespace(database=db)), row


def test_ten_thousand_nodes_are_stored_and_answered_in_a_few_kilobytes(refused: tuple[Context, DecisionRow]) -> None:
    ctx, row = refused
    read = decisions.get(ctx, row.id, None)

    answered = json.dumps(decisions.record(ctx, read))

    assert len(read.record) + len(read.changes) + len(json.dumps(read.request)) <= STORED_MAX
    assert len(answered) <= ANSWERED_MAX


def test_every_node_is_counted_and_the_first_ones_have_their_figures(refused: tuple[Context, DecisionRow]) -> None:
    ctx, row = refused
    record = decisions.record(ctx, row)
    replayed = decisions.replay(ctx.database, row)

    assert sum(sum(reasons.values()) for reasons in record["counts"].values()) == NODES
    assert len(record["counts"]) > 4
    assert len(record["figures"]) == STORED_NODES_MAX
    for name, figures in record["figures"].items():
        stage = next(stage for stage in replayed.stages if name in stage.dropped)
        assert figures == {"stage": stage.name, **stage.dropped[name]}


def test_what_is_not_shown_can_be_computed_from_what_was_saved(refused: tuple[Context, DecisionRow]) -> None:
    ctx, row = refused

    replayed = decisions.replay(ctx.database, row)

    assert encode_decision(replayed) == row.record
    assert sum(len(stage.dropped) for stage in replayed.stages) == NODES


def test_remedies_are_found_again_with_the_stored_decision(refused: tuple[Context, DecisionRow]) -> None:
    ctx, row = refused

    first, again = (decisions.record(ctx, row)["remedies"] for _ in range(2))

    assert first == again
    assert first


def test_without_its_snapshot_a_decision_is_told_by_places_and_has_no_figures(
    refused: tuple[Context, DecisionRow],
) -> None:
    ctx, row = refused

    record = decisions.record(ctx, replace(row, base_id=None))

    assert {"figures", "remedies"}.isdisjoint(record)
    assert record["counts"]
