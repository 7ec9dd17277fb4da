"""What holds for every strategy, a package's too: it orders the survivors, exactly, and changes nothing else."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet.model.request import PlacementRequest, parse_placement_request
from fleet.placement.ask import Ask
from fleet.placement.columns import UNKNOWN, UNLIMITED
from fleet.placement.frame import Frame
from fleet.placement.pipeline import decide
from fleet.placement.snapshot import Snapshot
from fleet.placement.stage import NamedStrategy, Ordering, own_strategies
from tests.documents import a_document, a_node
from tests.property.fleets import LAWS, SEEDS, documents, orders, requests, shuffled

EXAMPLE = Path(__file__).parents[2] / "docs" / "examples" / "strategy-by-rack" / "strategy_by_rack.py"


def by_rack() -> NamedStrategy:
    """The documented example of a package's strategy."""
    spec = importlib.util.spec_from_file_location("strategy_by_rack", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return NamedStrategy("by-rack", module.STRATEGY, module.__doc__ or "", "strategy-by-rack 1.0")


STRATEGIES: Mapping[str, NamedStrategy] = {**own_strategies(), "by-rack": by_rack()}
DRAWING = {"load-aware"}


def racked(document: dict[str, Any]) -> dict[str, Any]:
    """The same document; every other node has a rack."""
    for at, node in enumerate(document["nodes"]):
        if at % 2:
            node["labels"] = {"rack": f"r{at % 3}"}
    return document


def ordering_of(name: str, request: PlacementRequest, document: dict[str, Any], seed: int, chosen: set[str]) -> Any:
    """The names in order, the note on each place, and the figures of each node."""
    frame = Snapshot.from_json(document).frame
    ask = Ask.of(request, frame)
    candidates = np.array([at for at, node in enumerate(frame.roster.names) if node in chosen], dtype=np.intp)
    ordering = STRATEGIES[name].order(ask, frame, candidates, seed)
    names = [frame.roster.names[at] for at in ordering.ranked]
    notes = [ordering.note(place) for place in range(len(names))]
    return names, notes, [ordering.figures(int(at)) for at in ordering.ranked], ordering.weights.tolist()


def some_nodes(data: st.DataObject, document: dict[str, Any]) -> set[str]:
    """Any of the nodes: a strategy must bear the figures of all, also of those that stages drop."""
    names = [node["name"] for node in document["nodes"]]
    return set(data.draw(st.lists(st.sampled_from(names), min_size=1, unique=True))) if names else set()


def sometimes_sleepy(request: PlacementRequest, data: st.DataObject) -> PlacementRequest:
    return request.model_copy(update={"sleep_after_idle_seconds": data.draw(st.sampled_from([0, 0, 60]))})


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS, data=st.data())
def test_a_strategy_orders_its_candidates_whatever_the_order_of_the_nodes(
    document: dict[str, Any], request: PlacementRequest, seed: int, data: st.DataObject
) -> None:
    document, request = racked(document), sometimes_sleepy(request, data)
    chosen = some_nodes(data, document)
    other = shuffled(document, data.draw(orders(len(document["nodes"]))))

    for name in STRATEGIES:
        found = ordering_of(name, request, document, seed, chosen)

        assert sorted(found[0]) == sorted(chosen), name
        assert found == ordering_of(name, request, document, seed, chosen), name
        assert found == ordering_of(name, request, other, seed, chosen), name
        assert json.loads(json.dumps(found, allow_nan=False)) == json.loads(json.dumps(found)), name


@LAWS
@given(document=documents(), request=requests(), seeds=st.tuples(SEEDS, SEEDS), data=st.data())
def test_only_a_strategy_that_draws_looks_at_the_seed(
    document: dict[str, Any], request: PlacementRequest, seeds: tuple[int, int], data: st.DataObject
) -> None:
    chosen = some_nodes(data, document)

    for name in STRATEGIES:
        one, other = (ordering_of(name, request, document, seed, chosen) for seed in seeds)

        assert sorted(one[0]) == sorted(other[0]), name
        assert name in DRAWING or one == other, name


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS, data=st.data())
def test_a_strategy_is_monotone_on_its_axis_and_puts_the_unknown_last(
    document: dict[str, Any], request: PlacementRequest, seed: int, data: st.DataObject
) -> None:
    document, request = racked(document), sometimes_sleepy(request, data)
    chosen = some_nodes(data, document)

    for name, item in STRATEGIES.items():
        packs = name in {"spread-3", "best-fit"} and request.sleep_after_idle_seconds > 0
        axis, highest = ("subscribed", True) if packs else (item.strategy.axis, item.strategy.highest_first)
        values = [figure[axis] for figure in ordering_of(name, request, document, seed, chosen)[2]]
        known = [value for value in values if value is not None]

        assert values == [*sorted(known, reverse=highest), *[None] * (len(values) - len(known))], name


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS)
def test_a_strategy_never_changes_the_view(document: dict[str, Any], request: PlacementRequest, seed: int) -> None:
    frame = Snapshot.from_json(racked(document)).frame
    ledger, sample = frame.ledger.copy(), frame.sample.matrix.copy()

    for name, item in STRATEGIES.items():
        item.order(Ask.of(request, frame), frame, np.arange(len(frame)), seed)

        assert np.array_equal(ledger, frame.ledger), name
        assert np.array_equal(sample, frame.sample.matrix), name


