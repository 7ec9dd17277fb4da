"""Means, paired differences and their intervals; and the measures of what is left."""

from __future__ import annotations

import pytest

from fleet.model.gpu_inventory import GpuDevice, GpuInventory
from fleet.model.resources import Amounts, Limits
from fleet.simulation.compare import compare, half_width, student_t
from fleet.simulation.remainder import Popular, Remainder, compaction
from fleet.simulation.run import Result
from fleet.simulation.scenario import Arrival, Shape
from fleet.simulation.tally import nearest_rank


def results(**by_strategy: list[float]) -> list[Result]:
    return [
        Result(name, seed, {"placed": value, "wait_ms": {"p50": value}}, ())
        for name, values in by_strategy.items()
        for seed, value in enumerate(values)
    ]


def test_the_interval_is_students_over_the_differences() -> None:
    # Differences 1, 2, 3: mean 2, sample deviation 1, t(2) = 4.303.
    cells = compare(results(a=[10, 20, 30], b=[11, 22, 33]))

    cell = cells["placed"]["b"]
    assert (cell.mean, cell.difference) == (22, 2)
    assert cell.half_width == pytest.approx(4.303 / 3**0.5, abs=1e-4)
    assert not cell.proven
    assert cells["wait_ms.p50"]["b"] == cell
    assert cells["placed"]["a"].difference is None


def test_pairing_proves_what_means_alone_would_not() -> None:
    cells = compare(results(a=[10, 100, 1000], b=[11, 101.1, 1000.9]))

    assert cells["placed"]["b"].proven


def test_one_seed_has_no_interval() -> None:
    assert compare(results(a=[1], b=[2]))["placed"]["b"].half_width is None
    assert half_width([5.0]) is None


def test_quantiles_fall_towards_the_normal_distribution() -> None:
    quantiles = [student_t(degrees) for degrees in range(1, 200)]

    assert quantiles == sorted(quantiles, reverse=True)
    assert student_t(9) == 2.262
    assert student_t(60) == pytest.approx(2.000, abs=0.001)


def test_a_code_that_one_strategy_never_met_counts_as_zero_there() -> None:
    met = Result("a", 0, {"refused_by_code": {"out_of_capacity": 4}}, ())
    never = Result("b", 0, {"refused_by_code": {}}, ())

    assert compare([met, never])["refused_by_code.out_of_capacity"]["b"].difference == -4


def test_a_percentile_is_a_value_that_was_there() -> None:
    assert nearest_rank([1, 2, 3, 4], 50) == 2
    assert nearest_rank([1, 2, 3, 4], 99) == 4
    assert nearest_rank([], 50) is None


def cards(model: str, free: int, bound: int = 0) -> GpuInventory:
    devices = [GpuDevice(f"{model}-{at}", model, bound_to="i" if at < bound else None) for at in range(free + bound)]
    return GpuInventory(devices=tuple(devices))


def popular(*shapes: Shape) -> Popular:
    return Popular.of([Arrival(index, 0, shape) for index, shape in enumerate(shapes)])


def test_fragmentation_is_what_a_drawn_request_cannot_use() -> None:
    """Two nodes: 4 free A100 with 2 CPUs left, 2 free T4 with CPUs to spare."""
    limits = [Limits(10, 1000, 100)] * 2
    left = Remainder(limits, [Amounts(cpus=8), Amounts()], [cards("A100", 4, bound=4), cards("T4", 2)])
    one_any = Shape("1", 1, 1, 1, gpus=1)  # fits both: loses nothing
    four = Shape("4", 1, 1, 1, gpus=4)  # fits the A100s: loses 2
    wide = Shape("w", 4, 1, 1, gpus=1)  # CPUs on the second only: loses 4
    t4_only = Shape("t", 1, 1, 1, gpus=1, gpu_kinds=("T4",))  # loses 4
    cpu_only = Shape("c", 99, 1, 1)  # asks for none: is not asked

    rate = left.fragmentation(left.free_gpus, popular(one_any, four, wide, t4_only, cpu_only).asking_gpus())

    assert rate == pytest.approx((0 + 2 + 4 + 4) / (4 * 6))


def test_any_of_several_kinds_will_do() -> None:
    left = Remainder([Limits(9, 9, 9)], [Amounts()], [cards("T4", 1)])

    assert left.fits(Shape("x", 1, 1, 1, 1, ("A100", "T4"))).tolist() == [True]
    assert left.fits(Shape("x", 1, 1, 1, 1, ("A100",))).tolist() == [False]


def test_nothing_left_has_no_rate() -> None:
    left = Remainder([Limits(1, 1, 1)], [Amounts(1, 1, 1, 1)], [GpuInventory()])

    assert left.fragmentation(left.of("memory_mb"), popular(Shape("x", 1, 1, 1))) is None


def test_the_largest_shape_that_fits_is_named() -> None:
    small, large = Shape("s", 1, 10, 1), Shape("l", 1, 100, 1)
    left = Remainder([Limits(8, 50, 8)] * 3, [Amounts()] * 3, [GpuInventory()] * 3)

    assert left.largest(popular(small, large)) == small


def test_compaction_is_one_when_no_fewer_nodes_would_do() -> None:
    limits = [Limits(10, 100, 100)] * 4

    assert compaction(limits, Amounts(), 0) == 1.0
    assert compaction(limits, Amounts(10, 50, 5, 1), 1) == 1.0
    assert compaction(limits, Amounts(11, 50, 5, 1), 4) == 0.5
