"""What a simulation counts while it runs, and the figures it ends with.

Promise: sums are whole numbers until the very end (amounts times microseconds), so the same run gives the same figures
byte for byte. Waits are from a request's arrival to the commit of its charge; a percentile is a wait that somebody had
(nearest rank).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from fleet.model import capacity
from fleet.model.resources import CLUSTER_DIMENSIONS
from fleet.simulation.books import Books
from fleet.simulation.ledger import Row
from fleet.simulation.remainder import Popular, Remainder, compaction
from fleet.simulation.scenario import Shape
from fleet.simulation.walk import Effort

BANDS: Final = ("0-25 %", "25-50 %", "50-75 %", "75-100 %", "100 % and more")
"""Quarters of load per thread or of committed memory, whichever is worse: what load-aware sorts by."""


@dataclass(frozen=True, slots=True)
class FirstGpuRefusal:
    """How things stood when the first request for GPUs was refused."""

    shape: Shape
    placed: int
    unallocated: int
    fragmentation: float | None


@dataclass(frozen=True, slots=True)
class Point:
    """One moment, for the plots."""

    at_us: int
    requested: int
    placed: int
    refused: int
    used_percent: Mapping[str, float]
    nodes_in_use: int


@dataclass(slots=True)
class Tally:
    """Everything that is counted."""

    books: Books
    popular: Popular
    empty: Remainder
    """What the fleet had before anybody came."""
    requested: int = 0
    placed: int = 0
    delayed: int = 0
    expired: int = 0
    waived: int = 0
    departed: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    stages: Counter[str] = field(default_factory=Counter)
    by_class: dict[str, list[int]] = field(default_factory=dict)
    waits_us: list[int] = field(default_factory=list)
    walks: int = 0
    tries: int = 0
    refused_tries: int = 0
    busy_tries: int = 0
    contended: int = 0
    sleeps: int = 0
    wakes: int = 0
    wake_shortfalls: int = 0
    wake_shortfall_mb_peak: int = 0
    hopeless: int = 0
    first_gpu_refusal: FirstGpuRefusal | None = None
    points: list[Point] = field(default_factory=list)
    _since_us: int = 0
    _area: Counter[str] = field(default_factory=Counter)
    _bands: Counter[int] = field(default_factory=Counter)
    _compaction: list[float] = field(default_factory=list)
    _ever_fits: dict[Shape, bool] = field(default_factory=dict)

    def pass_time(self, now_us: int) -> None:
        """Add what was held since the last change. Call before every change of the books."""
        passed = now_us - self._since_us
        if passed:
            books = self.books
            for name in CLUSTER_DIMENSIONS:
                self._area[name] += getattr(books.total, name) * passed
            self._area["gpus"] += books.gpus_used * passed
            self._area["nodes"] += books.nodes_in_use * passed
            self._since_us = now_us

    def note_arrival(self, shape: Shape) -> None:
        """Count a request."""
        self.requested += 1
        self.by_class.setdefault(shape.size_class, [0, 0])[0] += 1

    def note_effort(self, effort: Effort) -> None:
        """Count what one request cost."""
        self.walks += effort.walks
        self.tries += effort.tries
        self.refused_tries += effort.refused_tries
        self.busy_tries += effort.busy_tries
        self.contended += effort.busy_tries > 0
        self.waived += effort.waived

    def note_placed(self, wait_us: int, *, delayed: bool) -> None:
        """Count a placement."""
        self.placed += 1
        self.delayed += delayed
        self.waits_us.append(wait_us)

    def note_refused(self, shape: Shape, code: str, stage: str) -> None:
        """Count a final refusal."""
        self.refused[code] += 1
        self.stages[stage] += 1
        self.hopeless += not self.ever_fits(shape)
        self.by_class[shape.size_class][1] += 1

    def note_expired(self, shape: Shape) -> None:
        """Count a request whose time was up."""
        self.expired += 1
        self.by_class[shape.size_class][1] += 1

    def ever_fits(self, shape: Shape) -> bool:
        """Return whether an empty fleet takes a shape."""
        if shape not in self._ever_fits:
            self._ever_fits[shape] = bool(self.empty.fits(shape).any())
        return self._ever_fits[shape]

    def note_gpu_refusal(self, shape: Shape, rows: Sequence[Row]) -> None:
        """Remember how things stood at the first one; what no empty fleet takes says nothing about this one."""
        if self.first_gpu_refusal is None and self.ever_fits(shape):
            left = self.remainder(rows)
            rate = left.fragmentation(left.free_gpus, self.popular.asking_gpus())
            unallocated = self.books.gpus_total - self.books.gpus_used
            self.first_gpu_refusal = FirstGpuRefusal(shape, self.placed, unallocated, rate)

    def note_shortfall(self, missing_mb: int) -> None:
        """Count a wake whose memory the machine does not have."""
        self.wakes += 1
        if missing_mb:
            self.wake_shortfalls += 1
            self.wake_shortfall_mb_peak = max(self.wake_shortfall_mb_peak, missing_mb)

    def look(self, rows: Sequence[Row], now_us: int) -> None:
        """Take a point for the plots, the bands and the compaction."""
        books, totals = self.books, self.books.totals()
        self._bands.update(_bands(rows))
        self._compaction.append(compaction(books.limits, books.total, books.nodes_in_use))
        used = {name: _percent(getattr(books.total, name), totals[name]) for name in CLUSTER_DIMENSIONS}
        if books.gpus_total:
            used["gpus"] = _percent(books.gpus_used, books.gpus_total)
        refused = self.refused.total() + self.expired
        self.points.append(Point(now_us, self.requested, self.placed, refused, used, books.nodes_in_use))

    def remainder(self, rows: Sequence[Row]) -> Remainder:
        """Return what every node has left."""
        return Remainder(self.books.limits, self.books.used, [row.gpus for row in rows])

    def figures(self, rows: Sequence[Row], now_us: int, pending: int) -> dict[str, Any]:
        """Return every figure. Numbers may be None where there is nothing to divide by."""
        self.pass_time(now_us)
        left, totals = self.remainder(rows), self.books.totals()
        waits = sorted(self.waits_us)
        largest = left.largest(self.popular)
        figures: dict[str, Any] = {
            "requested": self.requested,
            "placed": self.placed,
            "refused": self.refused.total(),
            "expired": self.expired,
            "pending": pending,
            "delayed": self.delayed,
            "departed": self.departed,
            "oversold": self.books.oversold,
            "placed_percent": _share(self.placed, self.requested),
            "never_fits": self.hopeless,
            "refused_by_code": dict(sorted(self.refused.items())),
            "refused_by_stage": dict(sorted(self.stages.items())),
            "rejected_percent_by_class": {
                name: _share(self.by_class[name][1], self.by_class[name][0])
                for name in self.popular.classes()
                if name in self.by_class
            },
            "wait_ms": {f"p{p}": _milliseconds(nearest_rank(waits, p)) for p in (50, 95, 99)},
            "walks_per_request": _ratio(self.walks, self.requested),
            "tries_per_placement": _ratio(self.tries, self.placed),
            "refused_tries_per_placement": _ratio(self.refused_tries, self.placed),
            "busy_tries_per_placement": _ratio(self.busy_tries, self.placed),
            "contended_percent": _share(self.contended, self.requested),
            "demand_waived": self.waived,
            **self._over_time(totals, now_us),
            "stranded_percent": {
                name: _hundredths(left.fragmentation(left.of(name), self.popular)) for name in CLUSTER_DIMENSIONS
            },
            "largest_placeable": None if largest is None else describe(largest),
            "sleeps": self.sleeps,
            "wakes": self.wakes,
            "wake_shortfalls": self.wake_shortfalls,
            "wake_shortfall_mb_peak": self.wake_shortfall_mb_peak,
        }
        return figures | (self._gpu_figures(left) if self.books.gpus_total else {})

    def _over_time(self, totals: Mapping[str, int | None], now_us: int) -> dict[str, Any]:
        looked = sum(self._bands.values())
        used = {name: _percent(self._area[name], _times(totals[name], now_us)) for name in CLUSTER_DIMENSIONS}
        if self.books.gpus_total:
            used["gpus"] = _percent(self._area["gpus"], self.books.gpus_total * now_us)
        return {
            "utilisation_percent": used,
            "utilisation_percent_at_end": {
                name: _percent(getattr(self.books.total, name), totals[name]) for name in CLUSTER_DIMENSIONS
            },
            "nodes_in_use": _ratio(self._area["nodes"], now_us),
            "nodes_in_use_at_end": self.books.nodes_in_use,
            "compaction": round(sum(self._compaction) / max(1, len(self._compaction)), 4),
            "bands_percent": {name: _share(self._bands[at], looked) for at, name in enumerate(BANDS)},
        }

    def _gpu_figures(self, left: Remainder) -> dict[str, Any]:
        first = self.first_gpu_refusal
        return {
            "gpus_total": self.books.gpus_total,
            "gpus_unallocated_at_end": self.books.gpus_total - self.books.gpus_used,
            "gpus_unallocated_percent": _share(self.books.gpus_total - self.books.gpus_used, self.books.gpus_total),
            "gpu_fragmentation_percent_at_end": _hundredths(
                left.fragmentation(left.free_gpus, self.popular.asking_gpus())
            ),
            "first_gpu_refusal": None if first is None else describe(first.shape),
            "placed_at_first_gpu_refusal": None if first is None else first.placed,
            "gpus_unallocated_at_first_refusal": None if first is None else first.unallocated,
            "gpu_fragmentation_percent_at_first_refusal": None if first is None else _hundredths(first.fragmentation),
        }


def describe(shape: Shape) -> str:
    """Return a shape as the command line writes it: vCPUs x MiB x GiB, and `+GPUS:KIND|KIND`."""
    text = f"{shape.cpus}x{shape.memory_mb}x{shape.disk_gb}"
    if not shape.gpus:
        return text
    return f"{text}+{shape.gpus}" + (f":{'|'.join(shape.gpu_kinds)}" if shape.gpu_kinds else "")


def nearest_rank(ordered: Sequence[int], percent: int) -> int | None:
    """Return the percentile of sorted values; None when there are none."""
    return ordered[max(0, -(-len(ordered) * percent // 100) - 1)] if ordered else None


def _bands(rows: Sequence[Row]) -> Iterable[int]:
    """Return the place in `BANDS` of each node as its row stands; no limit and no threads are the lowest band."""
    columns = np.array(
        [(row.used.memory_mb, row.limits.memory_mb or 0, row.load_milli, row.schedulable) for row in rows],
        dtype=np.int64,
    ).T
    charged, limit, load, threads = columns
    by_memory = np.where(limit > 0, capacity.memory_band(charged, np.maximum(limit, 1)), 0)
    by_load = np.where(threads > 0, capacity.load_band(load, np.maximum(threads, 1)), 0)
    found: list[int] = np.minimum(np.maximum(by_memory, by_load), len(BANDS) - 1).tolist()
    return found


def _times(total: int | None, span: int) -> int | None:
    return None if total is None else total * span


def _percent(part: int, whole: int | None) -> float:
    return round(100 * part / whole, 4) if whole else 0.0


def _share(part: int, whole: int) -> float | None:
    return round(100 * part / whole, 4) if whole else None


def _ratio(part: int, whole: int) -> float | None:
    return round(part / whole, 4) if whole else None


def _hundredths(rate: float | None) -> float | None:
    return None if rate is None else round(100 * rate, 4)


def _milliseconds(wait_us: int | None) -> float | None:
    return None if wait_us is None else round(wait_us / 1000, 3)


def flat(figures: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, float | None]]:
    """Yield every number of nested figures under its dotted name; words are left out."""
    for name, value in figures.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif value is None or isinstance(value, int | float):
            yield f"{prefix}{name}", value
