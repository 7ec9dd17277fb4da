"""Publishing: a sample becomes the node's metrics and its limit row, in one transaction; and changes of node state.

The limit row is born with the first sample, so a node cannot be a candidate without one. A publish touches limits,
load, stamps and state, never what is used. Whatever changes what the node contributes to `total_*` adds the
difference to the cluster's row, last. The database stamps the sample: its time at receipt, minus the age since
measuring began.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection, RowMapping

from fleet.ledger import events, gpu_refresh, node_rows, pending, totals
from fleet.ledger.database import Database, Sql
from fleet.model import capacity
from fleet.model.cluster_config import ClusterConfig
from fleet.model.errors import Conflict, NodeNotFound
from fleet.model.figures import measured_of, real_or_none, whole_or_none
from fleet.model.gpu_report import ReportedUnit
from fleet.model.node import LEGAL_STATES, NodeState

GPUS = "gpus"
"""The collector that tells the GPUs: what could not be kept of them stands under its name."""

REASON_CHARACTERS_MAX = 1000
PUBLISH_BATCH_MAX = 50
GOOD_PROBES_TO_RECOVER = 3

_NODE = """
    SELECT id, name, state, scheduling, max_instances, good_probes, backend, registered_at FROM nodes WHERE name = :name
"""
FIND_NODE = Sql(_NODE)
LOCK_NODE = Sql(_NODE + " {for_update}")
INSERT_ROW = Sql("""
    INSERT INTO scheduler_node_capacity
        (node_id, limit_cpus, limit_memory_mb, limit_disk_gb, limit_instances, cpu_load_1, cpu_schedulable,
         state, scheduling, counted, sample_at, generation, updated_at,
         used_cpus, used_memory_mb, used_disk_gb, used_instances, sleepy_memory_mb)
    SELECT :node_id, :limit_cpus, :limit_memory_mb, :limit_disk_gb, :limit_instances, :cpu_load_1, :cpu_schedulable,
           :state, :scheduling, :counted, {now} - :age_us, 1, {now},
           COALESCE(SUM(cpus), 0), COALESCE(SUM(memory_mb), 0), COALESCE(SUM(disk_gb), 0), COALESCE(SUM(instances), 0),
           COALESCE(SUM(CASE WHEN sleepy = 1 THEN memory_mb ELSE 0 END), 0)
    FROM charges WHERE node_id = :node_id
""")
UPDATE_ROW = Sql("""
    UPDATE scheduler_node_capacity SET
        limit_cpus = :limit_cpus, limit_memory_mb = :limit_memory_mb, limit_disk_gb = :limit_disk_gb,
        limit_instances = :limit_instances, cpu_load_1 = :cpu_load_1, cpu_schedulable = :cpu_schedulable,
        state = :state, scheduling = :scheduling, counted = :counted, sample_at = {now} - :age_us,
        generation = generation + 1, updated_at = {now}
    WHERE node_id = :node_id
""")
# Pending is a sum over the node's charges that the new sample cannot include; exact under the row's lock.
_PENDING_SUM = "(SELECT COALESCE(SUM({0}), 0) FROM charges ch WHERE ch.node_id = c.node_id)"
SET_PENDING = Sql(f"""
    UPDATE scheduler_node_capacity AS c SET pending_memory_mb = {_PENDING_SUM.format(pending.amount_of("memory_mb"))},
        pending_disk_gb = {_PENDING_SUM.format(pending.amount_of("disk_gb"))}
    WHERE node_id = :node_id
