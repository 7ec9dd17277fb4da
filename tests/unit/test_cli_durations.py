"""Durations as people write them."""

from __future__ import annotations

import pytest

from fleet.cli.durations import seconds_of

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
