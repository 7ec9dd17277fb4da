"""The cards of a replay: what they are called, which instance holds which, and the proof that none was sold twice.

Promises: the books are the driver's own, from what the service told of each instance once it was placed. An instance
holds its cards in them until the driver sends its delete, never longer than the service may keep them, so a card that
is given to a second one meanwhile was sold twice, unless its first holder was moved and says so. What cannot be read
is a fault, never a pass.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fleet.cli.caller import Caller
from fleet.cli.openb import TraceNode

FAILED: Final = "error"


def cards_of(node: TraceNode) -> list[dict[str, str]]:
    """A node's cards as its samples tell them."""
    return [{"uuid": f"GPU-{node.name}-{number}", "model": node.gpu_model} for number in range(node.gpus)]


def is_about_gpus(refusal: Mapping[str, Any]) -> bool:
    """Whether another kind of card might be had where this one was not: a node has GPUs, but too few free of it."""
    stages, guard = refusal.get("counts") or {}, refusal.get("dimensions") or {}
    if refusal.get("code") == "no_gpu_nodes" or "too_few_gpus" in (stages.get("gpu") or {}):
        return True
    return isinstance(guard, Mapping) and "gpus" in guard


class Cards:
    """Who holds which card. Every method may be called from any thread, each with a caller of its own."""

    def __init__(self, nodes: Sequence[TraceNode]) -> None:
        """Remember whose cards these books are about: what a running service has beside them is not the trace's."""
        self._nodes = frozenset(node.name for node in nodes)
        self.total = sum(node.gpus for node in nodes)
        self._holder: dict[str, str] = {}
        self._held: dict[str, tuple[str, ...]] = {}
        self._most = 0
        self._lock = threading.Lock()
        self.faults: list[str] = []

    def most_held(self) -> int:
        """How many were held at most since this was asked before: they come and go between two looks."""
        with self._lock:
            most, self._most = self._most, len(self._holder)
            return most

    def look(self, caller: Caller, instance: str, asked: int) -> None:
        """Ask which cards an instance that was just placed holds, and write them down."""
        if not asked:
            return
        shown = _shown(caller, instance)
        if shown is None:
            self._fault(f"instance {instance} asked for {asked} GPUs, and which it holds cannot be read")
            return
        if shown["node"] not in self._nodes:
            return
        got = shown["gpu_uuids"]
        if len(got) != asked:
            self._fault(f"instance {instance} asked for {asked} GPUs and holds {', '.join(got) or 'none'}")
            return
        with self._lock:
            self._held[instance] = ()
        self._settle(caller, instance, self._write(instance, got))

    def let_go(self, instance: str) -> None:
        """A delete is about to be sent."""
        with self._lock:
            for card in self._held.pop(instance, ()):
                if self._holder.get(card) == instance:
                    del self._holder[card]

    def _write(self, instance: str, got: Sequence[str]) -> list[tuple[str, str]]:
        """Write down what an instance holds, unless it was let go; return the cards that another one holds, with it."""
        with self._lock:
            if instance not in self._held:
                return []
            twice = [(card, self._holder[card]) for card in got if self._holder.get(card, instance) != instance]
            for card in self._held.get(instance, ()):
                if self._holder.get(card) == instance:
                    del self._holder[card]
            self._held[instance] = tuple(got)
            self._holder.update(dict.fromkeys(got, instance))
            self._most = max(self._most, len(self._holder))
        return twice

    def _settle(self, caller: Caller, instance: str, twice: Sequence[tuple[str, str]]) -> None:
        for card, other in twice:
            shown = _shown(caller, other)
            with self._lock:
                asked = len(self._held.get(other, ()))
            if not asked or (shown is not None and shown["state"] == FAILED):
                # Its delete was sent meanwhile, or it failed and is lost, which the report tells.
                continue
            if shown is not None and shown["node"] not in self._nodes:
                self.let_go(other)
                continue
            now = [] if shown is None else shown["gpu_uuids"]
            if card not in now and len(now) == asked:
                # It was moved, and what it holds now is all that it asked for.
                self._settle(caller, other, self._write(other, now))
                continue
            self._fault(f"GPU {card} is bound twice: to instance {other} and to instance {instance}")

    def _fault(self, sentence: str) -> None:
        with self._lock:
            self.faults.append(sentence)


def oversold(
    nodes: Sequence[Mapping[str, Any]], known: Mapping[str, Mapping[str, Any]], asked: Mapping[str, int]
) -> list[str]:
    """Hold what the nodes of a trace say of their cards against what the instances on them say.

    `asked`: the GPUs of those instances that stand.
    """
    names = {node["name"] for node in nodes}
    # One that failed has given back what it held, and is told as lost.
    known = {uuid: one for uuid, one in known.items() if one["node"] in names and one["state"] != FAILED}
    holders = defaultdict(list)
    for uuid, instance in known.items():
        for card in instance["gpu_uuids"]:
            holders[card].append(uuid)
    found = [
        f"GPU {card} is bound twice: to instance {' and to instance '.join(sorted(who))}"
        for card, who in holders.items()
        if len(who) > 1
    ]
    told = Counter(card["uuid"] for node in nodes for card in node["gpus"])
    found += [f"GPU {card} is told by {count} nodes" for card, count in told.items() if count > 1]
    found += [
        f"GPU {card} of instance {who[0]} is told by no node" for card, who in holders.items() if card not in told
    ]
    for node in nodes:
        if node["gpu_count_used"] > node["gpu_count"]:
            found.append(f"{node['name']} is oversold: {node['gpu_count_used']} GPUs bound of {node['gpu_count']}")
        for card in node["gpus"]:
            who = card["bound_to"]
            if who in known and card["uuid"] not in known[who]["gpu_uuids"]:
                found.append(f"GPU {card['uuid']} is bound to instance {who}, which holds others")
    return found + [
        f"instance {uuid} asked for {count} GPUs and holds {len(known[uuid]['gpu_uuids'])}"
        for uuid, count in asked.items()
        if uuid in known and len(known[uuid]["gpu_uuids"]) != count
    ]


def _shown(caller: Caller, instance: str) -> dict[str, Any] | None:
    answer = caller.call("GET", f"/instances/{instance}")
    return dict(answer.body) if answer.ok else None
