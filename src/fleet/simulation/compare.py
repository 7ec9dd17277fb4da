"""Strategies side by side: means over seeds, and paired differences to the first with a confidence interval.

Method: every strategy runs on the same seeds, so a figure's differences to the first strategy's are taken seed by seed.
Their mean is given with the half-width of its two-sided 95 % interval, Student's t with n - 1 degrees of freedom over
the sample's standard deviation. With one seed there is no interval. A difference whose interval holds zero proves
nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from fleet.simulation.run import Result
from fleet.simulation.tally import flat

# Quantiles of Student's t at 0.975 for 1 to 30 degrees of freedom.
_T: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
_Z: Final = 1.959964


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure of one strategy: its mean, and its difference to the first strategy. None: nothing to say."""

    mean: float | None
    difference: float | None = None
    half_width: float | None = None

    @property
    def proven(self) -> bool:
        """Whether the interval of the difference leaves out zero."""
        return self.difference is not None and self.half_width is not None and abs(self.difference) > self.half_width

    def as_dict(self) -> dict[str, Any]:
        """Return the cell as JSON values."""
        return {"mean": self.mean, "difference": self.difference, "half_width": self.half_width}


def compare(results: Sequence[Result]) -> dict[str, dict[str, Cell]]:
    """Return for each figure and strategy its cell; strategies in the order of their first result."""
    columns: dict[str, dict[int, Mapping[str, float | None]]] = {}
    for result in results:
        columns.setdefault(result.strategy, {})[result.seed] = dict(flat(result.figures))
    first = next(iter(columns.values()), {})
    names = dict.fromkeys(name for column in columns.values() for run in column.values() for name in run)
    return {
        name: {
            strategy: _cell(name, column, None if column is first else first) for strategy, column in columns.items()
        }
        for name in names
    }


def _cell(
    name: str,
    column: Mapping[int, Mapping[str, float | None]],
    first: Mapping[int, Mapping[str, float | None]] | None,
) -> Cell:
    # A code that nobody met in a run was met zero times; what is None had nothing to be divided by.
    values = {seed: figures.get(name, 0) for seed, figures in column.items()}
    known = {seed: value for seed, value in values.items() if value is not None}
    mean = _mean(list(known.values()))
    if first is None:
        return Cell(_rounded(mean))
    pairs = [(value, first[seed].get(name, 0)) for seed, value in known.items() if seed in first]
    differences = [mine - theirs for mine, theirs in pairs if theirs is not None]
    return Cell(_rounded(mean), _rounded(_mean(differences)), _rounded(half_width(differences)))


def half_width(differences: Sequence[float]) -> float | None:
    """Return the half-width of the 95 % interval of a mean; None with fewer than two values."""
    count = len(differences)
    if count < 2:
        return None
    mean = math.fsum(differences) / count
    variance = math.fsum((value - mean) ** 2 for value in differences) / (count - 1)
    return student_t(count - 1) * math.sqrt(variance / count)


def student_t(degrees: int) -> float:
    """Return the quantile at 0.975; above 30 degrees by its expansion around the normal distribution's."""
    return _T[degrees - 1] if degrees <= len(_T) else _Z + (_Z**3 + _Z) / (4 * degrees)


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 4)
