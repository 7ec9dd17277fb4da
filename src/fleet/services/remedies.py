"""Remedies of refusals: what would have helped, for whoever was refused, without costing an overloaded fleet its pace.

An explanation and a stored decision always tell them. A refused create tells them too, unless this process spent its
share of time on remedies a moment ago: then they are read with the decision (`GET /decisions/{id}`), where they come
out the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

from fleet.model.decision import Decision
from fleet.model.request import PlacementRequest
from fleet.placement import counterfactuals, guarded
from fleet.placement.counterfactuals import Remedy
from fleet.placement.guarded import GuardAnswer
from fleet.placement.snapshot import Snapshot

REST: Final = 9
"""After remedies that took a while, refused creates get none for so many times as long: a tenth of the time goes to
them at most."""

Remedies = Sequence[Remedy]


class Allowance:
    """How much of a process's time the remedies of refused creates may take."""

    def __init__(self) -> None:
        """Allow the first at once."""
        self._lock = threading.Lock()
        self._free_at = float("-inf")

    def spend(self, elapsed: Callable[[], float], find: Callable[[], Remedies]) -> Remedies | None:
        """Return what `find` finds; None when there is no time for it now, or another thread is at it."""
        if elapsed() < self._free_at or not self._lock.acquire(blocking=False):
            return None
        try:
            began = elapsed()
            found = find()
            ended = elapsed()
            self._free_at = ended + REST * (ended - began)
            return found
        finally:
            self._lock.release()


def of_refusal(request: PlacementRequest, snapshot: Snapshot, decision: Decision) -> Remedies:
    """Return what would have helped a decision; nothing for a ranking."""
    return counterfactuals.remedies(request, snapshot, decision.seed, decision)


def of_guard(request: PlacementRequest, snapshot: Snapshot, decision: Decision, answer: GuardAnswer) -> Remedies:
    """Return what would have helped where a decision ranked and a guard had the last word."""
    return guarded.remedies(request, snapshot.frame, decision.seed, answer)


def forms(found: Remedies) -> list[dict[str, Any]]:
    """Return remedies as they are answered."""
    return [remedy.as_dict() for remedy in found]
