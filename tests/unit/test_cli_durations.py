"""Durations as people write them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import typer

from fleet.api.routers.events import SECONDS_MAX
from fleet.cli.app import app
from fleet.cli.durations import AGE_SECONDS_MAX, age, seconds_of

WRITTEN = {
    "30d": 2_592_000,
    "12h": 43_200,
    "1d12h": 129_600,
    "2w 3 days": 1_468_800,
    "90 min": 5400,
    "90m": 5400,
    "1H30M": 5400,
    "45 seconds": 45,
    "0s": 0,
    "3600": 3600,
    " 3600 ": 3600,
    # The service says what it makes of these.
    "0": 0,
    "-5": -5,
    "9" * 30: int("9" * 30),
}
NOBODY_COULD_MEAN = ("", " ", "soon", "1y", "1.5h", "h", "1h1h", "1s2d", "1d 3", "1d-3h", "-1d", "1e3", "٣d", "9" * 200)


@pytest.mark.parametrize(("text", "seconds"), WRITTEN.items())
def test_a_duration_is_read_with_its_units(text: str, seconds: int) -> None:
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", NOBODY_COULD_MEAN)
def test_what_nobody_could_mean_is_refused_with_what_would_be_accepted(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration; write for example 30d"):
        seconds_of(text)


def every_option(group: Any, words: str = "fleet") -> Iterator[tuple[str, Any]]:
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from every_option(command, f"{words} {name}")
        else:
            yield from ((f"{words} {name} {one.name}", one) for one in command.params)


def test_every_flag_that_is_a_length_of_time_is_written_the_same_way() -> None:
    lengths = {"expires_in", "grace", "since", "until", "sleep_after", "wait_for_capacity"}
    found = {words: option for words, option in every_option(typer.main.get_command(app)) if option.name in lengths}

    assert {words.rpartition(" ")[2] for words in found} == lengths
    for words, option in found.items():
        read = option.type_descriptor.parameter_info.parser
        assert (option.metavar, read("1d12h"), read("60")) == ("DURATION", 129_600, 60), words
        with pytest.raises(typer.BadParameter, match="'soon' is not a duration; write for example 30d"):
            read("soon")


def test_how_long_ago_is_never_below_zero_and_no_more_than_what_the_service_takes() -> None:
    assert age("1h") == 3600
    assert age(str(AGE_SECONDS_MAX)) == AGE_SECONDS_MAX == SECONDS_MAX
    with pytest.raises(typer.BadParameter, match="-5: events lie in the past"):
        age("-5")
    with pytest.raises(typer.BadParameter, match="99999w: is more than a hundred years"):
        age("99999w")
