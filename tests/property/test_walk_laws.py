"""The walk, whatever nodes answer: it ends within its bounds, tries nobody twice without cause, proves what is so."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import cycle

from hypothesis import example, given, settings
from hypothesis import strategies as st

from fleet.placement.walk import ATTEMPTS_MAX, CAPACITY_REFUSALS_MAX, LOCK_PROBES_MAX, Look, Try
from tests.property.fleets import LAWS
from tests.unit.placement.walking import ANSWERS, Followed, follow


@dataclass(frozen=True)
class Script:
    """What is ranked in each attempt, and which letters the tries meet, one after the other, over and over."""

    ranked: list[tuple[list[int], set[int]]]
    letters: str
    in_time: int | None
    draw: float


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    count = draw(st.sampled_from([1, 2, 3, 5, 20, 50, 80]))
    orders = st.lists(st.integers(0, count - 1), unique=True, min_size=count // 2 + 1)
    over = draw(st.sampled_from([st.just(set()), st.sets(st.integers(0, count - 1)), st.just(set(range(count)))]))
    met = draw(st.sampled_from(["R", "RG", "B", "BX", "D", "RBD", "RBDIX", "".join(ANSWERS)]))
    return Script(
        ranked=[(draw(orders), draw(over)) for _ in range(ATTEMPTS_MAX)],
        letters=draw(st.text(st.sampled_from(met), min_size=1, max_size=30)),
        in_time=draw(st.one_of(st.none(), st.integers(1, 100))),
        draw=draw(st.floats(0, 1)),
    )


def followed_through(script: Script) -> Followed:
    letters = cycle(script.letters)
    return follow(lambda _: next(letters), *script.ranked, in_time=script.in_time, draw=script.draw)


WALKS = settings(LAWS, max_examples=150)


@WALKS
@given(script=scripts())
def test_it_ends_within_its_bounds(script: Script) -> None:
    followed = followed_through(script)

    assert len(followed.answered) <= ATTEMPTS_MAX
    for number, answered in enumerate(followed.answered):
        letters = [letter for step, letter in answered if not step.wait]
        assert sum(letter in "BX" for letter in letters) <= LOCK_PROBES_MAX
        if number < ATTEMPTS_MAX - 1:
            assert sum(letter in "RG" for letter in letters) <= CAPACITY_REFUSALS_MAX


@WALKS
@given(script=scripts())
def test_nobody_is_tried_twice_but_waived_or_waited_for(script: Script) -> None:
    followed = followed_through(script)

    for answered, (order, over) in zip(followed.answered, script.ranked, strict=False):
        plain = [(step, letter) for step, letter in answered if not step.wait]
        assert len({(step.index, step.waived) for step, _ in plain}) == len(plain)
        assert {step.index for step, _ in answered} <= set(order)
        left_out = over | {step.index for step, letter in answered if letter == "D"}
        assert {step.index for step, _ in answered if step.waived} <= left_out
        assert not {step.index for step, _ in plain if not step.waived} & over


@WALKS
@given(script=scripts())
def test_rows_are_waited_for_at_the_very_end_only(script: Script) -> None:
    steps = followed_through(script).steps
    waits = [(at, step) for at, step in enumerate(steps) if isinstance(step, Try) and step.wait]

    assert [at for at, _ in waits] == list(range(len(steps) - len(waits), len(steps)))
    assert [step.waived for _, step in waits] in ([], [False], [True], [False, True])


@WALKS
@given(script=scripts())
def test_after_time_is_out_nobody_is_tried_whose_row_may_be_skipped(script: Script) -> None:
    followed = followed_through(script)
    tries = [step for step in followed.steps if isinstance(step, Try)]

    assert all(step.wait for step in tries[script.in_time or len(tries) :])


@WALKS
@given(script=scripts())
def test_the_first_admission_and_the_payers_refusal_end_it(script: Script) -> None:
    followed = followed_through(script)
    letters = [letter for answered in followed.answered for _, letter in answered]

    assert not set(letters[:-1]) & set("APNC")
    expected = {"A": "placed", "P": "placed", "N": "ended", "C": "ended"}.get(letters[-1])
    assert expected is None or followed.verdict == expected


@WALKS
@given(script=scripts())
@example(Script([([0, 1], set()), ([0, 1], set()), ([0, 1], {0})], "BBBBRDR", None, 0.0))
def test_full_is_said_only_when_everybody_refused_on_a_fresh_view_and_in_time(script: Script) -> None:
    followed = followed_through(script)
    last = {step.index: letter for step, letter in followed.answered[-1]}
    order, _ = script.ranked[len(followed.answered) - 1]
    is_full = len(last) == len(order) and set(last.values()) <= set("RG")

    assert (followed.verdict == "full") <= (is_full and len(followed.answered) > 1 and not followed.late)
    if is_full and len(followed.answered) == ATTEMPTS_MAX and not followed.late:
        assert followed.verdict == "full"


@WALKS
@given(script=scripts())
def test_whoever_was_left_out_for_demand_alone_is_asked_waived_before_it_ends(script: Script) -> None:
    """Unless somebody admitted, or the payer refused."""
    followed = followed_through(script)
    order, over = script.ranked[len(followed.answered) - 1]
    answered = followed.answered[-1]

    if followed.verdict not in {"placed", "ended"} and (over & set(order) or "D" in {letter for _, letter in answered}):
        assert any(step.waived for step, _ in answered)


def test_the_laws_see_every_end() -> None:
    """The scripts are not all of one kind: looks, shuffles, waits, and each of the four verdicts occur."""
    seen: set[str] = set()

    @settings(WALKS, database=None)
    @given(script=scripts())
    def collect(script: Script) -> None:
        followed = followed_through(script)
        seen.add(followed.verdict)
        seen.update(str(event[0]) for _, event in followed.drawn)
        seen.update("look" for step in followed.steps if isinstance(step, Look))

    collect()
    assert seen == {"placed", "ended", "full", "nobody in time", "look", "shuffle", "wait"}