@LAWS
@given(document=documents(), request=requests(), seed=SEEDS)
def test_a_strategy_never_changes_who_fits_or_why_not(
    document: dict[str, Any], request: PlacementRequest, seed: int
) -> None:
    snapshot = Snapshot.from_json(racked(document))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fleet.placement.stage.all_strategies", lambda: STRATEGIES)
        found = [decide(request.model_copy(update={"strategy": name}), snapshot, seed) for name in STRATEGIES]

    assert len({frozenset(decision.ranked) for decision in found}) == 1
    assert all(decision.counts == found[0].counts for decision in found)
    assert len({(decision.code, decision.stage, decision.transient) for decision in found}) == 1
    assert all(len(set(decision.ranked)) == len(decision.ranked) for decision in found)


# --- exactness: the same order as Python's fractions, on figures from one to 2**50 ----------------------------------

FIGURES = st.sampled_from([0, 1, 2, 3, 1000, 1024, 3072, 2**20, 2**31 - 1, 2**31, 2**40, 2**50 - 2, 2**50 - 1, 2**50])
CPUS = st.sampled_from([0, 1, 2, 3, 8, 14, 2**20, 2**31 - 2, 2**31 - 1])
UNITS = st.sampled_from([1, 3, 7, 1024, 2**31, 2**40])


@st.composite
def exact_nodes(draw: st.DrawFn, name: str) -> dict[str, Any]:
    """A node whose ratios meet those of others exactly, or miss them by as little as there can be."""
    unit = draw(UNITS)
    part = st.integers(0, 20).map(lambda count: count * unit)
    amount, total = st.one_of(part, part, FIGURES), st.one_of(st.just(20 * unit), st.just(20 * unit + 1), FIGURES)
    node = a_node(
        name=name,
        memory_max=draw(total),
        memory_available=draw(amount),
        memory_reserved_mb=draw(st.sampled_from([0, 0, 0, 1, unit])),
        memory_total_instance_actual=draw(st.one_of(amount, st.none())),
        disk_total_gb=draw(total),
        disk_free_gb=draw(amount),
        disk_reservation_gb=draw(st.sampled_from([0, 0, 0.5, 20])),
        cpu_total_instance_vcpus=draw(CPUS),
        cpu_schedulable=draw(st.one_of(CPUS, st.none())),
    )
    node["capacity"] = {
        "limit_cpus": draw(st.one_of(CPUS, st.none())),
        "limit_memory_mb": draw(st.one_of(total, total, st.none())),
        "limit_disk_gb": draw(st.one_of(total, total, st.none())),
        "limit_instances": None,
        "used_cpus": draw(CPUS),
        "used_memory_mb": draw(amount),
        "used_disk_gb": draw(amount),
        "used_instances": 1,
        "pending_memory_mb": draw(st.sampled_from([0, 0, 1, unit])),
        "pending_disk_gb": draw(st.sampled_from([0, 0, 1])),
        "sleepy_memory_mb": draw(st.one_of(st.just(0), amount)),
    }
    return node


@st.composite
def exact_documents(draw: st.DrawFn) -> dict[str, Any]:
    names = draw(st.permutations(["n10", "n2", "N3", "n4", "n5"]))
    config = {
        "RAM_OVERCOMMIT_RATIO": draw(st.sampled_from([1, 1, 3, 1.15, 0.001, 999.999])),
        "DISK_OVERCOMMIT_RATIO": draw(st.sampled_from([1, 1, 2, 1.333])),
        "SLEEPY_OVERCOMMIT_FACTOR": draw(st.sampled_from([1, 1.5, 2, 7.125, 1000])),
    }
    return a_document(*[draw(exact_nodes(name)) for name in names], config=config)


def larger(*terms: Fraction | None) -> Fraction | None:
    found = [term for term in terms if term is not None]
    return max(found) if len(found) == len(terms) else None


def share(
    used: Fraction | int, added: Fraction | int, total: int, sleepy: Fraction | int, factor: Fraction
) -> Fraction | None:
    """The projection in its own words: used, less the discount, and the discounted request; None: last."""
    if total <= 0:
        return None
    discount = min(Fraction(sleepy), max(Fraction(0), Fraction(used))) * (1 - 1 / factor)
    return (used - discount + added / factor) / total


