"""What holds for every decision, whatever the fleet, the request and the seed."""

import json
from typing import Any

import numpy as np
from hypothesis import assume, given
from hypothesis import strategies as st

from fleet.model.cluster_config import ClusterConfig
from fleet.model.decision import Decision
from fleet.model.node import CapacityRow, NodeRecord
from fleet.model.request import PlacementRequest, Reason
from fleet.model.resources import Amounts, Limits
from fleet.placement.gpus import inventory_of
from fleet.placement.pipeline import decide
from fleet.placement.record import decode, decode_decision, encode_base, encode_changes, encode_decision
from fleet.placement.snapshot import Snapshot
from tests.documents import a_node
from tests.property.fleets import (
    CAPACITY,
    CREATE,
    DECLARED,
    INVENTORIES,
    LAWS,
    METRICS,
    NAMES,
    PLAIN,
    SEEDS,
    documents,
    nodes,
    orders,
    requests,
    shuffled,
)

CAPACITY_STAGES = {"sufficient_idle_cpu", "sufficient_idle_memory", "sufficient_free_disk", "instance_slots", "gpu"}


def dropped_once(decision: Decision) -> list[str]:
    return [name for stage in decision.stages for name in stage.dropped]


def first_failures(decision: Decision) -> dict[str, tuple[str, str]]:
    """The first stage that drops each node, and the reason it gives."""
    found: dict[str, tuple[str, str]] = {}
    for stage in decision.stages:
        for name, told in stage.dropped.items():
            found.setdefault(name, (stage.name, told["reason"]))
    return found


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS)
def test_ranked_and_dropped_are_exactly_the_candidates(
    document: dict[str, Any], request: PlacementRequest, seed: int
) -> None:
    decision = decide(request, Snapshot.from_json(document), seed)
    assume(decision.code != "node_not_found")

    assert sorted([*decision.ranked, *dropped_once(decision)]) == sorted(node["name"] for node in document["nodes"])
    assert decision.refused == (not decision.ranked)
    assert sum(sum(reasons.values()) for reasons in decision.counts.values()) == len(dropped_once(decision))
    assert all(weight > 0 for weight in decision.weights.values())


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS, data=st.data())
def test_the_order_of_the_nodes_decides_nothing(
    document: dict[str, Any], request: PlacementRequest, seed: int, data: st.DataObject
) -> None:
    order = data.draw(orders(len(document["nodes"])))

    one = decide(request, Snapshot.from_json(document), seed)
    other = decide(request, Snapshot.from_json(shuffled(document, order)), seed)

    assert one.ranked == other.ranked
    assert one.counts == other.counts
    assert (one.code, one.stage, one.transient, one.summary, one.remedy, one.weights) == (
        other.code,
        other.stage,
        other.transient,
        other.summary,
        other.remedy,
        other.weights,
    )


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS, data=st.data())
def test_the_order_of_the_instances_decides_nothing(
    document: dict[str, Any], request: PlacementRequest, seed: int, data: st.DataObject
) -> None:
    other = {**document, "instances": data.draw(st.permutations(document["instances"]))}

    one, two = (decide(request, Snapshot.from_json(each), seed, explain=True).as_dict() for each in (document, other))

    assert one == two