""")
UPSERT_METRICS = Sql(
    """
    INSERT INTO node_metrics (node_id, metrics, failed, is_hypervisor, cpu_load_1, cpu_schedulable, memory_max,
                              memory_available, disk_total_gb, disk_free_gb, sample_at, updated_at)
    VALUES (:node_id, :metrics, :failed, :is_hypervisor, :cpu_load_1, :cpu_schedulable, :memory_max,
            :memory_available, :disk_total_gb, :disk_free_gb, {now} - :age_us, {now})
    {conflict} metrics = :metrics, failed = :failed, is_hypervisor = :is_hypervisor, cpu_load_1 = :cpu_load_1,
        cpu_schedulable = :cpu_schedulable, memory_max = :memory_max, memory_available = :memory_available,
        disk_total_gb = :disk_total_gb, disk_free_gb = :disk_free_gb, sample_at = {now} - :age_us, updated_at = {now}
    """,
    mysql_conflict="ON DUPLICATE KEY UPDATE",
    sqlite_conflict="ON CONFLICT (node_id) DO UPDATE SET",
)
SET_NODE = Sql("UPDATE nodes SET state = :state, good_probes = :good_probes, updated_at = {now} WHERE id = :node_id")


@dataclass(frozen=True, slots=True)
class SampleIn:
    """A node's sample as it arrives. `age_seconds` is the time since its measuring began.

    `failed` names the collectors that failed, with their reasons; their figures are absent from `metrics`. `healthy` is
    what the write probes said (None: not probed), `health_detail` the path and error of a failed probe. `gpus` and
    `mig_instances` are all cards and all slices that the node has (None: not probed, what is known stays); one that
    cannot be kept is left out and told among `failed`, or, with `strict_gpus`, refuses the sample.
    """

    node_name: str
    metrics: Mapping[str, Any]
    age_seconds: Decimal = Decimal(0)
    failed: Mapping[str, str] = field(default_factory=dict)
    healthy: bool | None = None
    health_detail: Mapping[str, str] = field(default_factory=dict)
    gpus: Sequence[ReportedUnit] | None = None
    mig_instances: Sequence[ReportedUnit] | None = None
    strict_gpus: bool = False


def publish(db: Database, samples: Sequence[SampleIn], config: ClusterConfig) -> None:
    """Store samples, `PUBLISH_BATCH_MAX` nodes a transaction.

    Raises:
        NodeNotFound: a sample names a node that is not registered; that batch is not stored.
        InvalidRequest, Conflict: the GPUs of a strict sample; that batch is not stored.
    """
    for start in range(0, len(samples), PUBLISH_BATCH_MAX):
        batch = samples[start : start + PUBLISH_BATCH_MAX]
        db.unit(lambda conn, batch=batch: _publish_batch(conn, batch, config))  # type: ignore[misc]


def _publish_batch(conn: Connection, batch: Sequence[SampleIn], config: ClusterConfig) -> None:
    found = []
    for sample in batch:
        node = FIND_NODE.run(conn, name=sample.node_name).mappings().first()
        if node is None or node["state"] == NodeState.DELETED:
            msg = f"node {sample.node_name!r} is not registered; register it first (`fleet node register`)"
            raise NodeNotFound(msg)
        found.append((node, sample))
    change = totals.Change()
    for node, sample in sorted(found, key=lambda pair: int(pair[0]["id"])):
        change += _publish_one(conn, node, sample, config)
    totals.apply(conn, change)


def _publish_one(conn: Connection, node: RowMapping, sample: SampleIn, config: ClusterConfig) -> totals.Change:
    # Read again under the locks: a cordon or a state change that was answered must not be undone by this publish.
    node, row = _locked(conn, node)
    state, good_probes = _next_state(NodeState(node["state"]), int(node["good_probes"]), sample.healthy)
    if node["state"] == NodeState.MISSING and sample.age_seconds >= config.node_metrics_max_age_seconds:
        # A sample that is too old on arrival proves nothing of the present: the node stays missing, without flapping.
        state = NodeState.MISSING if state is NodeState.ACTIVE else state
    sample = _refresh_gpus(conn, node, sample)
    binds = _binds(node, sample, config, row)
    binds |= {"state": state, "good_probes": good_probes}
    binds["counted"] = totals.counts(state, sample.metrics.get("is_hypervisor"), float(sample.age_seconds))
    (INSERT_ROW if row is None else UPDATE_ROW).run(conn, binds)
    SET_PENDING.run(conn, binds)
    _record_news(conn, node, sample)
    UPSERT_METRICS.run(conn, binds)
    if state != node["state"] or good_probes != node["good_probes"]:
        SET_NODE.run(conn, binds)
    if state != node["state"]:
        _must_be_legal(node["state"], state)
        _record_state(conn, node, state, sample.health_detail)
    after = node_rows.LOCK.run(conn, node_id=node["id"]).mappings().one()
    return totals.difference(row, after)


def _next_state(state: NodeState, good_probes: int, healthy: bool | None) -> tuple[NodeState, int]:  # noqa: FBT001
    """Return the state after a sample: a failed write probe is an error, three good ones bring the node back."""
    if healthy is False:
        return NodeState.ERROR, 0
    if state is not NodeState.ERROR:
        return NodeState.ACTIVE, 0
    if healthy is None:
        return state, good_probes
    enough = good_probes + 1 >= GOOD_PROBES_TO_RECOVER
    return (NodeState.ACTIVE, 0) if enough else (state, good_probes + 1)


def _binds(node: RowMapping, sample: SampleIn, config: ClusterConfig, row: RowMapping | None) -> dict[str, Any]:
    metrics = sample.metrics
    computed = capacity.node_limits(measured_of(metrics, config), config.ratios, node["max_instances"])
    limits = computed.limits.as_dict()
    # A figure that is unknown in this sample keeps the limit it had, so it neither offers nor takes anything. Before
    # there was a limit, unknown foreign use is not zero: nothing is offered until a sample says what others use.
    for name in {*computed.unknown_dimensions, *_unseen_foreign(sample.failed)}:
        if limits[name] is not None:
            limits[name] = 0 if row is None else row[f"limit_{name}"]
    hypervisor = metrics.get("is_hypervisor")
    whole = ("cpu_schedulable", "memory_max", "memory_available", "disk_total_gb", "disk_free_gb")
    return {
        "node_id": node["id"],
        "scheduling": node["scheduling"],
        **{f"limit_{name}": value for name, value in limits.items()},
        **{name: whole_or_none(metrics.get(name)) for name in whole},
        "is_hypervisor": hypervisor if isinstance(hypervisor, bool) else None,
        "cpu_load_1": real_or_none(metrics.get("cpu_load_1")),
        "age_us": int(sample.age_seconds * 1_000_000),
        "metrics": json.dumps(metrics, separators=(",", ":"), default=str),
        "failed": json.dumps(sample.failed, separators=(",", ":")),
    }


FOREIGN_COLLECTORS = {"domains": ("cpus", "memory_mb", "disk_gb"), "disk_foreign": ("disk_gb",)}
"""Without these collectors nobody knows what others use: an absent foreign figure is then no zero."""


def _unseen_foreign(failed: Mapping[str, str]) -> set[str]:
    return {name for collector in failed for name in FOREIGN_COLLECTORS.get(collector, ())}


def _must_be_legal(before: str, after: NodeState) -> None:
    assert after in LEGAL_STATES[NodeState(before)], f"a node never moves from {before} to {after}"


def _record_state(conn: Connection, node: RowMapping, state: NodeState, detail: Mapping[str, str]) -> None:
    level = "error" if state is NodeState.ERROR else "info"
    payload = {"from": node["state"], "to": str(state), **detail}
    events.record(conn, "node", node["name"], "node state changed", payload, level=level)


PREVIOUS = Sql("SELECT metrics, failed FROM node_metrics WHERE node_id = :node_id")


def _refresh_gpus(conn: Connection, node: RowMapping, sample: SampleIn) -> SampleIn:
    """Take in what the node says of its GPUs, if it does; return the sample with what could not be kept."""
    report = gpu_refresh.Report(cards=sample.gpus, slices=sample.mig_instances, strict=sample.strict_gpus)
    told = gpu_refresh.Node(node_id=node["id"], name=node["name"], backend=node["backend"])
    problems = gpu_refresh.refresh(conn, told, report)
    if not problems:
        return sample
    reasons = [*([sample.failed[GPUS]] if GPUS in sample.failed else []), *problems]
    return replace(sample, failed={**sample.failed, GPUS: "; ".join(reasons)[:REASON_CHARACTERS_MAX]})


RESERVATION_CLAMPED = "reservation clamped"
STALE_METRICS = "stale metrics from database for node"
EMPTY_METRICS = "empty metrics from database for node"
REFRESH_FAILED = "refreshing metrics for node failed"


def _record_news(conn: Connection, node: RowMapping, sample: SampleIn) -> None:
    """Record what a sample says or lacks once a change, not once a sample: compared with the sample before."""
    now = {name for name, value in sample.metrics.items() if name.endswith("_clamped") and value}
    row = PREVIOUS.run(conn, node_id=node["id"]).first()
    before = json.loads(row.metrics) if row is not None else {}
    skipped = sample.failed.get(GPUS)
    if skipped is not None and skipped != (json.loads(row.failed) if row is not None else {}).get(GPUS):
        events.record(conn, "node", node["name"], "gpus not taken in", {"reason": skipped}, level="warning")
    if not sample.metrics and (row is None or before):
        events.record(conn, "node", node["name"], EMPTY_METRICS, {"failed": dict(sample.failed)}, level="warning")
    if sample.failed.keys() - (json.loads(row.failed).keys() if row is not None else ()):
        events.record(conn, "node", node["name"], REFRESH_FAILED, {"failed": dict(sample.failed)}, level="warning")
    was = {name for name, value in before.items() if name.endswith("_clamped") and value}
    if now - was:
        payload = {
            name.removesuffix("_clamped"): sample.metrics.get(name.removesuffix("_clamped")) for name in now - was
        }
        events.record(conn, "node", node["name"], RESERVATION_CLAMPED, payload, level="warning")


def set_gpus(db: Database, name: str, report: gpu_refresh.Report) -> None:
    """Take in what is told of a node's GPUs without a sample; the capacity row is locked first, as for a sample.

    Raises:
        NodeNotFound: no such node.
        InvalidRequest, Conflict: what a strict report cannot be; nothing of it is kept.
    """

    def work(conn: Connection) -> None:
        node, _ = _locked(conn, _existing(conn, name))
        told = gpu_refresh.Node(node_id=node["id"], name=name, backend=node["backend"])
        gpu_refresh.refresh(conn, told, report)

    db.unit(work)


def set_scheduling(db: Database, name: str, scheduling: str, *, by: str = "") -> None:
    """Store an operator's intent; the capacity row is locked first, so no admission commits after the answer.

    `by` is who does it.

    Raises:
        NodeNotFound: no such node.
    """
    db.unit(lambda conn: _set_scheduling(conn, name, scheduling, by))


SET_SCHEDULING = Sql("UPDATE nodes SET scheduling = :scheduling, updated_at = {now} WHERE id = :node_id")
SET_ROW_SCHEDULING = Sql("""
    UPDATE scheduler_node_capacity SET scheduling = :scheduling, generation = generation + 1, updated_at = {now}
    WHERE node_id = :node_id
