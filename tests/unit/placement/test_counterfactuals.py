"""What a refused caller reads, in the cases that people meet; the laws behind it are in tests/property."""

from __future__ import annotations

import functools
import time
from dataclasses import replace
from typing import Any

import pytest

from fleet.model.cluster_config import ClusterConfig
from fleet.model.gpu_report import UNITS_MAX
from fleet.model.labels import LABELS_MAX
from fleet.model.request import parse_placement_request
from fleet.placement import counterfactuals
from fleet.placement.counterfactuals import DECISIONS_MAX, remedies
from fleet.placement.pipeline import decide, decide_on
from fleet.placement.snapshot import Snapshot
from tests.benchmarks.deciding import NOW_US, records
from tests.documents import a_node
from tests.unit.placement.asking import request_of, snapshot_of

DB = {"tags": {"role": "db"}, "cpus": 1, "memory_mb": 1024, "disk_gb": 10}
NO_DB = {"resource": "virtual_machine", "operator": "has_not", "tags": {"role": "db"}}
BUDGET_SECONDS = 1.0
"""Of this thread's own work: ten times what a large refusal may take. The benchmark has the figure."""


def told(*nodes: dict[str, Any], config: Any = None, instances: Any = (), **request: Any) -> list[str]:
    """The sentences of a refusal, less the one about a new node."""
    found = remedies(request_of(**request), snapshot_of(*nodes, config=config, instances=instances), 0)
    return [remedy.text for remedy in found if remedy.node is not None]


def selector(**labels: str) -> dict[str, Any]:
    return {"placement": {"labels": labels}}


def test_each_label_that_would_do_is_told_alone() -> None:
    nodes = [a_node(name="n1", labels={"disk": "nvme"}), a_node(name="n2", labels={"tier": "gold"})]

    assert told(*nodes, **selector(disk="nvme", tier="gold"))[:2] == [
        "Drop the label disk=nvme: then n2 fits.",
        "Drop the label tier=gold: then n1 fits.",
    ]


def test_pairs_of_labels_are_told_when_no_label_alone_would_do() -> None:
    node = a_node(labels={"disk": "nvme"})

    assert told(node, **selector(disk="nvme", tier="gold", rack="a"))[0] == (
        "Drop the labels rack=a,tier=gold: then n1 fits."
    )


def test_the_whole_selector_goes_when_no_pair_would_do() -> None:
    assert told(a_node(), **selector(disk="nvme", tier="gold", rack="a")) == [
        "Drop the labels disk=nvme,rack=a,tier=gold: then n1 fits."
    ]


def test_region_arch_and_pin_can_go() -> None:
    assert told(a_node(region="eu"), region="us") == [
        "Drop the region us (no node is in it; there is: eu): then n1 fits."
    ]
    assert told(a_node(), arch="arm64") == ["Drop the architecture arm64: then n1 fits."]
    assert told(a_node(), placement={"node": "n9"}) == ["Drop the pin to n9: then n1 fits."]


def test_a_region_that_is_misspelt_is_told_with_those_that_there_are_the_likest_first() -> None:
    nodes = [a_node(name=f"n{at}", region=region) for at, region in enumerate(("asia", "eu", "us-east", "us-west", ""))]

    assert told(*nodes, region="EU")[0].startswith(
        "Drop the region EU (no node is in it; there is: eu, us-east, us-west and 1 more): then 5 nodes fit, "
    )
    assert told(a_node(), region="eu") == ["Drop the region eu: then n1 fits."]
    assert told(a_node(name="full", region="eu", used_cpus=42), a_node(), region="eu")[0].startswith(
        "Drop the region eu: then"
    )


def test_an_amount_is_lowered_to_what_the_best_node_takes() -> None:
    nodes = [a_node(name="n1", used_cpus=41), a_node(name="n2", used_cpus=39)]

    assert told(*nodes, cpus=4) == [
        "Ask for 3 vCPUs instead of 4: then n2 fits.",
        "Wait until n2 (or one other) has 1 vCPU more: then n2 fits.",
    ]


