"""The columns of a snapshot: their names, units and sentinels, and how a published figure becomes an integer.

Every column is int64. Reals (loads, demand, reservations of a fraction of a GiB) are kept in thousandths. A figure
that nobody measured is `UNKNOWN`, which is neither zero nor room; a limit that does not bind is `UNLIMITED`. Both
sentinels are far outside of every amount, and no sum of a sentinel and an amount leaves 64 bits.

The first matrix (`LEDGER`) holds what admissions and publishes move all the time, in the order of the rows that
`Snapshot.update_counters` takes; the second (`SAMPLE`) holds the rest of a node's sample.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fleet.model.figures import FIGURE_MAX
from fleet.model.node import NodeRecord, NodeState, Scheduling

Ints: TypeAlias = NDArray[np.int64]
Mask: TypeAlias = NDArray[np.bool_]

UNKNOWN: Final = -(2**61)
UNLIMITED: Final = 2**61
COLUMN_MAX: Final = FIGURE_MAX * 2**10
"""Largest amount in a column: a figure under the largest ratio. In thousandths, and summed, it stays inside 64 bits."""

CPU_FIGURE_MAX: Final = 2**31

LEDGER: Final = (
    "limit_cpus",
    "limit_memory_mb",
    "limit_disk_gb",
    "limit_instances",
    "used_cpus",
    "used_memory_mb",
    "used_disk_gb",
    "used_instances",
    "expected_demand",
    "pending_memory_mb",
    "pending_disk_gb",
    "cpu_load_1",
    "cpu_schedulable",
    "state",
    "scheduling",
    "sample_at_us",
    "counted",
    "row_present",
    "sleepy_memory_mb",
)
LIMIT_NAMES: Final = LEDGER[0:4]
USED_NAMES: Final = LEDGER[4:8]

SAMPLE: Final = (
    "cpu_threads",
    "cpu_max",
    "cpu_max_per_instance",
    "cpu_total_instance_vcpus",
    "cpu_foreign_vcpus",
    "memory_max",
    "memory_available",
    "memory_reserved_mb",
    "memory_total_instance_actual",
    "memory_foreign_mb",
    "disk_total_gb",
    "disk_free_gb",
    "disk_reservation_gb",
    "disk_foreign_gb",
    "disk_busy_ms_per_second",
    "queue_waiting",
    "is_hypervisor",
    "max_instances",
    "cpu_schedulable_published",
)
LEDGER_AT: Final[Mapping[str, int]] = {name: at for at, name in enumerate(LEDGER)}
SAMPLE_AT: Final[Mapping[str, int]] = {name: at for at, name in enumerate(SAMPLE)}

MILLI: Final = frozenset({"expected_demand", "cpu_load_1", "disk_reservation_gb", "disk_busy_ms_per_second"})
"""Columns in thousandths."""

# Against room: what is offered is rounded down, what is taken or held back is rounded up.
_ROUND_UP: Final = frozenset(
    {
        "cpu_total_instance_vcpus",
        "cpu_foreign_vcpus",
        "memory_reserved_mb",
        "memory_total_instance_actual",
        "memory_foreign_mb",
        "disk_foreign_gb",
        "queue_waiting",
    }
)

STATES: Final = tuple(str(state) for state in NodeState)
SCHEDULINGS: Final = tuple(str(intent) for intent in Scheduling)
_STATE_CODES: Final = {name: code for code, name in enumerate(STATES)}
_SCHEDULING_CODES: Final = {name: code for code, name in enumerate(SCHEDULINGS)}
ACTIVE: Final = _STATE_CODES["active"]
ENABLED: Final = _SCHEDULING_CODES["enabled"]
CORDONED: Final = _SCHEDULING_CODES["cordoned"]

CounterRow: TypeAlias = Sequence[Any]
"""`(node_id, limit_cpus, …, counted, sleepy_memory_mb)`: the node's id and the columns of `LEDGER` from the database,
all but `row_present`."""


def state_code(name: str) -> int:
    """Return the code of a node state; a state nobody here knows is UNKNOWN and never a candidate."""
    return _STATE_CODES.get(name, UNKNOWN)


def scheduling_code(name: str) -> int:
    """Return the code of a scheduling intent; one nobody here knows is UNKNOWN and never a candidate."""
    return _SCHEDULING_CODES.get(name, UNKNOWN)


def figure_max(name: str) -> int:
    """Return the largest figure that column `name` may hold, in its own unit."""
    return CPU_FIGURE_MAX if name.startswith("cpu_") or name in {"limit_cpus", "used_cpus"} else COLUMN_MAX


def figure(name: str, value: object) -> int:
    """Return the integer of a published figure; UNKNOWN for None and for what is no number from 0 to its bound."""
    if value is None or isinstance(value, bool):
        return UNKNOWN
    if isinstance(value, int):
        whole = value * 1000 if name in MILLI else value
        return whole if 0 <= value <= figure_max(name) else UNKNOWN
    try:
        number = value if isinstance(value, Decimal) else Decimal(str(value).strip())
    except InvalidOperation:
        return UNKNOWN
    if not number.is_finite() or not 0 <= number <= figure_max(name):
        return UNKNOWN
    if name in MILLI:
        return int((number * 1000).to_integral_value(ROUND_HALF_UP))
    return int(number.to_integral_value(ROUND_CEILING if name in _ROUND_UP else ROUND_FLOOR))


def limit(value: int | None) -> int:
    """Return the column value of a limit: None is unlimited."""
    return UNLIMITED if value is None else int(value)


def _milli(value: Any) -> int:
    """Return thousandths of a real from the database, quickly: it has at most three places already."""
    if value is None:
        return UNKNOWN
    if isinstance(value, float):
        return round(value * 1000)
    return int(value * 1000)


def counter_row(row: CounterRow) -> list[int]:
    """Return the ledger columns of one database row: the hot path of a refresh."""
    return [
        UNLIMITED if row[1] is None else row[1],
        UNLIMITED if row[2] is None else row[2],
        UNLIMITED if row[3] is None else row[3],
        UNLIMITED if row[4] is None else row[4],
        row[5],
        row[6],
        row[7],
        row[8],
        _milli(row[9] or 0),
        row[10] or 0,
        row[11] or 0,
        _milli(row[12]),
        UNKNOWN if row[13] is None else row[13],
        _STATE_CODES.get(row[14], UNKNOWN),
        _SCHEDULING_CODES.get(row[15], UNKNOWN),
        UNKNOWN if row[16] is None else row[16],
        1 if row[17] else 0,
        1,
        row[18] or 0,
    ]


def sample_row(metrics: Mapping[str, Any], max_instances: int | None) -> list[int]:
    """Return the sample columns of a node's published metrics."""
    row = [figure(name, metrics.get(name)) for name in SAMPLE]
    hypervisor = metrics.get("is_hypervisor")
    row[SAMPLE_AT["is_hypervisor"]] = UNKNOWN if not isinstance(hypervisor, bool | int) else int(bool(hypervisor))
    row[SAMPLE_AT["max_instances"]] = limit(max_instances)
    published = figure("cpu_schedulable", metrics.get("cpu_schedulable")) != UNKNOWN
    row[SAMPLE_AT["cpu_schedulable_published"]] = int(published)
    return row


