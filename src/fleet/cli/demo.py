"""The demo's story: a burst from concurrent clients onto twelve nodes, one placement and one refusal explained, proofs.

Promise: it ends well only when nothing was oversold, lost or stuck and the ledger's own verification agrees.
"""

from __future__ import annotations

import itertools
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Final

from rich.console import Console
from rich.table import Table
from rich.text import Text

from fleet.cli import books
from fleet.cli.caller import Answer, Caller, Session
from fleet.cli.commands.asking import remedy_lines
from fleet.cli.output import tell
from fleet.cli.steps import Steps, steps
from fleet.model.resources import CLUSTER_DIMENSIONS

NAMESPACE: Final = "demo"
CLIENTS: Final = 16
CREATES: Final = 240
SETTLE_SECONDS_MAX: Final = 40.0
SEED: Final = 2026
CORDONED: Final = "sim-11"
BAR_WIDTH: Final = 10
NARROW: Final = 100
BAR_WIDTH_NARROW: Final = 5
CONFLICT: Final = 409
PLACEMENTS_LOOKED_AT: Final = 20
NODES_PER_REASON: Final = 2
LEDGER_FIGURES: Final = ("committed_", "requested_", "limit_")
# What is measured is judged against what is held back: a node may be far from its limit and have nothing left.
MEASURED_FIGURES: Final = ("requested_", "available_mb", "disk_free_gb", "pending_", "minimum_free_disk_gb")
RESERVED: Final = "memory_reserved_mb"

# cpus, memory, disk: small and common ones, some that want memory or disk more than processors.
SIZES: Final = ((1, 2048, 10), (2, 4096, 20), (4, 8192, 40), (8, 16384, 80), (2, 49152, 20), (2, 4096, 200))
SIMULATED: Final[tuple[Mapping[str, Any], ...]] = tuple(
    {
        "name": f"sim-{number:02d}",
        "cpu_threads": threads,
        "memory_mb": memory_gb * 1024,
        "disk_gb": disk_gb,
        "labels": {"kind": "simulated", "rack": rack},
    }
    for number, (threads, memory_gb, disk_gb, rack) in enumerate(
        [
            *itertools.repeat((16, 64, 500, "a"), 4),
            *itertools.repeat((32, 128, 1000, "b"), 3),
            *itertools.repeat((8, 32, 1000, "c"), 3),
            (64, 256, 2000, "c"),
        ],
        start=1,
    )
)


@dataclass(slots=True)
class Burst:
    """What the burst was answered."""

    placed: dict[str, Mapping[str, Any]] = field(default_factory=dict)
    refused: list[tuple[Mapping[str, Any], Mapping[str, Any]]] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    held: dict[str, list[int]] = field(default_factory=dict)
    seconds: float = 0.0
    repeats: int = 0


def run_demo(session: Session, console: Console) -> bool:
    """Tell the whole story; whether it ended well."""
    caller = session.caller()
    made = caller.call("POST", "/auth/namespaces", {"name": NAMESPACE})
    assert made.ok or made.status == CONFLICT, made.sentence()
    # One node is under repair, so that a refusal has more than one reason to give.
    caller.must("POST", f"/nodes/{CORDONED}/cordon")
    with steps(console) as bars:
        burst = _burst(session, bars)
        stuck = _settle(caller, burst, bars)
    _explain_placement(caller, burst, console)
    refusal = _explain_refusal(caller, burst, console)
    nodes = books.read_nodes(caller)
    faults = [
        *books.oversold(nodes, burst.held),
        *books.lost(books.instances_of(caller, NAMESPACE), standing=burst.placed),
        *stuck,
        *burst.problems,
    ]
    differences = books.differences(caller)
    if not refusal:
        faults.append("nothing was refused, so no refusal could be explained")
    _summary(burst, nodes, console, stuck=stuck, faults=faults, differences=differences)
    caller.close()
    return not faults and not differences


def _burst(session: Session, bars: Steps) -> Burst:
    draw = random.Random(SEED)
    asks = [_body(index, SIZES[draw.randrange(len(SIZES))]) for index in range(CREATES)]
    advance = bars.count(f"creates by {CLIENTS} clients", CREATES)
    burst = Burst()
    started = time.monotonic()

    def client(number: int) -> list[tuple[int, Answer]]:
        caller = session.caller()
        answers = []
        for index in range(number, CREATES, CLIENTS):
            answers.append((index, caller.call("POST", "/instances", asks[index], key=f"demo-{index}")))
            advance()
        caller.close()
        return answers

    with ThreadPoolExecutor(CLIENTS) as pool:
        for index, answer in itertools.chain.from_iterable(pool.map(client, range(CLIENTS))):
            _note(burst, asks[index], answer)
    burst.seconds = time.monotonic() - started
    return burst


def _body(index: int, size: Sequence[int]) -> dict[str, Any]:
    return {"name": f"web-{index:03d}", "namespace": NAMESPACE, **dict(zip(CLUSTER_DIMENSIONS, size, strict=True))}


def _note(burst: Burst, ask: Mapping[str, Any], answer: Answer) -> None:
    burst.repeats += answer.repeats
    if answer.ok:
        burst.placed[answer.body["uuid"]] = answer.body
        before = burst.held.get(answer.body["node"], (0, 0, 0))
        burst.held[answer.body["node"]] = [
            held + ask[name] for held, name in zip(before, CLUSTER_DIMENSIONS, strict=True)
        ]
    elif isinstance(answer.body, dict) and answer.body.get("code") == "out_of_capacity":
        burst.refused.append((ask, answer.body))
    else:
        burst.problems.append(f"a create was answered {answer.sentence()}")


