"""Projected use: how full each node would be with the request on it, in each dimension, as exact fractions.

A dimension has up to two terms, of which the larger counts: the ledger's, (charged + request) / limit, and the
measured, 1 - (measured headroom - request / ratio) / (physical - reservation). Neither is clamped. Where a needed
figure is unknown, or a total is zero or less, the node ranks last in that dimension; it is never dropped here. A node
that holds a charge of the instance adds only its growth. An unlimited node is not filled by the ledger at all.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fleet.model.capacity import exact_ratio, measured_use, projected_use, subscribed_use
from fleet.placement.ask import Ask
from fleet.placement.columns import UNKNOWN, UNLIMITED, Ints, Mask, shown
from fleet.placement.fractions import Fractions, Whole, roomy
from fleet.placement.frame import Frame
from fleet.placement.stage import Figures

Terms: TypeAlias = tuple[Fractions, ...]
Places: TypeAlias = NDArray[np.intp]

PLAIN: Final = (1, 1)
"""The factor of a request that discounts nothing."""


def memory_use(ask: Ask, frame: Frame, at: Places, factor: tuple[int, int] = PLAIN) -> Terms:
    """Return the terms of memory for the nodes at the given indexes. `factor` discounts sleepy memory."""
    sample, added, sleepy = frame.sample, ask.added_each("memory_mb", at), sleepy_memory(frame, at)
    actual = sample.column("memory_total_instance_actual").take(at)
    known = (frame.used[1].take(at) != UNKNOWN) & (actual != UNKNOWN)
    ledger = _of_ledger(frame.charged_memory.take(at), added, frame.limits[1].take(at), known, sleepy, factor)
    physical, headroom = sample.column("memory_max").take(at), frame.measured_memory.take(at)
    known = (physical != UNKNOWN) & (sample.column("memory_available").take(at) != UNKNOWN)
    offered = physical - sample.memory_reserved.take(at)
    ratio = exact_ratio(frame.config.ram_overcommit_ratio)
    return ledger, _of_measurement((offered - headroom, added, offered, sleepy), known, ratio, factor)


def disk_use(ask: Ask, frame: Frame, at: Places) -> Terms:
    """Return the terms of disk. A reservation of a fraction of a GiB counts as such: in thousandths of a GiB."""
    sample, added = frame.sample, ask.added_each("disk_gb", at)
    used, nothing = frame.used[2].take(at), np.zeros(len(at), dtype=np.int64)
    ledger = _of_ledger(used, added, frame.limits[2].take(at), used != UNKNOWN, nothing, PLAIN)
    physical = sample.column("disk_total_gb").take(at)
    known = (physical != UNKNOWN) & (sample.column("disk_free_gb").take(at) != UNKNOWN)
    # What is taken does not depend on the reservation; rounding that up is undone by the same rounding.
    reserved, milli = sample.disk_reserved.take(at), sample.disk_reserved_milli.take(at)
    taken, ratio = physical - reserved - frame.measured_disk.take(at), exact_ratio(frame.config.disk_overcommit_ratio)
    if (reserved * 1000 == milli).all():
        return ledger, _of_measurement((taken, added, physical - reserved, nothing), known, ratio, PLAIN)
    physical, taken, added = _where(known, physical, taken, added)
    taken, added = (column * 1000 for column in roomy(1000, taken, added))
    return ledger, _of_measurement((taken, added, physical * 1000 - milli, nothing), known, ratio, PLAIN)


def cpu_use(ask: Ask, frame: Frame, at: Places) -> Terms:
    """Return the term of CPU, which has no measured one; where CPU is unlimited the total is `cpu_schedulable`."""
    limit = frame.limits[0].take(at)
    total = np.where(limit == UNLIMITED, frame.schedulable.take(at), limit)
    known = (frame.used[0].take(at) != UNKNOWN) & (frame.sample.column("cpu_total_instance_vcpus").take(at) != UNKNOWN)
    added, nothing = ask.added_each("cpus", at), np.zeros(len(at), dtype=np.int64)
    return (_of_ledger(frame.charged_cpus.take(at), added, total, known, nothing, PLAIN),)


def subscribed(ask: Ask, frame: Frame, at: Places) -> Terms:
    """Return the term of sleepy packing: sleepy charges and the request, against the memory limit.

    An unlimited node subscribes its sleepy memory against what the machine offers: physical memory less reservation.
    """
    limit, physical = frame.limits[1].take(at), frame.sample.column("memory_max").take(at)
    unlimited = limit == UNLIMITED
    total = np.where(unlimited, physical - frame.sample.memory_reserved.take(at), limit)
    known = (limit != UNKNOWN) & ~(unlimited & (physical == UNKNOWN))
    sleepy, added = sleepy_memory(frame, at), ask.added_each("memory_mb", at)
    return (Fractions.of(*subscribed_use(sleepy, added, np.where(known, total, 0)), known),)


def sleepy_memory(frame: Frame, at: Places) -> Ints:
    """Return the memory of sleepy instances, moves to the node included. It only discounts: unknown is none."""
    return np.maximum(frame.counter("sleepy_memory_mb").take(at), 0)


def shown_use(terms: Terms) -> float | None:
    """Return the larger term of one node as people read it; None where a term is unknown."""
    if not all(term.known[0] for term in terms):
        return None
    return round(max(float(term.shown()[0]) for term in terms), 6)


def weights_of(terms: Sequence[Fractions]) -> NDArray[np.float64]:
    """Return the larger term of every node as people read it; -1 where a term is unknown."""
    largest = np.maximum.reduce([term.shown() for term in terms])
    known = np.logical_and.reduce([term.known for term in terms])
    return np.where(known, largest, -1.0)


def percent(use: float | None) -> str:
    """Return a use in words."""
    return "unknown" if use is None else f"{100 * use:.1f} %"


def memory_figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return the figures that a node's projected memory was computed from."""
    known = frame.sample.column("memory_available")[at] != UNKNOWN
    return {
        "charged_memory_mb": shown(frame.charged_memory[at]),
        "requested_memory_mb": ask.added("memory_mb", at),
        "limit_memory_mb": shown(frame.limits[1][at]),
        "measured_headroom_mb": int(frame.measured_memory[at]) if known else None,
    }


def _of_ledger(
    charged: Ints, added: Ints, limit: Ints, known: Mask, sleepy: Ints, factor: tuple[int, int]
) -> Fractions:
    unlimited, usable = limit == UNLIMITED, known & (limit > 0)
    bound = usable & ~unlimited
    # Nothing of an endless limit is used, whatever is charged.
    total = limit if bound.all() else np.where(bound, limit, 1)
    charged, added, total, sleepy = roomy(factor[0], *_where(bound, charged, added), total, *_where(bound, sleepy))
    return Fractions.of(*projected_use(charged, added, total, sleepy, factor), usable | unlimited)


def _of_measurement(
    columns: tuple[Whole, Whole, Whole, Whole], known: Mask, ratio: tuple[int, int], factor: tuple[int, int]
) -> Fractions:
    """Return the measured term. The columns: what is taken, what is added, what is offered, what is sleepy."""
    taken, added, offered, sleepy = roomy(max(ratio) * factor[0], *_where(known, *columns))
    return Fractions.of(*measured_use(taken, added, offered, sleepy, ratio, factor), known)


def _where(known: Mask, *columns: Whole) -> tuple[Whole, ...]:
    """Return the columns with 0 for what is not known, so that no sentinel is multiplied."""
    return columns if known.all() else tuple(np.where(known, column, 0) for column in columns)
