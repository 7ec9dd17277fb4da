"""Generated fleets and requests. All Hypothesis strategies of the placement core live here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from fleet.model.request import PlacementRequest, parse_placement_request
from fleet.placement.example import a_document, a_node

# Derandomised: the same tree always runs the same examples; a failure here is a failure everywhere.
LAWS = settings(
    max_examples=100, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow], print_blob=False
)

NAMES = [f"n{i}" for i in range(6)]
# Small numbers meet each other at the edges far more often than large ones do.
SMALL = st.integers(0, 12)
MEMORY = st.sampled_from([0, 1, 512, 1024, 2048, 4096, 8192])


def sometimes_missing(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(values, values, values, values, st.none())


METRICS: Mapping[str, st.SearchStrategy[Any]] = {
    "is_hypervisor": st.sampled_from([True, True, True, True, False, None]),
    "cpu_threads": sometimes_missing(SMALL),
    "cpu_schedulable": sometimes_missing(SMALL),
    "cpu_max_per_instance": sometimes_missing(st.integers(0, 8)),
    "cpu_load_1": sometimes_missing(st.sampled_from([0, 0.25, 0.5, 1.999, 2.0, 7.5, 100])),
    "cpu_total_instance_vcpus": sometimes_missing(SMALL),
    "memory_max": sometimes_missing(MEMORY),
    "memory_available": sometimes_missing(MEMORY),
    "memory_reserved_mb": sometimes_missing(st.sampled_from([0, 1, 512])),
    "memory_total_instance_actual": sometimes_missing(MEMORY),
    "disk_total_gb": sometimes_missing(SMALL),
    "disk_free_gb": sometimes_missing(SMALL),
    "disk_reservation_gb": sometimes_missing(st.sampled_from([0, 0.5, 2])),
    "disk_busy_ms_per_second": sometimes_missing(st.sampled_from([0, 1200, 1200.001, 5000])),
    "queue_waiting": sometimes_missing(st.sampled_from([0, 20, 21])),
}
CAPACITY: Mapping[str, st.SearchStrategy[Any]] = {
    "limit_cpus": st.one_of(SMALL, SMALL, SMALL, st.none()),
    "limit_memory_mb": st.one_of(MEMORY, MEMORY, MEMORY, st.none()),
    "limit_disk_gb": st.one_of(SMALL, SMALL, st.none()),
    "limit_instances": st.one_of(st.none(), st.none(), st.integers(0, 2)),
    "used_cpus": SMALL,
    "used_memory_mb": MEMORY,
    "used_disk_gb": SMALL,
    "used_instances": st.integers(0, 2),
    "expected_demand": st.sampled_from([0, 0.001, 1.2, 50]),
    "pending_memory_mb": st.sampled_from([0, 0, 1, 512]),
    "pending_disk_gb": st.sampled_from([0, 0, 1]),
}


@st.composite
def nodes(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """A node in any state, with any of its figures missing."""
    node = a_node(
        name=name,
        node_id=NAMES.index(name) + 1,
        state=draw(st.sampled_from(["active"] * 8 + ["created", "missing", "error", "deleted"])),
        scheduling=draw(st.sampled_from(["enabled"] * 6 + ["cordoned", "draining"])),
        sample_age_seconds=draw(st.sampled_from([12, 12, 12, 119.5, 120, 500, None])),
    )
    metrics = {metric: draw(values) for metric, values in METRICS.items()}
    node["metrics"] = {metric: value for metric, value in metrics.items() if value is not None}
    shape = draw(st.sampled_from(["row"] * 6 + ["partial", "absent", "null"]))
    if shape == "absent":
        del node["capacity"]
        return node
    row = {figure: draw(values) for figure, values in CAPACITY.items()}
    gone = draw(st.sets(st.sampled_from(sorted(CAPACITY)), max_size=3)) if shape == "partial" else set()
    node["capacity"] = None if shape == "null" else {name: value for name, value in row.items() if name not in gone}
    return node


@st.composite
def instances(draw: st.DrawFn, uuid: str) -> dict[str, Any]:
    """An instance that may be anywhere, moving, a draft or grown."""
    form = {
        "uuid": uuid,
        "node": draw(st.sampled_from([*NAMES, None])),
        "incoming_node": draw(st.sampled_from([None, None, *NAMES])),
        "cpus": draw(st.integers(1, 4)),
        "memory_mb": draw(st.sampled_from([512, 1024, 2048])),
        "disk_gb": draw(st.integers(0, 4)),
        "draft": draw(st.booleans()),
        "charge_age_seconds": draw(st.sampled_from([None, 0, 12, 12.5, 1000])),
        "grown_memory_mb": draw(st.sampled_from([0, 0, 256])),
    }
    return form if draw(st.booleans()) else {**form, "incoming_memory_mb": draw(MEMORY)}


CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "CPU_OVERCOMMIT_RATIO": st.sampled_from([1, 1.15, 3, "unlimited"]),
        "RAM_OVERCOMMIT_RATIO": st.sampled_from([0.5, 1, 1.25]),
        "DISK_OVERCOMMIT_RATIO": st.sampled_from([1, 2]),
        "ADMIT_UNSIZED_NODES": st.booleans(),
        "INSTANCE_OVERHEAD_MB": st.sampled_from([0, 64]),
        "SCHEDULER_TARGET_LOAD": st.sampled_from([-1, 0, 0.75, 2]),
        "NODE_METRICS_MAX_AGE_SECONDS": st.sampled_from([60, 120]),
    },
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A snapshot document of up to six nodes with two instances."""
    names = draw(st.permutations(NAMES))[: draw(st.integers(0, len(NAMES)))]
    return a_document(
        *[draw(nodes(name)) for name in names],
        config=draw(CONFIGS),
        instances=[draw(instances(uuid)) for uuid in ("i1", "i2")],
    )


@st.composite
def requests(draw: st.DrawFn) -> PlacementRequest:
    """A request for any reason; those that start from an instance name one that every document holds."""
    reason = draw(st.sampled_from(["create"] * 3 + ["resize", "migrate", "evacuate"]))
    body: dict[str, Any] = {
        "cpus": draw(st.integers(1, 8)),
        "memory_mb": draw(st.sampled_from([1, 512, 1024, 4096])),
        "disk_gb": draw(st.integers(0, 4)),
        "reason": reason,
        "instance": draw(st.sampled_from([None, "i1"])) if reason == "create" else "i1",
    }
    if draw(st.integers(0, 3)) == 0:
        body["destinations"] = draw(st.lists(st.sampled_from(NAMES), max_size=4))
    return parse_placement_request(body)


SEEDS = st.integers(0, 2**63 - 1)


def shuffled(document: dict[str, Any], order: list[int]) -> dict[str, Any]:
    """The same document with its nodes in another order."""
    return {**document, "nodes": [document["nodes"][at] for at in order]}


@st.composite
def orders(draw: st.DrawFn, count: int) -> list[int]:
    return list(draw(st.permutations(range(count))))
