"""Counterfactuals: the smallest changes with which a refused request would have been ranked.

Promise: every remedy that is shown was decided again with its change, on the same view and seed, and ranked some node;
an amount is the largest that is: with one more the answer is still no. The same refusal has the same remedies, always
and everywhere, so that they need not be stored: whoever replays a decision gets them. A ranking has none.

Order: one change before two; among those the order of `Kind`, then the smaller share of an amount given up, then the
words. Two changes together are looked for only when no single one helps, waiting and a new node aside. The work is
bounded by `DECISIONS_MAX`, whatever the fleet and the request: masks tell where a change could help, and only those
changes are decided again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import Any, Final

import numpy as np

from fleet.model.decision import Decision
from fleet.model.node import NodeRecord
from fleet.model.request import PlacementRequest, Reason
from fleet.placement import explanation, what_if
from fleet.placement.columns import Mask
from fleet.placement.frame import Frame
from fleet.placement.pipeline import decide_on
from fleet.placement.relaxations import By, Case, Edit, Kind, Relaxation, Verdicts, change_of
from fleet.placement.remedial import operations, waiting
from fleet.placement.snapshot import Snapshot
from fleet.placement.wishes import wishes

REMEDIES_MAX: Final = 8
"""So many remedies are shown at most, waiting and a new node beside them."""

KIND_MAX: Final = 3
"""Of one kind, so many are shown at most."""

DECISIONS_MAX: Final = 32
"""So many decisions are made at most for one refusal."""

PAIRED_MAX: Final = 24
"""So many changes are tried in pairs."""

LAST: Final = frozenset({Kind.WAIT, Kind.REGISTER})


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change that helps, and who can make it. `node` is first of the `nodes` that then fit; None: the new one."""

    change: tuple[Mapping[str, Any], ...]
    text: str
    node: str | None
    nodes: int
    by: By

    def as_dict(self) -> dict[str, Any]:
        """Return the public form."""
        change = [dict(one) for one in self.change]
        return {"change": change, "text": self.text, "node": self.node, "nodes": self.nodes, "by": str(self.by)}


@dataclass(frozen=True, slots=True)
class _Candidate:
    """Changes that the masks say would help, and the node that they are made for."""

    relaxations: tuple[Relaxation, ...]
    fit: Mask = field(repr=False)
    at: int
    order: tuple[Any, ...]


def remedies(
    request: PlacementRequest, snapshot: Snapshot, seed: int, decision: Decision | None = None
) -> tuple[Remedy, ...]:
    """Return what would have helped, the smallest change first; `decision` spares deciding again what was decided.

    Raises:
        InvalidRequest: what `decide` raises it for.
    """
    known = decide_on(request, snapshot.frame, seed) if decision is None else decision
    return of_refusal(request, snapshot.frame, seed, known) if known.refused else ()


def of_refusal(request: PlacementRequest, frame: Frame, seed: int, refusal: Decision) -> tuple[Remedy, ...]:
    """Return the same for what was decided, and refused, on one view."""
    return _Search(Case(request, frame), seed, refusal).run()


