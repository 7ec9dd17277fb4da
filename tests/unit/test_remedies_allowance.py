"""What the remedies of refused creates may cost a process."""

from __future__ import annotations

import threading

import pytest

from fleet.placement.counterfactuals import Remedy
from fleet.placement.relaxations import By
from fleet.services.remedies import REST, Allowance

CHANGE = {"field": "cpus", "from": 2, "to": 1}
FOUND = (Remedy((CHANGE,), "Ask for 1 vCPU instead of 2: then n1 fits.", "n1", 1, By.CALLER),)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_after_remedies_a_process_rests_so_many_times_as_long() -> None:
    clock, allowance = Clock(), Allowance()

    def find() -> tuple[Remedy, ...]:
        clock.now += 2.0
        return FOUND

    assert allowance.spend(clock, find) == FOUND
    clock.now += REST * 2.0 - 0.5
    assert allowance.spend(clock, find) is None
    clock.now += 0.5
    assert allowance.spend(clock, find) == FOUND


def test_one_thread_at_a_time_looks_for_remedies() -> None:
    clock, allowance = Clock(), Allowance()
    looking, done = threading.Event(), threading.Event()

    def slowly() -> tuple[Remedy, ...]:
        looking.set()
        assert done.wait(60)
        return FOUND

    thread = threading.Thread(target=allowance.spend, args=(clock, slowly))
    thread.start()
    assert looking.wait(60)
    meanwhile = allowance.spend(clock, lambda: FOUND)
    done.set()
    thread.join(60)

    assert meanwhile is None
    assert allowance.spend(clock, lambda: FOUND) == FOUND


def test_a_search_that_fails_does_not_end_the_next_one() -> None:
    clock, allowance = Clock(), Allowance()

    def broken() -> tuple[Remedy, ...]:
        raise ValueError("a defect")

    with pytest.raises(ValueError, match="a defect"):
        allowance.spend(clock, broken)

    assert allowance.spend(clock, lambda: FOUND) == FOUND
