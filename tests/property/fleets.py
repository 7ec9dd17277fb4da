"""Generated fleets and requests. All Hypothesis strategies of the placement core live here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from fleet.model.request import Placement, PlacementRequest, Reason, parse_placement_request
from fleet.model.rules import RULES_MAX
from tests.documents import a_document, a_node

LAWS = settings(max_examples=80)

NAMES = [f"n{i}" for i in range(6)]
INSTANCES = ("i1", "i2", "i3", "i4")
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

A100, H100, T4 = "NVIDIA A100-SXM4-40GB", "NVIDIA H100-SXM5-80GB", "Tesla T4"


def cards(*models: str, bound: int = 0, **changes: Any) -> list[dict[str, Any]]:
    """Cards by uuid, of which the first few are bound."""
    return [
        {"uuid": f"GPU-{at}", "model": model, "mig_capable": model in {A100, H100}, **changes}
        | ({"bound_to": "i9"} if at < bound else {})
        for at, model in enumerate(models)
    ]


def slices(*profiles: str, bound: int = 0, **changes: Any) -> list[dict[str, Any]]:
    """MIG instances by uuid, of which the first few are bound."""
    return [
        {"uuid": f"MIG-{at}", "profile": profile, **changes} | ({"bound_to": "i9"} if at < bound else {})
        for at, profile in enumerate(profiles)
    ]


# Each form of matching, in several states; every other node has no GPUs.
INVENTORIES: list[dict[str, Any]] = [
    *[{}] * 10,
    {"gpu_count": 2, "gpu_kind": "a100"},
    {"gpu_count": 2, "gpu_count_used": 1, "gpu_kind": "a100"},
    {"gpu_count": 1},
    {"gpus": cards(A100, A100, bound=1)},
    {"gpus": cards(A100, H100)},
    {"gpus": cards("", T4), "gpu_kind": "a100"},
    {"gpus": cards(A100, A100, mig_mode=True), "mig_instances": slices("1g.10gb", "2g.20gb", parent_gpu_uuid="GPU-1")},
    {"gpus": [{"uuid": ""}, {"uuid": "GPU-1", "model": A100, "missing": True}]},
    {"mig_instances": slices("1g.10gb", "1g.10gb", bound=1, kind="a100")},
    {"mig_profiles": {"1g.10gb": 2}, "mig_profiles_used": {"1g.10gb": 1}, "gpu_kind": "a100"},
    {"mig_profiles": {"1g.10gb": 4}, "gpus": cards(T4), "gpu_kind": "a100"},
]
LABELS: list[dict[str, str]] = [
    {},
    {"rack": "a"},
    {"rack": "b"},
    {"rack": "a", "disk": "nvme"},
    {"rack": "b", "disk": "nvme"},
    {"rack": "b", "disk": "hdd"},
    {"disk": "nvme"},
]


def combined(**values: Sequence[Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Every combination of values, for one draw: many small draws are what makes a law slow."""
    names = tuple(values)
    return st.sampled_from(list(product(*values.values()))).map(lambda found: dict(zip(names, found, strict=True)))


DECLARED = combined(
    labels=LABELS,
    region=["", "eu", "eu", "us"],
    arch=["", "amd64", "x86_64", "arm64"],
    backend=["", "qemu", "libvirt", "simulated", "firecracker"],
    sleepy_pool=[False, False, True],
)
TAGS: list[dict[str, str]] = [
    {},
    {"role": "db"},
    {"role": "web"},
    {"role": "db", "env": "prod"},
    {"env": "prod"},
    {"role": "", "web": ""},
]


IN_USE = combined(used_cpus=[2, 12, 20, 38], used_memory_mb=[0, 512, 4096, 8192])
LOADED = combined(cpu_load_1=[0.5, 7.5], memory_available=[4096, 4608, 8192, 12288])
HELD = combined(
    cpus=[1, 2, 3, 4],
    memory_mb=[512, 1024, 2048],
    disk_gb=[0, 1, 4],
    draft=[False, True],
    charge_age_seconds=[None, 0, 12, 12.5, 1000],
    grown_memory_mb=[0, 0, 256],
)
KNOWN_AS = combined(
    namespace=["", "", "other"], tags=TAGS, terminating=[False, False, False, True], sleepy=[False, True]
)
WHERE = combined(node=[*NAMES, None], incoming_node=[None, None, *NAMES])