class _Search:
    """One search; it counts its decisions."""

    def __init__(self, case: Case, seed: int, refusal: Decision) -> None:
        self._case = case
        self._seed = seed
        self._refusal = refusal
        self._left = DECISIONS_MAX

    def run(self) -> tuple[Remedy, ...]:
        found: list[Remedy] = []
        if len(self._case.frame):
            verdicts = Verdicts.of(self._case)
            relaxations = [*wishes(verdicts), *operations(verdicts)]
            found = self._proven(self._candidates(verdicts, [(one,) for one in relaxations]), verdicts)
            if not found:
                found = self._proven(self._candidates(verdicts, _pairs(relaxations)), verdicts)
            if self._refusal.transient:
                found += self._wait(verdicts)
        request = self._case.request
        if request.placement.node is None and request.destinations is None:
            return (*found, *self._new_node(request))
        return tuple(found or self._new_node_for_any(request))

    def _candidates(self, verdicts: Verdicts, groups: Sequence[tuple[Relaxation, ...]]) -> list[_Candidate]:
        found = []
        for group in groups:
            fit = verdicts.fit_after(group)
            if np.count_nonzero(fit):
                found.append(self._candidate(group, fit))
        return sorted(found, key=lambda one: one.order)

    def _candidate(self, group: tuple[Relaxation, ...], fit: Mask) -> _Candidate:
        """Choose the node that asks for the least: the smallest share given up, then the first name."""
        frame = self._case.frame
        nodes = np.flatnonzero(fit)
        share = np.zeros(len(nodes), dtype=np.float64)
        for one in group:
            if one.given_up is not None:
                share += one.given_up[nodes]
        at = int(nodes[np.lexsort((frame.roster.name_rank[nodes], share))[0]])
        order = (sorted(one.kind for one in group), float(share.min()), tuple(one.amount for one in group))
        return _Candidate(group, fit, at, order)

    def _proven(self, candidates: Sequence[_Candidate], verdicts: Verdicts) -> list[Remedy]:
        """Return the first candidates that a decision confirms."""
        found: list[Remedy] = []
        shown: dict[tuple[Kind, ...], int] = {}
        for candidate in candidates:
            kinds = tuple(sorted(one.kind for one in candidate.relaxations))
            if shown.get(kinds, 0) >= KIND_MAX:
                continue
            remedy = self._prove(candidate, found)
            if remedy is not None:
                found.append(remedy)
                shown[kinds] = shown.get(kinds, 0) + 1
            if len(found) >= REMEDIES_MAX:
                break
        return found

    def _prove(self, candidate: _Candidate, smaller: Sequence[Remedy] = ()) -> Remedy | None:
        """Return the remedy, unless of two changes one of the `smaller` remedies does with a part."""
        edit, is_pair = self._edited(candidate), len(candidate.relaxations) > 1
        if is_pair and any(all(_holds(edit.change, part) for part in one.change) for one in smaller):
            return None
        decision = self._decide(edit.case)
        if decision is None or decision.refused:
            return None
        for one in candidate.relaxations:
            if one.amount and not self._is_tight(edit.case, one.amount):
                return None
        names = decision.evidence.names
        first, count = names[int(decision.ranked_indices[0])], len(decision.ranked_indices)
        by = max(one.kind for one in candidate.relaxations).by
        text = f"{edit.words[0].upper()}{edit.words[1:]}: {then_fits(decision)}."
        return Remedy(edit.change, text, first, count, by)

    def _edited(self, candidate: _Candidate) -> Edit:
        """Make the changes one after the other."""
        case = self._case
        change: list[Mapping[str, Any]] = []
        words: list[str] = []
        on_node = sum(one.on_node for one in candidate.relaxations)
        for one in candidate.relaxations:
            others = int(np.count_nonzero(candidate.fit)) - 1 if on_node else 0
            made = one.edit(case, candidate.at, others if len(candidate.relaxations) == 1 else 0)
            case = made.case
            change += made.change
            words.append(made.words)
        return Edit(case, tuple(change), " and ".join(words))

    def _is_tight(self, case: Case, amount: str) -> bool:
        """Whether one more of an amount is still refused: nothing larger would have been ranked."""
        more = case.request.model_copy(update={amount: getattr(case.request, amount) + 1})
        decision = self._decide(Case(more, case.frame))
        return decision is not None and decision.refused

    def _wait(self, verdicts: Verdicts) -> list[Remedy]:
        relaxation = waiting(verdicts)
        fit = verdicts.fit_after((relaxation,))
        if not fit.any():
            return []
        nearest = explanation.nearest(self._refusal, verdicts.ask, self._case.frame)
        candidate = self._candidate((relaxation,), fit)
        if nearest is not None and fit[nearest]:
            candidate = _Candidate(candidate.relaxations, fit, nearest, ())
        remedy = self._prove(candidate)
        return [] if remedy is None else [remedy]

    def _new_node_for_any(self, request: PlacementRequest) -> list[Remedy]:
        """Return what is left where nodes are named and nothing helps on them: any node may do, and a new one would.

        Of a move to a named node nobody here knows what the instance asks of others.
        """
        pin, destinations = request.placement.node, request.destinations
        if pin is not None and request.reason is not Reason.CREATE:
            return []
        anywhere = request.placement.model_copy(update={"node": None})
        larger = self._new_node(request.model_copy(update={"placement": anywhere, "destinations": None}))
        changes = [change_of("placement.node", pin, None)] if pin is not None else []
        changes += [change_of("destinations", destinations, None)] if destinations is not None else []
        words = [f"drop the pin to {pin}"] if pin is not None else []
        words += ["allow any destination"] if destinations is not None else []
        said = " and ".join(words)
        return [
            replace(
                one,
                change=(*changes, *one.change),
                text=f"{said[0].upper()}{said[1:]} and {one.text[0].lower()}{one.text[1:]}",
            )
            for one in larger
        ]

    def _new_node(self, request: PlacementRequest) -> list[Remedy]:
        frame = self._case.frame
        record = what_if.fresh_node(request, frame)
        if not what_if.can_be_registered(record):
            return []
        decision = self._decide(Case(request, what_if.only(record, frame, request)))
        if decision is None or decision.refused:
            return []
        return [node_remedy(request, record)]

    def _decide(self, case: Case) -> Decision | None:
        """Decide on a case; None when the bound is reached."""
        if not self._left:
            return None
        self._left -= 1
        return decide_on(case.request, case.frame, self._seed)