def test_the_overhead_of_an_instance_is_left_out_of_what_may_be_asked_for() -> None:
    node, config = a_node(memory_available=5120, memory_reserved_mb=4096), {"INSTANCE_OVERHEAD_MB": 64}

    assert told(node, config=config, memory_mb=1024)[0] == "Ask for 960 MiB of memory instead of 1024: then n1 fits."


def test_two_amounts_are_lowered_together_only_when_one_is_not_enough() -> None:
    node = a_node(used_cpus=41, memory_available=5000)

    assert told(node, cpus=4, memory_mb=4096)[0] == (
        "Ask for 1 vCPU instead of 4 and ask for 904 MiB of memory instead of 4096: then n1 fits."
    )
    assert not [text for text in told(a_node(used_cpus=41), cpus=4) if " and ask " in text]


def test_on_a_pinned_node_the_amounts_are_that_nodes() -> None:
    nodes = [a_node(name="n1", used_cpus=40), a_node(name="n2", used_cpus=42)]

    assert told(*nodes, cpus=3, placement={"node": "n1"})[0] == "Ask for 2 vCPUs instead of 3: then n1 fits."


def test_the_smallest_rule_that_would_do_is_named_by_its_path() -> None:
    nodes = [a_node(name="n1"), a_node(name="n2", labels={"type": "storage"})]
    storage = {"resource": "metal_server", "operator": "has", "tags": {"type": "storage"}}
    tree = [{"any_of": [{"all_of": [storage, NO_DB]}]}]

    found = told(*nodes, instances=[{"uuid": "i1", "node": "n2", **DB}], placement_rules=tree)

    assert found[:2] == [
        "Drop placement_rules[0].any_of[0].all_of[0] (metal_server has type=storage): then n1 fits.",
        "Drop placement_rules[0].any_of[0].all_of[1] (virtual_machine has_not role=db): then n2 fits.",
    ]
    assert "Set AFFINITY_MATCHING to preferred for the whole cluster: then 2 nodes fit, n1 first." in found


def test_b27_a_rule_within_a_label_that_nobody_has_names_the_nodes_without_it() -> None:
    nodes = [a_node(name=f"n{number}") for number in range(1, 6)]

    found = told(*nodes, placement_rules=[{**NO_DB, "within": "rack"}])

    assert (
        "Declare the label rack of its own on n1, if that is true of it (without it: n1, n2, n3 and 2 more): "
        "then n1 fits."
    ) in found


def test_a_required_tag_can_go() -> None:
    found = remedies(request_of(affinity={"require_with_tag": ["web", "db"]}), snapshot_of(a_node()), 0)
    one = told(a_node(), instances=[{"uuid": "i1", "node": "n1", **DB}], affinity={"require_with_tag": ["web", "role"]})

    assert [remedy.node for remedy in found] == [], "neither tag alone would do, and a new node has no neighbours"
    assert one == ["Drop web from require_with_tag: then n1 fits."]


def test_gpus_can_be_fewer_of_another_kind_or_none() -> None:
    node = a_node(gpu_count=2, gpu_count_used=1, gpu_kind="a100")

    assert told(node, gpus=2, gpu_kind="a100") == [
        "Ask for 1 GPU instead of 2: then n1 fits.",
        "Ask for no GPUs: then n1 fits.",
        "Wait until n1 has 1 GPU more: then n1 fits.",
    ]
    assert told(node, gpus=1, gpu_kind="h100")[0] == "Drop the kind of GPU, h100: then n1 fits."


@pytest.mark.parametrize(
    ("node", "text"),
    [
        ({"scheduling": "cordoned"}, "Uncordon n1: then n1 fits."),
        ({"scheduling": "draining"}, "Undrain n1: then n1 fits."),
        (
            {"limit_instances": 1, "used_instances": 1},
            "Raise max_instances of n1 from 1 to 2: then n1 fits.",
        ),
        ({"sample_age_seconds": 300}, "Start sf-resources on n1, whose last sample is 300 s old: then n1 fits."),
        ({"sample_age_seconds": None}, "Start sf-resources on n1, which has sent no sample: then n1 fits."),
        ({"state": "error"}, "Repair n1, which is in error: then n1 fits."),
    ],
)
def test_what_an_operator_can_do_names_the_node(node: dict[str, Any], text: str) -> None:
    assert told(a_node(**node))[0] == text


