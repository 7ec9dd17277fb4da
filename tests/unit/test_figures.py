"""Figures of a sample as the ledger reads them: exact, and unknown where they are none."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from fleet.model.figures import FIGURE_MAX, real_or_none, whole_or_none


@pytest.mark.parametrize("value", [None, True, "7", -1, FIGURE_MAX + 1, 10**400, float("nan"), float("inf")])
def test_what_is_no_figure_is_unknown(value: Any) -> None:
    assert (whole_or_none(value), real_or_none(value)) == (None, None)


def test_figures_up_to_the_largest_are_read() -> None:
    assert [whole_or_none(value) for value in (0, 2.9, FIGURE_MAX)] == [0, 2, FIGURE_MAX]
    assert [Decimal("0.500"), Decimal(FIGURE_MAX)] == [real_or_none(value) for value in (0.5, FIGURE_MAX)]