def node_remedy(request: PlacementRequest, record: NodeRecord) -> Remedy:
    """Return the remedy that registers a node like `record`, with room for the amounts of `request`."""
    shape: dict[str, Any] = {"cpus": request.cpus, "memory_mb": request.memory_mb, "disk_gb": request.disk_gb}
    asked: dict[str, Any] = {"gpus": request.gpus, "gpu_kind": request.gpu_kind, "gpu_profile": request.gpu_profile}
    own = sorted(key for key, value in record.labels.items() if value == what_if.NEW_NODE)
    labels = {key: value for key, value in sorted(record.labels.items()) if key not in own}
    asked |= {"labels": labels, "own_labels": own, "region": request.region, "arch": request.arch}
    asked["sleepy_pool"] = record.sleepy_pool
    shape |= {name: value for name, value in asked.items() if value}
    return Remedy(({"action": "register", "shape": shape},), _node_sentence(shape), None, 1, Kind.REGISTER.by)


def then_fits(decision: Decision) -> str:
    """Return who fits by a decision that ranks, as the end of a sentence."""
    first, count = decision.evidence.names[int(decision.ranked_indices[0])], len(decision.ranked_indices)
    return f"then {first} fits" if count == 1 else f"then {count} nodes fit, {first} first"


def _pairs(relaxations: Sequence[Relaxation]) -> list[tuple[Relaxation, ...]]:
    """Return the pairs of changes that answer to different stages; of every kind the first few."""
    kinds: dict[Kind, int] = {}
    tried: list[Relaxation] = []
    for one in relaxations:
        kinds[one.kind] = kinds.get(one.kind, 0) + 1
        if kinds[one.kind] <= KIND_MAX or one.kind is Kind.AMOUNT:
            tried.append(one)
    return [pair for pair in combinations(tried[:PAIRED_MAX], 2) if not pair[0].stages & pair[1].stages]


def _holds(change: Sequence[Mapping[str, Any]], part: Mapping[str, Any]) -> bool:
    """Return whether changes make one of another remedy as well: the same, or it drops a rule that they drop with more.

    Rules are known by their paths: `placement_rules[0].all_of[1]` goes when `placement_rules[0]` does.
    """
    path = str(part.get("field", ""))
    dropped = (str(one.get("field", "")) for one in change)
    within = path.startswith("placement_rules") and any(path.startswith((f"{one}.", f"{one}[")) for one in dropped)
    return within or any(one == part for one in change)


def _node_sentence(shape: Mapping[str, Any]) -> str:
    """Return what a new node has to have, in words."""
    parts = [explanation.counted(shape[name], name) for name in ("cpus", "memory_mb", "disk_gb") if shape[name]]
    if shape.get("gpus"):
        kind = " ".join(shape[name] for name in ("gpu_kind", "gpu_profile") if shape.get(name))
        gpus = explanation.counted_gpus(shape["gpus"], shape.get("gpu_profile", ""))
        parts.append(f"{gpus}{f' ({kind})' if kind else ''}")
    traits = [f"{name} {shape[name]}" for name in ("region", "arch") if shape.get(name)]
    traits += [f"label {key}={value}" for key, value in shape.get("labels", {}).items()]
    traits += [f"a {key} of its own" for key in shape.get("own_labels", ())]
    traits += ["the sleepy pool"] if shape.get("sleepy_pool") else []
    having = f", with {', '.join(traits)}" if traits else ""
    return f"Register a node with room for at least {', '.join(parts)}{having}."