""")


def _set_scheduling(conn: Connection, name: str, scheduling: str, by: str = "") -> None:
    node, _ = _locked(conn, _existing(conn, name))
    SET_ROW_SCHEDULING.run(conn, scheduling=scheduling, node_id=node["id"])
    SET_SCHEDULING.run(conn, scheduling=scheduling, node_id=node["id"])
    if node["scheduling"] != scheduling:
        payload = {"from": node["scheduling"], "to": scheduling}
        events.record(conn, "node", name, "node scheduling changed", payload, by=by)


def _existing(conn: Connection, name: str) -> RowMapping:
    node = FIND_NODE.run(conn, name=name).mappings().first()
    if node is None or node["state"] == NodeState.DELETED:
        msg = f"no node is named {name!r}"
        raise NodeNotFound(msg)
    return node


def _locked(conn: Connection, node: RowMapping) -> tuple[RowMapping, RowMapping | None]:
    """Lock a node and return it as it stands under the locks: its ledger row first, then its own row.

    A ledger row that does not exist cannot be locked: until its first sample, the node's own row stands in for it.
    """
    row = node_rows.LOCK.run(conn, node_id=node["id"]).mappings().first()
    locked = LOCK_NODE.run(conn, name=node["name"]).mappings().first()
    if locked is None or locked["state"] == NodeState.DELETED:
        msg = f"node {node['name']!r} was removed"
        raise NodeNotFound(msg)
    if row is None:
        row = node_rows.LOCK.run(conn, node_id=node["id"]).mappings().first()
    return locked, row


STALE = Sql("""
    SELECT c.node_id, n.name FROM scheduler_node_capacity c JOIN nodes n ON n.id = c.node_id
    WHERE c.state = 'active' AND c.sample_at <= {now} - :max_age_us ORDER BY c.node_id
