"""The snapshot document: everything that a decision may see, as JSON. Any production decision can be saved and
replayed.

Promise: a missing figure is unknown, a malformed one is refused with its path, and a document that was written here is
read back to the same decision. `capacity` absent is computed from the metrics, the configuration and the instances;
`capacity: null` says that the ledger has no row; `pending_*` absent is computed from the instances.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import numpy as np

from fleet.model.capacity import node_limits
from fleet.model.cluster_config import ClusterConfig
from fleet.model.config_value import ConfigError
from fleet.model.gpu_inventory import GpuInventory
from fleet.model.request import AMOUNT_MAX
from fleet.model.resources import Amounts
from fleet.placement.columns import (
    COLUMN_MAX,
    LEDGER,
    LEDGER_AT,
    LIMIT_NAMES,
    MILLI,
    SAMPLE,
    SCHEDULINGS,
    STATES,
    UNKNOWN,
    UNLIMITED,
    USED_NAMES,
    figure,
    figure_max,
    limit,
    sample_row,
    scheduling_code,
    shown,
    shown_milli,
    state_code,
)
from fleet.placement.frame import Frame, Sample, Traits
from fleet.placement.gpus import GPU_FIELDS, inventory_form, read_inventory
from fleet.placement.instances import EMPTY_TALLY, InstanceRecord, Tally, tally
from fleet.placement.reader import Reader

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
AGE_SECONDS_MAX: Final = 10**9
HELD_MAX: Final = 2 * AMOUNT_MAX
"""What one instance may hold of memory or disk: the largest request, and its overhead."""

TOP_FIELDS: Final = ("taken_at", "config", "nodes", "instances")
TRAIT_FIELDS: Final = ("labels", "region", "arch", "backend", "sleepy_pool")
NODE_FIELDS: Final = (
    *(
        "name",
        "state",
        "scheduling",
        "sample_age_seconds",
        "metrics",
        "capacity",
        "max_instances",
        "node_id",
        "counted",
    ),
    *TRAIT_FIELDS,
    *GPU_FIELDS,
)
METRIC_FIELDS: Final = ("cpu_load_1", "cpu_schedulable", *SAMPLE[:-3])
CAPACITY_FIELDS: Final = (*LEDGER[:11], "sleepy_memory_mb")
INSTANCE_FIELDS: Final = (
    *("uuid", "namespace", "node", "incoming_node", "tags", "cpus", "memory_mb", "disk_gb"),
    *("incoming_cpus", "incoming_memory_mb", "incoming_disk_gb", "grown_memory_mb", "grown_disk_gb"),
    *("sleepy", "terminating", "draft", "charge_age_seconds"),
)


@dataclass(frozen=True, slots=True)
class Document:
    """A snapshot document, read: rows of columns, in the order of the document's nodes."""

    names: list[str]
    node_ids: list[int]
    traits: list[Traits]
    gpus: list[GpuInventory]
    ledger: list[list[int]]
    sample: list[list[int]]
    config: ClusterConfig
    now_us: int
    instances: list[InstanceRecord]


@dataclass(frozen=True, slots=True)
class _Surroundings:
    """What a node's columns are computed from besides the node itself."""

    config: ClusterConfig
    now_us: int
    tallies: Mapping[str, Tally]


def read_document(value: object) -> Document:
    """Return a document's rows.

    Raises:
        InvalidRequest: with every problem and its JSON path.
    """
    reader = Reader()
    top = reader.mapping(value, "", TOP_FIELDS)
    config = _config(reader, top.get("config"))
    now_us = _taken_at(reader, top.get("taken_at"))
    instances = [
        _instance(reader, item, f"instances[{at}]")
        for at, item in enumerate(reader.items(top.get("instances", []), "instances"))
    ]
    _refuse_twins(reader, [item.uuid for item in instances], "instances", "uuid")
    nodes = reader.items(top.get("nodes"), "nodes")
    parsed = [reader.mapping(item, f"nodes[{at}]", NODE_FIELDS) for at, item in enumerate(nodes)]
    names = [_name(reader, node, f"nodes[{at}]") for at, node in enumerate(parsed)]
    _refuse_twins(reader, names, "nodes", "name")
    ages = {
        name: reader.number(
            node.get("sample_age_seconds"), f"nodes[{at}].sample_age_seconds", AGE_SECONDS_MAX, -AGE_SECONDS_MAX
        )
        for at, (name, node) in enumerate(zip(names, parsed, strict=True))
    }
    around = _Surroundings(config, now_us, tally(instances, config, ages))
    traits, gpus, ledger, sample = [], [], [], []
    for at, (name, node) in enumerate(zip(names, parsed, strict=True)):
        path = f"nodes[{at}]"
        metrics = _metrics(reader, node.get("metrics"), f"{path}.metrics")
        most = reader.whole(node.get("max_instances"), f"{path}.max_instances", COLUMN_MAX)
        traits.append(_traits(reader, node, path))
        gpus.append(read_inventory(reader, {name: node[name] for name in GPU_FIELDS if name in node}, path))
        sample.append(sample_row(metrics, most))
        ledger.append(_ledger(reader, node, path, _Node(name, metrics, sample[-1], most, ages[name]), around))
    node_ids = [
        reader.whole(node.get("node_id"), f"nodes[{at}].node_id", COLUMN_MAX) or 0 for at, node in enumerate(parsed)
    ]
    reader.finish()
    return Document(names, node_ids, traits, gpus, ledger, sample, config, now_us, instances)