def memory_of(frame: Frame, at: int, added: int, factor: Fraction) -> Fraction | None:
    column, ratio = frame.sample.column, Fraction(frame.config.ram_overcommit_ratio)
    limit, actual = int(frame.limits[1][at]), int(column("memory_total_instance_actual")[at])
    sleepy = int(frame.counter("sleepy_memory_mb")[at])
    ledger: Fraction | None = Fraction(0)
    if limit != UNLIMITED:
        charged = max(actual, int(frame.used[1][at]))
        ledger = None if actual == UNKNOWN else share(charged, Fraction(added), limit, sleepy, factor)
    offered = int(column("memory_max")[at]) - int(frame.sample.memory_reserved[at])
    pending = -(-Fraction(int(frame.counter("pending_memory_mb")[at])) / ratio).__floor__()
    headroom = int(column("memory_available")[at]) - int(frame.sample.memory_reserved[at]) - pending
    return larger(ledger, share(offered - headroom, added / ratio, offered, sleepy / ratio, factor))


def disk_of(frame: Frame, at: int, added: int) -> Fraction | None:
    column, ratio, whole = frame.sample.column, Fraction(frame.config.disk_overcommit_ratio), Fraction(1)
    limit = int(frame.limits[2][at])
    ledger: Fraction | None = Fraction(0)
    if limit != UNLIMITED:
        ledger = share(int(frame.used[2][at]), Fraction(added), limit, 0, whole)
    reserved = Fraction(int(frame.sample.disk_reserved_milli[at]), 1000)
    pending = -(-Fraction(int(frame.counter("pending_disk_gb")[at])) / ratio).__floor__()
    offered, headroom = column("disk_total_gb")[at] - reserved, column("disk_free_gb")[at] - reserved - pending
    measured = None if offered <= 0 else 1 - (headroom - added / ratio) / offered
    return larger(ledger, measured)


def cpu_of(frame: Frame, at: int, added: int) -> Fraction | None:
    limit, measured = int(frame.limits[0][at]), int(frame.sample.column("cpu_total_instance_vcpus")[at])
    total = int(frame.schedulable[at]) if limit == UNLIMITED else limit
    return share(max(measured, int(frame.used[0][at])), Fraction(added), total, 0, Fraction(1))


def subscribed_of(frame: Frame, at: int, added: int) -> Fraction | None:
    limit = int(frame.limits[1][at])
    offered = int(frame.sample.column("memory_max")[at]) - int(frame.sample.memory_reserved[at])
    total = offered if limit == UNLIMITED else limit
    return share(int(frame.counter("sleepy_memory_mb")[at]), Fraction(added), total, 0, Fraction(1))


def last_if_unknown(value: Fraction | None, sign: int = 1) -> tuple[bool, Fraction]:
    return (value is None, sign * (value or Fraction(0)))


def exact_key(name: str, ask: Ask, frame: Frame, at: int) -> Any:
    amounts, node = ask.amounts, frame.roster.names[at]
    factor = Fraction(frame.config.sleepy_overcommit_factor) if ask.is_sleepy else Fraction(1)
    disk = disk_of(frame, at, amounts.disk_gb)
    if name == "balanced":
        memory = memory_of(frame, at, amounts.memory_mb, factor)
        band = None if memory is None else Fraction((20 * memory).__floor__())
        cpus = cpu_of(frame, at, amounts.cpus)
        return last_if_unknown(band), last_if_unknown(disk), last_if_unknown(cpus), node
    use = larger(memory_of(frame, at, amounts.memory_mb, Fraction(1)), disk)
    if ask.is_sleepy:
        return last_if_unknown(subscribed_of(frame, at, amounts.memory_mb), -1), last_if_unknown(use, -1), node
    return last_if_unknown(use, 1 if name == "spread-3" else -1), node


@pytest.mark.parametrize("name", ["balanced", "spread-3", "best-fit"])
@LAWS
@given(document=exact_documents(), sleepy=st.sampled_from([0, 60]), memory=FIGURES, disk=st.sampled_from([0, 1, 1000]))
def test_the_order_is_that_of_exact_fractions(
    name: str, document: dict[str, Any], sleepy: int, memory: int, disk: int
) -> None:
    body = {"cpus": 2, "memory_mb": min(max(1, memory), 2**40), "disk_gb": disk, "sleep_after_idle_seconds": sleepy}
    frame = Snapshot.from_json(document).frame
    ask = Ask.of(parse_placement_request(body), frame)

    found: Ordering = STRATEGIES[name].order(ask, frame, np.arange(len(frame)), 0)

    expected = sorted(range(len(frame)), key=lambda at: exact_key(name, ask, frame, at))
    assert found.ranked.tolist() == expected


@LAWS
@given(node=exact_nodes("n1"), names=st.lists(st.sampled_from("abcAB0é-"), min_size=2, max_size=6, unique=True))
def test_equal_nodes_stand_in_the_order_of_their_names(node: dict[str, Any], names: list[str]) -> None:
    document = a_document(*[{**node, "name": f"n{other}"} for other in names])
    chosen, request = {f"n{other}" for other in names}, parse_placement_request({"cpus": 1, "memory_mb": 1})

    for name in sorted({*STRATEGIES} - DRAWING):
        found = ordering_of(name, request, document, 0, chosen)

        assert found[0] == sorted(chosen, key=str.encode), name