""")
SET_ROW_STATE = Sql("""
    UPDATE scheduler_node_capacity SET state = :state, counted = :counted, generation = generation + 1,
        updated_at = {now}
    WHERE node_id = :node_id
""")


def mark_missing(db: Database, max_age_seconds: int) -> list[str]:
    """Mark every active node missing whose sample is `max_age_seconds` old or older. Return their names."""
    with db.read() as conn:
        stale = [(int(row.node_id), str(row.name)) for row in STALE.run(conn, max_age_us=max_age_seconds * 1_000_000)]
    return [name for node_id, name in stale if db.unit(_missing(node_id, name, max_age_seconds))]


def _missing(node_id: int, name: str, max_age_seconds: int) -> Any:
    def mark(conn: Connection) -> bool:
        row = node_rows.LOCK_AGED.run(conn, node_id=node_id).mappings().first()
        if row is None or row["state"] != NodeState.ACTIVE or row["age_us"] < max_age_seconds * 1_000_000:
            return False
        age = {"sample_age_seconds": round(row["age_us"] / 1_000_000), "max_age_seconds": max_age_seconds}
        events.record(conn, "node", name, STALE_METRICS, age, level="warning")
        change_state(conn, node_id, name, row, NodeState.MISSING)
        return True

    return mark


def change_state(conn: Connection, node_id: int, name: str, row: RowMapping, state: NodeState) -> None:
    """Move a node to `state` under its row's lock (`row` as read under it), cluster totals in step."""
    _must_be_legal(row["state"], state)
    # A change of state can end counting and never begins it: only a sample does, by its age.
    counted = bool(row["counted"]) and state in totals.COUNTING_STATES
    SET_ROW_STATE.run(conn, node_id=node_id, state=str(state), counted=counted)
    SET_NODE.run(conn, node_id=node_id, state=str(state), good_probes=0)
    events.record(conn, "node", name, "node state changed", {"from": row["state"], "to": str(state)}, level="warning")
    after = node_rows.LOCK.run(conn, node_id=node_id).mappings().one()
    totals.apply(conn, totals.difference(row, after))