@dataclass(frozen=True, slots=True)
class _Node:
    name: str
    metrics: Mapping[str, Any]
    sample: list[int]
    max_instances: int | None
    sample_age_seconds: Decimal | None


def _config(reader: Reader, value: object) -> ClusterConfig:
    settings = reader.mapping({} if value is None else value, "config")
    try:
        return ClusterConfig.from_mapping(settings)
    except ConfigError as refused:
        for problem in refused.problems:
            reader.problem(f"config.{problem.key}", problem.reason)
        return ClusterConfig()


def _taken_at(reader: Reader, value: object) -> int:
    text = reader.text(value, "taken_at", "1970-01-01T00:00:00Z")
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        reader.problem("taken_at", f"{text[:40]!r} is not a time like 2026-11-29T12:00:00Z")
        return 0
    moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
    return (moment - EPOCH) // timedelta(microseconds=1)


def _name(reader: Reader, node: Mapping[str, Any], path: str) -> str:
    return _needed_text(reader, node.get("name"), f"{path}.name", "a node needs a name")


def _needed_text(reader: Reader, value: object, path: str, problem: str) -> str:
    if value is None or value == "":
        reader.problem(path, problem)
    return reader.text(value, path)


def _refuse_twins(reader: Reader, names: list[str], path: str, field: str) -> None:
    seen: dict[str, int] = {}
    for at, name in enumerate(names):
        if name in seen:
            reader.problem(f"{path}[{at}].{field}", f"{name!r} is the {field} of {path}[{seen[name]}] already")
        seen.setdefault(name, at)


def _metrics(reader: Reader, value: object, path: str) -> dict[str, Any]:
    """Return the metrics; figures that no decision reads are accepted and left out."""
    metrics = reader.mapping({} if value is None else value, path)
    read: dict[str, Any] = {"is_hypervisor": reader.flag(metrics.get("is_hypervisor"), f"{path}.is_hypervisor")}
    for name in METRIC_FIELDS:
        read[name] = reader.number(metrics.get(name), f"{path}.{name}", figure_max(name))
    return read


def _traits(reader: Reader, node: Mapping[str, Any], path: str) -> Traits:
    return Traits(
        labels=reader.texts(node.get("labels"), f"{path}.labels"),
        region=reader.text(node.get("region"), f"{path}.region"),
        arch=reader.text(node.get("arch"), f"{path}.arch"),
        backend=reader.text(node.get("backend"), f"{path}.backend"),
        sleepy_pool=bool(reader.flag(node.get("sleepy_pool"), f"{path}.sleepy_pool")),
    )


