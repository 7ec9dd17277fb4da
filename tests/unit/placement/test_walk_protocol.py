"""The contention protocol, by what the nodes answer: which is tried next, when it is enough, and what that proves."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import pytest

from fleet.placement.walk import CAPACITY_REFUSALS_MAX, LOCK_PROBES_MAX, Look, Try
from tests.unit.placement.walking import Followed, follow


def walked(
    script: Sequence[str],
    over: Collection[int] = (),
    *,
    in_time: int | None = None,
    draw: float = 0.0,
    only_here: bool = False,
) -> Followed:
    """Node by node what it answers, a letter a try; the last one again and again. Unless drawn, order is kept."""
    left = [list(letters) for letters in script]

    def answer(step: Try) -> str:
        mine = left[step.index]
        return mine.pop(0) if len(mine) > 1 else mine[0]

    return follow(answer, (range(len(script)), over), in_time=in_time, draw=draw, only_here=only_here)


@pytest.mark.parametrize(
    ("script", "over", "steps", "verdict"),
    [
        # An admission ends it, and so does a charge that is there already.
        (["A", "A"], (), "0", "placed"),
        (["P", "A"], (), "0", "placed"),
        (["R", "G", "I", "X", "B", "A"], (), "0 1 2 3 4 5", "placed"),
        # The payer's refusal is the same everywhere.
        (["R", "N", "A"], (), "0 1", "ended"),
        (["C", "A"], (), "0", "ended"),
        # Everyone refused: believed on a fresh view only, then there is no third attempt.
        (["R", "R"], (), "0 1 look 0 1", "full"),
        (["R", "G"], (), "0 1 look 0 1", "full"),
        (["R", "RA"], (), "0 1 look 0 1", "placed"),
        # What says nothing about room is looked at three times; one busy node is waited for at the end.
        (["I", "R"], (), "0 1 look 0 1 look 0 1", "nobody in time"),
        (["X", "R"], (), "0 1 look 0 1 look 0 1", "nobody in time"),
        (["B", "B"], (), "0 1 look 0 1 look 0 1 0!", "nobody in time"),
        (["BBBA", "B"], (), "0 1 look 0 1 look 0 1 0!", "placed"),
        (["BBBN", "B"], (), "0 1 look 0 1 look 0 1 0!", "ended"),
        (["BBBR", "R"], (), "0 1 look 0 1 look 0 1 0!", "full"),
        (["BBBX", "R"], (), "0 1 look 0 1 look 0 1 0!", "nobody in time"),
        # Demand: left out by the decision or refused by the guard, tried again waived after all others.
        (["A", "R"], (0,), "1 0w", "placed"),
        (["A"], (0,), "0w", "placed"),
        (["DA", "R"], (), "0 1 0w", "placed"),
        (["R", "DA", "R"], (0,), "1 2 0w 1w", "placed"),
        (["R", "R"], (0, 1), "0w 1w look 0w 1w", "full"),
        (["DN", "A"], (1,), "0 1w", "placed"),
        (["DN", "B"], (), "0 1 0w", "ended"),
        (["DB", "R"], (), "0 1 0w look 0 1 look 0 1 0!", "nobody in time"),
        (["DRDR"], (), "0 0w look 0 0w", "full"),
        (["B", "DRDRDN"], (), "0 1 1w look 0 1 1w look 0 1 1w", "ended"),
        # What was waited for and is over its target by then gets the one waived try.
        (["BBBDA"], (), "0 look 0 look 0 0! 0w!", "placed"),
        (["BBBDR"], (), "0 look 0 look 0 0! 0w!", "full"),
        # Where nobody was asked nobody refused.
        ([], (), "look look", "nobody in time"),
    ],
)
def test_the_answers_say_what_is_tried_next(script: list[str], over: tuple[int, ...], steps: str, verdict: str) -> None:
    followed = walked(script, over)

    assert (followed.words, followed.verdict) == (steps, verdict)


@pytest.mark.parametrize(
    ("script", "over", "in_time", "steps", "verdict"),
    [
        (["R", "A"], (), 1, "0", "nobody in time"),
        (["R", "R"], (), 2, "0 1", "nobody in time"),
        (["R", "R"], (), 4, "0 1 look 0 1", "nobody in time"),
        (["R", "R"], (), 5, "0 1 look 0 1", "full"),
        # The busy node is waited for at the end of the last attempt, when that came.
        (["B", "R"], (), 2, "0 1", "nobody in time"),
        (["B"], (), 3, "0 look 0 look 0", "nobody in time"),
        (["B", "R"], (1,), 6, "0 1w look 0 1w look 0 1w", "nobody in time"),
        (["B", "R"], (1,), 7, "0 1w look 0 1w look 0 1w 0!", "nobody in time"),
        # Demand alone fails nobody, also when time is out.
        (["DA", "R"], (), 1, "0 0w!", "placed"),
        (["A", "R"], (0,), 1, "1 0w!", "placed"),
        (["R", "R"], (0,), 1, "1 0w!", "nobody in time"),
        (["R", "DA", "R"], (0,), 2, "1 2 1w!", "placed"),
        (["DN", "R"], (), 1, "0 0w!", "ended"),
    ],
)
def test_nothing_is_proven_when_time_is_out_but_demand_alone_fails_nobody(
    script: list[str], over: tuple[int, ...], in_time: int, steps: str, verdict: str
) -> None:
    followed = walked(script, over, in_time=in_time)

    assert (followed.words, followed.verdict) == (steps, verdict)


def test_the_only_node_that_will_do_ends_it_when_it_takes_none() -> None:
    assert walked(["I"]).words == "0 look 0 look 0"

    followed = walked(["I"], only_here=True)
    assert (followed.words, followed.verdict) == ("0", "ended")


def test_after_the_first_busy_node_the_rest_comes_in_the_order_that_is_drawn_once_a_round() -> None:
    followed = walked(["R", "B", "R", "B", "DA"], draw=0.999)

    assert followed.words == "0 1 4 2 3 4w"
    assert followed.drawn == [(3, ("shuffle", 0, False))]


def test_a_broken_rule_shuffles_as_a_busy_node_does() -> None:
    assert walked(["X", "R", "A"], draw=0.999).words == "0 2"


def test_the_waived_round_is_shuffled_by_a_draw_of_its_own() -> None:
    followed = walked(["B", "R", "B", "R", "A"], over=(2, 3, 4), draw=0.999)

    assert followed.words == "0 1 2w 4w"
    assert followed.drawn == [(1, ("shuffle", 0, False)), (2, ("shuffle", 0, True))]


def test_the_waived_round_keeps_its_order_until_it_meets_contention_itself() -> None:
    assert walked(["B", "R", "R", "A"], over=(1, 2, 3), draw=0.999).words == "0 1w 2w 3w"


def test_the_node_that_is_waited_for_is_drawn_among_the_busy() -> None:
    assert walked(["B", "R", "B"], draw=0.0).words.endswith(" 0!")
    assert walked(["B", "R", "B"], draw=0.999).words.endswith(" 2!")
    assert walked(["B", "R", "B"], draw=1.0).words.endswith(" 2!")


def test_only_as_many_as_can_be_tried_are_drawn() -> None:
    followed = walked(["B"] + ["R"] * 200 + ["A"])

    assert followed.drawn[0] == (LOCK_PROBES_MAX + CAPACITY_REFUSALS_MAX, ("shuffle", 0, False))


def tries_of(followed: Followed) -> list[int]:
    return [len(attempt) for attempt in followed.answered]


def test_sixteen_probes_end_every_attempt() -> None:
    followed = walked(["BX"[at % 2] for at in range(40)] + ["A"])

    assert (LOCK_PROBES_MAX, followed.verdict) == (16, "nobody in time")
    assert tries_of(followed) == [16, 16, 17]
    assert followed.answered[-1][-1][0].wait


def test_probes_of_both_rounds_count_together() -> None:
    followed = walked(["B"] * 30, over=range(10, 30))

    assert tries_of(followed)[0] == 16
    assert [step.waived for step, _ in followed.answered[0]] == [False] * 10 + [True] * 6


def test_thirty_two_refusals_on_capacity_end_all_attempts_but_the_last() -> None:
    followed = walked(["R"] * 39 + ["A"])

    assert (CAPACITY_REFUSALS_MAX, followed.verdict) == (32, "placed")
    assert tries_of(followed) == [32, 32, 40]


def test_an_attempt_that_was_cut_short_proves_nothing() -> None:
    assert tries_of(walked(["R"] * 32)) == [32, 32, 32]
    assert tries_of(walked(["R"] * 31)) == [31, 31]
    assert walked(["R"] * 40).verdict == "full"


def test_refusals_for_demand_or_eligibility_are_no_refusals_on_capacity() -> None:
    followed = walked(["I"] * 40 + ["DA"] * 40)

    assert tries_of(followed) == [81]
    assert followed.verdict == "placed"


def test_pauses_double() -> None:
    followed = walked(["B"])

    assert [step.pause_seconds for step in followed.steps if isinstance(step, Look)] == [0.02, 0.04]