def test_two_changes_may_be_the_callers_and_the_operators() -> None:
    assert told(a_node(region="eu", scheduling="cordoned"), region="us") == [
        "Drop the region us (no node is in it; there is: eu) and uncordon n1: then n1 fits."
    ]


def test_of_two_changes_neither_gives_up_more_than_it_must() -> None:
    nodes = [a_node(name="n1", labels={"disk": "nvme"}), a_node(name="n2", labels={"rack": "a"})]
    asked = {**selector(disk="nvme", rack="a"), "destinations": []}
    rule = {"resource": "metal_server", "operator": "has", "tags": {"disk": "nvme"}}
    other = {"resource": "metal_server", "operator": "has", "tags": {"tier": "gold"}}

    assert [text for text in told(*nodes, **asked) if text.startswith("Drop")] == [
        "Drop the label disk=nvme and allow any destination: then n2 fits.",
        "Drop the label rack=a and allow any destination: then n1 fits.",
    ]
    assert told(nodes[0], placement_rules=[{"all_of": [rule, other]}], destinations=[])[0] == (
        "Allow any destination and drop placement_rules[0].all_of[1] (metal_server has tier=gold): then n1 fits."
    )
    assert len(told(nodes[0], placement_rules=[{"all_of": [rule, other]}], destinations=[])) == 2


@pytest.mark.parametrize(
    ("request_of_it", "change", "begins"),
    [
        ({"placement": {"node": "n9"}}, "placement.node", "Drop the pin to n9 and register a node with room for"),
        ({"destinations": ["n9"]}, "destinations", "Allow any destination and register a node with room for"),
    ],
)
def test_where_no_node_helps_that_may_be_named_any_may_and_a_new_one_does(
    request_of_it: dict[str, Any], change: str, begins: str
) -> None:
    for nodes in ([], [a_node(cpu_total_instance_vcpus=None, memory_available=None)]):
        (found,) = remedies(request_of(**request_of_it), snapshot_of(*nodes), 0)

        assert [one.get("field", one.get("action")) for one in found.change] == [change, "register"]
        assert found.text.startswith(begins)


def test_nothing_but_time_helps_a_node_that_is_only_busy() -> None:
    assert told(a_node(queue_waiting=21)) == ["Wait until n1 has at most 20 waiting jobs: then n1 fits."]


def test_room_that_only_the_ledger_lacks_comes_free_in_time_however_idle_the_machine_is() -> None:
    memory, disk = a_node(used_memory_mb=190_000, memory_available=60_000), a_node(used_disk_gb=975)

    assert told(memory, memory_mb=16_384)[-1] == "Wait until n1 has 13872 MiB of memory more: then n1 fits."
    assert told(disk, disk_gb=20)[-1] == "Wait until n1 has 15 GiB of disk more: then n1 fits."


def test_no_waiting_is_advised_for_more_than_the_machine_has() -> None:
    assert told(a_node(), memory_mb=100_000) == ["Ask for 55904 MiB of memory instead of 100000: then n1 fits."]


def test_rules_that_are_only_a_wish_are_not_to_be_dropped_as_well() -> None:
    storage = {"resource": "metal_server", "operator": "has", "tags": {"type": "storage"}}
    config = {"AFFINITY_MATCHING": "preferred"}

    assert told(a_node(used_cpus=40), config=config, cpus=4, placement_rules=[storage]) == [
        "Ask for 2 vCPUs instead of 4: then n1 fits.",
        "Wait until n1 has 2 vCPUs more: then n1 fits.",
    ]


def test_what_is_unknown_is_not_helped_by_asking_for_less() -> None:
    assert told(a_node(memory_available=None), memory_mb=4096) == []