@st.composite
def nodes(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """Most nodes have room for most requests; the others are in any state, with any figure missing."""
    declared = draw(DECLARED) | draw(st.sampled_from(INVENTORIES))
    node = a_node(name=name, node_id=NAMES.index(name) + 1, **declared)
    if draw(st.sampled_from([True, True, False])):
        node["capacity"] |= draw(IN_USE)
        node["metrics"] |= draw(LOADED)
        return node
    node |= {
        "state": draw(st.sampled_from(["active"] * 8 + ["created", "missing", "error", "deleted"])),
        "scheduling": draw(st.sampled_from(["enabled"] * 6 + ["cordoned", "draining"])),
        "sample_age_seconds": draw(st.sampled_from([12, 12, 12, 119.5, 120, 500, None])),
    }
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


OFTEN_PLAIN = combined(
    state=["active"] * 9 + ["error"],
    scheduling=["enabled"] * 8 + ["cordoned", "draining"],
    sample_age_seconds=[12, 120],
)
FIGURES = sorted([*METRICS, *set(CAPACITY) - {"expected_demand"}])


@st.composite
def known_nodes(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """A node with all of its figures, of which a few may be anything: so that one alone stands in the way."""
    declared = draw(DECLARED) | draw(st.sampled_from(INVENTORIES))
    node = a_node(name=name, node_id=NAMES.index(name) + 1, disk_foreign_gb=0, **declared)
    node["capacity"] |= draw(IN_USE)
    if draw(st.integers(0, 3)) == 0:
        node |= draw(OFTEN_PLAIN)
    for figure in draw(st.lists(st.sampled_from(FIGURES), min_size=1, max_size=2, unique=True)):
        if figure in CAPACITY:
            node["capacity"][figure] = draw(CAPACITY[figure])
        else:
            value = draw(METRICS[figure])
            node["metrics"][figure] = node["metrics"][figure] if value is None else value
    return node


@st.composite
def known_documents(draw: st.DrawFn) -> dict[str, Any]:
    """A snapshot document in which every figure is known."""
    names = draw(st.permutations(NAMES))[: draw(st.sampled_from([5, 4, 3, 6, 2, 1, 0]))]
    return a_document(
        *[draw(known_nodes(name)) for name in names],
        config=draw(CONFIGS),
        instances=[draw(instances(uuid)) for uuid in INSTANCES],
    )


@st.composite
def instances(draw: st.DrawFn, uuid: str) -> dict[str, Any]:
    """An instance that may be anywhere, moving, a draft or grown, of either namespace."""
    form = {"uuid": uuid, **draw(KNOWN_AS), **draw(WHERE), **draw(HELD)}
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
        "DEDICATED_SLEEPY_NODES": st.booleans(),
        "AFFINITY_MATCHING": st.sampled_from(["enforced", "preferred"]),
    },
)


@st.composite
def documents(draw: st.DrawFn) -> dict[str, Any]:
    """A snapshot document of up to six nodes with four instances."""
    names = draw(st.permutations(NAMES))[: draw(st.sampled_from([5, 4, 3, 6, 2, 1, 0]))]
    return a_document(
        *[draw(nodes(name)) for name in names],
        config=draw(CONFIGS),
        instances=[draw(instances(uuid)) for uuid in INSTANCES],
    )


def _rules_about(resource: str, tags: list[dict[str, str]], within: list[str | None]) -> list[dict[str, Any]]:
    return [
        {"resource": resource, "operator": operator, "tags": pairs} | ({"within": key} if key else {})
        for operator in ("has", "has_not")
        for pairs in tags
        for key in within
    ]


LEAVES = [
    *_rules_about("metal_server", [one for one in LABELS if one], [None]),
    *_rules_about("virtual_machine", [one for one in TAGS if one], [None, "rack", "zone"]),
]


@st.composite
def rule_trees(draw: st.DrawFn, depth: int = 2) -> dict[str, Any]:
    """A rule, or a group of up to three."""
    if depth == 0 or draw(st.integers(0, 2)):
        return draw(st.sampled_from(LEAVES))
    inner = [draw(rule_trees(depth - 1)) for _ in range(draw(st.integers(1, 3)))]
    return {draw(st.sampled_from(["any_of", "all_of"])): inner}


