"""Every request ends as exactly one thing, nothing is sold twice, and the same words give the same bytes."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.placement.stage import all_strategies
from fleet.simulation.protocol import SECOND_US
from fleet.simulation.run import Result, simulate
from fleet.simulation.scenario import Scenario, Staleness
from tests.simulation.worlds import a_load, a_world, machines

LAWS = settings(max_examples=25)


@st.composite
def worlds(draw: st.DrawFn) -> Scenario:
    seed = draw(st.integers(0, 1000))
    rate = draw(st.sampled_from([0.5, 5.0, 100.0]))
    cut_s = draw(st.sampled_from([None, 3, 30]))
    return a_world(
        a_load(seed, rate=rate, seconds=30 if rate < 100 else 2, sleepy=30),
        machines(draw(st.integers(1, 6))),
        seed=seed,
        wait_us=draw(st.sampled_from([0, 1, 40])) * SECOND_US,
        staleness=Staleness(counters_us=draw(st.sampled_from([0, 10_000, 5_000_000]))),
        concurrency=draw(st.sampled_from([1, 16, 64])),
        workers=draw(st.integers(1, 3)),
        until_us=None if cut_s is None else cut_s * SECOND_US,
    )


@LAWS
@given(world=worlds(), strategy=st.sampled_from(sorted(all_strategies())))
def test_placed_refused_expired_and_pending_are_all_that_was_requested(world: Scenario, strategy: str) -> None:
    result = simulate(world, strategy)

    assert result.conserved, result.figures
    assert result.figures["oversold"] == 0
    if world.until_us is None:
        assert result.figures["pending"] == 0
        assert result.figures["requested"] == len(world.arrivals)
        assert result.figures["departed"] == result.figures["placed"]


def test_a_request_that_vanishes_is_noticed() -> None:
    figures = {"requested": 3, "placed": 1, "refused": 1, "expired": 0, "pending": 0, "oversold": 0}

    lossy = Result("load-aware", 0, figures, ())

    assert not lossy.conserved
    assert not lossy.good


WORDS = (
    *("simulate", "--json", "--strategies", "load-aware,best-fit", "--seeds", "2", "--nodes", "8"),
    *("--duration", "60", "--rate", "3", "--sleepy", "20"),
)


def test_the_same_words_give_the_same_bytes_in_any_process() -> None:
    """Also where sets and dictionaries of texts iterate differently."""
    outputs = []
    for hash_seed in ("1", "2"):
        done = subprocess.run(
            [sys.executable, "-m", "fleet.cli.app", *WORDS],
            capture_output=True,
            timeout=120,
            check=True,
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
        )
        outputs.append(done.stdout)

    assert outputs[0] == outputs[1]
    assert json.loads(outputs[0])["good"] is True


def test_another_seed_is_another_world() -> None:
    first, second = (
        simulate(a_world(a_load(seed, rate=5, seconds=60), machines(2), seed=seed), "load-aware") for seed in (1, 2)
    )

    assert first.figures != second.figures