def test_a_resize_may_keep_what_it_holds_on_a_node_of_which_a_figure_is_unknown() -> None:
    held = {"uuid": "i1", "node": "n1", "cpus": 2, "memory_mb": 1024, "disk_gb": 10}
    asked: dict[str, Any] = {"reason": "resize", "instance": "i1", "cpus": 4, "config": {"INSTANCE_OVERHEAD_MB": 24}}

    def of(**node: Any) -> list[str]:
        return told(a_node(**node), instances=[held], **{"memory_mb": 1000, **asked})

    assert of(cpu_total_instance_vcpus=None) == ["Ask for 2 vCPUs instead of 4: then n1 fits."]
    assert of(memory_available=None, used_cpus=38) == []
    asked |= {"cpus": 2, "memory_mb": 1001}
    assert of(memory_available=None) == ["Ask for 1000 MiB of memory instead of 1001: then n1 fits."]


HELD = {"uuid": "i1", "node": "n1", "tags": {"role": "db"}, "cpus": 2, "memory_mb": 1024, "disk_gb": 10}
MADE_WITH: dict[str, Any] = {
    "placement": {"labels": {"disk": "nvme"}},
    "placement_rules": [NO_DB],
    "region": "eu",
    "gpus": 1,
    "gpu_kind": "a100",
}


@pytest.mark.parametrize("reason", ["migrate", "evacuate"])
def test_a_move_gives_up_nothing_that_the_instance_was_made_with_but_an_operator_may_name_a_node(reason: str) -> None:
    other = {**HELD, "uuid": "i2", "node": "n2"}
    card = {"backend": "qemu", "gpu_count": 1, "gpu_kind": "a100", "region": "eu"}
    nodes = [a_node(name=name, **card) for name in ("n1", "n2")]
    asked = {"reason": reason, "instance": "i1", **MADE_WITH}

    assert told(*nodes, instances=[HELD, other], **asked) == [
        "Name n2 as the destination, whatever its labels, rules and affinity say: then n2 fits."
    ]
    assert told(a_node(name="n1"), a_node(name="n2", **card | {"region": "us"}), instances=[HELD], **asked) == []


def test_another_node_may_be_named_when_the_named_one_will_not_do() -> None:
    nodes = [a_node(name="n1"), a_node(name="n2", used_cpus=42), a_node(name="n3"), a_node(name="n4")]
    asked: dict[str, Any] = {"reason": "migrate", "instance": "i1", "cpus": 2}
    instead = "Name n3 (or one other) as the destination instead of {}: then n3 fits."

    found = told(*nodes, instances=[HELD], **asked, placement={"node": "n2"})
    unknown = told(*nodes, instances=[HELD], **asked, placement={"node": "n9"})

    assert found == [instead.format("n2"), "Wait until n2 has 2 vCPUs more: then n2 fits."]
    assert unknown == [instead.format("n9")]


def test_a_resize_asks_for_less_and_gives_up_nothing_else() -> None:
    nodes = [a_node(name="n1", used_cpus=40, labels={"disk": "nvme"}), a_node(name="n2", labels={"disk": "hdd"})]
    asked: dict[str, Any] = {"reason": "resize", "instance": "i1", "cpus": 9, "placement": {"labels": {"disk": "nvme"}}}

    assert told(*nodes, instances=[HELD], **asked) == [
        "Ask for 4 vCPUs instead of 9: then n1 fits.",
        "Declare the label disk=nvme on n2, if that is true of it (without it: n2): then n2 fits.",
        "Wait until n1 has 5 vCPUs more: then n1 fits.",
    ]


def test_a_new_node_is_described_by_what_the_request_asks_of_a_node() -> None:
    request = request_of(region="eu", gpus=2, gpu_kind="a100", **selector(disk="nvme"))

    found = remedies(request, snapshot_of(a_node()), 0)[-1]

    assert (found.node, found.nodes) == (None, 1)
    assert found.text == (
        "Register a node with room for at least 1 vCPU, 1024 MiB of memory, 10 GiB of disk, 2 GPUs (a100), "
        "with region eu, label disk=nvme."
    )


def changes(*nodes: dict[str, Any], **request: Any) -> set[str]:
    found = remedies(request_of(**request), snapshot_of(*nodes), 0)
    return {str(one.get("action")) for remedy in found for one in remedy.change}


