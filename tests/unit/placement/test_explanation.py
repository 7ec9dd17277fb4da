"""Sentences of a decision."""

from typing import Any

import pytest

from fleet.placement.trail import Trail
from tests.documents import a_node
from tests.unit.placement.asking import decision_on


def test_the_first_node_is_told_with_its_band_and_weight() -> None:
    decision = decision_on(
        a_node(name="n1", used_memory_mb=0, memory_total_instance_actual=0), a_node(name="n2", state="error")
    )

    assert decision.summary == (
        "n1 is first of 1 of 2 nodes: load-aware, bucket 0, weight 10.000; dropped: 1 node_state"
    )
    assert decision.remedy == ""


def test_the_nearest_node_is_the_one_short_in_fewest_dimensions() -> None:
    far = a_node(name="n1", used_cpus=42, used_memory_mb=192512)
    nearest = a_node(name="n2", used_disk_gb=975)
    near = a_node(name="n3", used_disk_gb=977)

    assert decision_on(far, near, nearest).remedy == "nearest is n2: it lacks 5 GiB of disk"


def test_equally_near_nodes_break_the_tie_on_the_name() -> None:
    nodes = [a_node(name=name, used_cpus=42) for name in ("n3", "n2", "n4")]

    assert decision_on(*nodes).remedy == "nearest is n2: it lacks 1 vCPU"


def test_all_that_the_nearest_node_lacks_is_told() -> None:
    node = a_node(used_cpus=41, memory_available=5000, limit_instances=1)

    assert decision_on(node, cpus=2).remedy == ("nearest is n1: it lacks 1 vCPU and 120 MiB of memory and 1 slot")


@pytest.mark.parametrize(
    ("nodes", "remedy"),
    [
        ([{"scheduling": "cordoned"}], "uncordon n1"),
        ([{"scheduling": "cordoned"}, {"scheduling": "cordoned"}], "uncordon one of 2 nodes, such as n1"),
        ([{"sample_age_seconds": 500}], "1 node has sent no fresh sample: see whether sf-resources runs there"),
        ([{"state": "error"}], ""),
        (
            [{"memory_available": None}],
            "unknown_memory_available on n1: see what sf-resources measures there, for unknown is never room",
        ),
        (
            [{"cpu_total_instance_vcpus": None}, {"memory_available": None}, {"memory_available": None}],
            (
                "unknown_memory_available on 2 nodes, such as n2: see what sf-resources measures there, "
                "for unknown is never room"
            ),
        ),
    ],
)
def test_what_would_help_when_nothing_is_schedulable(nodes: list[dict[str, Any]], remedy: str) -> None:
    assert decision_on(*[a_node(name=f"n{at}", **node) for at, node in enumerate(nodes, 1)]).remedy == remedy


def test_waiting_does_not_help_a_request_beyond_every_limit() -> None:
    assert decision_on(a_node(), cpus=43).remedy == "ask for less, or register a larger node: waiting cannot help"


def test_each_node_that_breaks_a_rule_names_its_own_first_neighbours_in_whatever_order_they_came() -> None:
    apart = {"resource": "virtual_machine", "operator": "has_not", "tags": {"role": "db"}}
    nodes = [a_node(name=f"n{at}", labels={"rack": "a" if at < 3 else "b"}) for at in (1, 2, 3)]
    on = {"i1": "n1", "i2": "n1", "i3": "n1", "i4": "n1", "i5": "n2", "i6": "n3", "i7": "gone"}
    placed = [{"uuid": uuid, "node": node, "tags": {"role": "db"}} for uuid, node in on.items()]
    placed[4]["incoming_node"] = "n3"

    def neighbours(**rule: str) -> dict[str, list[str]]:
        decision = decision_on(*nodes, instances=placed[::-1], placement_rules=[{**apart, **rule}])
        return {node: figures["neighbours"] for node, figures in decision.stages[-1].dropped.items()}

    assert neighbours() == {"n1": ["i1", "i2", "i3"], "n2": ["i5"], "n3": ["i5", "i6"]}
    assert neighbours(within="rack") == {"n1": ["i1", "i2", "i3"], "n2": ["i1", "i2", "i3"], "n3": ["i5", "i6"]}


def test_a_decision_that_places_does_not_look_for_what_would_help(monkeypatch: pytest.MonkeyPatch) -> None:
    decision = decision_on(a_node(name="n1"))
    monkeypatch.setattr(Trail, "refused_on_capacity", lambda _trail: pytest.fail("every node was judged again"))

    assert decision.remedy == ""


def test_a_node_that_would_be_refused_with_room_too_is_not_the_nearest() -> None:
    cards = {"gpu_count": 2, "gpu_kind": "a100"}
    busy = a_node(name="n2", used_cpus=42, queue_waiting=21, **cards)
    holds = a_node(name="n3", used_cpus=41, gpu_count_used=1, **cards)
    asked: dict[str, Any] = {"cpus": 2, "gpus": 2, "gpu_kind": "a100"}

    assert decision_on(a_node(name="n1", used_cpus=41), busy, holds, **asked).remedy == (
        "nearest is n3: it lacks 1 vCPU and 1 GPU"
    )
    assert decision_on(a_node(name="n1", used_cpus=41), busy, **asked).remedy == ""


def test_a_resize_may_grow_where_it_is_whatever_its_neighbours_are() -> None:
    held = {"uuid": "i1", "node": "n1", "cpus": 2, "memory_mb": 1024, "disk_gb": 10}
    other = {**held, "uuid": "i2", "tags": {"role": "db"}}
    rule = {"resource": "virtual_machine", "operator": "has_not", "tags": {"role": "db"}}
    asked: dict[str, Any] = {"reason": "resize", "instance": "i1", "cpus": 4, "placement_rules": [rule]}

    decision = decision_on(a_node(used_cpus=41), instances=[held, other], **asked)

    assert decision.remedy == "nearest is n1: it lacks 1 vCPU"


def test_a_cordoned_node_that_would_not_fit_is_not_said_to_help() -> None:
    small, other = a_node(name="n1", scheduling="cordoned", used_cpus=42), a_node(name="n2", scheduling="cordoned")

    assert decision_on(small).remedy == ""
    assert decision_on(small, other).remedy == "uncordon n2"
    assert decision_on(small, other, region="eu").remedy == ""


def test_an_instance_above_a_limit_that_became_smaller_may_wait_for_what_it_grows_by() -> None:
    held = {"uuid": "i1", "node": "n1", "cpus": 8, "memory_mb": 1024, "disk_gb": 10}
    node = a_node(limit_cpus=4, used_cpus=8, limit_memory_mb=4096, used_memory_mb=3584, memory_total_instance_actual=0)
    asked: dict[str, Any] = {"reason": "resize", "instance": "i1", "instances": [held], "cpus": 8}

    grows, beyond = decision_on(node, memory_mb=2048, **asked), decision_on(node, memory_mb=8192, **asked)

    assert (grows.transient, grows.remedy) == (True, "nearest is n1: it lacks 512 MiB of memory")
    assert (beyond.transient, beyond.remedy) == (
        False,
        "ask for less, or register a larger node: waiting cannot help",
    )
