"""node_state: keep active nodes whose sample is fresh.

Why: a node that is in error or missing, or that has not said anything for two minutes, may be unable to start an
instance, and nothing that is known of its room can be trusted. A missing sample age is stale. The time is the
database's.
"""

from __future__ import annotations

from fleet.placement.ask import Ask
from fleet.placement.columns import ACTIVE, STATES, UNKNOWN
from fleet.placement.frame import Frame
from fleet.placement.stage import Drops, Example, Figures, Filter, Reason

NOT_ACTIVE = Reason("not_active", "the node is not active")
STALE_SAMPLE = Reason("stale_sample", "the node's last sample is too old, or there is none")


def drops(ask: Ask, frame: Frame) -> Drops:
    """Drop nodes that are not active, then those with a stale sample; an age of exactly the maximum is stale."""
    del ask
    oldest = frame.now_us - frame.config.node_metrics_max_age_seconds * 1_000_000
    return (NOT_ACTIVE, frame.counter("state") != ACTIVE), (STALE_SAMPLE, frame.counter("sample_at_us") <= oldest)


def figures(ask: Ask, frame: Frame, at: int) -> Figures:
    """Return the state and the age of one node's sample."""
    del ask
    state, sample_at = int(frame.counter("state")[at]), int(frame.counter("sample_at_us")[at])
    age = None if sample_at == UNKNOWN else (frame.now_us - sample_at) / 1_000_000
    return {
        "state": None if state == UNKNOWN else STATES[state],
        "sample_age_seconds": age,
        "maximum_age_seconds": frame.config.node_metrics_max_age_seconds,
    }


STAGE = Filter(
    order=2,
    reasons=(NOT_ACTIVE, STALE_SAMPLE),
    drops=drops,
    figures=figures,
    refusal="no_schedulable_nodes",
    examples=(
        Example("an active node with a fresh sample is kept", node={"sample_age_seconds": 119}),
        Example("a sample of exactly the maximum age is stale", STALE_SAMPLE, node={"sample_age_seconds": 120}),
        Example("a node without a sample is stale", STALE_SAMPLE, node={"sample_age_seconds": None}),
        Example(
            "the maximum age is the cluster's",
            node={"sample_age_seconds": 200},
            config={"NODE_METRICS_MAX_AGE_SECONDS": 300},
        ),
        Example("a node in error is dropped", NOT_ACTIVE, node={"state": "error"}),
        Example("a node that never sent a sample is not active yet", NOT_ACTIVE, node={"state": "created"}),
    ),
)
