"""Every stage keeps its own examples, and a file that lacks something is named."""

from types import ModuleType

import numpy as np
import pytest

from fleet.model.errors import BrokenPromise
from fleet.placement.ask import Ask
from fleet.placement.pipeline import walk_stages
from fleet.placement.stage import Example, Filter, NamedStage, Reason, all_stages, own_strategies, read_stages
from tests.documents import a_node
from tests.unit.placement.asking import request_of, snapshot_of

# The numbers and names of the pipeline as the product promises them.
PROMISED = {
    1: "node_pin",
    2: "node_state",
    3: "scheduling_state",
    4: "is_hypervisor",
    5: "sleepy_pool",
    6: "region",
    7: "arch",
    8: "backend",
    9: "labels",
    10: "cpu_max_per_instance",
    11: "sufficient_idle_cpu",
    12: "sufficient_idle_memory",
    13: "sufficient_free_disk",
    14: "instance_slots",
    15: "gpu",
    16: "affinity_constraints",
    17: "placement_rules",
    18: "affinity",
    19: "queue_state",
    20: "sufficient_idle_disk",
}
CASES = [
    pytest.param(item, example, id=f"{item.name}: {example.text}")
    for item in all_stages()
    for example in item.stage.examples
]
A_REASON = Reason("too_red", "the node is red")


def test_stages_stand_in_the_promised_order() -> None:
    assert list(PROMISED.items()) == [(item.stage.order, item.name) for item in all_stages()]


@pytest.mark.parametrize(("item", "example"), CASES)
def test_example(item: NamedStage, example: Example) -> None:
    others = [a_node(**other) for other in example.others]
    frame = snapshot_of(a_node(**example.node), *others, config=example.config, instances=example.instances).frame

    steps = walk_stages([item], Ask.of(request_of(**example.request), frame), frame, explain=True).steps

    dropping = [step for step in steps if not step.overridden and step.dropped()[0]]
    assert len(steps) <= 1
    assert example.reason == (dropping[0].reason_at(0) if dropping else None)


def test_every_reason_is_declared_and_has_an_example() -> None:
    for item in all_stages():
        shown = {example.reason for example in item.stage.examples}

        assert set(item.stage.reasons) <= shown, item.name


def test_reason_codes_are_used_once_in_a_stage() -> None:
    for item in all_stages():
        codes = [reason.code for reason in item.stage.reasons]

        assert len(codes) == len(set(codes)), item.name


def test_every_strategy_says_what_it_orders_by() -> None:
    assert sorted(own_strategies()) == ["balanced", "best-fit", "binpack", "load-aware", "spread", "spread-3"]
    assert all(item.strategy.axis and item.text for item in own_strategies().values())


def a_stage_file(name: str, *, text: str = "", **changes: object) -> tuple[str, ModuleType]:
    module = ModuleType(name, text or f"{name}: drop red nodes.")
    parts = {
        "order": 7,
        "reasons": (A_REASON,),
        "examples": (Example("a red node is dropped", A_REASON),),
        "drops": lambda ask, frame: ((A_REASON, np.zeros(len(frame), dtype=np.bool_)),),
        "figures": lambda ask, frame, at: {},
    }
    module.STAGE = Filter(**{**parts, **changes})  # type: ignore[attr-defined,arg-type]
    return name, module


def test_a_whole_stage_file_is_taken_at_its_number() -> None:
    found = read_stages([a_stage_file("later", order=9), a_stage_file("sooner", order=6)])

    assert [item.name for item in found] == ["sooner", "later"]


@pytest.mark.parametrize(
    ("file", "problem"),
    [
        (a_stage_file("bare", text="Something else."), "stage bare has no docstring"),
        (a_stage_file("mute", reasons=()), "stage mute declares no reasons"),
        (a_stage_file("vague", examples=()), "stage vague has no examples"),
        (a_stage_file("half", reasons=(A_REASON, Reason("too_blue", "it is blue"))), "no example of reason too_blue"),
        (("empty", ModuleType("empty", "empty: nothing.")), "stage empty has no STAGE"),
    ],
)
def test_an_unfinished_stage_file_stops_the_start_by_name(file: tuple[str, ModuleType], problem: str) -> None:
    with pytest.raises(BrokenPromise, match=problem):
        read_stages([file])


def test_two_stages_with_one_number_stop_the_start() -> None:
    with pytest.raises(BrokenPromise, match="stages one and two both have order 7"):
        read_stages([a_stage_file("one"), a_stage_file("two")])
