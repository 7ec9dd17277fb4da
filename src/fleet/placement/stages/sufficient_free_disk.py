"""sufficient_free_disk: keep nodes with enough disk, by the ledger and by measurement.

Why: a full filesystem stops every instance on the node. Virtual sizes are committed in the ledger and bounded by its
limit; the blocks available now, without the node's own reservation and without what is pending, bound it as well. A
limit of 0 is not fullness where the sample lacks its base or, with room beyond the reservation, what others occupy:
the ledger offers nothing until that was measured once.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleet.placement.ask import Ask
from fleet.placement.columns import UNKNOWN, UNLIMITED, Mask, shown, shown_milli
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

UNKNOWN_LIMIT = Reason("unknown_limit_disk_gb", "the ledger has no limit for the node")
UNKNOWN_USED = Reason("unknown_used_disk_gb", "the ledger's use of the node is unknown")
UNKNOWN_TOTAL = Reason("unknown_disk_total_gb", "the sample lacks what the limit is computed from")
UNKNOWN_FOREIGN = Reason("unknown_disk_foreign_gb", "what others occupy was never measured, so nothing is offered")
UNKNOWN_AVAILABLE = Reason("unknown_disk_free_gb", "the sample lacks the available disk")
OVER_LIMIT = Reason("over_limit_disk_gb", "it would exceed the node's disk limit")
BELOW_RESERVATION = Reason("below_disk_reservation", "it would eat into the node's disk reservation")


def drops(ask: Ask, frame: Frame) -> Drops:
    """Drop nodes with an unknown figure, then by the limit, then by the measured headroom."""
    limit, sample = frame.limits[2], frame.sample
    bound = limit != UNLIMITED
    offers = sample.column("disk_total_gb") > sample.disk_reserved
    return (
        (UNKNOWN_LIMIT, ask.needed("disk_gb", limit == UNKNOWN)),
        (UNKNOWN_USED, ask.needed("disk_gb", (frame.used[2] == UNKNOWN) & bound)),
        (UNKNOWN_TOTAL, ask.needed("disk_gb", (limit == 0) & sample.unknown("disk_total_gb"))),
        (UNKNOWN_FOREIGN, ask.needed("disk_gb", (limit == 0) & sample.unknown("disk_foreign_gb") & offers)),
        (UNKNOWN_AVAILABLE, ask.needed("disk_gb", sample.unknown("disk_free_gb"))),
        (OVER_LIMIT, ask.short_of("disk_gb", frame.room_disk)),
        (BELOW_RESERVATION, ask.short_of("disk_gb", frame.measured_disk)),
    )


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return the commitment with the limit, and the measured figures with the reservation."""
    return {
        "committed_disk_gb": shown(frame.used[2][at]),
        "requested_disk_gb": ask.added("disk_gb", at),
        "limit_disk_gb": shown(frame.limits[2][at]),
        "disk_free_gb": shown(frame.sample.column("disk_free_gb")[at]),
        "pending_disk_gb": int(frame.counter("pending_disk_gb")[at]),
        "minimum_free_disk_gb": shown_milli(frame.sample.disk_reserved_milli[at]),
        "disk_reservation_gb_from_fallback": bool(frame.sample.unknown("disk_reservation_gb")[at]),
    }


def flags(ask: Ask, frame: Frame) -> Mapping[str, Mask]:
    """Mark nodes whose reservation comes from configuration."""
    del ask
    return {"disk_reservation_gb_from_fallback": frame.sample.unknown("disk_reservation_gb")}


_TIGHT = {"disk_free_gb": 120, "disk_reservation_gb": 20}

STAGE = Filter(
    order=13,
    reasons=(
        UNKNOWN_LIMIT,
        UNKNOWN_USED,
        UNKNOWN_TOTAL,
        UNKNOWN_FOREIGN,
        UNKNOWN_AVAILABLE,
        OVER_LIMIT,
        BELOW_RESERVATION,
    ),
    drops=drops,
    figures=figures,
    flags=flags,
    capacity=True,
    examples=(
        Example("an exact fit of the measured headroom is kept", request={"disk_gb": 100}, node=_TIGHT),
        Example("one GiB more eats into the reservation", BELOW_RESERVATION, request={"disk_gb": 101}, node=_TIGHT),
        Example(
            "a reservation of a fraction of a GiB counts",
            BELOW_RESERVATION,
            request={"disk_gb": 100},
            node={**_TIGHT, "disk_reservation_gb": 20.5},
        ),
        Example(
            "what the sample cannot include yet counts",
            BELOW_RESERVATION,
            request={"disk_gb": 100},
            node={**_TIGHT, "pending_disk_gb": 1},
        ),
        Example(
            "an exact fit under the limit is kept",
            request={"disk_gb": 20},
            node={"limit_disk_gb": 120, "used_disk_gb": 100},
        ),
        Example(
            "one GiB over the limit is dropped",
            OVER_LIMIT,
            request={"disk_gb": 21},
            node={"limit_disk_gb": 120, "used_disk_gb": 100},
        ),
        Example("no ledger row, no known limit", UNKNOWN_LIMIT, node={"capacity": None}),
        Example("an unknown use is not zero", UNKNOWN_USED, node={"without": ["used_disk_gb"]}),
        Example("unknown available disk is not room", UNKNOWN_AVAILABLE, node={"disk_free_gb": None}),
        Example(
            "a limit of 0 for want of its base is not fullness",
            UNKNOWN_TOTAL,
            node={"without": ["disk_total_gb", "capacity"]},
        ),
        Example(
            "a limit of 0 because nobody measured what others occupy is not fullness",
            UNKNOWN_FOREIGN,
            node={"limit_disk_gb": 0, "used_disk_gb": 0, "disk_foreign_gb": None},
        ),
        Example(
            "a disk that is all reservation offers nothing, whoever uses it",
            OVER_LIMIT,
            node={"limit_disk_gb": 0, "used_disk_gb": 0, "disk_reservation_gb": 100_000, "disk_foreign_gb": None},
        ),
    ),
)
