"""The reference page of the metrics, from their own descriptions.

`python -m fleet.api.metrics_reference > docs/reference/metrics.md` writes it; a test refuses a stale page.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Final

from fleet.api.metrics import LEDGER_UP, LEDGER_UP_MEANING, OF_THE_PROCESS
from fleet.services.metric_catalogue import COUNTERS, GAUGES, YES

COMMAND: Final = "python -m fleet.api.metrics_reference > docs/reference/metrics.md"
INTRODUCTION: Final = f"""# Metrics

Generated from the metrics themselves: `{COMMAND}`.

`GET /metrics` of `sf-api`, without a token, in the text format of Prometheus; how to watch them is in
[monitoring](../operator/monitoring.md). What is unknown has no series: zero would be a lie. Amounts are whole, in the
unit that the dimension's name says; no limit is `+Inf`.
"""
FLEET: Final = f"""## The fleet

Read from the ledger at each scrape, so every `sf-api` answers the same, and what is gone is not shown: aggregate with
`max`, never with `sum`, over several. While the ledger does not answer there is only `{LEDGER_UP}` 0.
"""
EVENTS: Final = """## Counted from events

How often something was ever recorded in the [audit trail](../operator/audit.md), what retention deleted included; the
same from every `sf-api`, and no restart makes it begin anew. Aggregate with `max` too.
"""
PROCESS: Final = """## The API's processes

Counted by the processes of one `sf-api` together; they begin anew with it. Sum them over several.
"""


def page() -> str:
    """The whole page."""
    parts = [INTRODUCTION, FLEET, *_gauges(), EVENTS, *_counters(), PROCESS, *_of_the_process()]
    return "\n".join(parts).rstrip() + "\n"


def metric_names() -> frozenset[str]:
    """The names by which an expression may ask: with the endings that counters and histograms have."""
    names = {LEDGER_UP, *(one.name for one in GAUGES), *(f"{one.name}_total" for one in COUNTERS)}
    for metric, _labels_of, _unit in OF_THE_PROCESS:
        described = next(iter(metric.describe()))
        endings = ("_total",) if described.type == "counter" else ("_bucket", "_count", "_sum")
        names |= {f"{described.name}{ending}" for ending in endings}
    return frozenset(names)


def _gauges() -> Iterator[str]:
    yield "| gauge | labels | unit | meaning |"
    yield "|---|---|---|---|"
    yield f"| `{LEDGER_UP}` | | {YES} | {LEDGER_UP_MEANING} |"
    for one in GAUGES:
        yield f"| `{one.name}` | {_labels(one.labels)}| {one.unit} | {one.meaning} |"
    yield ""


def _counters() -> Iterator[str]:
    yield "| counter | unit | meaning | event |"
    yield "|---|---|---|---|"
    for one in COUNTERS:
        messages = ", ".join(f"`{message}`" for message in one.messages)
        yield f"| `{one.name}_total` | {one.unit} | {one.meaning} | {messages} |"
    yield ""


def _of_the_process() -> Iterator[str]:
    yield "| metric | type | labels | unit | meaning |"
    yield "|---|---|---|---|---|"
    for metric, names, unit in OF_THE_PROCESS:
        described = next(iter(metric.describe()))
        name = f"{described.name}_total" if described.type == "counter" else described.name
        yield f"| `{name}` | {described.type} | {_labels(names)}| {unit} | {described.documentation} |"


def _labels(names: tuple[str, ...]) -> str:
    return "".join(f"`{name}` " for name in names)


if __name__ == "__main__":
    sys.stdout.write(page())