def _settle(caller: Caller, burst: Burst, bars: Steps) -> list[str]:
    advance = bars.count("instances running", len(burst.placed))
    stuck = books.settle(caller, SETTLE_SECONDS_MAX)
    found = books.instances_of(caller, NAMESPACE)
    waiting = [uuid for uuid in burst.placed if uuid in found and found[uuid]["state"] != "running"]
    for _running in range(len(burst.placed) - len(waiting)):
        advance()
    return stuck + [f"instance {uuid} is {found[uuid]['state']}, not running" for uuid in waiting]


def _explain_placement(caller: Caller, burst: Burst, console: Console) -> None:
    if not burst.placed:
        return
    for answer in list(burst.placed.values())[: -PLACEMENTS_LOOKED_AT - 1 : -1]:
        decision = caller.get(f"/decisions/{answer['decision_id']}")
        # Under a burst the first choice is often gone by the time of the claim; a plain case is easier to read.
        if decision["record"]["ranked"][0] == answer["node"]:
            break
    where = f": instance {answer['uuid']} went to "
    console.print(Text.assemble("\n", ("One placement", "bold"), where, (answer["node"], "green")))
    tell(console, f"  {decision['summary']}")
    show_dropped(decision["record"], console)


def _explain_refusal(caller: Caller, burst: Burst, console: Console) -> bool:
    if not burst.refused:
        return False
    ask, refusal = burst.refused[-1]
    console.print(Text.assemble("\n", ("One refusal", "bold"), f": HTTP 507 {refusal['code']}"))
    tell(console, f"  {refusal['detail']}", "yellow")
    decision = caller.must("POST", "/placements/explain", ask)
    again = "the same" if decision["summary"] == refusal["detail"] else decision["summary"]
    tell(console, f"  Asked again, now that all is quiet: {again}")
    show_figures(decision, console)
    tell(console, "  What would help:")
    for line in remedy_lines(decision):
        tell(console, f"    {line}")
    return True


def show_dropped(record: Mapping[str, Any], console: Console) -> None:
    """A line for every stage and reason that dropped nodes."""
    for stage, reasons in record["dropped"].items():
        for reason, names in reasons.items():
            tell(console, f"    {stage}: {reason}: {', '.join(map(str, names))}")


def show_figures(decision: Mapping[str, Any], console: Console) -> None:
    """Some of the nodes that each stage dropped, with the figures they were judged by."""
    for stage in decision["stages"]:
        by_reason: dict[str, list[tuple[str, Mapping[str, Any]]]] = {}
        for name, why in stage["dropped"].items():
            by_reason.setdefault(why["reason"], []).append((name, why))
        for reason, dropped in by_reason.items():
            for name, why in dropped[:NODES_PER_REASON]:
                tell(console, f"    {stage['name']}: {reason}: {name} {_figures(why)}".rstrip())
            if len(dropped) > NODES_PER_REASON:
                others = ", ".join(name for name, _why in dropped[NODES_PER_REASON:])
                tell(console, f"    {stage['name']}: {reason}: {others}")


def _figures(why: Mapping[str, Any]) -> str:
    """The figures that a node was dropped by: the ledger's, or what was measured."""
    measured = str(why["reason"]).startswith("below_")
    wanted = MEASURED_FIGURES if measured else LEDGER_FIGURES
    return ", ".join(
        f"{key} {'unknown' if value is None else value}"
        for key, value in why.items()
        if key.startswith(wanted) or (measured and key == RESERVED)
    )


def _summary(
    burst: Burst,
    nodes: Sequence[books.NodeBooks],
    console: Console,
    *,
    stuck: Sequence[str],
    faults: Sequence[str],
    differences: Sequence[Any],
) -> None:
    wide = BAR_WIDTH if console.width >= NARROW else BAR_WIDTH_NARROW
    placed_on = Counter(answer["node"] for answer in burst.placed.values())
    table = Table(title="\nNodes: committed of the limit", title_justify="left")
    for heading in ("node", "instances", "CPUs", "memory, GiB", "disk, GiB"):
        table.add_column(heading, justify="right" if heading == "instances" else "left")
    for node in nodes:
        cells = [_bar(node, name, unit, wide) for name, unit in (("cpus", 1), ("memory_mb", 1024), ("disk_gb", 1))]
        note = "" if node.scheduling == "enabled" else f" ({node.scheduling})"
        table.add_row(node.name + note, str(placed_on[node.name]), *cells)
    console.print(table, soft_wrap=False)
    over = [fault for fault in faults if "oversold" in fault]
    missing = [fault for fault in faults if fault.startswith("instance ")]
    rate = (len(burst.placed) + len(burst.refused)) / burst.seconds if burst.seconds else 0.0
    tell(
        console,
        f"placed {len(burst.placed)}, refused {len(burst.refused)}, oversold {len(over)}, lost {len(missing)}, "
        f"stuck {len(stuck)}, ledger differences {len(differences)}; "
        f"{burst.seconds:.1f} s for the burst, {rate:.0f} creates a second, {burst.repeats} asked to come again",
    )
    for fault in [*faults, *(f"the ledger differs: {difference}" for difference in differences)][:10]:
        tell(console, fault, "red")


def _bar(node: books.NodeBooks, dimension: str, unit: int, wide: int) -> str:
    used, limit = node.used[dimension] // unit, node.limits[dimension]
    if limit is None:
        return f"{used} of unlimited"
    total = limit // unit
    filled = min(wide, round(wide * node.used[dimension] / limit)) if limit else 0
    return f"{'█' * filled}{'░' * (wide - filled)} {used}/{total}"