def test_no_label_is_advised_that_no_node_may_have() -> None:
    within = {**NO_DB, "within": "a rack"}
    labels = {"resource": "metal_server", "operator": "has", "tags": {"made of": "old wood"}}
    full = a_node(labels={f"l{at}": "x" for at in range(LABELS_MAX)})

    assert "label" in changes(a_node(), placement_rules=[{**within, "within": "rack"}])
    for rule in (within, labels):
        assert changes(a_node(), placement_rules=[rule]).isdisjoint({"label", "register"})
    assert "label" not in changes(full, placement_rules=[{**within, "within": "rack"}])
    assert "label" not in changes(full, **selector(disk="nvme"))
    assert "label" in changes(full, **selector(l1="nvme"))


def test_a_new_node_in_a_rack_that_the_request_names_is_judged_with_who_is_in_that_rack() -> None:
    in_rack = {"resource": "metal_server", "operator": "has", "tags": {"rack": "a"}}
    nodes = a_node(labels={"rack": "a"}), a_node(name="n2", labels={"rack": "b"})

    def advised(rack: str, operator: str = "has_not", **more: Any) -> bool:
        instances = [{**DB, "uuid": "i1", "node": f"n{'ab'.index(rack) + 1}"}]
        rules = [in_rack, {**NO_DB, "operator": operator, "within": "rack"}]
        request = request_of(**{"cpus": 10_000, "placement_rules": rules, **more})
        found = remedies(request, snapshot_of(*nodes, instances=instances), 0)
        return any(remedy.node is None for remedy in found)

    assert not advised("a")
    assert advised("b")
    assert advised("a", "has")
    assert not advised("b", "has")
    named = {"placement_rules": [{**NO_DB, "within": "rack"}], **selector(rack="a")}
    assert not advised("a", **named)
    assert advised("b", **named)


def test_a_new_node_is_mistaken_for_no_node_of_the_fleet() -> None:
    rules = [{**NO_DB, "within": "rack"}]
    node = a_node(name="a-new-node", labels={"rack": "a"}, scheduling="cordoned")

    assert "register" in changes(node, placement_rules=rules, **selector(rack="a"))


def test_no_node_is_advised_with_more_gpus_than_a_node_may_have_and_a_million_cost_no_more_than_one() -> None:
    assert "register" in changes(a_node(), gpus=UNITS_MAX)
    for asked in ({}, {"gpu_profile": "1g.5gb"}):
        began = time.thread_time()
        assert "register" not in changes(a_node(), gpus=1_000_000, **asked)
        assert time.thread_time() - began < BUDGET_SECONDS


def test_an_empty_fleet_needs_a_node() -> None:
    (only,) = remedies(request_of(), snapshot_of(), 0)

    assert only.change[0]["action"] == "register"


@functools.cache
def many(count: int) -> Snapshot:
    labelled = [replace(node, labels={"rack": f"r{at % 50}"}) for at, node in enumerate(records(count))]
    return Snapshot.from_records(labelled, ClusterConfig(), NOW_US)


@pytest.mark.parametrize(
    "body",
    [
        {"cpus": 190, "memory_mb": 4096},
        {"cpus": 2, "memory_mb": 4096, "placement": {"labels": {f"l{number}": "x" for number in range(64)}}},
        {"cpus": 2, "memory_mb": 4096, "placement_rules": [{**NO_DB, "operator": "has", "within": "rack"}] * 16},
        {"cpus": 2, "memory_mb": 4096, "gpus": 4, "gpu_kind": "a100", "region": "eu", "arch": "arm64"},
    ],
)
def test_the_work_is_bounded_on_ten_thousand_nodes(body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot, request = many(10_000), parse_placement_request(body)
    decision, made = decide(request, snapshot, 0), []

    def counted(*given: Any) -> Any:
        made.append(given)
        return decide_on(*given)

    monkeypatch.setattr(counterfactuals, "decide_on", counted)
    started = time.thread_time()
    found = remedies(request, snapshot, 0, decision)

    assert time.thread_time() - started < BUDGET_SECONDS
    assert len(made) <= DECISIONS_MAX
    assert found
