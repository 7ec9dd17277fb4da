"""sufficient_idle_cpu: keep nodes with enough vCPUs left under their limit.

Why: the node is charged the larger of its running vCPUs, which lag, and its committed ones, which the ledger counts.
The limit is the ledger row's own number, the same that the guard compares with, so that both agree. Where CPU only
ranks (its overcommit ratio is unlimited) nothing is dropped. A node without a ledger row has no known limit, unless
unsized nodes may be admitted; then the live product of its sample is the limit and the ledger charges it nothing. A
node whose domains could not be counted is called unknown before it could be called full: until others' use was
measured once, its limit is 0.
"""

from __future__ import annotations

from collections.abc import Mapping

from fleet.model.capacity import limit_cpus
from fleet.placement.ask import Ask
from fleet.placement.columns import UNKNOWN, UNLIMITED, Mask, shown
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

UNKNOWN_LIMIT = Reason("unknown_limit_cpus", "the ledger has no limit for the node")
UNKNOWN_USED = Reason("unknown_used_cpus", "the ledger's use of the node is unknown")
UNKNOWN_SCHEDULABLE = Reason("unknown_cpu_schedulable", "the sample lacks what the limit is computed from")
UNKNOWN_MEASURED = Reason("unknown_cpu_total_instance_vcpus", "the sample lacks the vCPUs of running instances")
OVER_LIMIT = Reason("over_limit_cpus", "it would exceed the node's vCPU limit")


def drops(ask: Ask, frame: Frame) -> Drops:
    """Drop nodes with an unknown figure, then those whose limit would be exceeded."""
    limit, measured = frame.limits[0], frame.sample.column("cpu_total_instance_vcpus")
    unsized_base = (limit == 0) & (frame.schedulable == UNKNOWN)
    unmeasured = (measured == UNKNOWN) & (limit != UNLIMITED)
    return (
        (UNKNOWN_LIMIT, ask.needed("cpus", limit == UNKNOWN)),
        (UNKNOWN_USED, ask.needed("cpus", (frame.used[0] == UNKNOWN) & (limit != UNLIMITED))),
        (UNKNOWN_SCHEDULABLE, ask.needed("cpus", unsized_base)),
        (UNKNOWN_MEASURED, ask.needed("cpus", unmeasured)),
        (OVER_LIMIT, ask.short_of("cpus", frame.room_cpus)),
    )


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return both charges, the limit, and what the limit would be from the live sample."""
    schedulable = shown(frame.schedulable[at])
    ratio = frame.config.cpu_overcommit_ratio
    foreign = max(0, int(frame.sample.column("cpu_foreign_vcpus")[at]))
    return {
        "current_cpus": shown(frame.charged_cpus[at]),
        "measured_cpus": shown(frame.sample.column("cpu_total_instance_vcpus")[at]),
        "committed_cpus": shown(frame.used[0][at]),
        "capacity_row_present": not bool(frame.unsized[at]),
        "requested_cpus": ask.added("cpus", at),
        "limit_cpus": shown(frame.limits[0][at]),
        "hard_max_cpus": None if schedulable is None else limit_cpus(schedulable, ratio, foreign),
        "cpu_schedulable": schedulable,
        "cpu_schedulable_from_fallback": bool(frame.schedulable_from_fallback[at]),
    }


def flags(ask: Ask, frame: Frame) -> Mapping[str, Mask]:
    """Mark nodes that count on the mixed-version fallback, and those without a ledger row."""
    del ask
    return {"cpu_schedulable_from_fallback": frame.schedulable_from_fallback, "capacity_row_absent": frame.unsized}


STAGE = Filter(
    order=11,
    reasons=(UNKNOWN_LIMIT, UNKNOWN_USED, UNKNOWN_SCHEDULABLE, UNKNOWN_MEASURED, OVER_LIMIT),
    drops=drops,
    figures=figures,
    flags=flags,
    capacity=True,
    examples=(
        Example("an exact fit is kept", request={"cpus": 2}, node={"limit_cpus": 42, "used_cpus": 40}),
        Example("one vCPU short is dropped", OVER_LIMIT, request={"cpus": 3}, node={"limit_cpus": 42, "used_cpus": 40}),
        Example(
            "running vCPUs count when the ledger holds fewer",
            OVER_LIMIT,
            request={"cpus": 3},
            node={"limit_cpus": 42, "used_cpus": 2, "cpu_total_instance_vcpus": 40},
        ),
        Example("an unlimited node is kept", request={"cpus": 1000}, node={"limit_cpus": None}),
        Example("no ledger row, no known limit", UNKNOWN_LIMIT, node={"capacity": None}),
        Example(
            "unsized nodes may be admitted by configuration",
            request={"cpus": 42},
            node={"capacity": None, "cpu_total_instance_vcpus": 0},
            config={"ADMIT_UNSIZED_NODES": True},
        ),
        Example("an unknown use is not zero", UNKNOWN_USED, node={"without": ["used_cpus"]}),
        Example("unknown running vCPUs are not zero", UNKNOWN_MEASURED, node={"cpu_total_instance_vcpus": None}),
        Example(
            "a limit of 0 for want of its base is not fullness",
            UNKNOWN_SCHEDULABLE,
            node={"without": ["cpu_schedulable", "cpu_threads", "capacity"]},
        ),
        Example(
            "an older sample counts by the fallback: 16 threads, 2 reserved, ratio 3",
            request={"cpus": 42},
            node={
                "without": ["cpu_schedulable", "capacity"],
                "cpu_total_instance_vcpus": 0,
                "cpu_max_per_instance": 64,
            },
        ),
    ),
)
