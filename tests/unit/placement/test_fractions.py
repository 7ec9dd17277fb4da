"""Fractions as columns: the order is that of exact fractions, also where floats see no difference."""

from __future__ import annotations

import random
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
import pytest

from fleet.placement.fractions import LAST, Fractions, keys
from fleet.placement.ranking import best_first

Pairs = Sequence[tuple[int, int]]


def column(pairs: Pairs, *, wide: bool = False) -> Fractions:
    kind = object if wide else np.int64
    above, below = (np.array(part, dtype=kind) for part in zip(*pairs, strict=True))
    return Fractions.of(above, below, np.ones(len(pairs), dtype=np.bool_))


def sorted_by_keys(*terms: Fractions, highest_first: bool = False) -> list[int]:
    places = np.arange(len(terms[0].known))
    return [int(at) for at in best_first(keys(*terms, highest_first=highest_first), places)]


def exactly(pairs: Pairs, *, highest_first: bool = False) -> list[int]:
    sign = -1 if highest_first else 1
    return sorted(range(len(pairs)), key=lambda at: sign * Fraction(*pairs[at]))


# Neighbours: no fraction with smaller denominators lies between them, so nothing is closer.
NEIGHBOURS = [2**5, 2**20, 2**21, 2**25, 2**26, 2**30, 2**31 - 1, 2**31, 2**36, 2**45, 2**46, 2**47, 2**50, 2**59]


@pytest.mark.parametrize("big", NEIGHBOURS)
@pytest.mark.parametrize("highest_first", [False, True])
def test_the_closest_fractions_are_told_apart(big: int, highest_first: bool) -> None:
    pairs = [(big - 1, big), (big - 2, big - 1), (big - 3, big - 2), (1, big), (1, big - 1), (0, big), (big, big)]

    assert sorted_by_keys(column(pairs), highest_first=highest_first) == exactly(pairs, highest_first=highest_first)


def test_floats_would_not_have_told_them_apart() -> None:
    big = 2**31
    close = [(big - 1, big), (big - 2, big - 1)]

    assert (close[0][0] / close[0][1]) - (close[1][0] / close[1][1]) < 2**-52
    assert (2**50 - 1) / 2**50 - (2**50 - 2) / (2**50 - 1) == 0
    assert sorted_by_keys(column(close)) == [1, 0]


@pytest.mark.parametrize("unit", [1, 3, 2**20, 2**40])
def test_equal_ratios_of_different_figures_are_equal(unit: int) -> None:
    pairs = [(unit * part, unit * 7 * part // 3 * 3) for part in (3, 6, 9, 300)]
    assert len({Fraction(*pair) for pair in pairs}) == 1

    assert sorted_by_keys(column(pairs)) == [0, 1, 2, 3]
    assert sorted_by_keys(column(pairs), highest_first=True) == [0, 1, 2, 3]


@pytest.mark.parametrize("bits", [4, 20, 22, 26, 30, 31, 33, 40, 46, 48, 58])
@pytest.mark.parametrize("highest_first", [False, True])
def test_any_fractions_are_in_order_below_zero_and_above_one_too(bits: int, highest_first: bool) -> None:
    draws = random.Random(bits)
    belows = [max(1, draws.getrandbits(draws.randint(1, bits))) for _ in range(300)]
    pairs = [(draws.randint(-below, 3 * below), below) for below in belows]
    pairs += [(above + step, below) for above, below in pairs[:60] for step in (-1, 1)]

    found = sorted_by_keys(column(pairs), highest_first=highest_first)

    assert found == exactly(pairs, highest_first=highest_first)


def test_numbers_beyond_64_bits_take_the_same_order() -> None:
    big = 2**90
    pairs = [(big - 1, big), (big - 2, big - 1), (3, 7), (3 * big, 7 * big), (-1, big)]

    assert sorted_by_keys(column(pairs, wide=True)) == exactly(pairs)


@pytest.mark.parametrize("bits", [10, 21, 30, 40, 50])
def test_the_larger_of_two_terms_counts(bits: int) -> None:
    draws = random.Random(bits)
    terms = [[(draws.getrandbits(bits), 1 + draws.getrandbits(bits)) for _ in range(200)] for _ in range(3)]
    largest = [max((Fraction(*pair) for pair in of_one), default=0) for of_one in zip(*terms, strict=True)]

    found = sorted_by_keys(*[column(pairs) for pairs in terms])

    assert found == sorted(range(200), key=lambda at: largest[at])


@pytest.mark.parametrize("below", [0, -1, -(2**40)])
@pytest.mark.parametrize("highest_first", [False, True])
def test_without_a_denominator_a_fraction_is_last_both_ways(below: int, highest_first: bool) -> None:
    pairs = [(10**6, below), (1, 3), (2, 3)]

    assert sorted_by_keys(column(pairs), highest_first=highest_first)[-1] == 0
    assert column(pairs).bands(20).tolist() == [LAST, 6, 13]
    assert column(pairs).shown()[0] == -1


def test_one_unknown_term_makes_a_node_last() -> None:
    known, unknown = column([(1, 3), (2, 3)]), column([(0, 1), (0, 0)])

    assert sorted_by_keys(known, unknown) == [0, 1]
    assert sorted_by_keys(known, unknown, highest_first=True) == [0, 1]


@pytest.mark.parametrize("total", [1, 3, 20, 2**31 + 1, 2**50 - 1, 2**59])
def test_bands_begin_exactly_at_their_edges(total: int) -> None:
    edges = [-(-part * total // 20) for part in range(21)]
    pairs = [(edge + step, total) for edge in edges for step in (-1, 0, 1)]

    assert column(pairs).bands(20).tolist() == [20 * above // below for above, below in pairs]


def test_keys_are_looked_at_in_turn_and_ties_stay_in_the_order_given() -> None:
    first = np.array([1, 0, 1, 0, 1, 0])
    second = np.array([2**40, 5, 2**40, 4, 0, 5])
    third = np.array([7, 1, 6, 0, 0, 1])

    found = best_first((first, second, third), np.array([5, 4, 3, 2, 1, 0]))

    assert found.tolist() == [3, 5, 1, 4, 2, 0]


@pytest.mark.parametrize("count", [0, 1, 2])
def test_few_places_are_sorted_too(count: int) -> None:
    assert len(best_first((np.zeros(count, dtype=np.int64),), np.arange(count))) == count
