"""The messages that operators grep for, and the keys of their payloads: a table, and the reference page made from it.

`python -m fleet.services.event_reference > docs/reference/events.md` writes the page; a test refuses a stale one. Each
message of the table is brought about by a test, with its keys. A message that this service never writes is in it too,
with the reason.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from fleet.model.resources import CLUSTER_DIMENSIONS

ROW: Final = "event"
TOLD: Final = "told"
LOG: Final = "log"
LIMITS: Final = tuple(f"limit_{name}" for name in CLUSTER_DIMENSIONS)
USED: Final = tuple(f"node_used_{name}" for name in CLUSTER_DIMENSIONS)


@dataclass(frozen=True, slots=True)
class Message:
    """One message: where it stands (`<…>` in it varies), the keys that its payload has at least, and its level."""

    text: str
    on: str
    keys: Sequence[str]
    kind: str = ROW
    level: str = "info"
    note: str = ""

    def matches(self, message: str) -> bool:
        """Return whether a message is this one."""
        return re.fullmatch(re.sub(r"<[a-z_]+>", r"\\S+", re.escape(self.text)), message) is not None


@dataclass(frozen=True, slots=True)
class Figures:
    """The keys of a reason or of an entry of a map in a payload; `keys` are alternatives, one set each."""

    of: str
    keys: Sequence[Sequence[str]]
    note: str = ""


DENIAL: Final = ("node", "failing_stage", "dimensions")
KNOWN: Final[Sequence[Message]] = (
    Message("started scheduling", "instance", (), TOLD),
    Message(
        "schedule inputs",
        "instance",
        (
            *("requested_affinity", "requested_cpus", "requested_memory_mb", "requested_disk_gb", "disk_spec"),
            *("namespace", "forced_candidates", "metrics_age_seconds"),
        ),
        TOLD,
        note="`metrics_age_seconds` is the age of the oldest sample that counted, not that of a copy of the samples; "
        "`disk_spec` is one disk of the size asked for",
    ),
    Message("schedule forced candidates", "instance", ("candidates",), TOLD),
    Message("schedule initial candidates", "instance", ("candidates",), TOLD),
    Message(
        "schedule candidate <node> lacks metrics, aborting",
        "instance",
        ("candidates",),
        TOLD,
        "warning",
        "a node that the request names, unknown or without a young sample; the stages that follow say the same",
    ),
    Message(
        "schedule could not read the capacity counters",
        "instance",
        ("degraded_stages", "effect", "candidates"),
        LOG,
        "error",
        "nothing is decided without them: the caller gets 503; an event could not be kept either",
    ),
    Message("schedule at stage <stage>", "instance, node", ("candidates", "dropped"), TOLD),
    Message(
        "schedule has no candidates at stage <stage>, aborting",
        "instance",
        ("candidates", "dropped"),
        TOLD,
        "warning",
        "no stage is called `pre_schedule`: an empty list of destinations leaves nobody at `scheduling_state`",
    ),
    Message(
        "schedule have highest affinity",
        "instance, node",
        ("candidates", "requested_affinity", "highest_affinity", "by_affinity", "affinity_detail"),
        TOLD,
    ),
    Message(
        "schedule keeping affinity despite transient load",
        "instance",
        ("candidates", "load_shed_candidates", "highest_affinity"),
        TOLD,
        "warning",
    ),
    Message(
        "schedule have lowest cpu load",
        "instance",
        ("candidates", "lowest_load", "load_detail"),
        TOLD,
        note="of strategy `load-aware`, another's is `schedule ordered by strategy <name>`; `lowest_load` is the band "
        "that comes first (a `bucket`, a quarter wide), `candidates` are the nodes in it",
    ),
    Message("schedule final candidates", "instance, node", ("candidates", "weights"), TOLD),
    Message("instance placement denied", "instance, node", (*DENIAL, "enforce"), TOLD),
    Message("schedule candidate refused by capacity guard", "instance, node", (*DENIAL, "enforce_demand"), TOLD),
    Message(
        "no candidate admitted and some refused on demand alone, waiving demand guard",
        "instance",
        ("candidates", "denials"),
        ROW,
        "warning",
    ),
    Message(
        "schedule failed, every candidate refused by capacity guard",
        "instance",
        ("candidates", "denials"),
        TOLD,
        "warning",
        "of a create: told by its decision, and a line of the log",
    ),
    Message("schedule failed, insufficient resources", "instance", ("message",), TOLD, "warning", "as above"),
    Message("schedule failed, affinity unsatisfiable", "instance", ("message",), TOLD, "warning", "as above"),
    Message("schedule failed, node not found", "instance", ("message",), TOLD, "warning", "as above"),
    Message(
        "instance placed",
        "instance",
        (
            *("node", "previous_node", "placement_attempts", "enforce", "enforce_demand", "cpus", "memory_mb"),
            *(*USED, "node_expected_demand"),
        ),
        note="`node_used_*` and `node_expected_demand` are told, as the decision saw them (`node_used_as_of`)",
    ),
    Message("instance placed without capacity guard", "instance", ("node",), ROW, "warning"),
    Message("instance placement write failed", "instance", ("node", "error"), LOG, "error"),
    Message("instance placement release failed", "instance", ("node", "error"), LOG, "error"),
    Message("instance placement released", "instance", ("node", *CLUSTER_DIMENSIONS, "payer", *USED)),
    Message(
        "capacity counter clamped at zero",
        "instance",
        ("node", "released", "counter", "missing"),
        ROW,
        "warning",
        "a move credits its source in its own transaction, so there is no `previous_node`: `counter` names whose it is"
        "; `released` is the instance, `missing` how much less the counter held",
    ),
    Message("placement recorded despite exceeding capacity guard", "instance, node", DENIAL, ROW, "error"),
    Message(
        "placement admitted over namespace capacity claim",
        "instance, namespace",
        ("node", "namespace", "claim_dimensions"),
        ROW,
        "warning",
        "`used` is that before this placement",
    ),
    Message(
        "create namespace claim request from REST API", "namespace", (*LIMITS, "expires_in_seconds", "claim", "by")
    ),
    Message("delete namespace claim request from REST API", "namespace", ("claim", "by")),
    Message("db record created", "claim", (*LIMITS, "expires_at", "by")),
    Message("namespace claim deleted, capacity returned", "namespace, claim", ("claim", "namespace", "by")),
    Message(
        "deprecated weighted affinity specification accepted",
        "instance",
        ("affinity", "mapped_to", "note"),
        ROW,
        "warning",
    ),
    Message(
        "stale metrics from database for node",
        "node",
        ("sample_age_seconds", "max_age_seconds"),
        ROW,
        "warning",
        "once, when the reconciler finds it; the node is missing from then on",
    ),
    Message(
        "empty metrics from database for node", "node", ("failed",), ROW, "warning", "once, with the first such sample"
    ),
    Message(
        "refreshing metrics for node failed",
        "node",
        ("failed",),
        ROW,
        "warning",
        "once for each figure that a sample could not measure, with the reason",
    ),
    Message(
        "pass complete",
        "reconciler",
        (
            *("nodes", "nodes_added", "nodes_removed", "claims_expired", "duration"),
            *("drifted_nodes", "drift_cpus"),
        ),
        LOG,
        note="`nodes_added` and `nodes_removed` began, and ceased, to count; rows of nodes come and go with samples",
    ),
    Message(
        "node drifted", "reconciler", ("node", *(f"delta_used_{name}" for name in CLUSTER_DIMENSIONS)), LOG, "warning"
    ),
)
FIGURES: Final[Sequence[Figures]] = (
    Figures(
        "sufficient_idle_cpu",
        (
            (
                *("reason", "current_cpus", "measured_cpus", "committed_cpus", "capacity_row_present"),
                *("requested_cpus", "limit_cpus", "hard_max_cpus", "cpu_schedulable", "cpu_schedulable_from_fallback"),
            ),
        ),
    ),
    Figures(
        "sufficient_idle_memory",
        (
            ("available_mb", "requested_memory_mb", "memory_reserved_mb"),
            ("instance_memory_mb", "memory_max_mb", "overcommit_ratio"),
            ("committed_memory_mb", "requested_memory_mb", "limit_memory_mb"),
        ),
        "all of them together, whichever was short: `reason` says which; `instance_memory_mb` is what the node's "
        "domains had, without this one",
    ),
    Figures("sufficient_free_disk", (("requested_disk_gb", "disk_free_gb", "minimum_free_disk_gb"),)),
    Figures("queue_state", (("node_queue_waiting", "unreasonable_threshold"),)),
    Figures("sufficient_idle_disk", (("busy_time_delta_per_second", "busy_time_threshold"),)),
    Figures(
        "affinity_constraints",
        (("require_with_tag",), ("require_without_tag",)),
        "the tags that were `missing` and those that were `present`, both where both were wrong",
    ),
    Figures("affinity_detail", (("score", "instance_count", "considered"),)),
    Figures(
        "considered",
        (("instance_uuid", "tags", "matched", "contribution"),),
        "never `skipped`: instances that carry none of the tags asked for, and other namespaces', are not read at all",
    ),
    Figures(
        "load_detail",
        (
            (
                *("cpu_load_1", "cpu_schedulable", "cpu_schedulable_from_fallback", "normalised_load"),
                *("ram_committed_fraction", "bucket"),
            ),
        ),
    ),
    Figures("denials", (("failing_stage", "dimensions", "demand_only"),)),
    Figures(
        "dimensions",
        (("dimension", "limit", "used", "requested", "exceeded", "shortfall"),),
        "of `demand` also `cpu_load_1`, which was measured, and `expected_demand`, whose sum `used` is",
    ),
)

HEAD: Final = """# Events that operators know

Generated from the table that the tests go by: `python -m fleet.services.event_reference > docs/reference/events.md`.

An **event** is a row of its object's timeline; its line in the log has the same message. What is **told** is rendered
from the stored decision when somebody reads the timeline of the instance or of a candidate node
(`GET /nodes/{name}/events?scheduling=true`, `fleet node events NAME --scheduling`); a node's shows what concerns it.
**log**: a line of the log alone. Payloads have these keys and may have more.

| message | on | | level | keys | |
|---|---|---|---|---|---|
"""
FIGURES_HEAD: Final = """
## Figures within payloads

| of | keys | |
|---|---|---|
"""


def render() -> str:
    """Return the page."""
    lines = [
        f"| `{one.text}` | {one.on} | {one.kind} | {one.level} | {_names(one.keys)} | {one.note} |\n" for one in KNOWN
    ]
    figures = [f"| `{one.of}` | {' or '.join(_names(keys) for keys in one.keys)} | {one.note} |\n" for one in FIGURES]
    return "".join([HEAD, *lines, FIGURES_HEAD, *figures])


def _names(keys: Sequence[str]) -> str:
    return ", ".join(f"`{key}`" for key in keys) or "none"


if __name__ == "__main__":
    sys.stdout.write(render())