def _ledger(reader: Reader, node: Mapping[str, Any], path: str, known: _Node, around: _Surroundings) -> list[int]:
    row = [UNKNOWN] * len(LEDGER)
    row[LEDGER_AT["cpu_load_1"]] = figure("cpu_load_1", known.metrics["cpu_load_1"])
    row[LEDGER_AT["cpu_schedulable"]] = figure("cpu_schedulable", known.metrics["cpu_schedulable"])
    row[LEDGER_AT["state"]] = state_code(reader.choice(node.get("state"), f"{path}.state", STATES, "active"))
    intent = reader.choice(node.get("scheduling"), f"{path}.scheduling", SCHEDULINGS, "enabled")
    row[LEDGER_AT["scheduling"]] = scheduling_code(intent)
    if known.sample_age_seconds is not None:
        row[LEDGER_AT["sample_at_us"]] = around.now_us - int(known.sample_age_seconds * 1_000_000)
    row[LEDGER_AT["counted"]] = int(reader.flag(node.get("counted"), f"{path}.counted") is not False)
    held = around.tallies.get(known.name, EMPTY_TALLY)
    row[8:11] = [0, held.pending_memory_mb, held.pending_disk_gb]
    row[LEDGER_AT["sleepy_memory_mb"]] = held.sleepy_memory_mb
    if "capacity" not in node:
        row[:11] = _computed(known, held, around.config)
    elif node["capacity"] is not None:
        capacity = reader.mapping(node["capacity"], f"{path}.capacity", CAPACITY_FIELDS)
        row[:11] = _stated(reader, capacity, f"{path}.capacity", known, held)
        sleepy = reader.whole(capacity.get("sleepy_memory_mb"), f"{path}.capacity.sleepy_memory_mb", COLUMN_MAX)
        row[LEDGER_AT["sleepy_memory_mb"]] = held.sleepy_memory_mb if sleepy is None else sleepy
    row[LEDGER_AT["row_present"]] = int("capacity" not in node or node["capacity"] is not None)
    return row


def _computed(known: _Node, held: Tally, config: ClusterConfig) -> list[int]:
    """Return the ledger row that a node's own sample and its instances make."""
    sample = Sample(np.array([known.sample], dtype=np.int64).T, config)
    published = figure("cpu_schedulable", known.metrics["cpu_schedulable"])
    schedulable = shown(int(sample.schedulable_fallback[0]) if published == UNKNOWN else published)
    measured = sample.measured(0, schedulable)
    limits = node_limits(measured, config.ratios, known.max_instances).limits
    pending = [held.pending_memory_mb, held.pending_disk_gb]
    demand = figure("expected_demand", held.demand)
    return [*map(limit, limits.as_dict().values()), *held.used.as_dict().values(), demand, *pending]


def _stated(reader: Reader, capacity: Mapping[str, Any], path: str, known: _Node, held: Tally) -> list[int]:
    """Return the ledger row that the document states; what it leaves out is unknown, a null limit is unlimited."""
    row = []
    for name in LIMIT_NAMES:
        stated = reader.whole(capacity.get(name), f"{path}.{name}", figure_max(name))
        row.append(limit(stated) if name in capacity else UNKNOWN)
    if "limit_instances" not in capacity:
        row[3] = limit(known.max_instances)
    for name in USED_NAMES:
        used = reader.whole(capacity.get(name), f"{path}.{name}", figure_max(name))
        row.append(UNKNOWN if used is None else used)
    demand = reader.number(capacity.get("expected_demand"), f"{path}.expected_demand", figure_max("expected_demand"))
    row.append(figure("expected_demand", demand or 0))
    for name, computed in (("pending_memory_mb", held.pending_memory_mb), ("pending_disk_gb", held.pending_disk_gb)):
        pending = reader.whole(capacity.get(name), f"{path}.{name}", COLUMN_MAX)
        row.append(computed if pending is None else pending)
    return row


def _instance(reader: Reader, value: object, path: str) -> InstanceRecord:
    item = reader.mapping(value, path, INSTANCE_FIELDS)
    uuid = _needed_text(reader, item.get("uuid"), f"{path}.uuid", "an instance needs a uuid")

    def amount(name: str, default: int = 0) -> int:
        found = reader.whole(item.get(name), f"{path}.{name}", figure_max("used_cpus") if "cpus" in name else HELD_MAX)
        return default if found is None else found

    own = Amounts(amount("cpus"), amount("memory_mb"), amount("disk_gb"), 1)
    moved = (
        amount("incoming_cpus", own.cpus),
        amount("incoming_memory_mb", own.memory_mb),
        amount("incoming_disk_gb", own.disk_gb),
    )
    incoming = Amounts(*moved, 1)
    return InstanceRecord(
        uuid=uuid,
        namespace=reader.text(item.get("namespace"), f"{path}.namespace"),
        node=reader.text(item.get("node"), f"{path}.node") or None,
        incoming_node=reader.text(item.get("incoming_node"), f"{path}.incoming_node") or None,
        tags=reader.texts(item.get("tags"), f"{path}.tags"),
        amounts=own,
        incoming=None if incoming == own else incoming,
        grown_memory_mb=amount("grown_memory_mb"),
        grown_disk_gb=amount("grown_disk_gb"),
        sleepy=bool(reader.flag(item.get("sleepy"), f"{path}.sleepy")),
        terminating=bool(reader.flag(item.get("terminating"), f"{path}.terminating")),
        draft=bool(reader.flag(item.get("draft"), f"{path}.draft")),
        charge_age_seconds=reader.number(
            item.get("charge_age_seconds"), f"{path}.charge_age_seconds", AGE_SECONDS_MAX, -AGE_SECONDS_MAX
        ),
    )