HELD = Sql("SELECT instance_uuid FROM charges WHERE node_id = :node_id ORDER BY id LIMIT 6")
DELETE_ROW = Sql("DELETE FROM scheduler_node_capacity WHERE node_id = :node_id")
DELETE_METRICS = Sql("DELETE FROM node_metrics WHERE node_id = :node_id")


def remove_node(db: Database, name: str, *, by: str = "") -> None:
    """Remove a node: its rows go, totals fall by what it contributed, and nothing can admit against it any more.

    `by` is who does it.

    Raises:
        NodeNotFound: no such node.
        Conflict: the node still holds charges; the sentence names them.
    """
    removing: list[int] = []

    def work(conn: Connection) -> bool:
        node, row = _locked(conn, _existing(conn, name))
        removing[:] = [node["registered_at"]]
        _remove(conn, node, row, by)
        return True

    def gone() -> bool | None:
        """After a lost answer: one of that name that was registered since is not the one that was meant."""
        node = db.unit(lambda conn: LOCK_NODE.run(conn, name=name).mappings().first())
        stands = node is not None and node["state"] != NodeState.DELETED and [node["registered_at"]] == removing
        return None if stands or not removing else True

    db.unit(work, on_lost=gone)


def _remove(conn: Connection, node: RowMapping, row: RowMapping | None, by: str) -> None:
    name = node["name"]
    held = [str(item.instance_uuid) for item in HELD.run(conn, node_id=node["id"])]
    if held:
        more = " and more" if len(held) > 5 else ""
        msg = f"node {name!r} still holds {', '.join(held[:5])}{more}; delete or move them first"
        raise Conflict(msg, instances=held)
    _must_be_legal(node["state"], NodeState.DELETED)
    DELETE_ROW.run(conn, node_id=node["id"])
    DELETE_METRICS.run(conn, node_id=node["id"])
    gpu_refresh.forget(conn, node["id"])
    SET_NODE.run(conn, node_id=node["id"], state=str(NodeState.DELETED), good_probes=0)
    events.record(conn, "node", name, "node removed", {"state": node["state"]}, by=by)
    totals.apply(conn, totals.difference(row, None))
