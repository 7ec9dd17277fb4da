"""Fractions as columns, compared exactly: equal ratios are equal, and the closest two are told apart.

Promise: no order depends on a rounded number. A fraction is written as digits: its whole part, then as many binary
places as twice its denominator's length. Two different fractions with denominators below 2**b differ by more than
1 / 2**(2b), so with 2b places their digits differ. Digits are packed into as few 64-bit words as will hold them: nearly
always one. Figures too large for 64 bits take the same formula through Python's own whole numbers, slowly and exactly.

A fraction that cannot be computed (an unknown figure, a total of zero or less) is `LAST`: behind all others, whether
the lowest or the highest comes first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fleet.placement.columns import Ints, Mask

LAST: Final = 2**62
"""A key behind every other."""

WORD_BITS: Final = 61
DIGITS_MAX: Final = 6
"""Beyond so many digits, which means denominators beyond 2**46, Python's numbers are no slower."""

PRODUCT_MAX: Final = 2**60
"""A product below this may be added up a few times within 64 bits."""

Words: TypeAlias = tuple[Ints, ...]
"""Sort keys, the most significant first."""

Whole: TypeAlias = NDArray[Any]
"""Whole numbers: 64 bits, or objects where those would not do."""


@dataclass(frozen=True, slots=True)
class Fractions:
    """One fraction a node. Where `known` is False the other two mean nothing."""

    numerators: Whole
    denominators: Whole
    known: Mask

    @classmethod
    def of(cls, numerators: Whole, denominators: Whole, known: Mask) -> Fractions:
        """Return the fractions; a denominator of zero or less makes one unknown."""
        known = known & (denominators > 0)
        if known.all():
            return cls(numerators, denominators, known)
        return cls(np.where(known, numerators, 0), np.where(known, denominators, 1), known)

    def bands(self, parts: int) -> Ints:
        """Return how many whole `parts`-ths each fraction holds; LAST where it is unknown."""
        (numerators,) = roomy(parts, self.numerators)
        return np.where(self.known, (numerators * parts // self.denominators).astype(np.int64), LAST)

    def shown(self) -> NDArray[np.float64]:
        """Return the fractions as people read them, -1 where unknown. For display only: nothing is compared by it."""
        rounded = (self.numerators / self.denominators).astype(np.float64)
        return np.where(self.known, rounded, -1.0)


def roomy(factor: int, *columns: Whole) -> tuple[Whole, ...]:
    """Return columns that may be multiplied by `factor`: as they are where 64 bits do, else as Python's numbers."""
    largest = max(max(int(column.max(initial=0)), -int(column.min(initial=0))) for column in columns)
    if largest * factor < PRODUCT_MAX:
        return columns
    return tuple(column.astype(object) for column in columns)


def keys(*terms: Fractions, highest_first: bool = False) -> Words:
    """Return sort keys for the largest of each node's fractions, lowest first, or highest first; unknown ones last."""
    largest = _largest(_words(terms))
    known = np.logical_and.reduce([term.known for term in terms])
    sign = -1 if highest_first else 1
    return tuple(np.where(known, sign * word, LAST) for word in largest)


def _words(terms: Sequence[Fractions]) -> list[Words]:
    """Return each term's words; the words of all terms compare with each other."""
    bits = max(int(term.denominators.max(initial=1)).bit_length() for term in terms)
    count = -(-2 * bits // (63 - bits)) if bits < 63 else DIGITS_MAX + 1
    huge = any(column.dtype == object for term in terms for column in (term.numerators, term.denominators))
    if huge or count > DIGITS_MAX:
        return _ranks(terms, 2 * bits)
    return _packed([_digits(term, -(-2 * bits // count), count) for term in terms], -(-2 * bits // count))


def _digits(term: Fractions, width: int, count: int) -> list[Ints]:
    """Return the whole part and `count` digits of `width` bits after the point, by long division."""
    dividend = term.numerators
    digits = [dividend // term.denominators]
    for _ in range(count):
        dividend = (dividend - digits[-1] * term.denominators) << width
        digits.append(dividend // term.denominators)
    return digits


def _packed(terms: list[list[Ints]], width: int) -> list[Words]:
    """Return the digits of each term joined into words, at the same places for all terms."""
    held = max(int(np.abs(digits[0]).max(initial=0)) for digits in terms).bit_length()
    words = [[digits[0]] for digits in terms]
    for place in range(1, len(terms[0])):
        joins = held + width <= WORD_BITS
        held = held + width if joins else width
        for term, digits in zip(words, terms, strict=True):
            if joins:
                term[-1] = (term[-1] << width) + digits[place]
            else:
                term.append(digits[place])
    return [tuple(term) for term in words]


def _ranks(terms: Sequence[Fractions], places: int) -> list[Words]:
    """Return each fraction's rank among all of them: the same digits, as one number of any length."""
    columns = [
        [(int(above) << places) // int(below) for above, below in zip(term.numerators, term.denominators, strict=True)]
        for term in terms
    ]
    rank = {value: at for at, value in enumerate(sorted({value for column in columns for value in column}))}
    return [(np.array([rank[value] for value in column], dtype=np.int64),) for column in columns]


def _largest(terms: Sequence[Words]) -> Words:
    found = terms[0]
    for other in terms[1:]:
        above = found[-1] >= other[-1]
        for one, two in zip(found[-2::-1], other[-2::-1], strict=True):
            above = (one > two) | ((one == two) & above)
        found = tuple(np.where(above, one, two) for one, two in zip(found, other, strict=True))
    return found
