"""Randomness is our own: fixed for ever, fair by weight, and independent of the machine's logarithm."""

import math

import numpy as np

from fleet.placement.draws import name_hash, natural_log, shuffle_keys, uniforms


def test_draws_are_fixed_for_ever() -> None:
    # Stored decisions replay from these: a change here needs a new generator with a new name.
    hashes = np.array([name_hash("n1"), name_hash("n2")], dtype=np.uint64)

    assert [name_hash("n1"), name_hash("n2")] == [18235861091803621825, 14616293611457783150]
    assert uniforms(42, hashes).tolist() == [0.287004985126874, 0.4774933490120232]


def test_splitmix64_is_the_published_generator() -> None:
    # The first three outputs of SplitMix64 for the seed 1234567, as its author's program prints them.
    gamma = 0x9E3779B97F4A7C15
    states = np.array([(1234567 + k * gamma) % 2**64 for k in range(3)], dtype=np.uint64)
    expected = [6457827717110365317, 3203168211198807973, 9817491932198370423]

    assert [((value >> 11) + 1) * 2.0**-53 for value in expected] == uniforms(0, states).tolist()


def test_the_logarithm_is_right_to_the_last_places() -> None:
    values = np.concatenate([np.linspace(1e-6, 1.0, 5000), 2.0 ** -np.arange(0.0, 60.0), [1.0 - 2.0**-53]])

    found = natural_log(values)

    assert all(
        abs(mine - math.log(value)) <= 4 * math.ulp(max(abs(mine), 1e-300))
        for mine, value in zip(found.tolist(), values.tolist(), strict=True)
    )


def test_a_node_comes_first_as_often_as_its_share_of_the_weights() -> None:
    hashes = np.array([name_hash(f"n{i}") for i in range(3)], dtype=np.uint64)
    weights = np.array([1.0, 2.0, 5.0])
    firsts = [int(np.argmin(shuffle_keys(seed, hashes, weights))) for seed in range(4000)]

    shares = [firsts.count(at) / 4000 for at in range(3)]

    assert np.allclose(shares, weights / 8, atol=0.03)
