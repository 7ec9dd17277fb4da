"""Numbered vectors of affinity rules, through the pipeline: what is read of nodes, of their instances, of a group."""

from __future__ import annotations

from typing import Any

import pytest

from tests.documents import a_node
from tests.unit.placement.asking import decision_on

pytestmark = pytest.mark.vectors


def rule(resource: str, operator: str, tags: dict[str, str], **more: str) -> dict[str, Any]:
    return {"resource": resource, "operator": operator, "tags": tags, **more}


def instance(uuid: str, node: str, tags: dict[str, str]) -> dict[str, Any]:
    return {"uuid": uuid, "node": node, "namespace": "tenant", "tags": tags, "cpus": 1, "memory_mb": 64, "disk_gb": 0}


def kept(
    rules: list[dict[str, Any]], labels: dict[str, dict[str, str]], instances: list[dict[str, Any]]
) -> dict[str, bool]:
    """Which of the nodes with these labels the rules keep."""
    nodes = [a_node(name=name, node_id=at + 1, labels=pairs) for at, (name, pairs) in enumerate(labels.items())]
    decision = decision_on(*nodes, instances=instances, namespace="tenant", placement_rules=rules)
    return {name: name in decision.ranked for name in labels}


def test_atlas_v26_a_node_has_not_what_it_lacks_one_pair_of() -> None:
    labels = {"h": {"type": "storage", "rack": "a"}}

    assert kept([rule("metal_server", "has_not", {"type": "storage", "rack": "b"})], labels, []) == {"h": True}
    assert kept([rule("metal_server", "has_not", {"type": "storage"})], labels, []) == {"h": False}


def test_atlas_v27_all_pairs_of_one_rule_are_asked_of_one_instance() -> None:
    two = [instance("i1", "h", {"role": "db"}), instance("i2", "h", {"env": "prod"})]
    one_rule = [rule("virtual_machine", "has", {"role": "db", "env": "prod"})]
    both = [{"all_of": [rule("virtual_machine", "has", pair) for pair in ({"role": "db"}, {"env": "prod"})]}]

    assert kept(one_rule, {"h": {}}, two) == {"h": False}
    assert kept(both, {"h": {}}, two) == {"h": True}


@pytest.mark.parametrize(
    ("operator", "expected"),
    [
        ("has_not", {"host-1": False, "host-3": False, "other": True, "bare": False}),
        ("has", {"host-1": True, "host-3": True, "other": False, "bare": False}),
    ],
)
def test_atlas_v28_within_a_rack_its_hosts_answer_together_and_a_host_without_a_rack_fails(
    operator: str, expected: dict[str, bool]
) -> None:
    labels = {"host-1": {"rack": "a"}, "host-3": {"rack": "a"}, "other": {"rack": "b"}, "bare": {}}
    replica = [instance("i1", "host-1", {"role": "replica"})]

    assert kept([rule("virtual_machine", operator, {"role": "replica"}, within="rack")], labels, replica) == expected
