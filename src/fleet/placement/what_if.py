"""What if: a frame that differs from another in one thing that an operator, or time, may change.

Promise: nothing of the frame that is given changes; whatever is not named here stays exactly as it was. So a decision
on the other frame says what the change would have done, and nothing else.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from fleet.model.cluster_config import ClusterConfig
from fleet.model.gpu_inventory import GpuAsk, GpuInventory
from fleet.model.gpu_report import PROFILE_UNITS_MAX, UNITS_MAX
from fleet.model.labels import can_be_declared
from fleet.model.node import CapacityRow, NodeRecord, NodeState
from fleet.model.request import PlacementRequest
from fleet.model.resources import Amounts, Limits
from fleet.model.rules import Operator, Resource, leaves, within_keys
from fleet.placement.ask import Ask
from fleet.placement.columns import ACTIVE, ENABLED, LEDGER_AT, SAMPLE_AT, UNLIMITED
from fleet.placement.frame import Frame, Sample
from fleet.placement.instances import InstanceRecord
from fleet.placement.snapshot import Snapshot
from fleet.placement.stages.queue_state import WAITING_MAX
from fleet.placement.stages.sufficient_idle_disk import BUSY_MS_PER_SECOND_MAX

NEW_NODE: Final = "a-new-node"
"""The value of a label that no other node shares."""

UNNAMED: Final = ""
"""The name of a node that is not there yet: no node of the fleet can have it."""

SPARE_MILLI: Final = 1000


def scheduling_enabled(frame: Frame, at: int) -> Frame:
    """The node at an index is neither cordoned nor draining any more."""
    return _with(frame, at, {"scheduling": ENABLED})


def heard_of(frame: Frame, at: int) -> Frame:
    """The node is active, and its last sample was measured just now."""
    return _with(frame, at, {"state": ACTIVE, "sample_at_us": frame.now_us})


def slots_raised(frame: Frame, at: int, limit: int) -> Frame:
    """The node takes up to `limit` instances."""
    return _with(frame, at, {"limit_instances": limit}, {"max_instances": limit})


def configured(frame: Frame, **settings: Any) -> Frame:
    """The cluster is configured otherwise; what nodes published, and the limits stored of them, stay."""
    config: ClusterConfig = replace(frame.config, **settings)
    sample = Sample(frame.sample.matrix, config)
    return Frame(frame.roster, frame.ledger, sample, frame.now_us, frame.instances, frame.gpus)


def labelled(frame: Frame, at: int, key: str, value: str) -> Frame:
    """The node has one label more, or another value for it."""
    roster = frame.roster
    traits = replace(roster.traits[at], labels={**roster.traits[at].labels, key: value})
    twin = copy.copy(frame)
    twin.roster = roster.redeclared({at: (roster.node_ids[at], traits)})
    return twin


def emptied_for(frame: Frame, at: int, ask: Ask) -> Frame:
    """So much of the node's load has gone that the amounts of `ask`, and its GPUs, are free there."""
    added = {name: ask.added(name, at) for name in ("cpus", "memory_mb", "disk_gb", "instances")}
    ledger = {}
    for row, (name, wanted) in enumerate(added.items()):
        limit = int(frame.limits[row, at])
        if limit != UNLIMITED and wanted:
            ledger[f"used_{name}"] = min(int(frame.used[row, at]), limit - wanted)
    limits = frame.limits[:, at]
    sample = {
        "cpu_total_instance_vcpus": _capped(frame, "cpu_total_instance_vcpus", at, int(limits[0]) - added["cpus"]),
        "memory_total_instance_actual": _capped(
            frame, "memory_total_instance_actual", at, int(limits[1]) - added["memory_mb"]
        ),
        "queue_waiting": _capped(frame, "queue_waiting", at, WAITING_MAX),
        "disk_busy_ms_per_second": _capped(frame, "disk_busy_ms_per_second", at, BUSY_MS_PER_SECOND_MAX * SPARE_MILLI),
    }
    short = {
        "memory_available": added["memory_mb"] - int(frame.measured_memory[at]) if added["memory_mb"] else 0,
        "disk_free_gb": added["disk_gb"] - int(frame.measured_disk[at]) if added["disk_gb"] else 0,
    }
    for name, lacking in short.items():
        sample[name] = int(frame.sample.column(name)[at]) + max(0, lacking)
    twin = _with(frame, at, ledger, sample)
    return twin.with_gpus(frame.gpus.replace({at: freed(frame.gpus.inventory(at))})) if ask.gpus.count else twin


def _capped(frame: Frame, name: str, at: int, most: int) -> int:
    """A measured figure that has fallen to `most`; unknown stays unknown, which is below everything."""
    return min(int(frame.sample.column(name)[at]), most)