@LAWS
@given(document=documents(), request=requests(), before=requests(), seed=SEEDS, other_seed=SEEDS)
def test_a_decision_is_of_its_request_snapshot_and_seed_alone(
    document: dict[str, Any], request: PlacementRequest, before: PlacementRequest, seed: int, other_seed: int
) -> None:
    """What was decided before on the same view leaves no trace, and the seed orders only."""
    used = Snapshot.from_json(document)
    decide(before, used, other_seed, explain=True)

    one = decide(request, used, seed)
    other = decide(request, Snapshot.from_json(document), seed)
    elsewhere = decide(request, used, other_seed)

    assert one.as_dict() == other.as_dict()
    assert (one.code, one.stage, one.transient, one.counts) == (
        elsewhere.code,
        elsewhere.stage,
        elsewhere.transient,
        elsewhere.counts,
    )
    assert set(one.ranked) == set(elsewhere.ranked)


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS)
def test_a_decision_survives_json_and_its_snapshot_too(
    document: dict[str, Any], request: PlacementRequest, seed: int
) -> None:
    snapshot = Snapshot.from_json(document)
    form = decide(request, snapshot, seed).as_dict()
    saved = json.loads(json.dumps(snapshot.to_json(), allow_nan=False))

    assert form == json.loads(json.dumps(form, allow_nan=False))
    assert form == decide(request, Snapshot.from_json(saved), seed).as_dict()


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS, data=st.data())
def test_a_decision_replays_from_its_stored_base_and_changes(
    document: dict[str, Any], request: PlacementRequest, seed: int, data: st.DataObject
) -> None:
    snapshot = Snapshot.from_json(document)
    base, version = encode_base(snapshot), snapshot.version
    names = [node["name"] for node in document["nodes"]]
    changed = data.draw(st.lists(st.sampled_from(names), unique=True)) if names else []
    for name in changed:
        other = Snapshot.from_json({**document, "nodes": [data.draw(nodes(name))]}).frame
        at = np.array([snapshot.index_of(name)])
        snapshot._replace_counters(at, other.ledger)
        snapshot._replace_samples(at, other.sample.matrix)
        snapshot.update_gpus({snapshot.node_id(int(at[0])): other.gpus.inventory(0)})
    snapshot.now_us += data.draw(st.integers(0, 100_000_000))

    decision = decide(request, snapshot, seed)
    replayed = decide(request, decode(base, encode_changes(snapshot, version)), seed)
    stored = decode_decision(encode_decision(decision, "0"))

    assert decision.as_dict() == replayed.as_dict()
    assert (stored.summary, stored.counts, stored.code) == (decision.summary, decision.counts, decision.code)
    assert stored.ranked.tolist() == decision.ranked_indices.tolist()


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS)
def test_an_explanation_changes_no_answer(document: dict[str, Any], request: PlacementRequest, seed: int) -> None:
    snapshot = Snapshot.from_json(document)

    plain, explained = decide(request, snapshot, seed), decide(request, snapshot, seed, explain=True)

    assert first_failures(plain).items() <= first_failures(explained).items()
    assert plain.ranked == explained.ranked
    assert (plain.code, plain.stage, plain.transient, plain.counts, plain.summary) == (
        explained.code,
        explained.stage,
        explained.transient,
        explained.counts,
        explained.summary,
    )


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS)
def test_a_strategy_orders_by_band_and_drops_nobody(
    document: dict[str, Any], request: PlacementRequest, seed: int
) -> None:
    decision = decide(request, Snapshot.from_json(document), seed)

    buckets = [decision.ordered_by(int(at))["bucket"] for at in decision.ranked_indices]
    moved = buckets[1:] if request.reason is Reason.RESIZE else buckets

    assert moved == sorted(moved)
    assert len(set(decision.ranked)) == len(decision.ranked)


# --- the pair law: what the filters let through is what the guard would grant --------------------------------------


def granted(document: dict[str, Any], node: dict[str, Any], request: PlacementRequest) -> bool:
    """The guard's arithmetic, written out: the row exists, it may be used, and every amount fits under its limit."""
    row, config = node.get("capacity"), document["config"]
    age, oldest = node["sample_age_seconds"], config.get("NODE_METRICS_MAX_AGE_SECONDS", 120)
    if row is None or node["state"] != "active" or node["scheduling"] != "enabled" or age is None or age >= oldest:
        return False
    asked = {
        "cpus": request.cpus,
        "memory_mb": request.memory_mb + config.get("INSTANCE_OVERHEAD_MB", 0),
        "disk_gb": request.disk_gb,
        "instances": 1,
    }
    return all(
        row[f"limit_{name}"] is None or row[f"used_{name}"] + amount <= row[f"limit_{name}"]
        for name, amount in asked.items()
    )


@st.composite
def sized_documents(draw: st.DrawFn) -> dict[str, Any]:
    """A document whose every node has a whole ledger row, and where nothing else of the node stands in the way."""
    document = draw(documents())
    for setting in ("ADMIT_UNSIZED_NODES", "DEDICATED_SLEEPY_NODES"):
        document["config"].pop(setting, None)
    for node in document["nodes"]:
        node["capacity"] = {name: draw(values) for name, values in CAPACITY.items()}
    return document


def quietened(document: dict[str, Any]) -> dict[str, Any]:
    """The same ledger on machines that measure as idle and roomy, with no figure missing."""
    for node in document["nodes"]:
        roomy = {"memory_available": 2**40, "disk_free_gb": 2**40, "memory_max": 2**40, "disk_total_gb": 2**40}
        idle = dict.fromkeys([*METRICS, "disk_foreign_gb"], 0) | {"is_hypervisor": True, "cpu_max_per_instance": 2**20}
        node["metrics"] = {**idle, "cpu_schedulable": 8, "cpu_threads": 8, **roomy}
    return document


