"""Randomness of a decision: SplitMix64 over the decision's seed and each node's name, the same on every machine.

Promise: a draw depends on the seed and on the node's name only, never on the order of the nodes, the version of a
library or the machine. That is why the generator and the logarithm are written out here: they use nothing but integer
arithmetic and the four operations that IEEE 754 rounds in one way only.
"""

from __future__ import annotations

from hashlib import blake2b
from typing import Final

import numpy as np
from numpy.typing import NDArray

SEED_MAX: Final = 2**63 - 1

_GAMMA = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_LN_2: Final = 0.6931471805599453
_SQRT_HALF: Final = 0.7071067811865476
# 2 * atanh(s) = 2 * (s + s^3/3 + s^5/5 + …); |s| <= 0.1716, so that ten terms reach the last place of a double.
_ATANH: Final = tuple(2.0 / odd for odd in range(19, 0, -2))


def name_hash(name: str) -> int:
    """Return the 64-bit hash of a node's name, computed once a node."""
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest(), "little")


def uniforms(seed: int, hashes: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return one draw in (0, 1] for each name hash."""
    z = (hashes ^ np.uint64(seed)) + _GAMMA
    z = (z ^ (z >> np.uint64(30))) * _MIX_1
    z = (z ^ (z >> np.uint64(27))) * _MIX_2
    z ^= z >> np.uint64(31)
    draws: NDArray[np.float64] = ((z >> np.uint64(11)).astype(np.float64) + 1.0) * 2.0**-53
    return draws


def natural_log(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the natural logarithm of positive values, bit for bit the same on every machine."""
    mantissa, exponent = np.frexp(values)
    low = mantissa < _SQRT_HALF
    mantissa = np.where(low, mantissa * 2.0, mantissa)
    s = (mantissa - 1.0) / (mantissa + 1.0)
    square = s * s
    series = np.full_like(s, _ATANH[0])
    for factor in _ATANH[1:]:
        series *= square
        series += factor
    series *= s
    series += (exponent - low) * _LN_2
    return series


def shuffle_keys(seed: int, hashes: NDArray[np.uint64], weights: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return keys whose ascending order is a weighted shuffle without replacement.

    `random^(1/w)` descending is `-log(random)/w` ascending: a node's chance to come first is its share of the weights.
    """
    keys: NDArray[np.float64] = natural_log(uniforms(seed, hashes)) / -weights
    return keys