def read_instance(value: object) -> InstanceRecord:
    """Return one instance of a document.

    Raises:
        InvalidRequest: with every problem.
    """
    reader = Reader()
    instance = _instance(reader, value, "instance")
    reader.finish()
    return instance


def write_document(frame: Frame) -> dict[str, Any]:
    """Return the document of a frame. Reading it back gives the same decisions."""
    taken_at = EPOCH + timedelta(microseconds=frame.now_us)
    return {
        "taken_at": taken_at.isoformat().replace("+00:00", "Z"),
        "config": frame.config.to_mapping(),
        "nodes": [_node_form(frame, at) for at in range(len(frame))],
        "instances": [instance_form(instance) for instance in frame.instances.values()],
    }


def _node_form(frame: Frame, at: int) -> dict[str, Any]:
    traits, ledger = frame.roster.traits[at], frame.ledger[:, at].tolist()
    sample = dict(zip(SAMPLE, frame.sample.matrix[:, at].tolist(), strict=True))
    row = dict(zip(LEDGER, ledger, strict=True))
    metrics = {name: _metric_form(name, row[name] if name in row else sample[name]) for name in METRIC_FIELDS}
    hypervisor = sample["is_hypervisor"]
    metrics["is_hypervisor"] = None if hypervisor == UNKNOWN else bool(hypervisor)
    age = None if row["sample_at_us"] == UNKNOWN else (frame.now_us - row["sample_at_us"]) / 1_000_000
    out: dict[str, Any] = {
        "name": frame.roster.names[at],
        "state": "error" if row["state"] == UNKNOWN else STATES[row["state"]],
        "scheduling": "draining" if row["scheduling"] == UNKNOWN else SCHEDULINGS[row["scheduling"]],
        "sample_age_seconds": age,
        **{name: getattr(traits, name) for name in TRAIT_FIELDS},
        "labels": dict(traits.labels),
        "metrics": {name: value for name, value in metrics.items() if value is not None},
        "capacity": _capacity_form(row) if row["row_present"] else None,
        "max_instances": shown(sample["max_instances"]),
        **inventory_form(frame.gpus.inventory(at)),
    }
    if frame.roster.node_ids[at]:
        out["node_id"] = frame.roster.node_ids[at]
    return out if row["counted"] else {**out, "counted": False}


def _metric_form(name: str, value: int) -> float | int | None:
    return shown_milli(value) if name in MILLI else shown(value)


def _capacity_form(row: Mapping[str, int]) -> dict[str, Any]:
    """Return the capacity object; unknown figures are left out, unlimited ones are null."""
    found = {name: row[name] for name in CAPACITY_FIELDS if row[name] != UNKNOWN}
    return {name: None if value == UNLIMITED else _metric_form(name, value) for name, value in found.items()}


def instance_form(instance: InstanceRecord) -> dict[str, Any]:
    """Return the document's form of an instance; what has its default is left out."""
    own, incoming = instance.amounts, instance.incoming
    out: dict[str, Any] = {
        "uuid": instance.uuid,
        "namespace": instance.namespace,
        "node": instance.node,
        "incoming_node": instance.incoming_node,
        "tags": dict(instance.tags),
        "cpus": own.cpus,
        "memory_mb": own.memory_mb,
        "disk_gb": own.disk_gb,
        "sleepy": instance.sleepy,
        "terminating": instance.terminating,
        "draft": instance.draft,
    }
    if incoming is not None:
        amounts = {"cpus": incoming.cpus, "memory_mb": incoming.memory_mb, "disk_gb": incoming.disk_gb}
        out |= {f"incoming_{name}": amount for name, amount in amounts.items()}
    if instance.charge_age_seconds is not None:
        out["charge_age_seconds"] = float(instance.charge_age_seconds)
    grown = {"grown_memory_mb": instance.grown_memory_mb, "grown_disk_gb": instance.grown_disk_gb}
    return out | {name: amount for name, amount in grown.items() if amount}