def freed(inventory: GpuInventory) -> GpuInventory:
    """The same GPUs with nobody on them."""
    return replace(
        inventory,
        used=0,
        profiles_used={},
        devices=tuple(replace(one, bound_to=None) for one in inventory.devices),
        instances=tuple(replace(one, bound_to=None) for one in inventory.instances),
    )


def fresh_node(request: PlacementRequest, frame: Frame) -> NodeRecord:
    """An idle node that has what the request asks of a node, and just so much room."""
    amounts = request.amounts(frame.config.instance_overhead_mb)
    labels = dict(request.placement.labels)
    for rule in leaves(request.placement_rules):
        if rule.resource is Resource.METAL_SERVER and rule.operator is Operator.HAS:
            labels |= {key: value for key, value in rule.tags.items() if key not in labels}
        elif rule.within is not None:
            labels.setdefault(rule.within, NEW_NODE)
    return NodeRecord(
        name=UNNAMED,
        sample_at_us=frame.now_us,
        labels=labels,
        region=request.region,
        arch=request.arch,
        backend="libvirt",
        sleepy_pool=frame.config.dedicated_sleepy_nodes and request.is_sleepy,
        metrics=_idle(amounts),
        capacity=CapacityRow(Limits(amounts.cpus, amounts.memory_mb, amounts.disk_gb, 1), Amounts()),
        gpu=_counted(request.gpu_ask),
    )


def can_be_registered(record: NodeRecord) -> bool:
    """Whether a node may have these labels, and so many GPUs: a rule's words, and an amount, may be what none has."""
    gpus, slices = record.gpu.count, record.gpu.profiles.values()
    return can_be_declared(record.labels) and gpus <= UNITS_MAX and all(one <= PROFILE_UNITS_MAX for one in slices)


def only(record: NodeRecord, frame: Frame, request: PlacementRequest) -> Frame:
    """A fleet in which only this node takes instances, under the same configuration.

    A node that nobody is on yet, under labels of its own, is judged the same in any company. Where the request itself
    names the value of a label within which its rules ask, the nodes that share it come along, with who is on them.
    """
    shared = [key for key in within_keys(request.placement_rules) if record.labels.get(key, NEW_NODE) != NEW_NODE]
    if shared:
        roster = frame.roster
        company = [
            NodeRecord(name=name, state=NodeState.MISSING, labels=traits.labels)
            for name, traits in zip(roster.names, roster.traits, strict=True)
            if any(traits.labels.get(key) == record.labels[key] for key in shared)
        ]
        return Snapshot.from_records([record, *company], frame.config, frame.now_us, frame.instances.values()).frame
    found = None if request.instance is None else frame.instances.get(request.instance)
    others: Sequence[InstanceRecord] = () if found is None else (found,)
    return Snapshot.from_records([record], frame.config, frame.now_us, others).frame


def _idle(amounts: Amounts) -> dict[str, Any]:
    return {
        "is_hypervisor": True,
        "cpu_threads": amounts.cpus,
        "cpu_schedulable": amounts.cpus,
        "cpu_max_per_instance": amounts.cpus,
        "cpu_load_1": 0,
        "cpu_total_instance_vcpus": 0,
        "memory_max": amounts.memory_mb,
        "memory_available": amounts.memory_mb,
        "memory_reserved_mb": 0,
        "memory_total_instance_actual": 0,
        "disk_total_gb": amounts.disk_gb,
        "disk_free_gb": amounts.disk_gb,
        "disk_reservation_gb": 0,
        "disk_busy_ms_per_second": 0,
        "queue_waiting": 0,
    }


def _counted(asked: GpuAsk) -> GpuInventory:
    """The GPUs that are asked for, as a count: whatever number somebody asks for, one figure says it."""
    if asked.profile:
        return GpuInventory(profiles={asked.profile: asked.count}, kind=asked.kind)
    return GpuInventory(count=asked.count, kind=asked.kind)


def _with(frame: Frame, at: int, ledger: Mapping[str, int], sample: Mapping[str, int] | None = None) -> Frame:
    """The frame with some figures of one node replaced."""
    counters = frame.ledger
    if ledger:
        counters = counters.copy()
        for name, value in ledger.items():
            counters[LEDGER_AT[name], at] = value
    measured = frame.sample
    if sample:
        matrix = measured.matrix.copy()
        for name, value in sample.items():
            matrix[SAMPLE_AT[name], at] = value
        measured = Sample(matrix, frame.config)
    return Frame(frame.roster, counters, measured, frame.now_us, frame.instances, frame.gpus)


__all__ = [
    "NEW_NODE",
    "can_be_registered",
    "configured",
    "emptied_for",
    "fresh_node",
    "heard_of",
    "labelled",
    "only",
    "scheduling_enabled",
    "slots_raised",
]
