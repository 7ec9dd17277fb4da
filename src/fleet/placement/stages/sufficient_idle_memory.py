"""sufficient_idle_memory: keep nodes with enough memory, by the ledger and by measurement.

Why: overcommitted memory swaps, and swapping is an outage for every neighbour. The kernel's available memory does not
move until guests touch their pages, so the ledger's commitment is compared with the limit as well; and what the sample
cannot include yet (*pending*) is taken off what was measured. The node keeps its reservation after the placement. A
node whose domains could not be counted is called unknown before it could be called full: until others' use was
measured once, its limit is 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleet.placement.ask import Ask
from fleet.placement.columns import UNKNOWN, UNLIMITED, Mask, shown
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

UNKNOWN_LIMIT = Reason("unknown_limit_memory_mb", "the ledger has no limit for the node")
UNKNOWN_USED = Reason("unknown_used_memory_mb", "the ledger's use of the node is unknown")
UNKNOWN_TOTAL = Reason("unknown_memory_max", "the sample lacks what the limit is computed from")
UNKNOWN_MEASURED = Reason("unknown_memory_total_instance_actual", "the sample lacks the memory of running instances")
UNKNOWN_AVAILABLE = Reason("unknown_memory_available", "the sample lacks the available memory")
OVER_LIMIT = Reason("over_limit_memory_mb", "it would exceed the node's memory limit")
BELOW_RESERVATION = Reason("below_memory_reservation", "it would eat into the node's memory reservation")


def drops(ask: Ask, frame: Frame) -> Drops:
    """Drop nodes with an unknown figure, then by the limit, then by the measured headroom."""
    limit, sample = frame.limits[1], frame.sample
    bound = limit != UNLIMITED
    return (
        (UNKNOWN_LIMIT, ask.needed("memory_mb", limit == UNKNOWN)),
        (UNKNOWN_USED, ask.needed("memory_mb", (frame.used[1] == UNKNOWN) & bound)),
        (UNKNOWN_TOTAL, ask.needed("memory_mb", (limit == 0) & sample.unknown("memory_max"))),
        (UNKNOWN_MEASURED, ask.needed("memory_mb", sample.unknown("memory_total_instance_actual") & bound)),
        (UNKNOWN_AVAILABLE, ask.needed("memory_mb", sample.unknown("memory_available"))),
        (OVER_LIMIT, ask.short_of("memory_mb", frame.room_memory)),
        (BELOW_RESERVATION, ask.short_of("memory_mb", frame.measured_memory)),
    )


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return both charges with the limit, and the measured figures with the reservation."""
    return {
        "committed_memory_mb": shown(frame.charged_memory[at]),
        "requested_memory_mb": ask.added("memory_mb", at),
        "limit_memory_mb": shown(frame.limits[1][at]),
        "available_mb": shown(frame.sample.column("memory_available")[at]),
        "pending_memory_mb": int(frame.counter("pending_memory_mb")[at]),
        "memory_reserved_mb": int(frame.sample.memory_reserved[at]),
        "memory_reserved_mb_from_fallback": bool(frame.sample.reserved_from_fallback[at]),
    }


def flags(ask: Ask, frame: Frame) -> Mapping[str, Mask]:
    """Mark nodes whose reservation comes from configuration."""
    del ask
    return {"memory_reserved_mb_from_fallback": frame.sample.reserved_from_fallback}


_TIGHT = {"memory_available": 5120, "memory_reserved_mb": 4096}

STAGE = Filter(
    order=12,
    reasons=(
        UNKNOWN_LIMIT,
        UNKNOWN_USED,
        UNKNOWN_TOTAL,
        UNKNOWN_MEASURED,
        UNKNOWN_AVAILABLE,
        OVER_LIMIT,
        BELOW_RESERVATION,
    ),
    drops=drops,
    figures=figures,
    flags=flags,
    capacity=True,
    examples=(
        Example("an exact fit of the measured headroom is kept", request={"memory_mb": 1024}, node=_TIGHT),
        Example("one MiB more eats into the reservation", BELOW_RESERVATION, request={"memory_mb": 1025}, node=_TIGHT),
        Example(
            "what the sample cannot include yet counts, divided by the ratio",
            BELOW_RESERVATION,
            request={"memory_mb": 1024},
            node={**_TIGHT, "pending_memory_mb": 1},
        ),
        Example(
            "the overhead of an instance is part of the request",
            BELOW_RESERVATION,
            request={"memory_mb": 1024},
            node=_TIGHT,
            config={"INSTANCE_OVERHEAD_MB": 64},
        ),
        Example(
            "an exact fit under the limit is kept",
            request={"memory_mb": 1024},
            node={"limit_memory_mb": 8192, "used_memory_mb": 7168},
        ),
        Example(
            "one MiB over the limit is dropped",
            OVER_LIMIT,
            request={"memory_mb": 1025},
            node={"limit_memory_mb": 8192, "used_memory_mb": 7168},
        ),
        Example(
            "measured instance memory counts when the ledger holds less",
            OVER_LIMIT,
            request={"memory_mb": 1025},
            node={"limit_memory_mb": 8192, "used_memory_mb": 0, "memory_total_instance_actual": 7168},
        ),
        Example(
            "a resize that does not grow memory needs none",
            request={"reason": "resize", "instance": "i1", "memory_mb": 1024},
            node={"memory_available": 0},
            instances=({"uuid": "i1", "node": "n1", "cpus": 1, "memory_mb": 1024, "disk_gb": 10},),
        ),
        Example("no ledger row, no known limit", UNKNOWN_LIMIT, node={"capacity": None}),
        Example("an unknown use is not zero", UNKNOWN_USED, node={"without": ["used_memory_mb"]}),
        Example("unknown available memory is not room", UNKNOWN_AVAILABLE, node={"memory_available": None}),
        Example("unknown instance memory is not zero", UNKNOWN_MEASURED, node={"memory_total_instance_actual": None}),
        Example(
            "a limit of 0 for want of its base is not fullness",
            UNKNOWN_TOTAL,
            node={"without": ["memory_max", "capacity"]},
        ),
        Example(
            "an older sample keeps the configured reservation: 2048 MiB",
            BELOW_RESERVATION,
            request={"memory_mb": 1025},
            node={"memory_available": 3072, "without": ["memory_reserved_mb"]},
        ),
    ),
)