def ledger_row(record: NodeRecord) -> list[int]:
    """Return the ledger columns of a node record; no capacity row leaves its limits and uses unknown."""
    row = [UNKNOWN] * len(LEDGER)
    capacity = record.capacity
    if capacity is not None:
        row[0:4] = [limit(value) for value in capacity.limits.as_dict().values()]
        row[4:8] = list(capacity.used.as_dict().values())
    row[LEDGER_AT["expected_demand"]] = 0 if capacity is None else _milli(capacity.expected_demand)
    row[LEDGER_AT["pending_memory_mb"]] = 0 if capacity is None else capacity.pending_memory_mb
    row[LEDGER_AT["pending_disk_gb"]] = 0 if capacity is None else capacity.pending_disk_gb
    row[LEDGER_AT["cpu_load_1"]] = figure("cpu_load_1", record.metrics.get("cpu_load_1"))
    row[LEDGER_AT["cpu_schedulable"]] = figure("cpu_schedulable", record.metrics.get("cpu_schedulable"))
    row[LEDGER_AT["state"]] = state_code(record.state)
    row[LEDGER_AT["scheduling"]] = scheduling_code(record.scheduling)
    row[LEDGER_AT["sample_at_us"]] = UNKNOWN if record.sample_at_us is None else record.sample_at_us
    row[LEDGER_AT["counted"]] = int(record.counted)
    row[LEDGER_AT["row_present"]] = int(capacity is not None)
    row[LEDGER_AT["sleepy_memory_mb"]] = 0 if capacity is None else capacity.sleepy_memory_mb
    return row


def shown(value: int) -> int | None:
    """Return a column's value as JSON shows it: None for unknown and for unlimited."""
    return None if value in {UNKNOWN, UNLIMITED} else int(value)


def shown_milli(value: int) -> float | int | None:
    """Return a column of thousandths as JSON shows it."""
    if value in {UNKNOWN, UNLIMITED}:
        return None
    return int(value) // 1000 if value % 1000 == 0 else int(value) / 1000