@LAWS
@given(document=sized_documents(), request=requests(), seed=SEEDS)
def test_on_a_quiet_ledger_the_filters_admit_exactly_what_the_guard_grants(
    document: dict[str, Any], request: PlacementRequest, seed: int
) -> None:
    create = request.model_copy(update={**PLAIN, **CREATE})

    decision = decide(create, Snapshot.from_json(quietened(document)), seed)

    assert {node["name"] for node in document["nodes"] if granted(document, node, create)} == set(decision.ranked)


@LAWS
@given(document=sized_documents(), request=requests(), seed=SEEDS)
def test_measured_figures_may_only_refuse_more_than_the_guard(
    document: dict[str, Any], request: PlacementRequest, seed: int
) -> None:
    create = request.model_copy(update={**PLAIN, **CREATE})

    decision = decide(create, Snapshot.from_json(document), seed)

    assert set(decision.ranked) <= {node["name"] for node in document["nodes"] if granted(document, node, create)}


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS)
def test_nobody_is_charged_for_himself(document: dict[str, Any], request: PlacementRequest, seed: int) -> None:
    """On a node that holds its charge, a retry of any size is never dropped for want of room."""
    retry = request.model_copy(update={"reason": Reason.CREATE, "instance": "i1", "destinations": None})
    held = {document["instances"][0][key] for key in ("node", "incoming_node")}

    decision = decide(retry, Snapshot.from_json(document), seed, explain=True)

    assert not [
        (stage.name, name)
        for stage in decision.stages
        if stage.name in CAPACITY_STAGES
        for name in held & set(stage.dropped)
    ]


# --- the snapshot follows the ledger -------------------------------------------------------------------------------


@LAWS
@given(document=documents(), data=st.data())
def test_row_by_row_ends_where_reading_everything_ends(document: dict[str, Any], data: st.DataObject) -> None:
    snapshot = Snapshot.from_json(document)
    before, version = snapshot.frame, snapshot.version
    names = [node["name"] for node in document["nodes"]]
    final = {node["name"]: node for node in document["nodes"]}
    for name in data.draw(st.lists(st.sampled_from(names), max_size=6)) if names else []:
        final[name] = data.draw(nodes(name))
        other = Snapshot.from_json({**document, "nodes": [final[name]]}).frame
        at = np.array([snapshot.index_of(name)])
        snapshot._replace_counters(at, other.ledger)
        snapshot._replace_samples(at, other.sample.matrix)

    whole = Snapshot.from_json({**document, "nodes": [final[name] for name in names]}).frame
    # What a node declares is no column: it is not followed row by row.
    differs = (before.ledger != whole.ledger).any(axis=0) | (before.sample.matrix != whole.sample.matrix).any(axis=0)

    assert np.array_equal(snapshot.frame.ledger, whole.ledger)
    assert np.array_equal(snapshot.frame.sample.matrix, whole.sample.matrix)
    assert set(np.flatnonzero(differs).tolist()) <= set(snapshot.rows_changed_since(version).tolist())


@st.composite
def records(draw: st.DrawFn) -> NodeRecord:
    """A roomy node, declared in any way."""
    name = draw(st.sampled_from(NAMES))
    return NodeRecord(
        name,
        node_id=NAMES.index(name) + 1 + draw(st.sampled_from([0, 0, len(NAMES)])),
        sample_at_us=1_000_000,
        metrics=a_node()["metrics"],
        capacity=CapacityRow(Limits(42, 192512, 980, None), Amounts()),
        gpu=inventory_of(draw(st.sampled_from(INVENTORIES))),
        **draw(DECLARED),
    )


@LAWS
@given(changes=st.lists(st.one_of(records(), records(), st.sampled_from(NAMES)), max_size=8), request=requests())
def test_a_fleet_that_was_declared_anew_is_the_fleet_of_its_last_records(
    changes: list[NodeRecord | str], request: PlacementRequest
) -> None:
    create = request.model_copy(update=CREATE)
    snapshot, last = Snapshot.from_records([], ClusterConfig(), 2_000_000), dict[str, NodeRecord]()
    for change in changes:
        if isinstance(change, NodeRecord):
            snapshot.update_records([change])
            last[change.name] = change
        elif change in last:
            snapshot.remove(last.pop(change).node_id)
        # Deciding fills what is remembered, which the next change must not leave stale.
        decide(create, snapshot, 0)
    whole = Snapshot.from_records([last[snapshot.name(at)] for at in range(len(snapshot))], snapshot.config, 2_000_000)

    assert snapshot.to_json() == whole.to_json()
    assert decide(create, snapshot, 0).as_dict() == decide(create, whole, 0).as_dict()
    assert [snapshot.index_of_id(one.node_id) for one in last.values()] == [snapshot.index_of(name) for name in last]