def rule_count(form: Any) -> int:
    """How many rules stand in a tree as JSON, or in a list of trees."""
    if isinstance(form, list):
        return sum(rule_count(item) for item in form)
    return 1 if "tags" in form else sum(rule_count(item) for item in form.values())


def rule_lists(min_size: int, max_size: int) -> st.SearchStrategy[list[dict[str, Any]]]:
    """Trees that one request may ask for together."""
    trees = st.lists(rule_trees(), min_size=min_size, max_size=max_size)
    return trees.filter(lambda found: rule_count(found) <= RULES_MAX)


ENTRIES = st.lists(st.sampled_from(["role", "role=db", "role=web", "env=prod", "web", "ghost"]), max_size=2)
AFFINITIES = st.one_of(
    st.fixed_dictionaries({}, optional={f"{word}_tag": ENTRIES for word in ("require_with", "require_without")}),
    st.fixed_dictionaries({}, optional={f"{word}_tag": ENTRIES for word in ("prefer_with", "prefer_without")}),
    st.sampled_from([{"role=db": 5}, {"web": -1, "role": 1}]),
)
GPU_ASKS: list[dict[str, Any]] = [
    {"gpus": 1},
    {"gpus": 2, "gpu_kind": "a100"},
    {"gpus": 1, "gpu_kind": "A100"},
    {"gpus": 1, "gpu_kind": "h100"},
    {"gpus": 1, "gpu_profile": "1g.10gb"},
    {"gpus": 2, "gpu_kind": "a100", "gpu_profile": "1g.10gb"},
    {"gpus": 0, "gpu_kind": "h100"},
]
# Each is asked for now and then, so that most requests still find a node.
WISHES: Mapping[str, st.SearchStrategy[Any]] = {
    "placement_rules": rule_lists(1, 2),
    "affinity": AFFINITIES,
    "placement": st.one_of(
        st.sampled_from(LABELS[1:]).map(lambda labels: {"labels": labels}),
        st.sampled_from(LABELS[1:]).map(lambda labels: {"labels": labels}),
        st.sampled_from(NAMES).map(lambda name: {"node": name}),
    ),
    "region": st.sampled_from(["eu", "us"]),
    "arch": st.sampled_from(["amd64", "arm64", "aarch64"]),
    "gpu": st.sampled_from(GPU_ASKS),
    "sleep_after_idle_seconds": st.sampled_from([600]),
    "namespace": st.sampled_from(["other"]),
}


AMOUNTS = combined(cpus=range(1, 9), memory_mb=[1, 512, 1024, 4096], disk_gb=range(5))


@st.composite
def bodies(draw: st.DrawFn) -> dict[str, Any]:
    """The body of a request for any reason; those that start from an instance name one that every document holds."""
    reason = draw(st.sampled_from(["create"] * 3 + ["resize", "migrate", "evacuate"]))
    body: dict[str, Any] = {
        **draw(AMOUNTS),
        "reason": reason,
        "instance": draw(st.sampled_from([None, "i1"])) if reason == "create" else "i1",
    }
    if draw(st.sampled_from([False] * 7 + [True])):
        body["destinations"] = draw(st.lists(st.sampled_from(NAMES), max_size=4))
    few = draw(st.sampled_from([1, 1, 2, 0]))
    for wish in draw(st.lists(st.sampled_from(sorted(WISHES)), min_size=few, max_size=few, unique=True)):
        found = draw(WISHES[wish])
        body |= found if wish == "gpu" else {wish: found}
    return body


def requests() -> st.SearchStrategy[PlacementRequest]:
    """A request for any reason, with any wish."""
    return bodies().map(parse_placement_request)


PLAIN: Mapping[str, Any] = {
    "placement": Placement(),
    "placement_rules": (),
    "affinity": None,
    "region": "",
    "arch": "",
    "gpus": 0,
    "gpu_kind": "",
    "gpu_profile": "",
    "sleep_after_idle_seconds": 0,
}
"""What a request holds that has no wish."""

CREATE: Mapping[str, Any] = {"reason": Reason.CREATE, "instance": None, "destinations": None}


SEEDS = st.integers(0, 2**63 - 1)


def shuffled(document: dict[str, Any], order: list[int]) -> dict[str, Any]:
    """The same document with its nodes in another order."""
    return {**document, "nodes": [document["nodes"][at] for at in order]}


@st.composite
def orders(draw: st.DrawFn, count: int) -> list[int]:
    return list(draw(st.permutations(range(count))))
